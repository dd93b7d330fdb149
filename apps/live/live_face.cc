#include "apps/live/live_face.h"

#include <algorithm>
#include <utility>

#include "apps/stream/sound_input.h"
#include "io/media_time.h"
#include "io/sound/audio_features.h"

namespace weft {
namespace {

constexpr MediaInstant kPatience = std::chrono::milliseconds(300);  // then a turn has ended
constexpr size_t kPiece = SoundBands::kRate / 10;  // samples of a text that are fed at a time
constexpr size_t kFedKept = 64;

MediaInstant now() { return MediaInstant(std::chrono::steady_clock::now().time_since_epoch()); }
int64_t microseconds(MediaInstant time) { return time.count() / 1000; }

Json time_or_null(MediaInstant time) {
  return time.count() > 0 ? Json(microseconds(time)) : Json();
}

}  // namespace

LiveFace::LiveFace(FaceStage& stage, const FaceRequest& request, std::function<void()> ready)
    : stage_(stage),
      request_(request),
      on_ready_(std::move(ready)),
      id_(stage.runner.new_id()),
      inbox_(request.rate),
      shows_([this] { show(); }) {}

LiveFace::~LiveFace() {
  end();
  shows_.join();
}

// The client.

void LiveFace::attach(std::shared_ptr<WebSocket> socket, int64_t seen_us) {
  sender_.attach(socket, seen_us);
  const std::lock_guard lock(mutex_);
  socket_ = std::move(socket);
  changed_.notify_all();
}

void LiveFace::detach() {
  sender_.detach();
  const std::lock_guard lock(mutex_);
  socket_ = nullptr;
}

bool LiveFace::speak(SoundPacket packet) { return inbox_.push(std::move(packet), now()); }
bool LiveFace::speak(std::string text) { return inbox_.push(std::move(text), now()); }

bool LiveFace::change_caption(std::string caption) {
  return inbox_.push_caption(std::move(caption), now());
}

void LiveFace::listen(bool user_speaks) {
  if (ready_) session_->hear(user_speaks);
}

void LiveFace::pause(bool on) {
  const std::lock_guard lock(mutex_);
  paused_ = on;
  changed_.notify_all();
}

void LiveFace::flush() {
  {
    const std::lock_guard lock(flush_mutex_);
    inbox_.drop();
    if (ready_) session_->interrupt();
  }
  key_is_due_ = true;
  const std::lock_guard lock(mutex_);
  if (socket_)
    socket_->send_text(server_message("flushed", {{"time_us", sender_.counts().end_us}}));
}

void LiveFace::end() {
  inbox_.close();
  const std::lock_guard lock(mutex_);
  ended_ = true;
  changed_.notify_all();
}

bool LiveFace::speaks() const {
  return !inbox_.empty() || feeds_now_ || shows_speech_ || position().has_value();
}

std::optional<int> LiveFace::position() const { return stage_.runner.token().position(id_); }

SessionCounts LiveFace::counts() const { return ready_ ? session_->counts() : SessionCounts(); }

void LiveFace::report(const StreamError& error) {
  const std::lock_guard lock(mutex_);
  if (!socket_) return;
  socket_->send_text(to_message(error));
  if (error.fatal) socket_->close(1011, error.code);
}

// The sound.

void LiveFace::feed() {
  auto resampler = std::make_unique<Resampler>(request_.rate, SoundBands::kRate);
  int drops = 0;
  while (const std::optional<Utterance> utterance = inbox_.next(kPatience)) {
    feeds_now_ = true;
    const bool begins_anew = std::exchange(drops, utterance->drops) != utterance->drops;
    if (begins_anew) resampler = std::make_unique<Resampler>(request_.rate, SoundBands::kRate);
    try {
      say(*utterance, *resampler);
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::kUsage) break;  // the session failed, and says so itself
      report({.code = "bad_request", .message = error.what(), .retryable = false, .fatal = false});
    }
    if (utterance->ends_turn)
      resampler = std::make_unique<Resampler>(request_.rate, SoundBands::kRate);
    feeds_now_ = false;
  }
  feeds_now_ = false;
}

void LiveFace::say(const Utterance& utterance, Resampler& resampler) {
  std::vector<float> samples;
  if (!utterance.caption.empty()) {
    session_->set_loops(stage_.loops(utterance.caption));
    stage_.runner.set_caption(id_, utterance.caption);
    return;
  }
  if (!utterance.text.empty()) {
    samples = spoken(utterance.text, stage_.voice, SoundBands::kRate).samples;
  } else if (utterance.ends_turn) {
    resampler.finish(samples);
  } else {
    resampler.push(utterance.samples, samples);
  }
  for (std::span<const float> rest(samples); !rest.empty();
       rest = rest.subspan(std::min(rest.size(), kPiece)))
    if (!push(rest.first(std::min(rest.size(), kPiece)), utterance)) return;
  if (utterance.ends_turn || !utterance.text.empty()) end_turn(utterance);
}

// Returns false where the client has dropped the utterance.
bool LiveFace::push(std::span<const float> samples, const Utterance& utterance) {
  int epoch;
  {
    const std::lock_guard lock(flush_mutex_);
    if (utterance.drops != inbox_.drops()) return false;
    epoch = session_->epoch();
  }
  {
    const std::lock_guard lock(mutex_);
    if (ended_) return false;
    fed_.push_back({now(), utterance.received});
    if (fed_.size() > kFedKept) fed_.pop_front();
  }
  return session_->push_sound(samples, epoch);
}

void LiveFace::end_turn(const Utterance& utterance) {
  const std::lock_guard lock(flush_mutex_);
  if (utterance.drops == inbox_.drops()) session_->end_turn();
}

// The media.

