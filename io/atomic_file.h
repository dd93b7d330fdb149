#pragma once
// AtomicFile: writes bytes under a hidden name, so that the file appears complete or not at all.
#include <cstddef>
#include <string>
#include <string_view>

#include "io/part_file.h"

namespace weft {

// If it is destroyed before commit(), nothing remains. Every fault is an Error(kOutput) that names
// the path.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path, Overwrite overwrite = Overwrite::kReplace);
  ~AtomicFile();
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, size_t bytes);
  void write(std::string_view text) { write(text.data(), text.size()); }
  void commit();  // syncs the file, renames it, and syncs its folder

 private:
  PartFile part_;
  int fd_ = -1;
};

void write_file(const std::string& path, std::string_view bytes,
                Overwrite overwrite = Overwrite::kReplace);

}  // namespace weft
