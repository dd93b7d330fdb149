#include "engine/decoding/frame_writer.h"

#include <optional>

namespace weft {

FrameWriter::FrameWriter(FrameSink* sink, const FramesSoFar& before)
    : sink_(sink),
      meter_(thread_meter() ? thread_meter()->helper("writer") : nullptr),
      hash_(before.hash),
      frames_(before.frames),
      thread_([this] { work(); }) {}

FrameWriter::~FrameWriter() {
  if (!thread_.joinable()) return;
  queue_.cancel(std::make_exception_ptr(Error(ErrorKind::kStopped, "the decoder stopped")));
  thread_.join();
}

void FrameWriter::work() {
  std::optional<MeterScope> scope;
  if (meter_) scope.emplace(*meter_);
  try {
    while (std::optional<Frame> frame = queue_.pop()) {
      const ZoneScope zone(Zone::kEncodeVideo, frames_);
      hash_.add(*frame);
      if (sink_) sink_->push(*frame);
      ++frames_;
      if (first_frame_at_ == decltype(first_frame_at_){})
        first_frame_at_ = std::chrono::steady_clock::now();
    }
  } catch (...) {
    error_ = std::current_exception();
    queue_.cancel(error_);
  }
}

void FrameWriter::push(Frame frame) { queue_.push(std::move(frame)); }

FramesSoFar FrameWriter::keep() {
  queue_.drain();
  if (sink_) sink_->keep();
  return {frames_, hash_.state()};
}

void FrameWriter::finish() {
  queue_.close();
  thread_.join();
  if (error_) std::rethrow_exception(error_);
}

}  // namespace weft
