#include "apps/live/face/session.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/check.h"

namespace weft {

namespace {

constexpr int kQueuedBlocks = 2;  // that wait as slots while the engine is full

void require(bool legal, const char* field, int64_t value, const std::string& range) {
  if (!legal)
    throw Error(ErrorKind::kUsage, std::string("session: ") + field + " is " +
                                       std::to_string(value) + ", but it must be " + range);
}

SessionConfig checked(SessionConfig config) {
  require(config.segment_frames >= 1, "block_frames", config.segment_frames, "at least 1");
  require(config.first_segment >= 1 && config.first_segment <= config.segment_frames, "first_block",
          config.first_segment,
          "between 1 and block_frames (" + std::to_string(config.segment_frames) + ")");
  require(config.pictures >= 1, "pictures", config.pictures, "at least 1");
  require(config.first_pictures >= 1 && config.first_pictures <= config.pictures, "first_pictures",
          config.first_pictures,
          "between 1 and pictures (" + std::to_string(config.pictures) + ")");
  require(config.in_engine >= 1, "in_engine", config.in_engine, "at least 1");
  require(config.warm_up >= 0, "warm_up", config.warm_up, "at least 0");
  require(config.sample_rate == SoundBands::kRate, "sample_rate", config.sample_rate,
          std::to_string(SoundBands::kRate) + ", for which the signal is defined");
  require(config.fps.den > 0 &&
              config.fps.num * SoundBands::kHop == config.fps.den * int64_t{SoundBands::kRate},
          "fps", config.fps.den > 0 ? config.fps.num / config.fps.den : 0,
          "25, for which the signal is defined");
  require(config.queued_seconds > 0 && config.queued_seconds <= 3600, "queued_seconds",
          int64_t(config.queued_seconds), "above 0 and at most 3600");
  const int64_t looped = config.loops ? int64_t(config.loops->idle.size()) : 0;
  require(config.loops ? looped > 0 : config.turns == nullptr || !config.live, "loops", looped,
          "of at least one idle picture where they are given and where live sessions share an "
          "engine");
  const MediaInstant segment(
      ticks_at(int64_t{config.segment_frames} * config.pictures, config.fps, 1'000'000'000));
  if (config.lead.count() <= 0) config.lead = segment * (config.in_engine + 1);
  return config;
}

MediaClockConfig clock_config(const SessionConfig& config) {
  MediaClockConfig clock;
  clock.pictures = config.fps;
  clock.delay = config.jitter;
  clock.grace = MediaInstant(
      ticks_at(int64_t{config.segment_frames} * config.pictures, config.fps, 1'000'000'000));
  return clock;
}

// A queue holds at least one segment, or its sound would never be there.
size_t queue_capacity(const SessionConfig& config) {
  return std::max(size_t(config.queued_seconds * config.sample_rate),
                  size_t(config.segment_frames) * size_t(config.pictures) * SoundBands::kHop);
}

}  // namespace

Session::Session(SessionConfig config)
    : config_(checked(std::move(config))),
      loops_(config_.loops),
      speech_(queue_capacity(config_)),
      timeline_(config_.segment_frames, config_.first_segment, config_.warm_up),
      gestures_(config_.seed),
      clock_(clock_config(config_)) {}

Session::~Session() {
  if (config_.turns) config_.turns->release(config_.id);
}

// The sound.

int Session::epoch() const {
  std::lock_guard lock(mutex_);
  return timeline_.epoch();
}

bool Session::push_sound(std::span<const float> samples, int epoch) {
  std::unique_lock lock(mutex_);
  for (;;) {
    throw_error();
    CHECK(!closed_);
    if (epoch != timeline_.epoch()) return false;
    samples = samples.subspan(speech_.offer(samples));
    counts_.max_queued_samples = std::max(counts_.max_queued_samples, speech_.size());
    ask_for_turn();
    changed_.notify_all();
    if (samples.empty()) return true;
    changed_.wait(lock);
  }
}

void Session::end_turn() {
  std::lock_guard lock(mutex_);
  throw_error();
  if (speech_.end_turn() && config_.turns && config_.turns->holds(config_.id)) {
    turn_over_ = true;
    give_turn_back();
  }
  ask_for_turn();
  changed_.notify_all();
}

void Session::rest(SessionState state, int64_t pictures) {
  std::unique_lock lock(mutex_);
  const int epoch = timeline_.epoch();
  size_t samples = size_t(std::max<int64_t>(pictures, 0)) * SoundBands::kHop;
  for (;;) {
    throw_error();
    CHECK(!closed_);
    if (epoch != timeline_.epoch()) return;
    samples -= speech_.rest(state, samples);
    counts_.max_queued_samples = std::max(counts_.max_queued_samples, speech_.size());
    ask_for_turn();
    changed_.notify_all();
    if (samples == 0) return;
    changed_.wait(lock);
  }
}

void Session::hear(bool user_speaks) {
  std::lock_guard lock(mutex_);
  hears_ = user_speaks;
}

void Session::set_loops(std::shared_ptr<const SessionLoops> loops) {
  CHECK(loops && !loops->idle.empty());
  std::lock_guard lock(mutex_);
  if (loops_) loops_ = std::move(loops);
}

void Session::interrupt() {
  std::lock_guard lock(mutex_);
  throw_error();
  ++counts_.interruptions;
  speech_.drop();
  timeline_.interrupt();
  hears_ = true;
  for (InEngine& inside : in_engine_) {
    counts_.muted_segments += !inside.muted && !inside.segment.warm_up;
    inside.muted = true;
  }
  const auto kept =
      size_t(config_.kept.count() * config_.fps.num / config_.fps.den / 1'000'000'000);
  if (queued_.size() > kept) queued_.resize(kept);
  next_source_ = queued_.empty() ? expected_source_ : queued_.back().source + 1;
  if (has_loop() && timeline_.owes_listening()) timeline_.listen();
  if (config_.turns && !config_.turns->holds(config_.id)) {
    config_.turns->release(config_.id);
    ask_for_turn();
  } else if (config_.turns && !timeline_.owes_listening()) {
    turn_over_ = true;
    give_turn_back();
  }
  changed_.notify_all();
}

void Session::close() {
  std::lock_guard lock(mutex_);
  closed_ = true;
  if (speech_.end_turn()) turn_over_ = config_.turns && config_.turns->holds(config_.id);
  if (turn_over_) give_turn_back();
  ask_for_turn();
  changed_.notify_all();
}

// The engine.

bool Session::has_credit() const {
  if (int(in_engine_.size()) >= config_.in_engine) return false;
  const int64_t segment = int64_t{config_.segment_frames} * config_.pictures;
  return pictures_ahead() + segment <= (config_.in_engine + kQueuedBlocks) * segment;
}

int64_t Session::pictures_ahead() const {
  int64_t pictures = int64_t(queued_.size());
  for (const InEngine& inside : in_engine_)
    if (!inside.muted && !inside.segment.warm_up) pictures += inside.pictures;
  return pictures;
}

int64_t Session::pictures_if(SessionState state) const {
  return int64_t{timeline_.frames_if(state)} * config_.pictures - missing_head();
}

int64_t Session::missing_head() const {
  return stream_is_new_ ? config_.pictures - config_.first_pictures : 0;
}

MediaInstant Session::slot_due() const {
  const int64_t ahead = pictures_ahead();
  if (clock_.started()) return clock_.due(clock_.next_slot() + ahead);
  if (ahead == 0) return MediaInstant(0);  // at once: the clock starts with the first pictures
  return config_.now() + config_.jitter + MediaInstant(ticks_at(ahead, config_.fps, 1'000'000'000));
}

Session::SegmentPlan Session::plan_segment() const {
  if (config_.turns && (turn_over_ || !config_.turns->holds(config_.id))) return {Answer::kNone};
  if (!has_credit()) return {};
  if (timeline_.warming_up()) return {Answer::kSegment, SessionState::kIdle};
  if (timeline_.owes_listening()) return {Answer::kSegment, SessionState::kListening};
  const std::optional<SpeechQueue::Head> head = speech_.head();
  return head ? plan_speech(*head) : plan_silence();
}

Session::SegmentPlan Session::plan_speech(const SpeechQueue::Head& head) const {
  const auto wanted = size_t(pictures_if(head.state)) * SoundBands::kHop;
  if (head.ended || head.samples >= wanted) return {Answer::kSegment, head.state, true};
  if (!config_.live) return {};
  // A speech does not begin with part of a segment, and one that is dry leaves its segments to
  // silence.
  const bool goes_on = timeline_.state() == SessionState::kSpeaking && head.samples > 0;
  if (!goes_on) return plan_silence();
  // The sound may use the spare segment of the lead. A loop has none.
  const MediaInstant segment(ticks_at(pictures_if(head.state), config_.fps, 1'000'000'000));
  const MediaInstant lead =
      has_loop() ? MediaInstant(0) : std::max(config_.lead - segment, MediaInstant(0));
  const MediaInstant latest = slot_due() - lead;
  if (config_.now() < latest) return {Answer::kWait, head.state, false, latest};
  return {Answer::kSegment, head.state, true};
}

Session::SegmentPlan Session::plan_silence() const {
  const bool open = speech_.head().has_value();
  if (closed_) return {Answer::kNone};
  if (!config_.live) return config_.turns && !open ? SegmentPlan{Answer::kNone} : SegmentPlan{};
  if (has_loop() && !config_.turns) return {};
  const MediaInstant latest = slot_due() - (has_loop() ? MediaInstant(0) : config_.lead);
  if (open && has_loop() && config_.now() < latest)
    return {Answer::kWait, SessionState::kIdle, false, latest};
  if (config_.turns) return {Answer::kNone};
  if (config_.now() < latest) return {Answer::kWait, SessionState::kIdle, false, latest};
  return {Answer::kSegment, hears_ ? SessionState::kListening : SessionState::kIdle};
}

// `head` rows of the first latent frame have no picture.
void Session::write_rows(SignalSegment& segment, std::span<const float> bands, int64_t head) {
  const size_t rows = bands.size() / SoundBands::kBands;
  segment.rows.assign(rows * kSignalColumns, 0.0f);
  if (stream_is_new_) gestures_.restart();
  Gesture gesture;
  for (size_t k = 0; k < rows; ++k) {
    float* row = segment.rows.data() + k * kSignalColumns;
    std::copy_n(bands.begin() + ptrdiff_t(k) * SoundBands::kBands, SoundBands::kBands, row);
    if (k % size_t(config_.pictures) == 0) gesture = gestures_.next(segment.state);
    const bool shown = std::cmp_greater_equal(k, head);
    row[SoundBands::kBands + int(shown ? segment.state : SessionState::kIdle)] = 1;
    row[SoundBands::kBands + 3] = shown ? gesture.lids : 0;
    row[SoundBands::kBands + 4] = shown ? gesture.gaze : 0;
  }
}

SignalSegment Session::begin_segment(const SegmentPlan& plan) {
  const int64_t head = missing_head(), pictures = pictures_if(plan.state);
  SignalSegment segment{timeline_.begin(plan.state), {}, {}};
  InEngine inside{segment, next_source_, pictures, {}, false, config_.now()};
  inside.sound.resize(size_t(pictures) * SoundBands::kHop);
  if (plan.takes_sound && speech_.take(inside.sound) && plan.state == SessionState::kSpeaking)
    turn_over_ = config_.turns != nullptr;
  std::vector<float> bands(size_t(head) * SoundBands::kBands, SoundBands::silence());
  bands_.push(inside.sound, bands);
  CHECK(bands.size() == size_t(head + pictures) * SoundBands::kBands, bands.size(), pictures);
  write_rows(segment, bands, head);
  segment.sound.resize(size_t(head) * SoundBands::kHop);
  segment.sound.insert(segment.sound.end(), inside.sound.begin(), inside.sound.end());
  stream_is_new_ = false;
  if (!segment.warm_up) next_source_ += pictures;
  counts_.segments += !segment.warm_up;
  counts_.warm_up_segments += segment.warm_up;
  in_engine_.push_back(std::move(inside));
  counts_.max_in_engine = std::max(counts_.max_in_engine, int(in_engine_.size()));
  return segment;
}

std::optional<SignalSegment> Session::poll_segment(SegmentPlan& plan) {
  throw_error();
  if (stream_is_over()) {
    plan.answer = Answer::kNone;
    return std::nullopt;
  }
  plan = plan_segment();
  if (plan.answer == Answer::kSegment) {
    changed_.notify_all();  // the queue of sound has room
    return begin_segment(plan);
  }
  if (plan.answer == Answer::kNone && config_.turns && config_.turns->holds(config_.id)) {
    turn_over_ = true;
    give_turn_back();
    changed_.notify_all();
  }
  return std::nullopt;
}

void Session::begin_stream() {
  std::lock_guard lock(mutex_);
  stream_is_new_ = true;
  if (config_.turns) stream_turn_ = turns_over_;
}

std::optional<SignalSegment> Session::next_segment() {
  std::unique_lock lock(mutex_);
  const MediaInstant revoked = config_.turns ? config_.now() + config_.revoke : MediaInstant::max();
  for (;;) {
    SegmentPlan plan;
    if (std::optional<SignalSegment> segment = poll_segment(plan)) return segment;
    if (plan.answer == Answer::kNone) return std::nullopt;
    if (config_.turns && in_engine_.empty() && config_.now() >= revoked) {
      give_turn_back();
      return std::nullopt;
    }
    wait_until(lock, std::min(plan.wake, revoked));
  }
}

std::optional<SignalSegment> Session::try_segment() {
  std::lock_guard lock(mutex_);
  SegmentPlan plan;
  return poll_segment(plan);
}

void Session::deliver(int64_t segment, std::vector<Frame> pictures) {
  std::lock_guard lock(mutex_);
  throw_error();
  if (in_engine_.empty() || segment < in_engine_.front().segment.number) {
    counts_.doubled += int64_t(pictures.size());
    return;
  }
  while (!in_engine_.empty() && in_engine_.front().segment.number <= segment) {
    InEngine done = std::move(in_engine_.front());
    in_engine_.pop_front();
    std::vector<Frame> none;
    if (!done.muted && !done.segment.warm_up)
      queue_pictures(done, done.segment.number == segment ? pictures : none);
  }
  if (turn_over_) give_turn_back();
  changed_.notify_all();
}

void Session::queue_pictures(InEngine& done, std::vector<Frame>& pictures) {
  const int64_t expected = done.pictures, given = int64_t(pictures.size());
  const MediaInstant now = config_.now();
  if (given == 0 && last_made_.rgb.empty())
    throw Error(ErrorKind::kInternal,
                "the engine gave no picture of block " + std::to_string(done.segment.number));
  counts_.missing += std::max<int64_t>(expected - given, 0);
  counts_.doubled += std::max<int64_t>(given - expected, 0);
  for (int64_t k = 0; k < done.pictures; ++k) {
    Queued slot{.source = done.source + k,
                .segment = done.segment.number,
                .segment_pictures = done.pictures,
                .begun = done.begun,
                .made = now,
                .state = done.segment.state,
                .picture = {},
                .sound = {}};
    if (k < given) last_made_ = pictures[k];
    slot.picture = last_made_;
    const auto sound = done.sound.begin() + k * SoundBands::kHop;
    slot.sound.assign(sound, sound + SoundBands::kHop);
    queued_.push_back(std::move(slot));
  }
  counts_.max_queued_slots = std::max(counts_.max_queued_slots, queued_.size());
}

bool Session::muted(int64_t segment) const {
  std::lock_guard lock(mutex_);
  for (const InEngine& inside : in_engine_)
    if (inside.segment.number == segment) return inside.muted;
  return false;
}

void Session::fail(std::exception_ptr error) {
  CHECK(error != nullptr);
  std::lock_guard lock(mutex_);
  if (!error_) error_ = error;
  if (config_.turns) config_.turns->release(config_.id);
  changed_.notify_all();
}

// The consumer.

bool Session::all_played() const {
  if (!closed_ || speech_.head() || timeline_.owes_listening()) return false;
  return pictures_ahead() == 0;
}

bool Session::waits_for_pictures() const {
  return !shown_loop_ && pictures_ahead() > int64_t(queued_.size());
}

std::optional<SessionSlot> Session::poll_slot(MediaInstant* wake) {
  throw_error();
  *wake = MediaInstant::max();
  const bool ready = !queued_.empty();
  if (!ready && all_played()) return std::nullopt;
  const bool loops = !ready && has_loop() && !waits_for_pictures();
  SessionSlot slot;
  bool freezes = false;
  if (config_.live) {
    const MediaInstant now = config_.now();
    if (!clock_.started()) {
      if (!ready && !loops) return std::nullopt;
      clock_.start(now);
      changed_.notify_all();
    }
    const MediaClock::Decision decision = clock_.poll(now, ready || loops);
    counts_.clock = clock_.counts();
    *wake = decision.wake;
    if (decision.action == MediaClock::Action::kWait) return std::nullopt;
    freezes = decision.action == MediaClock::Action::kFreeze;
    slot.discontinuity = decision.discontinuity;
  } else if (!ready) {
    return std::nullopt;
  }
  const bool discontinuity = slot.discontinuity;
  slot = freezes ? frozen_slot() : ready ? take_queued() : loop_slot();
  slot.discontinuity = discontinuity;
  count_slot(slot);
  changed_.notify_all();
  return slot;
}

SessionSlot Session::take_queued() {
  Queued& front = queued_.front();
  CHECK(front.source == expected_source_, front.source, expected_source_);
  ++expected_source_;
  SessionSlot slot;
  slot.source = front.source;
  slot.segment = front.segment;
  slot.segment_pictures = front.segment_pictures;
  slot.begun = front.begun;
  slot.made = front.made;
  slot.state = front.state;
  slot.picture = std::move(front.picture);
  slot.sound = std::move(front.sound);
  queued_.pop_front();
  shown_loop_ = false;
  return slot;
}

SessionSlot Session::loop_slot() {
  const bool listens = hears_ && !loops_->listening.empty();
  const std::vector<Frame>& loop = listens ? loops_->listening : loops_->idle;
  SessionSlot slot;
  slot.state = hears_ ? SessionState::kListening : SessionState::kIdle;
  slot.picture = loop[size_t(loop_at_++) % loop.size()];
  slot.sound = silence();
  ++counts_.looped;
  shown_loop_ = true;
  return slot;
}

SessionSlot Session::frozen_slot() const {
  SessionSlot slot;
  slot.state = shown_state_;
  slot.frozen = true;
  slot.picture = last_shown_;
  slot.sound = silence();
  return slot;
}

void Session::count_slot(SessionSlot& slot) {
  slot.index = counts_.slots++;
  counts_.samples += int64_t(slot.sound.size());
  const double sound = double(counts_.samples) / config_.sample_rate;
  const double shown = double(counts_.slots) * double(config_.fps.den) / double(config_.fps.num);
  counts_.max_skew = std::max(counts_.max_skew, std::abs(sound - shown));
  shown_state_ = slot.state;
  if (!slot.frozen) last_shown_ = slot.picture;
}

std::vector<float> Session::silence() const {
  const int64_t first = ticks_at(counts_.slots, config_.fps, config_.sample_rate);
  const int64_t end = ticks_at(counts_.slots + 1, config_.fps, config_.sample_rate);
  return std::vector<float>(size_t(end - first));
}

std::optional<SessionSlot> Session::next() {
  std::unique_lock lock(mutex_);
  for (;;) {
    MediaInstant wake;
    if (std::optional<SessionSlot> slot = poll_slot(&wake)) return slot;
    if (all_played()) return std::nullopt;
    wait_until(lock, wake);
  }
}

std::optional<SessionSlot> Session::try_next() {
  std::lock_guard lock(mutex_);
  MediaInstant wake;
  return poll_slot(&wake);
}

bool Session::finished() const {
  std::lock_guard lock(mutex_);
  return all_played();
}

SessionState Session::state() const {
  std::lock_guard lock(mutex_);
  return timeline_.state();
}

SessionCounts Session::counts() const {
  std::lock_guard lock(mutex_);
  return counts_;
}

// Turns, errors and waiting.

void Session::ask_for_turn() {
  if (!config_.turns || turn_over_ || error_) return;
  const std::optional<SpeechQueue::Head> head = speech_.head();
  if ((head && (head->samples > 0 || head->ended)) || timeline_.owes_listening())
    config_.turns->request(config_.id);
}

void Session::give_turn_back() {
  if (!config_.turns || !in_engine_.empty()) return;
  turn_over_ = false;
  ++turns_over_;
  config_.turns->release(config_.id);
  ask_for_turn();
}

void Session::throw_error() const {
  if (error_) std::rethrow_exception(error_);
}

void Session::wait_until(std::unique_lock<std::mutex>& lock, MediaInstant wake) {
  if (wake == MediaInstant::max()) {
    changed_.wait(lock);
    return;
  }
  const MediaInstant pause = wake - config_.now();
  if (pause.count() > 0) changed_.wait_for(lock, pause);
}

}  // namespace weft
