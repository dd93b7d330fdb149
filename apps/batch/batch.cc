// weft batch: draws the jobs of a file, each once, and keeps account of them in the folder of their
// results. A run that was killed or stopped goes on where it was.
#include <algorithm>
#include <cstdio>
#include <ctime>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>

#include "apps/batch/batch_log.h"
#include "apps/batch/batch_queue.h"
#include "apps/batch/job_drawing.h"
#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/generate/expand.h"
#include "apps/generate/progress.h"
#include "apps/generate/resume.h"
#include "apps/generate/runner_flags.h"
#include "apps/generate/stop.h"
#include "engine/runner/job_runner.h"
#include "engine/runner/result_files.h"
#include "engine/service/job_failure.h"
#include "io/legal.h"
#include "io/sha256.h"
#include "io/text/utf8.h"
#include "io/writable.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

// A line of the file that is a job.
struct BatchJob {
  size_t index;  // of the line among all, which decides the shard
  GivenJob given;
  std::string where;
  PlacedJob placed{};
};

Shard shard_of(const Flags& flags) {
  Shard shard;
  const std::string text = flags.text("shard");
  int used = 0;
  const bool read = std::sscanf(text.c_str(), "%d/%d%n", &shard.index, &shard.count, &used) == 2;
  if (!read || used != static_cast<int>(text.size()) || shard.index < 0 ||
      shard.index >= shard.count || shard.count > 1'000'000)
    throw Error(ErrorKind::kUsage,
                flags.label("shard") + " is '" + text + "', legal: I/N, with I from 0 to N-1");
  return shard;
}

// The flags of what draws the jobs. Those of a store begin only where nothing is in their way, and
// may be a server's, whose files are not to be replaced.
Flags drawing_flags(const Flags& flags) {
  Flags drawing = flags;
  if (!flags.given("store")) return drawing;
  const auto replicas = parts_along(Axis::kData, flags);
  if (replicas && *replicas > 1)
    throw Error(ErrorKind::kUsage,
                "the layout has data=" + std::to_string(*replicas) +
                    ", but a batch with --store draws one job at a time; legal: a layout without "
                    "data, and further batches or shards that use the store");
  drawing.imply("overwrite", "off", "--store");
  return drawing;
}

// The exit code that a failure of this name has.
int exit_code_of(const std::string& code) {
  for (int kind = static_cast<int>(ErrorKind::kUsage); kind <= static_cast<int>(ErrorKind::kMedia);
       ++kind)
    if (code == error_code(static_cast<ErrorKind>(kind))) return kind;
  return static_cast<int>(ErrorKind::kInternal);
}

class Batch {
 public:
  explicit Batch(const Flags& flags)
      : flags_(flags),
        file_(file_of(flags)),
        folder_(folder_of(flags)),
        shard_(shard_of(flags)),
        lines_(lines_of(flags, "", file_)),
        jobs_(read_jobs()),
        expander_(expander_of(flags)),
        drawing_flags_(drawing_flags(flags)) {
    if (flags.given("store"))
      team_.emplace(drawing_flags_, expander_);
    else
      own_runner_.reset(new JobRunner(job_runner(drawing_flags_)));
  }

  int run() {
    expand();
    resolve();
    refuse_faults();
    std::vector<BatchJob> mine;
    std::set<std::string> ids, own_ids;
    for (BatchJob& job : jobs_) {
      ids.insert(job.given.spec.id);
      if (job.index % shard_.count != static_cast<size_t>(shard_.index)) continue;
      own_ids.insert(job.given.spec.id);
      mine.push_back(std::move(job));
    }
    // The first process keeps account, and tells the others what is to be drawn.
    const std::vector<std::string> left = agreed_texts(runner().ranks(), [&] {
      log_ = std::make_unique<BatchLog>(folder_, shard_);
      std::vector<std::string> indices = unfinished(mine);
      if (team_ && !indices.empty()) queue_.emplace(flags_, folder_, *team_);
      return indices;
    });
    std::vector<PlacedJob> jobs;
    for (const std::string& index : left) jobs.push_back(mine[std::stoul(index)].placed);
    try {
      if (!jobs.empty()) team_ ? draw_from_store(jobs) : draw(jobs);
    } catch (...) {
      conclude(own_ids, ids);
      throw;
    }
    return broadcast_from_root(runner().ranks(), conclude(own_ids, ids)) > 0 ? 1 : 0;
  }

