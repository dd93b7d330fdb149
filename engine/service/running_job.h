#pragma once
// RunningJob: what a team, the watchers and the service's threads share of a job that runs here.
#include <chrono>
#include <mutex>
#include <string>
#include <vector>

#include "engine/job/options.h"
#include "engine/service/job_store.h"
#include "engine/service/preview_wish.h"
#include "engine/service/service.h"

namespace weft {

class RunningJob final : public ProgressListener {
 public:
  using Clock = std::chrono::steady_clock;

  explicit RunningJob(Claim claim) : claim_(std::move(claim)) {}

  void progress(const Progress& progress) override;
  void preview(const Preview& preview) override;
  bool wants_preview(int step, int total) override;
  void warning(const std::string& line) override;

  const Claim& claim() const { return claim_; }
  void add_wish(const std::shared_ptr<PreviewWish>& wish);  // as long as others keep it
  int wanted_previews() const;                              // the most of a wish
  double seconds() const { return std::chrono::duration<double>(Clock::now() - since_).count(); }
  LiveJob live() const;
  std::string finished_progress() const;  // the last one, as that of a completed job
  std::string warnings() const;           // a JSON array; "" without any
  // Writes the events of new warnings.
  void write_log(JobStore& store);

  std::atomic<bool> stop{false};
  std::atomic<bool> cancelled{false};        // by a client
  std::atomic<bool> late{false};             // its deadline has passed
  Clock::time_point renewed = Clock::now();  // of the thread that renews

 private:
  struct Shown {
    double percent = 0;
    Progress progress{};
  };
  static std::string json(const Shown& shown);

  const Claim claim_;
  const Clock::time_point since_ = Clock::now();
  std::mutex writing_;        // held while events are written, which keeps their order
  mutable std::mutex mutex_;  // guards the members below, and never waits for the disk
  Shown shown_;
  LiveJob live_;
  std::vector<std::string> warnings_, unwritten_;
  std::vector<std::weak_ptr<PreviewWish>> wishes_;
};

}  // namespace weft
