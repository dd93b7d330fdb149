#include "apps/serve/jobs/folder_owner.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "kernels/check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwnerFile = ".weft-store";  // its text is the path of the store

std::string text_at(int file) {
  std::string text(4096, '\0');
  const ssize_t size = pread(file, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

[[noreturn]] void fail_with_folder(const std::string& folder) {
  throw Error(ErrorKind::kOutput,
              "the folder " + folder + " cannot be locked: " + std::strerror(errno));
}

void write_owner(int file, const std::string& folder, const std::string& store) {
  const auto size = static_cast<ssize_t>(store.size());
  if (ftruncate(file, 0) != 0 || pwrite(file, store.data(), store.size(), 0) != size)
    fail_with_folder(folder);
}

// Shares the lock. Another server that begins holds it alone for a moment.
void share(int file, const std::string& folder) {
  constexpr int kTries = 100;
  constexpr std::chrono::milliseconds kPause{50};
  for (int tried = 1; flock(file, LOCK_SH | LOCK_NB) != 0; ++tried) {
    if (errno != EWOULDBLOCK || tried == kTries) fail_with_folder(folder);
    std::this_thread::sleep_for(kPause);
  }
}

}  // namespace

FolderOwner::FolderOwner(const std::string& folder, const std::string& store) {
  const std::string own = store.empty() ? "none" : fs::weakly_canonical(fs::absolute(store));
  lock_ = open((folder + kOwnerFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) fail_with_folder(folder);
  try {
    // Who holds it alone is the first. To share it gives it up for a moment, in which another
    // server may come first.
    if (flock(lock_, LOCK_EX | LOCK_NB) == 0)
      write_owner(lock_, folder, own);
    else if (errno != EWOULDBLOCK)
      return;  // the file system has no locks
    share(lock_, folder);
    const std::string owner = text_at(lock_);
    if (owner != own)
      throw Error(ErrorKind::kUsage,
                  "the folder " + folder + " belongs to a server with --store " + owner +
                      ", but --store of this one is " + own +
                      "; legal: the same store for all servers of a folder, or another -o");
  } catch (...) {
    close(lock_);
    throw;
  }
}

FolderOwner::~FolderOwner() { close(lock_); }

}  // namespace weft
