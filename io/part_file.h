#pragma once
// PartFile: the hidden file that an output is written to, and its renaming to the final name.
#include <cstdint>
#include <string>
#include <vector>

namespace weft {

enum class Overwrite { kRefuse, kReplace };

// A PartFile drops or keeps the content that an earlier process has left in its hidden file.
enum class Earlier : uint8_t { kDropped, kKept };

// Owns `.<stem>.part<extension>` beside `path` (a folder `.<name>.part` if `path` ends in '/'). The
// file is locked while this object exists, so two jobs never share it. A part that a killed job
// left is reused. Missing parent folders are created. If it is destroyed before publish(), it
// removes everything that it created. Errors: kOutput.
class PartFile {
 public:
  // `tag` distinguishes several parts of one output.
  PartFile(const std::string& path, Overwrite overwrite, const std::string& tag = "part",
           Earlier earlier = Earlier::kDropped);
  ~PartFile();
  PartFile(const PartFile&) = delete;
  PartFile& operator=(const PartFile&) = delete;

  const std::string& path() const { return part_; }         // write here
  const std::string& final_path() const { return final_; }  // without a trailing '/'
  Overwrite overwrite() const { return overwrite_; }
  // The hidden file of the same output with another tag.
  std::string path_of(const std::string& tag) const;
  // The numbers N, in order, of the hidden files with a tag part-N that exist.
  std::vector<int64_t> numbered_parts() const;

  // Replaces the content of this part by `other`, another part of the same output, in one step. So
  // no second part ever exists beside the final file. `other` must not be used afterwards.
  void take(PartFile& other);

  // Syncs the part to disk. From now on it stays there, for a later process, if it is not
  // published.
  void keep();

  // Syncs the part to disk and renames it in one step. If the final name was created meanwhile,
  // kRefuse throws and keeps that file, and kReplace replaces it. A folder is replaced only if it
  // contains nothing but numbered PNG frames.
  void publish();

 private:
  void publish_file();
  void publish_folder();

  std::string final_, part_;
  Overwrite overwrite_;
  bool folder_ = false;
  bool kept_ = false, published_ = false;
  int lock_ = -1;                       // the descriptor that holds the lock
  std::vector<std::string> made_dirs_;  // parent folders that it created, outermost first
};

// Removes the hidden files of an output that a killed job has left. Error(kOutput) where a job uses
// them.
void drop_parts(const std::string& path);
// True while a job writes this output.
bool is_being_written(const std::string& path);

// Removes the hidden files of all PartFiles that exist, for a process that is about to end.
void remove_parts() noexcept;

// The ending of a file's name in small letters, with its dot: ".mp4" of a/B.MP4. "" where there is
// none.
std::string file_ending(const std::string& path);

// Writes `bytes` directly to `path`, without a hidden name. Errors: kOutput.
void fill_file(const std::string& path, const std::string& bytes);

// Returns one line for a failed system call: "cannot <action> '<path>': <reason>". For a full disk
// or a missing permission it adds advice.
std::string system_error_line(const std::string& action, const std::string& path, int error);
// Throws that line as Error(kOutput).
[[noreturn]] void throw_system_error(const std::string& action, const std::string& path, int error);

}  // namespace weft
