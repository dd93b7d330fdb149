#pragma once
// BatchQueue: the jobs of a batch in a store (engine/service), from which servers and other batches
// draw, too.
#include <atomic>
#include <exception>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "apps/batch/job_drawing.h"
#include "apps/serve/jobs/job_files.h"
#include "apps/worker/job_team.h"
#include "engine/service/job_failure.h"
#include "engine/service/service.h"

namespace weft {

class BatchQueue {
 public:
  // `folder` is that of the results, which ends in /. Opens --store, with its errors. `flags` and
  // `team` outlive this.
  BatchQueue(const Flags& flags, const std::string& folder, JobTeam& team);

  // The end of a job of the batch: with its result, unless there is a failure.
  struct Ended {
    const PlacedJob& job;
    std::optional<JobFailure> failure{};
  };
  // Puts the jobs into the store, a few at a time, and draws what waits there for this program,
  // until all of them are over, wherever they were drawn. Tells each once, from one thread at a
  // time. Error(kStopped) after a signal: the jobs that are not over stay in the store.
  // Error(kComm) where the ranks, which are processes, are broken.
  void draw(std::span<const PlacedJob> jobs, const std::function<void(const Ended&)>& ended);

 private:
  enum class At : uint8_t { kHere, kStore, kOver };
  struct Line {
    const PlacedJob& placed;
    NewJob job{};
    At at = At::kHere;
  };
  Line line_of(const PlacedJob& placed) const;

  void draw_jobs();
  void keep_account(const std::stop_token& over);
  void look(bool submits);
  void look_after(Line& line);
  bool submit(Line& line);
  bool is_waste(const Line& line, const StoredJob& stored) const;
  void make_room(const Line& line) const;
  void tell(Line& line, std::optional<JobFailure> failure = {});

  const Flags& flags_;
  const std::string owner_;  // names the folder
  JobTeam& team_;
  const Generator planner_;  // of the thread that keeps account
  const std::string program_;
  const JobFiles files_;
  StoreUser user_;
  std::function<void(const Ended&)> ended_{};
  std::vector<Line> lines_{};
  std::atomic<size_t> left_{0};  // lines that are not over
  int64_t version_ = -1;         // of the store, at the last look
  std::exception_ptr failed_{};  // of the thread that keeps account
  std::atomic<bool> has_failed_{false};
  Service service_;  // last, because it calls the members above
};

}  // namespace weft
