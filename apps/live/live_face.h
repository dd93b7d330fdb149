#pragma once
// LiveFace: one client's face. It joins a session of the engine with the client's messages and
// sound on one side and packets of media on the other, on two threads of its own: one that feeds
// the session with sound, and one that encodes what it shows.
//
// A face outlives its connection: while no client is connected it stands still, and a client that
// comes back goes on where it stopped.
#include <atomic>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>

#include "apps/live/face/turn_runner.h"
#include "apps/live/packet_sender.h"
#include "apps/live/sound_inbox.h"
#include "io/json.h"
#include "io/sound/media_pieces.h"

namespace weft {

// Shared by all faces of a server.
struct FaceStage {
  TurnRunner& runner;
  SessionConfig session;  // without loops, token and id
  MovieSettings movie;    // picture size and rates
  std::string voice;      // of texts, as espeak-ng names it
  // The loops of a caption, drawn where they are new. Waits.
  std::function<std::shared_ptr<const SessionLoops>(const std::string& caption)> loops;
  // The caption with a mood in it. Error(kUsage).
  std::function<std::string(const std::optional<std::string>& caption,
                            const std::optional<std::string>& mood)>
      caption;
};

struct FaceRequest {
  std::string caption;
  uint64_t seed = 0;  // of the gestures
  MediaContainer container = MediaContainer::kFmp4;
  int rate = 16000;  // of the client's sound
};

class LiveFace {
 public:
  // `ready` is called once, from another thread, when the face can be shown.
  LiveFace(FaceStage& stage, const FaceRequest& request, std::function<void()> ready);
  ~LiveFace();  // ends it; waits for its threads

  // The client. None of these waits.
  void attach(std::shared_ptr<WebSocket> socket, int64_t seen_us);
  void detach();
  bool speak(SoundPacket packet);            // false: too much waits
  bool speak(std::string text);              // false: too much waits
  bool change_caption(std::string caption);  // from the next turn on; false as above
  void listen(bool user_speaks);
  void pause(bool on);
  void flush();
  void end();  // drops what waits; the threads end soon

  bool ready() const { return ready_; }
  bool speaks() const;                  // or has something to speak
  bool over() const { return over_; }   // the engine failed, or it was ended
  std::optional<int> position() const;  // in the queue for the engine; nullopt: wants nothing
  SessionCounts counts() const;
  PacketSender::Counts sent() const { return sender_.counts(); }
  // The length of the latest segment by the time that its computation took; 0 before the first.
  double realtime_factor() const { return realtime_factor_; }

 private:
  void feed();
  void say(const Utterance& utterance, Resampler& resampler);
  bool push(std::span<const float> samples, const Utterance& utterance);
  void end_turn(const Utterance& utterance);
  void show();
  void show_slots();
  std::unique_ptr<MovieSink> open_movie();
  void take(MediaPiece&& piece);
  void announce(const MediaPiece& header);
  void send(MediaPiece&& piece);
  Json stats_of(const MediaPiece& piece, uint16_t& flags);
  std::optional<int64_t> received_before(MediaInstant begun) const;
  bool wait_to_show();
  void report(const StreamError& error);

  FaceStage& stage_;
  const FaceRequest request_;
  const std::function<void()> on_ready_;
  const int id_;
  SoundInbox inbox_;
  PacketSender sender_;
  std::shared_ptr<Session> session_;  // set before ready_

  mutable std::mutex mutex_;  // guards the members below
  std::condition_variable changed_;
  std::shared_ptr<WebSocket> socket_;
  bool paused_ = false, ended_ = false;

  std::mutex flush_mutex_;  // a flush drops the waiting sound and interrupts the session at once
  std::atomic<bool> ready_ = false, over_ = false, key_is_due_ = false;
  std::atomic<bool> feeds_now_ = false, shows_speech_ = false;
  std::atomic<double> realtime_factor_ = 0;
  struct Fed {
    MediaInstant at, received;
  };
  std::deque<Fed> fed_;  // the latest pieces of sound

  struct Shown {  // a slot that was encoded and is not sent
    int64_t index;
    SessionState state;
    bool frozen;
    int64_t segment_pictures;
    MediaInstant begun, made;
  };
  std::deque<Shown> shown_;  // of the thread that shows
  int64_t frozen_ = 0;       // slots, since the start
  // The constructor starts the one that shows; all other members are there by then.
  std::thread feeds_, shows_;
};

}  // namespace weft
