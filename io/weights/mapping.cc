#include "io/weights/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "io/weights/safetensors_header.h"

namespace weft {

void refuse_file(const std::string& path, const std::string& reason) {
  throw Error(ErrorKind::kModel, path + ": " + reason);
}

Mapping::Mapping(const std::string& path) : path_(path) {
  // O_NONBLOCK keeps the opening of a pipe from waiting for a writer.
  fd_ = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd_ < 0) refuse_file(path, std::string("cannot be opened: ") + std::strerror(errno));
  struct stat info;
  const bool regular = fstat(fd_, &info) == 0 && S_ISREG(info.st_mode);
  size_ = regular ? static_cast<uint64_t>(info.st_size) : 0;
  if (regular && size_ > 0) {
    void* data = mmap(nullptr, size_, PROT_READ, MAP_SHARED, fd_, 0);
    if (data != MAP_FAILED) data_ = static_cast<char*>(data);
  }
  const int error = errno;
  if (!regular || (size_ > 0 && !data_)) {
    close(fd_);
    refuse_file(path, regular ? std::string("cannot be mapped: ") + std::strerror(error)
                              : "is not a regular file");
  }
}

Mapping::Mapping(uint64_t bytes)
    : path_("generated in memory"), size_(std::max<uint64_t>(bytes, 1)) {
  void* data = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED)
    throw Error(ErrorKind::kMemory, "no memory for " + size_text(size_) +
                                        " of generated tensors: " + std::strerror(errno));
  data_ = static_cast<char*>(data);
}

Mapping::~Mapping() {
  if (data_) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

void Mapping::check_size() const {
  if (fd_ < 0) return;
  struct stat info;
  if (fstat(fd_, &info) != 0 || static_cast<uint64_t>(info.st_size) < size_)
    refuse_file(path_, "became shorter while it was in use (" + size_text(size_) + " when opened)");
}

void Mapping::read(uint64_t offset, uint64_t bytes, char* out, std::string_view what) const {
  if (fd_ < 0) std::memcpy(out, data_ + offset, bytes);
  for (uint64_t done = fd_ < 0 ? bytes : 0; done < bytes;) {
    const ssize_t got = pread(fd_, out + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) refuse_file(path_, quoted_name(what) + " cannot be read: " + std::strerror(errno));
    if (got == 0)
      refuse_file(path_, quoted_name(what) + " ends " + size_text(bytes - done) +
                             " early: the file became shorter while it was in use (" +
                             size_text(size_) + " when opened)");
    done += static_cast<uint64_t>(got);
  }
}

}  // namespace weft
