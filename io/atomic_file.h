#pragma once
// AtomicFile: bytes written under a hidden name; the file appears whole, or not at all.
#include <cstddef>
#include <string>
#include <string_view>

#include "io/part_file.h"

namespace weft {

// Destroyed before commit(), it leaves nothing behind. Every fault is Error(kOutput) with the path.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path, Overwrite overwrite = Overwrite::kReplace);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();  // to disk, renamed, folder to disk

 private:
  PartFile part_;
  int fd_ = -1;
};

void write_file(const std::string& path, std::string_view bytes,
                Overwrite overwrite = Overwrite::kReplace);

}  // namespace weft
