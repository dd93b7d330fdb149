#include "apps/serve/jobs/folder_owner.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
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

constexpr const char* kOwnerFile = ".weft-store";  // its text is that of a StorePlace

// The path of a store, and, on a line of its own, its name in a folder as the host knows that one,
// which is the same under other mount points. "" where there is no such folder.
struct StorePlace {
  std::string path{}, known{};

  explicit StorePlace(const std::string& text) : path(text.substr(0, text.find('\n'))) {
    if (path.size() < text.size()) known = text.substr(path.size() + 1);
  }
  static StorePlace of(const std::string& store) {
    if (store.empty()) return StorePlace("none");
    const fs::path path = fs::weakly_canonical(fs::absolute(store));
    StorePlace place(path.string());
    struct stat folder {};
    if (stat(path.parent_path().c_str(), &folder) == 0)
      place.known = std::to_string(folder.st_dev) + ":" + std::to_string(folder.st_ino) + "/" +
                    path.filename().string();
    return place;
  }
  std::string text() const { return path + "\n" + known; }
  bool is_same(const StorePlace& other) const {
    return path == other.path || (!known.empty() && known == other.known);
  }
};

std::string text_at(int file) {
  struct stat facts {};
  std::string text(fstat(file, &facts) == 0 ? static_cast<size_t>(facts.st_size) : 0, '\0');
  const ssize_t size = pread(file, text.data(), text.size(), 0);
  text.resize(size > 0 ? static_cast<size_t>(size) : 0);
  return text;
}

[[noreturn]] void fail_with_folder(const std::string& folder) {
  throw Error(ErrorKind::kOutput,
              "the folder " + folder + " cannot be locked: " + std::strerror(errno));
}

// Leaves a text that is right, so that a full disk keeps no server from its start.
void write_owner(int file, const std::string& folder, const std::string& text) {
  if (text_at(file) == text) return;
  if (ftruncate(file, 0) != 0) fail_with_folder(folder);
  const ssize_t written = pwrite(file, text.data(), text.size(), 0);
  if (written < 0) fail_with_folder(folder);
  if (written < static_cast<ssize_t>(text.size())) {
    errno = ENOSPC;
    fail_with_folder(folder);
  }
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
  const StorePlace own = StorePlace::of(store);
  lock_ = open((folder + kOwnerFile).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (lock_ < 0) fail_with_folder(folder);
  try {
    // The first server holds the lock alone. It gives the lock up for a moment to share it, and
    // another server may come first then.
    if (flock(lock_, LOCK_EX | LOCK_NB) == 0)
      write_owner(lock_, folder, own.text());
    else if (errno != EWOULDBLOCK)
      return;  // the file system has no locks
    share(lock_, folder);
    // The file is empty if the first server ended before it wrote its own.
    if (text_at(lock_).empty()) write_owner(lock_, folder, own.text());
    const StorePlace owner(text_at(lock_));
    if (!owner.is_same(own))
      throw Error(ErrorKind::kUsage,
                  "the folder " + folder + " belongs to a server with --store " + owner.path +
                      ", but --store of this one is " + own.path +
                      "; legal: the same store for all servers of a folder, or another -o");
  } catch (...) {
    close(lock_);
    throw;
  }
}

FolderOwner::~FolderOwner() { close(lock_); }

}  // namespace weft
