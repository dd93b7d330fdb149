#include "io/folder.h"

#include <dirent.h>
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <memory>
#include <string_view>

namespace weft {
namespace {

struct Close {
  void operator()(DIR* folder) const noexcept { closedir(folder); }
};
using Folder = std::unique_ptr<DIR, Close>;

// Returns the next name, or null at the end or after a fault, whose errno is then in `error`.
const char* next_name(DIR* folder, int& error) {
  for (;;) {
    errno = 0;
    const dirent* entry = readdir(folder);
    if (!entry) {
      error = errno;
      return nullptr;
    }
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") return entry->d_name;
  }
}

}  // namespace

int list_folder(const std::string& path, std::vector<std::string>& names) {
  const Folder folder(opendir(path.c_str()));
  if (!folder) return errno;
  int error = 0;
  while (const char* name = next_name(folder.get(), error)) names.emplace_back(name);
  return error;
}

int remove_flat(const char* path) noexcept {
  if (unlink(path) == 0 || errno == ENOENT) return 0;
  if (errno != EISDIR && errno != EPERM) return errno;  // POSIX gives EPERM for a folder
  {
    const Folder folder(opendir(path));
    if (!folder) return errno;
    int error = 0;
    while (const char* name = next_name(folder.get(), error))
      if (unlinkat(dirfd(folder.get()), name, 0) != 0 && errno != ENOENT) return errno;
    if (error) return error;
  }
  return rmdir(path) == 0 ? 0 : errno;
}

}  // namespace weft
