#include <algorithm>
#include <deque>
#include <optional>

#include "engine/decoding/video_output.h"
#include "engine/generation/cached_steps.h"
#include "engine/generation/checkpoint_policy.h"
#include "engine/generation/job_run.h"
#include "engine/job/resume.h"
#include "engine/schedules/queue_denoiser.h"
#include "io/sha256.h"
#include "kernels/copy.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

// The frames of one job's segments, on one rank. The decoder keeps the last latent frames, so that
// another one can go on after them.
class SegmentOutput {
 public:
  explicit SegmentOutput(const JobRun& run)
      : run_(run),
        rank_(run.rank),
        segments_(std::get<Queue>(run.facts.request.method).frames()),
        latent_(run.facts.latent),
        traits_(run.rank.parts().vae_model().traits),
        decoder_(std::max(0, run.rank.placement.layout().decode_rank)) {
    decodes_ = run.rank.placement.band(latent_[2]).size() > 0;
    if (!decodes_ && !run.rank.placement.root()) return;
    const Checkpoint* const from = run.options.resume.get();
    const auto fact = [&](const char* name) {
      return from && from->written.contains(name) ? from->written.at(name) : "";
    };
    const FramesSoFar before{from ? std::stoi(fact(kFrames)) : 0, fact(kFrameHash)};
    output_.emplace(
        run.rank,
        DecoderSettings{.traits = traits_,
                        .vae = decodes_ ? &run.rank.parts().vae(run.rank.stream) : nullptr,
                        .latent = {latent_[0], latent_[2], latent_[3]},
                        .total = run.facts.request.endless ? 0 : latent_[1]},
        VideoReceivers{run.sink, run.options.tap, run.clock}, before);
    if (run.first > 0) resume(from, fact(kLatentHash));
  }

  // Decodes the frames of a segment that belong to the video.
  void decode(int segment, const TensorView& latent) {
    const HostCopy copied(rank_.stream, latent);
    Stream host = host_stream(rank_.stream);
    Tensor kept = frames(shown(segment));
    copy(host, copied.view().slice(1, 0, kept.view()[1]), kept);
    signature_->update(kept.view().data, kept.view().bytes());
    output_->push(kept);
    remember(std::move(kept));
  }
  // A root that does not decode expects the pictures of the segment that is decoded in this turn.
  void expect(int turn) {
    const int segment = turn - run_.facts.sampler.steps();
    if (decodes_ || !output_ || segment < 0) return;
    output_->push(
        TensorView(nullptr, DType::kF32, {latent_[0], shown(segment), latent_[2], latent_[3]}));
  }
  // Every rank calls it when a turn begins. The root lets the sink keep the frames so far, and adds
  // to the snapshot what a decoder and a writer need to go on.
  std::map<std::string, std::string> keep(int turn, Snapshot& snapshot) {
    if (!output_) return {};
    const FramesSoFar written = output_->keep();
    Tensor last = frames(last_frames(turn));
    std::string state(Sha256().state().size(), ' ');
    if (decodes_) {
      state = signature_->state();
      Stream host = host_stream(rank_.stream);
      int64_t at = last.view()[1];
      for (auto piece = last_.rbegin(); piece != last_.rend() && at > 0; ++piece) {
        const int64_t has = piece->view()[1], taken = std::min(has, at);
        copy(host, piece->view().slice(1, has - taken, taken),
             last.view().slice(1, at -= taken, taken));
      }
    }
    move(last, state, decoder_, 0);
    if (!rank_.placement.root()) return {};
    if (last.count() > 0) snapshot.history.emplace_back(kDecoded, std::move(last));
    return {{kFrames, std::to_string(written.frames)},
            {kFrameHash, written.hash},
            {kLatentHash, state}};
  }
  // The latent frames that are decoded when a turn begins.
  int64_t decoded(int turn) const {
    return segments_.first(std::max(0, turn - run_.facts.sampler.steps()));
  }
  void finish() {
    if (output_) output_->finish(run_.result, run_.started);
    if (decodes_) run_.result.signature = signature_->hex();
  }

 private:
  // The latent frames of the video that a segment makes. The last segment may make more of them.
  int64_t shown(int segment) const {
    return std::min(segments_.count(segment), latent_[1] - segments_.first(segment));
  }
  Tensor frames(int64_t count) const {
    return Tensor(DType::kF32, {latent_[0], count, latent_[2], latent_[3]});
  }
  int64_t last_frames(int turn) const { return std::min(decoded(turn), traits_.history); }