 private:
  const JobRunner& runner() const { return team_ ? team_->runner() : *own_runner_; }

  // Returns the number of this shard's jobs that have failed. Other processes keep no account.
  size_t conclude(const std::set<std::string>& own_ids, const std::set<std::string>& ids) {
    if (!log_) return 0;
    const size_t failed = log_->conclude(own_ids);
    log_->write_manifest({{"input", path_text(file_)},
                          {"input_sha256", file_hash(file_)},
                          {"model", runner().generator().model_name()}},
                         ids);
    return failed;
  }

  static std::string file_of(const Flags& flags) {
    if (flags.operands().size() != 1)
      throw Error(ErrorKind::kUsage,
                  "weft batch takes one file, got " + std::to_string(flags.operands().size()));
    return flags.operands().front();
  }

  // --output. A folder that cannot be made or written is refused before anything is loaded.
  static std::string folder_of(const Flags& flags) {
    const std::string output = flags.text("output"),
                      folder = output + (output.ends_with('/') ? "" : "/");
    agreed_texts(ranks_of(flags), [&] {
      check_writable(folder + "results.jsonl", Overwrite::kReplace);
      return std::vector<std::string>();
    });
    return folder;
  }

  void fault(size_t index, const std::string& message) { faults_.emplace(index, message); }

  std::vector<BatchJob> read_jobs() {
    std::vector<BatchJob> jobs;
    std::map<std::string, int> ids;  // the line of each
    for (size_t i = 0; i < lines_.size(); ++i) {
      const std::string where = file_ + " line " + std::to_string(lines_[i].number);
      try {
        BatchJob job{.index = i, .given = job_of(flags_, lines_[i], where), .where = where};
        std::string& id = job.given.spec.id;
        char number[32];
        std::snprintf(number, sizeof number, "%05zu", i);
        if (id.empty() && !lines_[i].text.starts_with('{')) id = number;
        if (id.empty())
          throw Error(ErrorKind::kUsage, where + ": has no id; legal: custom_id, or id");
        const auto [first, is_new] = ids.emplace(id, lines_[i].number);
        if (!is_new)
          throw Error(ErrorKind::kUsage, where + ": its id '" + id + "' is that of line " +
                                             std::to_string(first->second) +
                                             ", too; legal: an id of its own");
        jobs.push_back(std::move(job));
      } catch (const Error& error) {
        fault(i, error.what());
      }
    }
    return jobs;
  }

  // Writes the captions of the lines that want one: all with --expand-prompt but those that say
  // false. The same file has the same captions whenever it runs.
  void expand() {
    std::vector<JobSpec*> captioned;
    for (BatchJob& job : jobs_) try {
        if (wants_caption(job.given, expander_ != nullptr)) captioned.push_back(&job.given.spec);
      } catch (const Error& error) {
        fault(job.index, error.what());
      }
    if (captioned.empty() || (!faults_.empty() && !flags_.on("skip-invalid"))) return;
    const uint64_t seed = flags_.given("seed") ? seed_of(flags_) : 0;
    write_all_captions({flags_, runner().ranks(), *expander_, seed, stop_requested()}, captioned);
  }

  // Completes the requests with the model's defaults, and finds the paths of the results.
  void resolve() {
    const Generator& generator = runner().generator();
    std::map<std::string, std::string> paths;  // the line of each
    std::vector<BatchJob> good;
    for (BatchJob& job : jobs_) {
      try {
        take_facts(job.given, runner().ranks());
        job.placed = placed_job(
            job.given, generator,
            {.where = job.where, .folder = folder_, .index = static_cast<int>(job.index)});
        const std::string& path = job.placed.drawing.path;
        const auto [first, is_new] = paths.emplace(path, job.where);
        if (!is_new)
          throw Error(ErrorKind::kUsage, job.where + ": its output " + path + " is that of " +
                                             first->second + ", too; legal: an output of its own");
        good.push_back(std::move(job));
      } catch (const Error& error) {
        const std::string what = error.what();
        fault(job.index, what.starts_with(job.where) ? what : job.where + ": " + what);
      }
    }
    jobs_ = std::move(good);
  }

