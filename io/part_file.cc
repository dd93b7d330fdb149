#include "io/part_file.h"

#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>

#include "io/folder.h"
#include "io/writable.h"
#include "kernels/check.h"

namespace weft {
namespace fs = std::filesystem;
namespace {

// The hidden names of all PartFiles that exist now.
struct Parts {
  std::mutex lock;
  std::set<std::string> names;
};
Parts& parts() {
  static auto* all = new Parts;  // outlives every thread that still writes
  return *all;
}

[[noreturn]] void fail_exists(const std::string& path) {
  throw Error(ErrorKind::kOutput,
              "'" + path + "' exists; choose another --output or give --overwrite");
}

std::string parent_of(const std::string& path) {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

// The folders above `path` that do not exist, innermost first, and the one that does.
struct Parents {
  std::vector<std::string> missing;
  std::string existing;
};
Parents parents_of(const std::string& path) {
  Parents parents;
  for (std::string dir = parent_of(path);; dir = parent_of(dir)) {
    struct stat info;
    if (stat(dir.c_str(), &info) == 0) {
      parents.existing = dir;
      return parents;
    }
    if (errno != ENOENT || dir == parent_of(dir))
      throw_system_error("create the folder", dir, errno);
    parents.missing.push_back(dir);
  }
}

// Creates the missing folders above `path` and returns them, so that they can be removed again.
std::vector<std::string> make_parents(const std::string& path) {
  const std::vector<std::string> missing = parents_of(path).missing;
  std::vector<std::string> made;
  for (auto dir = missing.rbegin(); dir != missing.rend(); ++dir) {
    if (mkdir(dir->c_str(), 0777) == 0) {
      made.push_back(*dir);
    } else if (errno != EEXIST) {
      const int error = errno;
      for (auto back = made.rbegin(); back != made.rend(); ++back) rmdir(back->c_str());
      throw_system_error("create the folder", *dir, error);
    }
  }
  return made;
}

void sync_path(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) throw_system_error("open", path, errno);
  const int result = fsync(fd);
  const int error = errno;
  close(fd);
  // Some file systems cannot sync a folder. This is not treated as an error.
  if (result != 0 && error != EINVAL) throw_system_error("write", path, error);
}

std::vector<std::string> entries_of(const std::string& folder) {
  std::vector<std::string> names;
  if (const int error = list_folder(folder, names))
    throw_system_error("read the folder", folder, error);
  return names;
}

void remove_entries(const std::string& folder) {
  for (const std::string& name : entries_of(folder)) {
    const std::string path = folder + "/" + name;
    if (const int error = remove_flat(path.c_str())) throw_system_error("remove", path, error);
  }
}

// Returns true if every entry has the name of a frame that make_sink would write.
bool holds_only_frames(const std::string& folder) {
  return std::ranges::all_of(entries_of(folder), [](const std::string& name) {
    const fs::path path = name;
    const std::string stem = path.stem().string();
    return path.extension() == ".png" && !stem.empty() &&
           std::ranges::all_of(stem, [](char c) { return c >= '0' && c <= '9'; });
  });
}

// `path` without the '/' at the end of a folder. Refuses one that names nothing.
std::string final_name(const std::string& path) {
  std::string final = path;
  while (final.size() > 1 && final.ends_with('/')) final.pop_back();
  const fs::path name = fs::path(final).filename();
  if (name.empty() || name == "." || name == ".." || final == "/")
    throw Error(ErrorKind::kUsage, "output '" + path + "' names no file");
  return final;
}

// Refuses a name that is taken by something that must not be replaced.
void check_free(const std::string& final, bool folder, Overwrite overwrite) {
  struct stat info;
  if (lstat(final.c_str(), &info) == 0) {
    if (S_ISDIR(info.st_mode) != folder)
      throw Error(ErrorKind::kOutput, folder ? "'" + final + "' is a file, not a folder"
                                             : "'" + final +
                                                   "' is a folder; end it with '/' for "
                                                   "a folder of frames");
    if (folder && !entries_of(final).empty()) {
      if (overwrite == Overwrite::kRefuse) fail_exists(final);
      if (!holds_only_frames(final))
        throw Error(ErrorKind::kOutput, "'" + final +
                                            "' holds other files than numbered PNG "
                                            "frames and is not replaced; choose another --output");
    }
    if (!folder && overwrite == Overwrite::kRefuse) fail_exists(final);
  } else if (errno != ENOENT) {
    throw_system_error("write", final, errno);
  }
}

// Locks `part`. Another job may rename or remove it after it was opened and before it was locked.
// The descriptor then belongs to another file than the name, and it is opened again.
int lock_part(const std::string& part, bool folder) {
  for (;;) {
    int fd = -1;
    if (folder) {
      if (mkdir(part.c_str(), 0777) != 0 && errno != EEXIST)
        throw_system_error("create", part, errno);
      fd = open(part.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    } else {
      fd = open(part.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
    }
    if (fd < 0 && folder && errno == ENOENT) continue;
    if (fd < 0) {
      const int error = errno;
      if (folder) rmdir(part.c_str());  // fails unless it is empty
      throw_system_error("create", part, error);
    }
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
      const int error = errno;
      close(fd);
      if (error == EWOULDBLOCK)
        throw Error(ErrorKind::kOutput, "'" + part + "' is being written by another job");
      // The file system has no locks, so the part is used without one.
      return open(part.c_str(), O_RDONLY | O_CLOEXEC);
    }
    struct stat ours, named;
    if (fstat(fd, &ours) == 0 && stat(part.c_str(), &named) == 0 && ours.st_ino == named.st_ino &&
        ours.st_dev == named.st_dev)
      return fd;
    close(fd);
  }
}

}  // namespace

std::string system_error_line(const std::string& action, const std::string& path, int error) {
  std::string line = "cannot " + action + " '" + path + "': " + std::strerror(error);
  if (error == ENOSPC || error == EDQUOT)
    line += "; free some space or choose another --output";
  else if (error == EACCES || error == EPERM || error == EROFS)
    line += "; choose another --output or change its permissions";
  return line;
}

void throw_system_error(const std::string& action, const std::string& path, int error) {
  throw Error(ErrorKind::kOutput, system_error_line(action, path, error));
}

std::string file_ending(const std::string& path) {
  std::string ending = fs::path(path).extension().string();
  for (char& c : ending)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return ending;
}

void fill_file(const std::string& path, const std::string& bytes) {
  const int fd = open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
  if (fd < 0) throw_system_error("write", path, errno);
  int error = 0;
  for (size_t done = 0; done < bytes.size() && error == 0;) {
    const ssize_t count = write(fd, bytes.data() + done, bytes.size() - done);
    if (count >= 0)
      done += static_cast<size_t>(count);
    else if (errno != EINTR)
      error = errno;
  }
  if (close(fd) != 0 && error == 0) error = errno;
  if (error) throw_system_error("write", path, error);
}

PartFile::PartFile(const std::string& path, Overwrite overwrite, const std::string& tag,
                   Earlier earlier)
    : final_(final_name(path)), overwrite_(overwrite), folder_(path.ends_with('/')) {
  part_ = path_of(tag);
  check_free(final_, folder_, overwrite);
  made_dirs_ = make_parents(final_);
  try {
    lock_ = lock_part(part_, folder_);
    kept_ = earlier == Earlier::kKept;
    if (!kept_ && folder_) remove_entries(part_);
    if (!kept_ && !folder_ && truncate(part_.c_str(), 0) != 0)
      throw_system_error("write", part_, errno);
    const std::lock_guard guard(parts().lock);
    if (!kept_) parts().names.insert(part_);
  } catch (...) {
    if (lock_ >= 0 && !kept_) remove_flat(part_.c_str());
    for (auto dir = made_dirs_.rbegin(); dir != made_dirs_.rend(); ++dir) rmdir(dir->c_str());
    if (lock_ >= 0) close(lock_);
    throw;
  }
}

std::string PartFile::path_of(const std::string& tag) const {
  const fs::path path(final_), stem = folder_ ? path.filename() : path.stem();
  const std::string extension = folder_ ? "" : path.extension().string();
  return (path.parent_path() / ("." + stem.string() + "." + tag + extension)).string();
}

std::vector<int64_t> PartFile::numbered_parts() const {
  std::vector<int64_t> numbers;
  for (const std::string& name : entries_of(parent_of(final_))) {
    const size_t at = name.rfind(".part-");
    if (at == std::string::npos) continue;
    const int64_t number = std::atoll(name.c_str() + at + 6);
    if (name == fs::path(path_of("part-" + std::to_string(number))).filename())
      numbers.push_back(number);
  }
  std::ranges::sort(numbers);
  return numbers;
}

PartFile::~PartFile() {
  {
    const std::lock_guard guard(parts().lock);
    parts().names.erase(part_);
  }
  if (!published_ && !kept_) {
    remove_flat(part_.c_str());
    for (auto dir = made_dirs_.rbegin(); dir != made_dirs_.rend(); ++dir) rmdir(dir->c_str());
  }
  if (lock_ >= 0) close(lock_);
}

void check_writable(const std::string& path, Overwrite overwrite) {
  const std::string final = final_name(path);
  check_free(final, path.ends_with('/'), overwrite);
  // Permissions and file systems have more rules than can be asked for: a file has to be made.
  std::string probe = parents_of(final).existing + "/.weft-XXXXXX";
  const int fd = mkostemp(probe.data(), O_CLOEXEC);
  if (fd < 0) throw_system_error("write", final, errno);
  close(fd);
  unlink(probe.c_str());
}

void drop_parts(const std::string& path) {
  for (const char* tag : {"part", "whole.part", "spool"}) {
    const PartFile left(path, Overwrite::kReplace, tag);  // its destructor removes the file
    for (const int64_t number : left.numbered_parts())
      fs::remove(left.path_of("part-" + std::to_string(number)));
  }
}

bool is_being_written(const std::string& path) {
  const bool folder = path.ends_with('/');
  const fs::path whole(folder ? path.substr(0, path.size() - 1) : path);
  const std::string stem = (folder ? whole.filename() : whole.stem()).string(),
                    extension = folder ? "" : whole.extension().string();
  const std::string part = (whole.parent_path() / ("." + stem + ".part" + extension)).string();
  const int fd = open(part.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) return false;
  const bool locked = flock(fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  close(fd);
  return locked;
}

void remove_parts() noexcept {
  const std::lock_guard guard(parts().lock);
  for (const std::string& part : parts().names) remove_flat(part.c_str());
}

void PartFile::keep() {
  sync_path(part_);
  const std::lock_guard guard(parts().lock);
  parts().names.erase(part_);
  kept_ = true;
}

void PartFile::take(PartFile& other) {
  CHECK(!published_ && !other.published_ && !folder_ && !other.folder_, final_, other.part_);
  sync_path(other.part_);
  if (rename(other.part_.c_str(), part_.c_str()) != 0) throw_system_error("write", final_, errno);
  other.published_ = true;
  std::swap(lock_, other.lock_);  // the lock of the file that now has our hidden name
}

void PartFile::publish() {
  CHECK(!published_, final_);
  if (folder_)
    publish_folder();
  else
    publish_file();
  published_ = true;
  sync_path(parent_of(final_));
}

void PartFile::publish_file() {
  sync_path(part_);
  if (overwrite_ == Overwrite::kReplace) {
    if (rename(part_.c_str(), final_.c_str()) != 0) throw_system_error("write", final_, errno);
    return;
  }
  if (renameat2(AT_FDCWD, part_.c_str(), AT_FDCWD, final_.c_str(), RENAME_NOREPLACE) == 0) return;
  // The file system does not support RENAME_NOREPLACE. A hard link also fails if the name exists;
  // the first name is then removed.
  if (errno == EINVAL || errno == ENOSYS) {
    if (link(part_.c_str(), final_.c_str()) == 0) {
      unlink(part_.c_str());
      return;
    }
  }
  if (errno == EEXIST) fail_exists(final_);
  throw_system_error("write", final_, errno);
}

void PartFile::publish_folder() {
  for (const std::string& name : entries_of(part_)) sync_path(part_ + "/" + name);
  sync_path(part_);
  // rename() replaces a folder only if it is empty.
  if (rename(part_.c_str(), final_.c_str()) == 0) return;
  if (errno != ENOTEMPTY && errno != EEXIST) throw_system_error("write", final_, errno);
  if (overwrite_ == Overwrite::kRefuse) fail_exists(final_);
  if (!holds_only_frames(final_)) throw_system_error("replace", final_, ENOTEMPTY);
  if (renameat2(AT_FDCWD, part_.c_str(), AT_FDCWD, final_.c_str(), RENAME_EXCHANGE) != 0)
    throw_system_error("replace", final_, errno);
  remove_flat(part_.c_str());  // removes the old frames, which now have our hidden name
}

}  // namespace weft