void LiveFace::show() {
  try {
    SessionConfig config = stage_.session;
    config.live = true;
    config.loops = stage_.loops(request_.caption);
    config.turns = &stage_.runner.token();
    config.id = id_;
    config.seed = request_.seed;
    session_ = std::make_shared<Session>(config);
    stage_.runner.join(id_, session_, request_.caption);
    feeds_ = std::thread([this] { feed(); });
    ready_ = true;
    on_ready_();
    show_slots();
  } catch (const std::exception& error) {
    report({.code = "engine",
            .message = std::string("The engine failed: ") + error.what(),
            .retryable = true,
            .fatal = true});
  }
  inbox_.close();
  if (feeds_.joinable()) {
    try {
      session_->interrupt();
    } catch (const std::exception&) {  // it failed before
    }
    feeds_.join();
    session_->close();
  }
  stage_.runner.leave(id_);
  over_ = true;
}

// Waits while no client is there to see it. Returns false at the end.
bool LiveFace::wait_to_show() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return ended_ || (socket_ && !paused_); });
  return !ended_;
}

void LiveFace::show_slots() {
  const std::unique_ptr<MovieSink> movie = open_movie();
  while (wait_to_show()) {
    const std::optional<SessionSlot> slot = session_->next();
    if (!slot) return;
    shows_speech_ = slot->state == SessionState::kSpeaking;
    shown_.push_back(
        {slot->index, slot->state, slot->frozen, slot->segment_pictures, slot->begun, slot->made});
    const bool is_key = key_is_due_.exchange(false) || slot->discontinuity;
    movie->push(slot->picture, slot->sound, is_key);
  }
}

std::unique_ptr<MovieSink> LiveFace::open_movie() {
  const auto take_piece = [this](MediaPiece&& piece) { take(std::move(piece)); };
  switch (request_.container) {
    case MediaContainer::kAnnexB:
      return make_annexb_pieces(take_piece, stage_.movie);
    case MediaContainer::kJpeg:
      return make_jpeg_pieces(take_piece, stage_.movie);
    case MediaContainer::kFmp4:
      break;
  }
  return make_movie_pieces(take_piece, stage_.movie);
}

void LiveFace::take(MediaPiece&& piece) {
  if (piece.kind == PieceKind::kHeader)
    announce(piece);
  else
    send(std::move(piece));
}

void LiveFace::announce(const MediaPiece& header) {
  const VideoSettings& video = stage_.movie.video;
  sender_.begin(server_message("media_init", {{"stream_id", std::to_string(id_)},
                                              {"mime", header.mime},
                                              {"container", name_of(request_.container)},
                                              {"width", video.width},
                                              {"height", video.height},
                                              {"fps", double(video.fps_num) / video.fps_den},
                                              {"timescale", 1'000'000},
                                              {"sample_rate", stage_.movie.sample_rate}}),
                {header.bytes.begin(), header.bytes.end()});
}

void LiveFace::send(MediaPiece&& piece) {
  const VideoSettings& video = stage_.movie.video;
  const bool is_sound = piece.kind == PieceKind::kSound;
  const MediaRate rate =
      is_sound ? MediaRate{stage_.movie.sample_rate, 1} : MediaRate{video.fps_num, video.fps_den};
  const int64_t begins = ticks_at(piece.first, rate, 1'000'000);
  const int64_t duration = ticks_at(piece.first + piece.count, rate, 1'000'000) - begins;
  MediaPacket packet{.type = is_sound ? PacketType::kHeard : PacketType::kMedia,
                     .time_us = begins,
                     .duration_us = duration,
                     .payload = {piece.bytes.begin(), piece.bytes.end()}};
  if (is_sound) return sender_.push(packet);
  packet.flags = piece.key ? kKeyFlag : 0;
  Json stats = stats_of(piece, packet.flags);
  stats["time_us"] = begins;
  stats["duration_us"] = duration;
  stats["emit_ts"] = microseconds(now());
  packet.stats = &stats;
  sender_.push(packet);
}

// Tells of the pictures of a piece, and forgets them.
Json LiveFace::stats_of(const MediaPiece& piece, uint16_t& flags) {
  Shown last{};
  bool speaks = false;
  for (; !shown_.empty() && shown_.front().index < piece.first + piece.count; shown_.pop_front()) {
    last = shown_.front();
    speaks |= last.state == SessionState::kSpeaking;
    frozen_ += last.frozen;
  }
  if (!speaks) flags |= kSilenceFlag;
  Json stats{{"state", name_of(last.state)},
             {"infer_start", time_or_null(last.begun)},
             {"infer_end", time_or_null(last.made)},
             {"encode_end", microseconds(now())},
             {"skew_ms", session_->counts().max_skew * 1000},
             {"frozen", frozen_},
             {"realtime_factor", nullptr},
             {"audio_recv_ts", nullptr}};
  if (last.made > last.begun) {
    const VideoSettings& video = stage_.movie.video;
    const double seconds = double(last.segment_pictures) * video.fps_den / video.fps_num;
    realtime_factor_ = seconds * 1e9 / double((last.made - last.begun).count());
    stats["realtime_factor"] = realtime_factor_.load();
  }
  if (last.state == SessionState::kSpeaking)
    if (const auto received = received_before(last.begun)) stats["audio_recv_ts"] = *received;
  const SoundInbox::Counts heard = inbox_.counts();
  stats["audio_gaps"] = heard.gaps;
  stats["late_chunks"] = heard.late;
  return stats;
}

// When the sound came that had been fed last before a segment began.
std::optional<int64_t> LiveFace::received_before(MediaInstant begun) const {
  const std::lock_guard lock(mutex_);
  for (auto fed = fed_.rbegin(); fed != fed_.rend(); ++fed)
    if (fed->at <= begun) return microseconds(fed->received);
  return std::nullopt;
}

}  // namespace weft