  // Tells every faulty line. Nothing is drawn then, unless --skip-invalid is given.
  void refuse_faults() {
    if (runner().ranks().speaks)
      for (const auto& [index, message] : faults_)
        std::fprintf(stderr, "weft: %s\n", printable(message).c_str());
    if (faults_.empty()) return;
    if (!flags_.on("skip-invalid") || jobs_.empty())
      throw Error(ErrorKind::kUsage, "nothing is drawn: " + std::to_string(faults_.size()) +
                                         " of " + std::to_string(lines_.size()) + " jobs of " +
                                         file_ +
                                         " are faulty; --skip-invalid goes on without them");
    faults_.clear();
  }

  // Returns the indices in `mine` of what is to be drawn. Jobs that failed before come last, the
  // latest failure at the end, so that one that ends the process keeps none of the others from
  // being drawn.
  std::vector<std::string> unfinished(const std::vector<BatchJob>& mine) {
    const std::map<std::string, size_t> failures = log_->failures();
    std::multimap<size_t, std::string> left;  // by the number of the failure, 0 where there is none
    for (size_t i = 0; i < mine.size(); ++i) {
      if (is_done(mine[i])) continue;
      const auto failure = failures.find(mine[i].given.spec.id);
      left.emplace(failure == failures.end() ? 0 : failure->second, std::to_string(i));
    }
    refuse_faults();
    if (informative(flags_))
      std::fprintf(stderr, "weft: %zu of %zu jobs are to be drawn\n", left.size(), mine.size());
    std::vector<std::string> indices;
    for (const auto& [failure, index] : left) indices.push_back(index);
    return indices;
  }

  // True where the job's result is there and verified, or where it must not be drawn.
  bool is_done(const BatchJob& job) {
    const std::string& id = job.given.spec.id;
    const std::string& path = job.placed.drawing.path;
    const OutputNames names = output_names(path);
    const auto remove = [&] {
      for (const std::string& file : {path, sidecar_path(path)}) fs::remove(file);
    };
    if (const Json* line = log_->result(id)) {
      const Json& body = line->at("response").at("body");
      if (body.text("job_sha256") != job.placed.hash) {
        if (!flags_.on("overwrite")) return other_request(job);
      } else if (!flags_.on("overwrite") && fs::is_regular_file(path) &&
                 file_hash(path) == body.text("file_sha256")) {
        return true;
      }
      log_->forget(id);
      remove();
      return false;
    }
    const Drawing& drawing = job.placed.drawing;
    if (complete(runner().generator(), drawing)) {  // killed before its line was written
      const Json sidecar = sidecar_of(path);
      log_->add_result(result_line(drawing, job.placed.hash, sidecar));
      drop_leftovers(names, kept_latents(flags_));
      return true;
    }
    return !flags_.on("overwrite") && fs::exists(sidecar_path(path)) && other_request(job);
  }

  bool other_request(const BatchJob& job) {
    fault(job.index, job.where + ": its id '" + job.given.spec.id + "' has a result of another " +
                         "request in " + folder_ + "; legal: an id of its own, or --overwrite");
    return true;
  }

  // A line of results.jsonl. `made` has "framehash", "seconds" and "frames".
  Json result_line(const Drawing& drawing, const std::string& hash, const Json& made) const {
    const Request& request = drawing.spec.request;
    const std::time_t now = std::time(nullptr);
    const double length = static_cast<double>(request.frames) / request.fps;
    Json body{{"id", "video_" + hash.substr(0, 24)},
              {"object", "video"},
              {"model", runner().generator().model_name()},
              {"status", "completed"},
              {"progress", 100},
              {"created_at", now - static_cast<std::time_t>(made.number("seconds"))},
              {"completed_at", now},
              {"seconds", shown(length)},
              {"size", std::to_string(request.width) + "x" + std::to_string(request.height)},
              {"seed", request.seed},
              {"frames", made.at("frames")},
              {"output", path_text(drawing.path.substr(folder_.size()))},
              {"draw_seconds", made.at("seconds")},
              {"framehash", made.at("framehash")},
              {"file_sha256", file_hash(drawing.path)},
              {"job_sha256", hash}};
    if (!flags_.on("no-prompt-metadata")) body["prompt"] = request.prompt;
    return {
        {"id", "batch_req_" + hash.substr(0, 24)},
        {"custom_id", drawing.spec.id},
        {"response", {{"status_code", 200}, {"request_id", hash.substr(0, 24)}, {"body", body}}},
        {"error", nullptr}};
  }

