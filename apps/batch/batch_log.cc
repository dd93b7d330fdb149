#include "apps/batch/batch_log.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "io/atomic_file.h"
#include "kernels/check.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

std::string id_of(const Json& line) { return line.text("custom_id"); }

// The whole lines of a file that name a job. `damaged` is set where there are others.
std::vector<Json> lines_in(const std::string& path, bool& damaged) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  damaged |= !text.empty() && !text.ends_with('\n');
  std::vector<Json> lines;
  std::istringstream stream(text.substr(0, text.rfind('\n') + 1));
  for (std::string line; std::getline(stream, line);) {
    const auto object = nlohmann::json::parse(line, nullptr, false);
    const bool whole =
        object.is_object() && object.contains("custom_id") && object["custom_id"].is_string();
    if (whole) lines.push_back(object);
    damaged |= !whole;
  }
  return lines;
}

std::string text_of(const Json& line) { return line.dump() + "\n"; }

// Takes the lock of a file or a folder. Returns -1 where another process has it and `wait` is off.
int locked(const std::string& path, int flags, bool wait) {
  for (;;) {
    const int fd = ::open(path.c_str(), flags | O_CLOEXEC, 0666);
    if (fd < 0) throw_system_error("open", path, errno);
    if (flock(fd, LOCK_EX | (wait ? 0 : LOCK_NB)) != 0) {
      close(fd);
      return -1;
    }
    struct stat there {};
    if (fstat(fd, &there) == 0 && there.st_nlink > 0) return fd;
    close(fd);  // its last owner removed it meanwhile
  }
}

// The endings of the files of shards, "" or "-0-of-2", that are in `folder`.
std::vector<std::string> endings_in(const std::string& folder) {
  std::vector<std::string> endings;
  for (const auto& entry : fs::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("results") || !name.ends_with(".jsonl")) continue;
    const std::string ending = name.substr(7, name.size() - 7 - 6);
    if (ending.empty() || ending.find("-of-") != std::string::npos) endings.push_back(ending);
  }
  std::ranges::sort(endings);
  return endings;
}

}  // namespace

BatchLog::BatchLog(std::string folder, Shard shard) : folder_(std::move(folder)), shard_(shard) {
  fs::create_directories(folder_);
  const std::string results = fs::path(path_of("results", shard_)).filename().string();
  lock_path_ = folder_ + "." + results + ".lock";
  lock_ = locked(lock_path_, O_RDWR | O_CREAT, false);
  if (lock_ < 0)
    throw Error(ErrorKind::kOutput, folder_ + ": another process draws this batch" +
                                        (shard_.count > 1 ? "'s shard" : "") +
                                        "; wait for its end or choose another folder");
  read("results", results_);
  read("errors", errors_);
}

BatchLog::~BatchLog() {
  for (const int fd : {results_.fd, errors_.fd})
    if (fd >= 0) close(fd);
  unlink(lock_path_.c_str());
  close(lock_);
}

const Json* BatchLog::line_of(const File& file, const std::string& id) {
  const auto found = file.of_all.find(id);
  return found == file.of_all.end() ? nullptr : &found->second;
}

std::string BatchLog::path_of(const std::string& kind, const Shard& shard) const {
  const std::string ending =
      shard.count == 1 ? ""
                       : "-" + std::to_string(shard.index) + "-of-" + std::to_string(shard.count);
  return folder_ + kind + ending + ".jsonl";
}

void BatchLog::read(const std::string& kind, File& file) {
  file.path = path_of(kind, shard_);
  bool damaged = false, ignored = false;
  for (const std::string& ending : endings_in(folder_)) {
    const std::string path = folder_ + kind + ending + ".jsonl";
    if (path == file.path || !fs::exists(path)) continue;
    for (const Json& line : lines_in(path, ignored)) file.of_all[id_of(line)] = line;
  }
  if (fs::exists(file.path))
    for (Json& line : lines_in(file.path, damaged)) {
      const bool again = file.of_all.contains(id_of(line));
      damaged |= again;
      if (again) continue;
      file.of_all[id_of(line)] = line;
      file.lines.push_back(std::move(line));
    }
  if (damaged) keep_lines(file, [](const Json&) { return true; });
  if (file.fd < 0) open(file);
}

