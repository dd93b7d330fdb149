#include "apps/live/face/speech_queue.h"

#include <algorithm>

#include "kernels/check.h"

namespace weft {

SpeechQueue::SpeechQueue(size_t capacity) : ring_(capacity) { CHECK(capacity > 0); }

size_t SpeechQueue::offer(std::span<const float> samples) {
  const size_t count = std::min(samples.size(), room());
  if (count == 0) return 0;
  if (!stretches_.empty() && stretches_.back().state != SessionState::kSpeaking) end_turn();
  if (stretches_.empty() || stretches_.back().ended)
    stretches_.push_back({SessionState::kSpeaking, 0, false});
  for (size_t i = 0; i < count; ++i) ring_[(first_ + speech_ + i) % ring_.size()] = samples[i];
  stretches_.back().samples += count;
  speech_ += count;
  size_ += count;
  return count;
}

bool SpeechQueue::end_turn() {
  if (stretches_.empty()) return false;
  stretches_.back().ended = true;
  const bool over = stretches_.back().samples == 0;
  if (over) stretches_.pop_back();
  return over;
}

size_t SpeechQueue::rest(SessionState state, size_t samples) {
  CHECK(state == SessionState::kIdle || state == SessionState::kListening, name_of(state));
  const auto goes_on = [&] {
    return !stretches_.empty() && stretches_.back().state == state && !stretches_.back().ended;
  };
  if (!goes_on()) end_turn();
  const size_t count = std::min(samples, room());
  if (count == 0) return 0;
  if (!goes_on()) stretches_.push_back({state, 0, false});
  stretches_.back().samples += count;
  stretches_.back().ended = count == samples;
  size_ += count;
  return count;
}

void SpeechQueue::drop() {
  stretches_.clear();
  first_ = speech_ = size_ = 0;
}

std::optional<SpeechQueue::Head> SpeechQueue::head() const {
  if (stretches_.empty()) return std::nullopt;
  const Stretch& stretch = stretches_.front();
  return Head{stretch.state, stretch.samples, stretch.ended};
}

bool SpeechQueue::take(std::span<float> samples) {
  CHECK(!stretches_.empty());
  Stretch& stretch = stretches_.front();
  const size_t count = std::min(samples.size(), stretch.samples);
  std::ranges::fill(samples, 0.0f);
  if (stretch.state == SessionState::kSpeaking) {
    for (size_t i = 0; i < count; ++i) samples[i] = ring_[(first_ + i) % ring_.size()];
    first_ = (first_ + count) % ring_.size();
    speech_ -= count;
  }
  stretch.samples -= count;
  size_ -= count;
  const bool over = stretch.ended && stretch.samples == 0;
  if (over) stretches_.pop_front();
  return over;
}

}  // namespace weft
