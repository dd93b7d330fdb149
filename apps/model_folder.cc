#include "apps/model_folder.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <filesystem>

#include "apps/flags.h"
#include "kernels/check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string listed(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

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

// True for OWNER/NAME where neither the working folder nor an installed model is called OWNER.
bool is_repository_name(const std::string& path) {
  const size_t slash = path.find('/');
  if (slash == std::string::npos || slash == 0 || slash + 1 == path.size() ||
      path.find('/', slash + 1) != std::string::npos || path.starts_with('.') ||
      path.starts_with('~'))
    return false;
  const std::string owner = path.substr(0, slash);
  std::error_code error;
  if (fs::exists(owner, error)) return false;
  for (const std::string& root : model_roots())
    if (fs::exists(fs::path(root) / owner, error)) return false;
  return std::ranges::all_of(path, [](unsigned char c) {
    return std::isalnum(c) || c == '/' || c == '.' || c == '-' || c == '_';
  });
}

}  // namespace

std::string download_command(const std::string& repository) {
  const std::string folder = "models/" + repository.substr(repository.find('/') + 1);
  return "hf download " + repository + " --local-dir " + folder + ", then give --model " + folder;
}

std::string download_advice(const std::string& path) {
  const std::string site = "https://huggingface.co/";
  if (path.starts_with(site)) return download_advice(path.substr(site.size()));
  if (!is_repository_name(path)) return "";
  return "it looks like the name of a Hugging Face repository, and Weft downloads nothing: run " +
         download_command(path);
}

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

std::string model_folder(const std::string& path) {
  std::error_code error;
  if (path.empty() || path.starts_with('/') || path.starts_with('.') || fs::exists(path, error))
    return path;
  const std::vector<std::string> roots = model_roots();
  std::vector<std::string> there;
  for (const std::string& root : roots) {
    const std::string found = (fs::path(root) / path).string();
    if (fs::exists(found, error)) return found;
    for (const std::string& name : models_in(root)) there.push_back(name);
  }
  const std::string advice = download_advice(path);
  throw Error(ErrorKind::kModel, path + ": no such file or folder, and no model of that name in " +
                                     listed(roots) +
                                     "; models there: " + (there.empty() ? "none" : listed(there)) +
                                     (advice.empty() ? "" : "; " + advice));
}

}  // namespace weft