void BatchLog::open(File& file) {
  if (file.fd >= 0) close(file.fd);
  file.fd = ::open(file.path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0666);
  if (file.fd < 0) throw_system_error("open", file.path, errno);
}

void BatchLog::append(File& file, const Json& line) {
  const std::string text = text_of(line);
  const ssize_t written = write(file.fd, text.data(), text.size());
  if (written != static_cast<ssize_t>(text.size())) throw_system_error("write", file.path, errno);
  file.of_all[id_of(line)] = line;
  file.lines.push_back(line);
}

// Writes the file again, without the lines that are not to be kept.
template <class Keep>
void BatchLog::keep_lines(File& file, Keep keep) {
  std::string text;
  std::vector<Json> kept;
  for (Json& line : file.lines) {
    if (!keep(line)) {
      file.of_all.erase(id_of(line));
      continue;
    }
    text += text_of(line);
    kept.push_back(std::move(line));
  }
  file.lines = std::move(kept);
  write_file(file.path, text);
  open(file);
}

std::map<std::string, size_t> BatchLog::failures() const {
  std::map<std::string, size_t> failures;
  for (const Json& line : errors_.lines) failures.emplace(id_of(line), failures.size() + 1);
  return failures;
}

void BatchLog::add_result(const Json& line) {
  const std::lock_guard lock(mutex_);
  append(results_, line);
}

void BatchLog::add_error(const Json& line) {
  const std::lock_guard lock(mutex_);
  if (error(id_of(line)))
    keep_lines(errors_, [&](const Json& each) { return id_of(each) != id_of(line); });
  append(errors_, line);
}

void BatchLog::forget(const std::string& id) {
  const std::lock_guard lock(mutex_);
  keep_lines(results_, [&](const Json& line) { return id_of(line) != id; });
}

size_t BatchLog::conclude(const std::set<std::string>& ids) {
  const std::lock_guard lock(mutex_);
  const auto stays = [&](const Json& line) {
    return ids.contains(id_of(line)) && !result(id_of(line));
  };
  if (!std::ranges::all_of(errors_.lines, stays)) keep_lines(errors_, stays);
  for (const File* file : {&results_, &errors_})
    const PartFile left(file->path, Overwrite::kReplace);  // removes what a killed run left
  return errors_.lines.size();
}

void BatchLog::write_manifest(Json about, const std::set<std::string>& ids) const {
  // The last shard that ends sees the files of all others as they stay.
  const int folder = locked(folder_, O_RDONLY | O_DIRECTORY, true);
  std::set<std::string> completed, failed;
  about["shards"] = Json::array();
  for (const std::string& ending : endings_in(folder_)) {
    const std::string results = "results" + ending + ".jsonl",
                      errors = "errors" + ending + ".jsonl";
    bool ignored = false;
    for (const Json& line : lines_in(folder_ + results, ignored))
      if (ids.contains(id_of(line))) completed.insert(id_of(line));
    for (const Json& line : lines_in(folder_ + errors, ignored))
      if (ids.contains(id_of(line))) failed.insert(id_of(line));
    about["shards"].push_back({{"results", results}, {"errors", errors}});
  }
  std::erase_if(failed, [&](const std::string& id) { return completed.contains(id); });
  about["schema"] = "weft.manifest/v1";
  about["request_counts"] = {
      {"total", ids.size()}, {"completed", completed.size()}, {"failed", failed.size()}};
  about["state"] = completed.size() + failed.size() == ids.size() ? "completed" : "in_progress";
  write_file(folder_ + "manifest.json", about.dump(1) + "\n");
  close(folder);
}

}  // namespace weft
