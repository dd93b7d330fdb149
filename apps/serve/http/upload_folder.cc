#include "apps/serve/http/upload_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "apps/serve/server_text.h"
#include "io/part_file.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUploads = ".weft-uploads-";

// Opens and locks a folder of this user's. Returns its descriptor, or -1 where it is none, was
// removed, or another process holds the lock.
int lock_folder(const std::string& path) {
  const int folder = open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
  if (folder < 0) return -1;
  struct stat info;
  if (fstat(folder, &info) == 0 && info.st_uid == geteuid() &&
      flock(folder, LOCK_EX | LOCK_NB) == 0 && fstat(folder, &info) == 0 && info.st_nlink > 0)
    return folder;
  close(folder);
  return -1;
}

void remove_folder(const std::string& path) {
  std::error_code ignored;
  fs::remove_all(path, ignored);
}

void remove_leftover_uploads(const std::string& parent) {
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (!name.starts_with(kUploads)) continue;
    const int folder = lock_folder(at->path().string());
    if (folder < 0) continue;
    remove_folder(at->path().string());
    close(folder);
  }
}

}  // namespace

UploadFolder::UploadFolder(const std::string& parent) {
  std::error_code ignored;
  const fs::path where = parent.empty() ? fs::temp_directory_path(ignored) : fs::path(parent);
  remove_leftover_uploads(where.string());
  // A server that starts at the same time may remove the folder before it is locked.
  constexpr int kTries = 10;
  for (int tried = 0; lock_ < 0; ++tried) {
    if (tried == kTries)
      throw Error(ErrorKind::kOutput, "no folder can be locked in " + where.string() +
                                          ", where files of forms would lie");
    path_ = (where / (kUploads + random_hex(4))).string();
    if (mkdir(path_.c_str(), 0700) != 0) throw_system_error("create the folder", path_, errno);
    lock_ = lock_folder(path_);
    if (lock_ < 0) remove_folder(path_);
  }
}

UploadFolder::~UploadFolder() {
  remove_folder(path_);
  close(lock_);
}

}  // namespace weft
