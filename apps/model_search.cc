#include "apps/model_search.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "apps/command_line/flags.h"
#include "io/nearest.h"
#include "kernels/check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// The names of the models that lie in `root`, without those inside a model.
std::vector<std::string> models_in(const std::string& root) {
  std::vector<std::string> names;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(root, error))
    if (fs::exists(entry.path() / "model_index.json", error) ||
        fs::exists(entry.path() / "config.json", error))
      names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// The snapshot that a folder models--org--name of the Hugging Face cache stands for: the one that
// refs/main names, or the only one. Other folders stand for themselves.
std::string snapshot_of(const std::string& folder) {
  std::error_code error;
  const fs::path snapshots = fs::path(folder) / "snapshots";
  if (!fs::is_directory(snapshots, error) || !fs::is_directory(fs::path(folder) / "blobs", error))
    return folder;
  std::string name;
  std::ifstream(fs::path(folder) / "refs/main") >> name;
  const bool plain = name.find_first_not_of("0123456789abcdef") == std::string::npos;
  if (plain && !name.empty() && fs::is_directory(snapshots / name, error))
    return (snapshots / name).string();
  std::vector<std::string> all;
  for (const fs::directory_entry& entry : fs::directory_iterator(snapshots, error))
    all.push_back(entry.path().string());
  if (all.size() == 1) return all.front();
  throw Error(ErrorKind::kModel,
              folder +
                  ": a folder of the Hugging Face cache whose refs/main names "
                  "no snapshot that is there; legal: one of its snapshots" +
                  (all.empty() ? ", of which there is none" : ": " + listed(all)));
}

}  // namespace

std::vector<std::string> model_roots() {
  std::vector<std::string> roots;
  if (const char* folders = std::getenv("WEFT_MODEL_DIRS")) roots = split(folders, ':');
  std::error_code error;
  const fs::path program = fs::read_symlink("/proc/self/exe", error);
  if (!error)
    for (const fs::path& folder : {program.parent_path(), program.parent_path().parent_path()})
      roots.push_back((folder / "share/weft").string());
  return roots;
}

std::string search_model(const std::string& path) {
  std::error_code error;
  if (path.empty() || path.starts_with('/') || path.starts_with('.') || fs::exists(path, error))
    return snapshot_of(path);
  for (const std::string& root : model_roots()) {
    const std::string found = (fs::path(root) / path).string();
    if (fs::exists(found, error)) return snapshot_of(found);
  }
  return "";
}

std::string places_searched() {
  const std::vector<std::string> roots = model_roots();
  std::vector<std::string> there;
  for (const std::string& root : roots)
    for (const std::string& name : models_in(root)) there.push_back(name);
  return "no model of that name in " + listed(roots) +
         "; models there: " + (there.empty() ? "none" : listed(there));
}

std::string find_model(const std::string& path) {
  const std::string found = search_model(path);
  if (found.empty() && !path.empty())
    throw Error(ErrorKind::kModel, path + ": no such file or folder, and " + places_searched());
  return found;
}

}  // namespace weft
