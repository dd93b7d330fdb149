#include "apps/live/sound_inbox.h"

#include <chrono>
#include <cmath>
#include <utility>

namespace weft {
namespace {

float loudness(const std::vector<float>& samples) {
  double sum = 0;
  for (const float sample : samples) sum += double(sample) * sample;
  return samples.empty() ? 0 : float(std::sqrt(sum / double(samples.size())));
}

bool is_text(const Utterance& utterance) {
  return !utterance.text.empty() || !utterance.caption.empty();
}

}  // namespace

bool SoundInbox::push(SoundPacket packet, MediaInstant now) {
  const std::lock_guard lock(mutex_);
  if (waiting_samples_ + packet.samples.size() > size_t(kMostSeconds * rate_)) {
    ++counts_.refused;
    return false;
  }
  const bool is_last = packet.header.flags & kLastFlag;
  place(packet);
  if (!packet.samples.empty()) add(std::move(packet.samples), now);
  if (is_last) {
    end_turn(now);
    expected_us_.reset();
  }
  changed_.notify_all();
  return true;
}

// Cuts what overlaps the packets before this one, and fills the gap after them.
void SoundInbox::place(SoundPacket& packet) {
  const int64_t time = packet.header.time_us;
  const auto count = int64_t(packet.samples.size());
  const int64_t offset =
      expected_us_ ? std::llround(double(time - *expected_us_) * 1e-6 * rate_) : 0;
  if (offset < 0) {
    if (-offset >= count) {
      ++counts_.late;
      packet.samples.clear();
      return;
    }
    packet.samples.erase(packet.samples.begin(), packet.samples.begin() - offset);
  } else if (offset > 0 && is_open_) {
    ++counts_.gaps;
    if (offset <= int64_t(kLongestGap * rate_)) {
      packet.samples.insert(packet.samples.begin(), size_t(offset), 0.0f);
      counts_.filled_samples += offset;
    } else {
      end_turn(MediaInstant(0));
    }
  }
  expected_us_ = time + int64_t(double(count) * 1e6 / rate_);
}

void SoundInbox::add(std::vector<float> samples, MediaInstant now) {
  const bool is_silent = loudness(samples) < kSilence;
  if (!is_open_ && is_silent) {
    lead_in_ = std::move(samples);
    return;
  }
  if (!is_open_) samples.insert(samples.begin(), lead_in_.begin(), lead_in_.end());
  lead_in_.clear();
  is_open_ = true;
  silent_ = is_silent ? silent_ + samples.size() : 0;
  append({.samples = std::move(samples), .received = now});
  if (silent_ >= size_t(kSilenceEndsTurn * rate_)) end_turn(now);
}

void SoundInbox::append(Utterance utterance) {
  utterance.drops = drops_;
  waiting_samples_ += utterance.samples.size();
  waiting_texts_ += is_text(utterance);
  waiting_.push_back(std::move(utterance));
}

void SoundInbox::end_turn(MediaInstant now) {
  silent_ = 0;
  lead_in_.clear();
  if (is_open_) append({.ends_turn = true, .received = now});
  is_open_ = false;
}

bool SoundInbox::push(std::string text, MediaInstant now) {
  return append_text({.text = std::move(text), .received = now});
}
bool SoundInbox::push_caption(std::string caption, MediaInstant now) {
  return append_text({.caption = std::move(caption), .received = now});
}

// A text is a turn of its own, so the present one ends.
bool SoundInbox::append_text(Utterance utterance) {
  const std::lock_guard lock(mutex_);
  if (waiting_texts_ == kMostTexts) {
    ++counts_.refused;
    return false;
  }
  end_turn(utterance.received);
  append(std::move(utterance));
  changed_.notify_all();
  return true;
}

void SoundInbox::drop() {
  const std::lock_guard lock(mutex_);
  ++drops_;
  std::erase_if(waiting_, [](const Utterance& waiting) { return waiting.caption.empty(); });
  waiting_texts_ = waiting_.size();
  waiting_samples_ = silent_ = 0;
  is_open_ = false;
  lead_in_.clear();
}

void SoundInbox::close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  changed_.notify_all();
}

std::optional<Utterance> SoundInbox::next(MediaInstant patience) {
  std::unique_lock lock(mutex_);
  const auto ready = [&] { return closed_ || !waiting_.empty(); };
  while (!ready()) {
    if (!is_open_)
      changed_.wait(lock);
    else if (!changed_.wait_for(lock, patience, ready))
      end_turn(MediaInstant(std::chrono::steady_clock::now().time_since_epoch()));
  }
  if (closed_) return std::nullopt;
  Utterance utterance = std::move(waiting_.front());
  waiting_.pop_front();
  waiting_samples_ -= utterance.samples.size();
  waiting_texts_ -= is_text(utterance);
  return utterance;
}

int SoundInbox::drops() const {
  const std::lock_guard lock(mutex_);
  return drops_;
}

bool SoundInbox::empty() const {
  const std::lock_guard lock(mutex_);
  return waiting_.empty();
}

SoundInbox::Counts SoundInbox::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace weft