  Json error_line(const PlacedJob& job, const JobFailure& failure, int exit_code) const {
    return {{"id", "batch_req_" + job.hash.substr(0, 24)},
            {"custom_id", job.drawing.spec.id},
            {"response", nullptr},
            {"error",
             {{"code", failure.code}, {"exit_code", exit_code}, {"message", failure.message}}}};
  }

  // `seconds` are those of this run.
  void tell_result(const PlacedJob& job, const Json& made, double seconds) {
    const Json line = result_line(job.drawing, job.hash, made);
    keep(line);
    if (!flags_.on("json"))
      std::printf("%s %s %.2f\n", job.drawing.path.c_str(), made.text("framehash").c_str(),
                  seconds);
    print(line);
  }

  void tell_failure(const PlacedJob& job, const JobFailure& failure, int exit_code) {
    const Json line = error_line(job, failure, exit_code);
    std::fprintf(stderr, "weft: %s failed: %s\n", printable(job.drawing.spec.id).c_str(),
                 printable(failure.message).c_str());
    keep(line);
    print(line);
  }

  void print(const Json& line) const {
    if (flags_.on("json")) std::printf("%s\n", line.dump().c_str());
    std::fflush(stdout);
  }

  void draw(const std::vector<PlacedJob>& jobs) {
    std::vector<Drawing> drawings;
    std::map<std::string, const PlacedJob*> by_id;
    for (const PlacedJob& job : jobs) {
      drawings.push_back(job.drawing);
      by_id[job.drawing.spec.id] = &job;
    }
    own_runner_->arrange(drawings);
    own_runner_->draw(
        {.all = drawings, .stop = &stop_requested()},
        [&](const Finished& done) {
          const RunResult& result = done.result;
          tell_result(*by_id.at(done.drawing.spec.id),
                      {{"framehash", result.framehash},
                       {"frames", result.frames},
                       {"seconds", result.earlier_seconds + result.seconds}},
                      result.seconds);
        },
        [&](size_t index, const Error& error) {
          tell_failure(jobs[index], {.code = error_code(error.kind()), .message = error.what()},
                       static_cast<int>(error.kind()));
        });
    for (const std::string& lines : gathered_texts(runner().ranks(), log_ ? "" : unkept_))
      for (const std::string& line : split(lines, '\n'))
        if (log_ && !line.empty()) keep(parse_json(line, "a line of another process"));
  }

  // The first process takes jobs from the store, and the others draw them with it. All of them end
  // alike.
  void draw_from_store(const std::vector<PlacedJob>& jobs) {
    std::exception_ptr failed;
    if (!queue_) {
      team_->follow();
    } else {
      try {
        queue_->draw(jobs, [this](const BatchQueue::Ended& ended) { tell_end(ended); });
      } catch (...) {
        failed = std::current_exception();
        if (team_->broken()) throw;
      }
      team_->end();
    }
    agreed_texts(runner().ranks(), [&]() -> std::vector<std::string> {
      if (failed) std::rethrow_exception(failed);
      return {};
    });
  }

  void tell_end(const BatchQueue::Ended& ended) {
    if (ended.failure)
      return tell_failure(ended.job, *ended.failure, exit_code_of(ended.failure->code));
    const Json made = sidecar_of(ended.job.drawing.path);
    tell_result(ended.job, made, made.number("seconds"));
  }

  // Only the first process keeps account; the others tell it their lines at the end.
  void keep(const Json& line) {
    if (!log_)
      unkept_ += line.dump() + "\n";
    else if (line.at("error").is_null())
      log_->add_result(line);
    else
      log_->add_error(line);
  }

  const Flags& flags_;
  const std::string file_, folder_;
  const Shard shard_;
  const std::vector<Line> lines_;
  std::map<size_t, std::string> faults_;  // by the index of the line
  std::vector<BatchJob> jobs_;
  const std::shared_ptr<PromptExpander> expander_;
  const Flags drawing_flags_;
  std::unique_ptr<JobRunner> own_runner_{};
  std::optional<JobTeam> team_{};      // in place of it, where jobs come from a store
  std::unique_ptr<BatchLog> log_;      // in the first process alone
  std::optional<BatchQueue> queue_{};  // there, too; after what it uses
  std::string unkept_;                 // elsewhere, lines that it does not know yet
};

}  // namespace

int run_batch(const Flags& flags) { return Batch(flags).run(); }

}  // namespace weft
