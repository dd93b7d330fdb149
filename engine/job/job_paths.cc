// The paths in the JSON form of a job.
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "engine/job/job_spec.h"
#include "io/legal.h"

namespace weft {
namespace {

// "style:0.8" of "/loras/style.safetensors:0.8".
std::string without_lora_folders(const std::string& loras) {
  constexpr std::string_view kEnding = ".safetensors";
  std::string out;
  for (const std::string& item : split(loras, ',')) {
    const size_t end = std::min(item.find(':'), item.size());
    std::string path = item.substr(0, end);
    if (const size_t slash = path.rfind('/'); slash != std::string::npos) {
      path.erase(0, slash + 1);
      if (path.ends_with(kEnding)) path.resize(path.size() - kEnding.size());
    }
    out += (out.empty() ? "" : ",") + path + item.substr(end);
  }
  return out;
}

}  // namespace

void change_file_paths(nlohmann::json& job,
                       const std::function<std::string(const std::string& path)>& changed) {
  for (const char* name : kFileFields) {
    const auto field = job.find(name);
    if (field == job.end()) continue;
    if (field->is_string()) *field = changed(*field);
    if (field->is_array())
      for (nlohmann::json& path : *field)
        if (path.is_string()) path = changed(path);
  }
}

void hide_folders(nlohmann::json& job) {
  change_file_paths(
      job, [](const std::string& path) { return std::filesystem::path(path).filename().string(); });
  if (const auto loras = job.find("lora"); loras != job.end() && loras->is_string())
    *loras = without_lora_folders(*loras);
  for (const auto& [name, path] : kParts) job.erase(name);
}

}  // namespace weft
