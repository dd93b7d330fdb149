#include "kernels/trace.h"

#include <algorithm>
#include <chrono>

#include "kernels/check.h"
#include "kernels/cuda/nvtx.h"

namespace weft {

namespace {

constexpr const char* kNames[] = {"attention",    "block",        "chunk",       "communication",
                                  "conv",         "copy",         "decode",      "denoise",
                                  "encode_audio", "encode_image", "encode_text", "encode_video",
                                  "forward",      "linear",       "load",        "norm",
                                  "pointwise",    "rope",         "step",        "write"};
static_assert(std::size(kNames) == kZones);

int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

const char* to_string(Zone zone) { return kNames[static_cast<int>(zone)]; }

bool is_stage(Zone zone) {
  switch (zone) {
    case Zone::kLoad:
    case Zone::kEncodeAudio:
    case Zone::kEncodeImage:
    case Zone::kEncodeText:
    case Zone::kDenoise:
    case Zone::kDecode:
    case Zone::kEncodeVideo:
    case Zone::kWrite:
      return true;
    default:
      return false;
  }
}

bool is_family(Zone zone) {
  switch (zone) {
    case Zone::kStep:
    case Zone::kForward:
    case Zone::kChunk:
    case Zone::kBlock:
    case Zone::kCount:
      return false;
    default:
      return !is_stage(zone);
  }
}

double Profile::family_seconds(Zone stage) const {
  double seconds = 0;
  for (int zone = 0; zone < kZones; ++zone)
    if (is_family(static_cast<Zone>(zone))) seconds += of(stage, static_cast<Zone>(zone)).seconds;
  return seconds;
}

void Recorder::book(Zone stage, const Event& event, int64_t ns) {
  Profile::Total& total = profile_.totals[static_cast<int>(stage)][static_cast<int>(event.zone)];
  total.seconds += static_cast<double>(ns) * 1e-9;
  total.flop += event.flop;
  total.bytes += event.bytes;
  ++total.calls;
  if (keep_ == Keep::kEvents) events_.push_back(event);
}

void Recorder::op(const Work& work, const std::function<void()>& run) {
  if (in_op_) return run();  // this op is part of the op that called it
  struct Inside {
    bool& flag;
    Inside(bool& in, const char* name) : flag(in) {
      flag = true;
      cuda::push_range(name);
    }
    ~Inside() {
      cuda::pop_range();
      flag = false;
    }
  };
  Event event{.zone = zone_of(work.family),
              .index = -1,
              .what = work.op,
              .begin_ns = now_ns(),
              .end_ns = 0,
              .flop = work.flop,
              .bytes = work.bytes};
  {
    const Inside inside(in_op_, work.op);
    run();
  }
  event.end_ns = now_ns();
  book(stage(), event, event.end_ns - event.begin_ns);
}

void Recorder::begin(Zone zone, int index, const char* what, double bytes) {
  cuda::push_range(*what ? what : to_string(zone));
  open_.push_back({.event = {.zone = zone,
                             .index = index,
                             .what = what,
                             .begin_ns = now_ns(),
                             .end_ns = 0,
                             .flop = 0,
                             .bytes = bytes},
                   .stage = is_stage(zone) ? zone : stage(),
                   .inner_stages_ns = 0});
}

void Recorder::end() {
  CHECK(!open_.empty(), "no zone is open");
  cuda::pop_range();
  Open zone = open_.back();
  open_.pop_back();
  zone.event.end_ns = now_ns();
  int64_t ns = zone.event.end_ns - zone.event.begin_ns;
  if (is_stage(zone.event.zone)) {
    for (auto outer = open_.rbegin(); outer != open_.rend(); ++outer)
      if (is_stage(outer->event.zone)) {
        outer->inner_stages_ns += ns;
        break;
      }
    ns -= zone.inner_stages_ns;
  }
  book(zone.stage, zone.event, ns);
}

void Recorder::counter(const char* name, double value) {
  if (keep_ == Keep::kEvents) samples_.push_back({name, now_ns(), value});
}

void Recorder::restart() {
  CHECK(open_.empty(), "zones are open", open_.size());
  profile_ = {};
  for (const auto& [name, helper] : helpers_) helper->restart();
}

Meter* Recorder::helper(const char* name) {
  std::unique_ptr<Recorder>& recorder = helpers_[name];
  if (!recorder) recorder = std::make_unique<Recorder>(keep_);
  return recorder.get();
}

}  // namespace weft
