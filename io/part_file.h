#pragma once
// PartFile: the hidden name under which an output grows, and its change into the final one.
#include <string>
#include <vector>

namespace weft {

enum class Overwrite { kRefuse, kReplace };

// Owns `.<stem>.part<extension>` beside `path` (a folder `.<name>.part` where `path` ends in '/').
// The name is locked while this lives, so two jobs never share it, and a part left by a killed job
// is taken over. Missing parent folders are made. Destroyed unpublished, it removes everything it
// made. Errors: kOutput.
class PartFile {
 public:
  // `tag` tells several parts of one output from each other.
  PartFile(const std::string& path, Overwrite overwrite, const std::string& tag = "part");
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  const std::string& path() const { return part_; }         // write here
  const std::string& final_path() const { return final_; }  // without a trailing '/'
  Overwrite overwrite() const { return overwrite_; }

  // `other`, another part of the same output, in place of what was written here, in one step: so
  // that at no moment one stands beside the final file. `other` is over.
  void take(PartFile& other);

  // To disk, then renamed in one step. With kRefuse a file that came into being meanwhile stays and
  // this throws; with kReplace it is replaced (of folders only those that hold numbered PNG
  // frames).
  void publish();

 private:
  void publish_file();
  void publish_folder();

  std::string final_, part_;
  Overwrite overwrite_;
  bool folder_ = false;
  bool published_ = false;
  int lock_ = -1;                       // descriptor that holds the lock
  std::vector<std::string> made_dirs_;  // parents this made, outermost first
};

// Removes what every living PartFile has under its hidden name: for a process that ends at once.
void remove_parts() noexcept;

// All of `bytes` under that very name, which is created or emptied. Errors: kOutput.
void fill_file(const std::string& path, const std::string& bytes);

// One line for a failed system call: "cannot <action> '<path>': <reason>", with advice where the
// reason is a full disk or a missing permission.
std::string system_error_line(const std::string& action, const std::string& path, int error);

}  // namespace weft
