#pragma once
// ScratchFolder: a temporary folder.
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "io/part_file.h"
#include "kernels/check.h"

namespace weft {

// Made inside TMPDIR; the destructor removes it with everything in it. Error(kOutput).
class ScratchFolder {
 public:
  ScratchFolder() {
    path_ = (std::filesystem::temp_directory_path() / "weft-XXXXXX").string();
    if (!mkdtemp(path_.data())) throw_system_error("create", path_, errno);
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace weft
