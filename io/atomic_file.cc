#include "io/atomic_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "kernels/check.h"

namespace weft {
namespace {

// Checks that the path may be written. Renaming must never replace a device or a pipe. If the path
// is a symbolic link, the link is replaced and not its target.
const std::string& checked(const std::string& path) {
  struct stat info;
  if (lstat(path.c_str(), &info) == 0 && !S_ISREG(info.st_mode) && !S_ISLNK(info.st_mode))
    throw Error(ErrorKind::kOutput, "cannot write '" + path + "': it is " +
                                        (S_ISDIR(info.st_mode) ? "a folder" : "no regular file"));
  if (path.empty() || path.ends_with('/'))
    throw Error(ErrorKind::kOutput, "output '" + path + "' names no file");
  return path;
}

}  // namespace

AtomicFile::AtomicFile(const std::string& path, Overwrite overwrite)
    : part_(checked(path), overwrite) {
  fd_ = open(part_.path().c_str(), O_WRONLY | O_CLOEXEC);
  if (fd_ < 0) throw_system_error("write", part_.path(), errno);
}

AtomicFile::~AtomicFile() {
  if (fd_ >= 0) close(fd_);
}

void AtomicFile::write(const void* data, size_t bytes) {
  CHECK(fd_ >= 0, part_.final_path(), "is committed");
  const char* from = static_cast<const char*>(data);
  while (bytes > 0) {
    // Linux writes at most 2 GiB at once.
    const ssize_t done = ::write(fd_, from, std::min(bytes, size_t{1} << 30));
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) throw_system_error("write", part_.final_path(), errno);
    from += done;
    bytes -= static_cast<size_t>(done);
  }
}

void AtomicFile::commit() {
  CHECK(fd_ >= 0, part_.final_path(), "is committed");
  const bool synced = fsync(fd_) == 0;
  const int sync_error = errno;
  const bool closed = close(fd_) == 0;  // some file systems report a full disk only here
  const int close_error = errno;
  fd_ = -1;
  if (!synced) throw_system_error("write", part_.final_path(), sync_error);
  if (!closed) throw_system_error("write", part_.final_path(), close_error);
  part_.publish();
}

void write_file(const std::string& path, std::string_view bytes, Overwrite overwrite) {
  AtomicFile file(path, overwrite);
  file.write(bytes);
  file.commit();
}

}  // namespace weft
