#include "io/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace weft {

std::string read_input_file(const std::string& path, size_t max_bytes, ErrorKind kind) {
  const auto refuse = [&](const std::string& why) { throw Error(kind, path + ": " + why); };
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) refuse(std::string("cannot be opened: ") + std::strerror(errno));
  struct Closer {
    int fd;
    ~Closer() { close(fd); }
  } closer{fd};
  struct stat info;
  if (fstat(fd, &info) != 0) refuse(std::string("fstat: ") + std::strerror(errno));
  if (!S_ISREG(info.st_mode))
    refuse(S_ISDIR(info.st_mode) ? "is a folder, not a file" : "is not a regular file");
  if (static_cast<uint64_t>(info.st_size) > max_bytes)
    refuse("holds " + std::to_string(info.st_size) + " bytes, at most " +
           std::to_string(max_bytes) + " are read");
  std::string bytes(static_cast<size_t>(info.st_size), '\0');
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t got = read(fd, bytes.data() + done, bytes.size() - done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse(std::string("cannot be read: ") + std::strerror(errno));
    if (got == 0) refuse("became shorter while it was read");
    done += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace weft
