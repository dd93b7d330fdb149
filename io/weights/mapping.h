#pragma once
// Mapping: a file's bytes, mapped read-only, or memory that looks like one.
#include <cstdint>
#include <string>
#include <string_view>

namespace weft {

// Throws Error(kModel): "<path>: <reason>".
[[noreturn]] void refuse_file(const std::string& path, const std::string& reason);

// If the file becomes shorter while it is mapped, access to a lost page raises SIGBUS.
// check_size() before a read makes it an Error instead, unless the file is cut between the check
// and the read. Faults are Error(kModel).
class Mapping {
 public:
  explicit Mapping(const std::string& path);
  // Reserves memory whose pages are committed when they are written. Dropped pages are empty again.
  explicit Mapping(uint64_t bytes);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  void check_size() const;
  // Reads exactly `bytes` at `offset` with pread, in as many calls as the system needs. Messages
  // name `what`.
  void read(uint64_t offset, uint64_t bytes, char* out, std::string_view what) const;
  const std::string& path() const { return path_; }
  char* data() const { return data_; }
  uint64_t size() const { return size_; }

 private:
  std::string path_;
  int fd_ = -1;
  char* data_ = nullptr;
  uint64_t size_ = 0;
};

}  // namespace weft
