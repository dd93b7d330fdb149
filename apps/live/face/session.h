#pragma once
// Session: one face of an endless stream. It joins three threads: one that brings sound, one that
// runs the engine, and one that takes pictures with their sound.
//
//   sound    -> push_sound, end_turn, rest, hear, interrupt, close
//   engine   -> next_segment: the rows of a signal; deliver: the pictures of that segment; fail
//   consumer -> next: one slot, that is one picture and its sound
//
// A segment's rows, pictures and sound are bound when the segment begins, so they stay in step
// however late the pictures come. States change at the borders of segments. Nothing grows with the
// stream: a producer of sound waits for room, the engine for credits, of which there are as many as
// segments fit into the engine and the queue of slots, and the consumer for pictures.
//
// Offline (`live` false) only what was pushed becomes media: a segment waits for its sound, and
// time does not matter. Live, the pictures never end: a segment whose sound is not there when it
// must begin is filled up with silence, and without any sound it is idle or listening.
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "apps/live/face/gestures.h"
#include "apps/live/face/media_clock.h"
#include "apps/live/face/speech_queue.h"
#include "apps/live/face/turn_token.h"
#include "io/media/frame.h"
#include "io/sound/audio_features.h"

namespace weft {

// The pictures of live sessions that take nothing from the engine. Several may share them.
struct SessionLoops {
  std::vector<Frame> idle, listening;  // an empty `listening` is replaced by `idle`
};

struct SessionConfig {
  int segment_frames = 3;  // latent frames of a segment
  int first_segment = 3;   // of the first segment of a speech: fewer are seen earlier
  int pictures = 4;        // of a latent frame (the VAE's temporal factor)
  // Pictures of the stream's first latent frame: 1 for a VAE that is causal in time. The rows of
  // the pictures that it lacks are idle and silent, and come before the others.
  int first_pictures = 4;
  int in_engine = 1;  // segments that may be inside the engine
  int warm_up = 0;    // segments of silence before the stream whose pictures are not shown
  uint64_t seed = 0;  // of the gestures
  MediaRate fps{25, 1};
  int sample_rate = SoundBands::kRate;
  double queued_seconds = 2;  // of sound that waits for its segments
  bool live = false;
  MediaInstant jitter = std::chrono::milliseconds(200);  // live: the delay of the first picture
  MediaInstant kept = std::chrono::milliseconds(600);    // media still shown after an interruption
  // Live: a segment begins so long before its first picture is due, at the latest. 0: the time of
  // in_engine + 1 segments.
  MediaInstant lead{0};
  // Shown live while the session neither speaks nor waits for pictures; idle and listening then
  // take nothing from the engine. Null: the engine makes these pictures.
  std::shared_ptr<const SessionLoops> loops{};
  TurnToken* turns = nullptr;  // of the engine, if several sessions share it
  int id = 0;                  // of this session there
  // A session that has the token and nothing for the engine so long, within a speech whose sound or
  // consumer stalls, queues for it anew.
  MediaInstant revoke = std::chrono::seconds(5);
  std::function<MediaInstant()> now = [] {
    return MediaInstant(std::chrono::steady_clock::now().time_since_epoch());
  };
};

// A segment as the engine takes it. Pictures that belong to a latent frame have neighbouring rows.
struct SignalSegment : SessionSegment {
  std::vector<float> rows;   // [frames * pictures, kSignalColumns]
  std::vector<float> sound;  // of these pictures, at SessionConfig::sample_rate
};

// One picture and its sound: samples [round(index r / fps), round((index + 1) r / fps)).
struct SessionSlot {
  int64_t index = 0;     // of all slots: the picture is shown at index / fps
  int64_t source = -1;   // of the pictures that the engine made for the stream; -1: none of them
  int64_t segment = -1;  // the engine's segment of the source
  int64_t segment_pictures = 0;    // of that segment
  MediaInstant begun{0}, made{0};  // when that segment began, and when its pictures came
  SessionState state = SessionState::kIdle;
  bool frozen = false;         // the last picture once more, since the next one is late
  bool discontinuity = false;  // the clock moved: an encoder begins with a key picture
  Frame picture;
  std::vector<float> sound;
};

struct SessionCounts {
  int64_t segments = 0, muted_segments = 0, warm_up_segments = 0, interruptions = 0;
  int64_t slots = 0, samples = 0;  // handed out
  int64_t looped = 0;              // slots of a loop
  int64_t missing = 0;             // sources that the engine left out; the last picture stands in
  int64_t doubled = 0;  // pictures that the engine gave twice or beyond a segment's number
  double max_skew = 0;  // seconds between the sound and the pictures handed out
  size_t max_queued_slots = 0, max_queued_samples = 0;
  int max_in_engine = 0;
  MediaClock::Counts clock;  // live
};

class Session {
 public:
  // Bands; idle, listening, speaking; lids, gaze.
  static constexpr int kSignalColumns = SoundBands::kBands + 5;

  // Error(kUsage) names a field that is not legal.
  explicit Session(SessionConfig config);
  ~Session();  // gives the token back
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  // The sound. These calls throw the error of fail().

