#pragma once
// SoundInbox: what a client wants its face to speak, in order: sound in packets, and texts.
//
// Packets state their time, and gaps between them become silence. Turns come from the sound: half a
// second of silence ends one, and silence between turns is dropped, so that a microphone that is
// always on leaves the engine to others while nobody speaks.
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/live/face/media_clock.h"
#include "apps/serve/stream_messages.h"

namespace weft {

// The next thing to do: samples of the present turn or of a new one, the end of the present turn, a
// text that is a turn, or another caption.
struct Utterance {
  std::vector<float> samples{};
  std::string text{}, caption{};
  bool ends_turn = false;
  MediaInstant received{0};
  int drops = 0;  // SoundInbox::drops() when it came
};

// Any thread may call anything.
class SoundInbox {
 public:
  static constexpr double kMostSeconds = 30;       // of sound that waits
  static constexpr size_t kMostTexts = 16;         // and captions
  static constexpr float kSilence = 0.003f;        // root mean square; full scale is 1
  static constexpr double kSilenceEndsTurn = 0.5;  // seconds
  // A gap beyond it ends the turn instead of becoming silence.
  static constexpr double kLongestGap = 1;

  explicit SoundInbox(int rate) : rate_(rate) {}
  int rate() const { return rate_; }

  // These return false where there is no room; nothing was taken then.
  bool push(SoundPacket packet, MediaInstant now);
  bool push(std::string text, MediaInstant now);
  bool push_caption(std::string caption, MediaInstant now);
  void drop();  // all sound and texts that wait; the present turn has ended
  int drops() const;
  bool empty() const;
  void close();

  // Waits until there is something. A turn without new sound for `patience` ends. nullopt:
  // closed.
  std::optional<Utterance> next(MediaInstant patience);

  struct Counts {
    int64_t gaps = 0, filled_samples = 0;  // filled with silence
    int64_t late = 0;                      // packets that were dropped: their time had passed
    int64_t refused = 0;                   // there was no room
  };
  Counts counts() const;

 private:
  // These need the lock.
  void place(SoundPacket& packet);
  void add(std::vector<float> samples, MediaInstant now);
  bool append_text(Utterance utterance);
  void append(Utterance utterance);
  void end_turn(MediaInstant now);

  const int rate_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Utterance> waiting_;
  size_t waiting_samples_ = 0, waiting_texts_ = 0;
  std::optional<int64_t> expected_us_;  // the time after the last packet
  bool is_open_ = false;                // a turn whose end does not wait yet
  size_t silent_ = 0;                   // samples at the end of the turn
  std::vector<float> lead_in_;          // the last silent packet, which a turn begins with
  bool closed_ = false;
  int drops_ = 0;
  Counts counts_;
};

}  // namespace weft
