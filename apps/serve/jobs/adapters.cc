#include "apps/serve/jobs/adapters.h"

#include <algorithm>
#include <filesystem>
#include <string_view>

#include "engine/service/job_failure.h"
#include "io/legal.h"
#include "io/nearest.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLoraEnding = ".safetensors";

}  // namespace

Adapters::Adapters(const Flags& flags, const std::shared_ptr<const OpenModel>& model) {
  if (!flags.given("adapters")) return;
  const std::string given = flags.label("adapters") + " is '" + flags.text("adapters") + "'";
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(flags.text("adapters"), error)) {
    const fs::path& path = entry.path();
    if (path.extension() != kLoraEnding || !entry.is_regular_file()) continue;
    const std::string name = path_text(path.stem().string());
    if (name == kNoLora || name.find_first_of(",:\\") != std::string::npos)
      throw Error(ErrorKind::kUsage, given + ", but it has '" + name +
                                         "', which is no name of an adapter; legal: names without "
                                         "commas, colons and backslashes, and not none");
    files_[name] = fs::absolute(path).lexically_normal().string();
  }
  if (error)
    throw Error(ErrorKind::kUsage, given + ", but " + error.message() + "; legal: a folder");
  for (const auto& [name, file] : files_) OpenModel(*model, std::vector<Lora>{{.file = file}});
}

Json Adapters::names() const {
  Json out = Json::array();
  for (const auto& [name, file] : files_) out.push_back(name);
  return out;
}

std::string Adapters::with_files(const std::string& loras, const std::string& label) const {
  std::vector<Lora> out;
  if (loras.empty() || loras == kNoLora) return kNoLora;
  constexpr size_t kMost = 16;
  const std::vector<std::string> items = split(loras, ',');
  if (items.size() > kMost)
    throw Error(ErrorKind::kUsage, label + " has " + std::to_string(items.size()) +
                                       " entries, legal: at most " + std::to_string(kMost));
  for (const std::string& item : items) {
    const std::string name = item.substr(0, item.find(':'));
    const auto file = files_.find(name);
    if (file == files_.end()) {
      std::vector<std::string> known{kNoLora};
      for (const auto& [each, path] : files_) known.push_back(each);
      throw Error(ErrorKind::kUsage, label + " is '" + item +
                                         "', legal: NAME, NAME:SCALE or NAME:SCALE:EXPERT with " +
                                         (files_.empty() ? "adapters, of which this server has none"
                                                         : "a name of " + listed(known)) +
                                         did_you_mean(nearest(name, known)));
    }
    Lora lora = parse_loras(item, label).front();
    lora.file = file->second;
    out.push_back(lora);
  }
  return to_string(out);
}

void rethrow_without_lora_folders() {
  try {
    throw;
  } catch (const Error& error) {
    const std::string what = error.what();
    const bool has_path = error.kind() == ErrorKind::kModel || what.find("lora is '/") != what.npos;
    if (has_path) throw Error(error.kind(), without_folders(what));
    throw;
  }
}

}  // namespace weft
