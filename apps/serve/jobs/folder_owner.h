#pragma once
// FolderOwner: the store whose servers write results into a folder. A server removes files of jobs
// that its store does not know, so those of another store must not lie beside them.
#include <string>

namespace weft {

// A server that uses a folder, until this ends, also by a kill.
class FolderOwner {
 public:
  // Servers of one store may share a folder, whatever path each has for it, and those without a
  // store (""). Error(kUsage) that names the store of a server which uses the folder, where that is
  // another one; kOutput where the folder takes no files. On a file system without locks nothing is
  // known of others.
  FolderOwner(const std::string& folder, const std::string& store);
  ~FolderOwner();
  FolderOwner(const FolderOwner&) = delete;
  FolderOwner& operator=(const FolderOwner&) = delete;

 private:
  int lock_ = -1;
};

}  // namespace weft
