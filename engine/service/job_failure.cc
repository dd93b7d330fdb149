#include "engine/service/job_failure.h"

#include <algorithm>
#include <sstream>
#include <string_view>

namespace weft {
namespace {

// The settings that the memory planner offers: "... are available. Try --layout tensor=4 (1.20 GiB)
// or layers=4 (1.31 GiB) or --dtype bf16".
std::vector<std::string> planner_hints(const std::string& message, size_t& end) {
  constexpr std::string_view kBegin = ". Try ", kBetween = " or ", kLayout = "--layout ";
  std::vector<std::string> hints;
  end = message.rfind(kBegin);
  if (end == std::string::npos) return hints;
  for (size_t at = end + kBegin.size(); at < message.size();) {
    const size_t next = std::min(message.find(kBetween, at), message.size());
    std::string hint = message.substr(at, next - at);
    const bool second_layout = !hint.starts_with("--") && hint.find('=') != std::string::npos;
    hints.push_back(second_layout ? std::string(kLayout) + hint : hint);
    at = next + kBetween.size();
  }
  return hints;
}

}  // namespace

Json to_json(const JobFailure& failure) {
  return {{"code", failure.code}, {"message", failure.message}, {"hints", failure.hints}};
}

const char* error_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kUsage:
      return "usage";
    case ErrorKind::kModel:
      return "model";
    case ErrorKind::kMemory:
      return "memory";
    case ErrorKind::kNonFinite:
      return "non_finite";
    case ErrorKind::kComm:
      return "communication";
    case ErrorKind::kOutput:
      return "output";
    case ErrorKind::kMedia:
      return "media";
    default:
      return "internal";
  }
}

JobFailure failure_of(const Error& error) {
  JobFailure failure{error_code(error.kind()), error.what()};
  if (error.kind() == ErrorKind::kMemory) {
    size_t end = std::string::npos;
    failure.hints = planner_hints(failure.message, end);
    if (end != std::string::npos) failure.message.resize(end + 1);
  }
  failure.message = without_folders(failure.message);
  return failure;
}

std::string without_folders(const std::string& text) {
  std::istringstream words(text);
  std::string out;
  for (std::string word; words >> word;) {
    const size_t slash = word.size() < 2 ? std::string::npos : word.rfind('/', word.size() - 2);
    const size_t begin = word.starts_with('\'') ? 1 : 0;  // a quotation mark stays
    if (slash != std::string::npos) word.erase(begin, slash + 1 - begin);
    out += (out.empty() ? "" : " ") + word;
  }
  return out;
}

}  // namespace weft