  void resume(const Checkpoint* from, std::string state) {
    Tensor last = frames(last_frames(run_.first));
    Stream host = host_stream(rank_.stream);
    for (size_t k = 0; from && k < from->history.size(); ++k)
      if (from->history[k].first == kDecoded) copy(host, from->history[k].second, last);
    state.resize(Sha256().state().size());
    move(last, state, 0, decoder_);
    output_->resume(last, decoded(run_.first));
    if (!decodes_) return;
    signature_.emplace(state);
    remember(std::move(last));
  }

  // The root and the decoder call it; nothing is sent where they are one.
  void move(Tensor& last, std::string& state, int from, int to) {
    if (from == to) return;
    const TensorView text(state.data(), DType::kU8, {static_cast<int64_t>(state.size())});
    for (const auto& [view, number] : {std::pair<TensorView, int>{last, 0}, {text, 1}}) {
      const Tag tag{.kind = Payload::kLatent, .topic = Topic::kOutput, .hop = number};
      if (view.count() == 0) continue;
      if (rank_.placement.rank() == from)
        rank_.placement.communicator().send(rank_.stream, to, tag, view);
      else
        rank_.placement.communicator().receive(rank_.stream, from, tag, view);
    }
  }

  void remember(Tensor piece) {
    held_ += piece.view()[1];
    last_.push_back(std::move(piece));
    while (held_ - last_.front().view()[1] >= traits_.history) {
      held_ -= last_.front().view()[1];
      last_.pop_front();
    }
  }

  const JobRun& run_;
  const Rank& rank_;
  const SegmentFrames segments_;
  const std::array<int64_t, 4> latent_;
  const VaeTraits& traits_;
  const int decoder_;
  bool decodes_ = false;
  std::optional<VideoOutput> output_;
  std::optional<Sha256> signature_{std::in_place};
  std::deque<Tensor> last_;  // latent frames, at least VaeTraits::history once there are
  int64_t held_ = 0;         // their number
};

// The root reports what is legal but slow, or outside of the model's training.
void warn(const JobRun& run, ProgressListener& listener) {
  const DefaultSettings& model = run.rank.parts().directory().defaults;
  const VaeTraits& vae = run.rank.parts().vae_model().traits;
  const QueueFacts facts{
      .steps = run.facts.request.steps,
      .segments = run.facts.segments(),
      .stages = run.rank.placement.layout()[Axis::kLayers],
      .trained_frames = vae.latent_frames(model.trained_frames.value_or(model.frames))};
  for (const std::string& line : std::get<Queue>(run.facts.request.method).warnings(facts))
    listener.warning(line);
  const std::vector<ScheduledPrompt>& schedule = run.facts.request.schedule;
  for (size_t i = 0; i < schedule.size(); ++i)
    if (!std::ranges::count(run.facts.segment_prompts, static_cast<int>(i) + 1))
      listener.warning("the prompt at " + weft::shown(schedule[i].seconds) +
                       " s is never shown, because no block begins between it and the next prompt "
                       "or the end of the video");
}

// Counts the forwards of this rank for the clock. Turns would not do: they have one forward at
// first, and many when the queue is full.
class QueueProgress {
 public:
  // The number of segments of an endless job is unknown.
  QueueProgress(const QueuePlanConfig& config, bool endless, const RankPlacement& placement,
                StageClock& clock)
      : config_(config), endless_(endless), placement_(placement), clock_(clock) {
    done_ = forwards_before(config.first_turn);
    first_segment_ = forwards_before(steps());
    const auto turns = static_cast<int>(config.turns().end);
    tell_segments(config.first_turn);
    clock.enter(Zone::kDenoise, endless ? 0 : forwards_before(turns), done_);
  }
  void begin(int turn) {
    tell_segments(turn);
    clock_.step(done_);
  }
  void count(const Step& step) {
    if (step.kind == Step::Kind::kCompute && !step.reuses) clock_.step(++done_);
  }

 private:
  int steps() const { return static_cast<int>(config_.steps.size()); }
  void tell_segments(int turn) {
    clock_.segments(turn, std::clamp(turn - steps() + 1, 0, config_.segments),
                    endless_ ? 0 : config_.segments, first_segment_);
  }
  int forwards_before(int turn) const {
    int forwards = 0;
    for (int before = 0; before < turn; ++before) {
      const Range segments = config_.passes(before);
      for (int64_t segment = segments.begin; segment < segments.end; ++segment) {
        const auto& step = config_.steps[before - segment];
        for (int branch = 0; branch < step.branches && !step.skipped; ++branch)
          forwards += placement_.computes(branch);
      }
    }
    return forwards;
  }

