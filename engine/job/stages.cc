#include "engine/job/stages.h"

#include <algorithm>

#include "kernels/meter.h"

namespace weft {

double overall_percent(const Progress& progress) {
  struct Stage {
    const char* name;
    double begin, end;
  };
  constexpr double kFirst = 8, kLast = 97;  // of the stages that each chunk has
  constexpr Stage kStages[] = {{"load", 0, 4},           {"encode_text", 4, 6},
                               {"encode_audio", 6, 7},   {"encode_image", 7, kFirst},
                               {"denoise", kFirst, 80},  {"decode", 80, kLast},
                               {"encode_video", 97, 98}, {"write", 98, 99}};
  for (const Stage& stage : kStages)
    if (progress.stage == stage.name) {
      const double part = progress.total > 0 ? double(progress.step) / progress.total : 0;
      const double percent = stage.begin + (stage.end - stage.begin) * std::clamp(part, 0.0, 1.0);
      if (percent < kFirst && progress.chunk == 0) return percent;
      if (percent > kLast) return percent;
      const double of_clip = std::max(percent - kFirst, 0.0);
      return kFirst + (progress.chunk * (kLast - kFirst) + of_clip) / progress.chunks;
    }
  return 0;
}

StageClock::StageClock(ProgressListener* listener, std::function<uint64_t()> memory)
    : listener_(listener), memory_(std::move(memory)) {}

double StageClock::elapsed() const {
  return stage_.elapsed + std::chrono::duration<double>(Clock::now() - stage_.since).count();
}

// Adds the time since the stage was entered or resumed.
void StageClock::pause() {
  if (stage_.zone == Zone::kCount) return;
  const double since = elapsed() - stage_.elapsed;
  stage_.elapsed += since;
  const auto same = [&](const StageSeconds& entry) {
    return entry.stage == to_string(stage_.zone);
  };
  const auto entry = std::find_if(seconds_.begin(), seconds_.end(), same);
  if (entry == seconds_.end()) {
    seconds_.push_back({to_string(stage_.zone), since});
  } else {
    entry->seconds += since;
  }
}

void StageClock::enter(Zone stage, int total, int done) {
  leave();
  begin(stage, total, done);
  report();
}

void StageClock::begin(Zone stage, int total, int done) {
  if (Meter* meter = thread_meter()) meter->begin(stage, -1, "", 0);
  stage_ = {.zone = stage,
            .done = done,
            .total = total,
            .first = done,
            .silent = false,
            .sigma = 0,
            .elapsed = 0,
            .since = Clock::now()};
}

void StageClock::step(int done, double sigma) {
  stage_.done = done;
  stage_.sigma = sigma;
  report();
}

void StageClock::inside(Zone stage, int total, const std::function<void()>& body) {
  nested(stage, total, false, [&] {
    report();
    body();
    stage_.done = total;
    report();
  });
}

void StageClock::beside(Zone stage, const std::function<void()>& body) {
  if (stage_.zone == stage) return body();
  nested(stage, 0, true, body);
}

void StageClock::decoded(int latent_frames, int64_t pictures) {
  pictures_ = pictures;
  step(latent_frames);
}

void StageClock::nested(Zone stage, int total, bool silent, const std::function<void()>& body) {
  pause();
  const Stage outer = stage_;
  begin(stage, total, 0);
  stage_.silent = silent;
  const auto back = [&] {
    leave();
    stage_ = outer;
  };
  try {
    body();
  } catch (...) {
    back();
    throw;
  }
  back();
  stage_.since = Clock::now();
}

void StageClock::leave() {
  if (stage_.zone == Zone::kCount) return;
  pause();
  stage_ = {};
  if (Meter* meter = thread_meter()) meter->end();
}

void StageClock::report() {
  if (Meter* meter = thread_meter()) meter->counter("memory", static_cast<double>(memory_()));
  if (!listener_ || stage_.silent) return;
  Progress progress;
  progress.stage = to_string(stage_.zone);
  progress.step = stage_.done;
  progress.total = stage_.total;
  progress.sigma = stage_.sigma;
  progress.elapsed_seconds = elapsed();
  progress.kept = kept_;
  progress.pictures = pictures_;
  progress.chunk = chunk_;
  progress.chunks = chunks_;
  if (stage_.done > stage_.first) {
    progress.seconds_per_step = progress.elapsed_seconds / (stage_.done - stage_.first);
    progress.eta_seconds = progress.seconds_per_step * std::max(stage_.total - stage_.done, 0);
  }
  if (stage_.zone == Zone::kDenoise) progress.turn = turn_;
  if (segments_ > 0 && stage_.zone == Zone::kDenoise) {
    progress.finished_segments = finished_segments_;
    progress.segments = segments_;
    progress.first_frame_seconds =
        progress.seconds_per_step * std::max(first_block_step_ - stage_.done, 0);
  }
  progress.memory_bytes = memory_();
  listener_->progress(progress);
}

}  // namespace weft
