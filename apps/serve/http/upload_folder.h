#pragma once
// The folder in which a server keeps the files of forms while their requests last.
#include <string>

namespace weft {

// A hidden folder of this server's own, which others cannot read. It is locked while this object
// exists, so that the next server can tell which ones are left over from a killed server: the
// constructor removes these and their files. Throws Error(kOutput).
class UploadFolder {
 public:
  // "": in the folder of temporary files.
  explicit UploadFolder(const std::string& parent);
  ~UploadFolder();  // removes the folder with its files
  UploadFolder(const UploadFolder&) = delete;
  UploadFolder& operator=(const UploadFolder&) = delete;

  const std::string& path() const { return path_; }  // without '/' at the end

 private:
  std::string path_;
  int lock_ = -1;  // the folder, whose descriptor holds the lock
};

}  // namespace weft