  const QueuePlanConfig& config_;
  const bool endless_;
  const RankPlacement& placement_;
  StageClock& clock_;
  int done_ = 0, first_segment_ = 0;
};

class QueueLoop final : JobHost {
 public:
  explicit QueueLoop(JobRun& run)
      : run_(run),
        output_(run),
        config_(plan_of(run)),
        policy_(run.options, run.about, run.first, run.result.earlier_seconds,
                why_not_between_steps(run.facts.request)),
        progress_(config_, run.facts.request.endless, run.rank.placement, run.clock),
        frames_(std::get<Queue>(run.facts.request.method).frames()),
        pool_(pool_of(run.facts, frames_)) {}

  void run() {
    Job job = run_.job(*this);
    if (Checkpoint* const from = run_.options.resume.get())
      job.start = {std::move(from->latent), std::move(from->history)};
    QueueDenoiser denoiser(run_.rank, run_.rank.parts().wire_dtype());
    const bool done = denoiser.run(config_, job);
    policy_.finish(run_.result);
    run_.result.streaming = denoiser.streaming();
    const bool ends = done || (run_.facts.request.endless && output_.decoded(turn_) > 0);
    if (!ends)
      throw Error(ErrorKind::kStopped, "stopped in denoise before turn " + std::to_string(turn_));
    if (run_.rank.placement.root())
      report_skips(*run_.rank.parts().model(), run_.facts, run_.result);
    output_.finish();
    run_.meter.stage_ended(MemoryMeter::kDenoise);
  }

 private:
  static QueuePlanConfig plan_of(JobRun& run) {
    QueuePlanConfig config = queue_plan(run.facts, run.rank.parts(), run.rank.placement);
    config.control = run.options.stop != nullptr;
    config.first_turn = run.first;
    run.about.total = static_cast<int>(config.turns().end);
    return config;
  }
  static NoisePool pool_of(const JobFacts& facts, const SegmentFrames& frames) {
    const auto [channels, all, height, width] = facts.latent;
    return {facts.request.noise,
            facts.request.rng,
            facts.request.seed,
            {channels, frames.first(facts.segments()), height, width},
            frames};
  }
  void noise(const Segment& segment, const TensorView& latent) override {
    pool_.fill(static_cast<int>(segment.number), latent);
  }
  void take(const Segment& segment, const TensorView& latent) override {
    output_.decode(static_cast<int>(segment.number), latent);
  }
  void stepped(const Step& step) override { progress_.count(step); }
  int64_t decide(int now) override {
    const StepAction action = policy_.decide(now + 1);
    const bool ends = run_.facts.request.endless && stops(action);
    return static_cast<int64_t>(ends ? StepAction::kStop : action);
  }
  StepAction before_turn(int now, int64_t word) override {
    turn_ = now;
    if (word != 0) return static_cast<StepAction>(word);
    run_.clock.kept(policy_.kept());
    progress_.begin(now);
    output_.expect(now);
    return StepAction::kContinue;
  }
  void keep(int now, Snapshot snapshot) override {
    auto written = output_.keep(now, snapshot);
    if (run_.rank.placement.root()) policy_.keep(now, std::move(snapshot), std::move(written));
  }

  JobRun& run_;
  SegmentOutput output_;  // its decoder is loaded before the clock begins to denoise
  const QueuePlanConfig config_;
  CheckpointPolicy policy_;
  QueueProgress progress_;
  const SegmentFrames frames_;
  const NoisePool pool_;
  int turn_ = run_.first;
};

}  // namespace

void run_queue(JobRun& run) {
  if (run.rank.placement.bands(run.facts.window[2]) > 1)
    throw Error(ErrorKind::kUsage, "--method queue: the layout " +
                                       to_string(run.rank.placement.layout()) +
                                       " lets several ranks decode, legal: decode_rank=N");
  if (run.options.cache_audit > 0)
    throw Error(ErrorKind::kUsage,
                "--cache-audit is " + std::to_string(run.options.cache_audit) +
                    ", but the method is queue, where a step that is run again would change the "
                    "keys that the blocks beside its own read; legal with it: 0");
  if (run.rank.placement.root() && run.options.listener) warn(run, *run.options.listener);
  QueueLoop(run).run();
}

}  // namespace weft
