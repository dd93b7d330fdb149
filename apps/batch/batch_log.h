#pragma once
// BatchLog: what a batch has done, as lines in the folder of its results: results.jsonl,
// errors.jsonl and, last, manifest.json. Every shard has files of its own.
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "io/json.h"

namespace weft {

// The part `index`, from 0, of `count` parts of a batch.
struct Shard {
  int index = 0, count = 1;
};

class BatchLog {
 public:
  // `folder` ends in '/'. Reads the lines of all shards. A line that a killed run wrote in part is
  // removed. Error(kOutput) where another process works on this shard.
  BatchLog(std::string folder, Shard shard);
  ~BatchLog();
  BatchLog(const BatchLog&) = delete;
  BatchLog& operator=(const BatchLog&) = delete;

  // The line of a job, from any shard; null where there is none.
  const Json* result(const std::string& id) const { return line_of(results_, id); }
  const Json* error(const std::string& id) const { return line_of(errors_, id); }

  // The failed jobs of this shard, numbered from 1 in the order of their last failures.
  std::map<std::string, size_t> failures() const;

  // Add a line with a single write. A job that fails again has one line, the last.
  void add_result(const Json& line);
  void add_error(const Json& line);
  // Removes the result's line.
  void forget(const std::string& id);

  // Removes the errors of jobs that have a result, and of jobs that are not among `ids`. Returns
  // the number of errors that are left in this shard.
  size_t conclude(const std::set<std::string>& ids);
  // Writes manifest.json: `about`, the files of every shard, and the counts of the jobs `ids`.
  void write_manifest(Json about, const std::set<std::string>& ids) const;

 private:
  struct File {
    std::string path;
    std::vector<Json> lines;             // of this shard
    std::map<std::string, Json> of_all;  // by job, of all shards
    int fd = -1;
  };
  static const Json* line_of(const File& file, const std::string& id);
  std::string path_of(const std::string& kind, const Shard& shard) const;
  void read(const std::string& kind, File& file);
  void open(File& file);
  void append(File& file, const Json& line);
  template <class Keep>
  void keep_lines(File& file, Keep keep);

  const std::string folder_;
  const Shard shard_;
  std::mutex mutex_;  // guards the members below; several replicas add lines
  std::string lock_path_;
  int lock_ = -1;
  File results_, errors_;
};

}  // namespace weft