  int epoch() const;  // the number of interruptions
  // Appends samples to the present speech, or begins one. Waits while the queue is full. Returns
  // false if `epoch` is over: the rest of an interrupted speech is not played.
  bool push_sound(std::span<const float> samples, int epoch);
  // Ends the present speech. Its last segment is filled up with silence.
  void end_turn();
  // Appends a rest of so many pictures, rounded up to segments. Waits while the queue is full.
  void rest(SessionState state, int64_t pictures);
  // Live, without sound: the face listens while a user speaks, else it is idle.
  void hear(bool user_speaks);
  // Takes other loops from the next slot on. A session that began without loops stays so.
  void set_loops(std::shared_ptr<const SessionLoops> loops);
  // Drops the sound and the pictures that are queued, save `kept`. Segments inside the engine are
  // muted; the next segment is a listening one.
  void interrupt();
  // No more sound comes: the stream ends when all is played.
  void close();

  // The engine.

  // Says that the engine begins anew, without a past: its first latent frame gives first_pictures.
  // Only the segments of one turn belong to it, if there is a token. It is not needed by an engine
  // that keeps what it knows of the session from turn to turn.
  void begin_stream();
  // Waits until the next segment can begin. nullopt: the stream has ended; or, with a token, it
  // has none at present, and gives it back when all its segments are delivered. Throws the error of
  // fail().
  std::optional<SignalSegment> next_segment();
  // Does what next_segment does, but returns nullopt where that would wait.
  std::optional<SignalSegment> try_segment();
  // The pictures of a segment, in the order of the segments. Those of a muted or warm-up segment
  // may be left out. Never waits.
  void deliver(int64_t segment, std::vector<Frame> pictures);
  bool muted(int64_t segment) const;
  // Ends the session: every call, also one that waits, throws `error` from now on.
  void fail(std::exception_ptr error);

  // The consumer.

  // Waits until the next slot is there and, live, due. nullopt at the end.
  std::optional<SessionSlot> next();
  // As next(), but nullopt where it would wait.
  std::optional<SessionSlot> try_next();
  bool finished() const;  // all slots were handed out

  SessionState state() const;
  SessionCounts counts() const;

 private:
  struct InEngine {
    SessionSegment segment;
    int64_t source;  // of its first picture
    int64_t pictures;
    std::vector<float> sound;
    bool muted;
    MediaInstant begun;
  };
  struct Queued {
    int64_t source, segment, segment_pictures;
    MediaInstant begun, made;
    SessionState state;
    Frame picture;
    std::vector<float> sound;
  };
  enum class Answer : uint8_t { kSegment, kWait, kNone };
  struct SegmentPlan {
    Answer answer = Answer::kWait;
    SessionState state = SessionState::kIdle;
    bool takes_sound = false;  // of the queue
    MediaInstant wake = MediaInstant::max();
  };

  // All of these need the lock.
  SegmentPlan plan_segment() const;
  SegmentPlan plan_speech(const SpeechQueue::Head& head) const;
  SegmentPlan plan_silence() const;
  std::optional<SignalSegment> poll_segment(SegmentPlan& plan);
  SignalSegment begin_segment(const SegmentPlan& plan);
  bool has_credit() const;
  bool has_loop() const { return config_.live && loops_; }
  bool waits_for_pictures() const;  // slots that are to come follow the last one directly
  int64_t pictures_ahead() const;   // slots that are queued or will come from the engine
  MediaInstant slot_due() const;    // the first slot of the next segment
  int64_t pictures_if(SessionState state) const;  // of the next segment
  int64_t missing_head() const;                   // of its rows: those without a picture
  void queue_pictures(InEngine& done, std::vector<Frame>& pictures);
  std::optional<SessionSlot> poll_slot(MediaInstant* wake);
  SessionSlot take_queued();
  SessionSlot loop_slot();
  SessionSlot frozen_slot() const;
  void count_slot(SessionSlot& slot);
  std::vector<float> silence() const;  // of one slot
  bool all_played() const;
  bool stream_is_over() const { return stream_turn_ && stream_turn_ != turns_over_; }
  void ask_for_turn();
  void give_turn_back();
  void throw_error() const;
  void wait_until(std::unique_lock<std::mutex>& lock, MediaInstant wake);

  void write_rows(SignalSegment& segment, std::span<const float> bands, int64_t head);

  const SessionConfig config_;
  mutable std::mutex mutex_;
  std::shared_ptr<const SessionLoops> loops_;
  std::condition_variable changed_;
  std::exception_ptr error_;
  SpeechQueue speech_;
  SessionTimeline timeline_;
  SoundBands bands_;
  Gestures gestures_;
  MediaClock clock_;
  std::deque<InEngine> in_engine_;
  std::deque<Queued> queued_;
  Frame last_shown_, last_made_;
  SessionState shown_state_ = SessionState::kIdle;  // of the last slot
  bool shown_loop_ = true;                          // the last slot, or there was none
  int64_t next_source_ = 0;                         // of the next segment
  int64_t expected_source_ = 0;                     // of the next slot
  int64_t loop_at_ = 0;
  bool hears_ = false, closed_ = false, turn_over_ = false;
  bool stream_is_new_ = true;  // the next segment is the engine's first
  int64_t turns_over_ = 0;
  std::optional<int64_t> stream_turn_;  // the value of turns_over_ during the engine's stream
  SessionCounts counts_;
};

}  // namespace weft
