#include "engine/sound/clip_run.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "engine/decoding/video_output.h"
#include "engine/job/checkpoint_policy.h"
#include "engine/job/resume.h"
#include "engine/pictures/video_encoder.h"
#include "engine/sound/audio_features.h"
#include "engine/sound/sound_clips.h"
#include "io/sha256.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

class ClipLoop {
 public:
  ClipLoop(ClipRun& run, const ClipReceivers& to)
      : run_(run),
        rank_(run.rank),
        to_(to),
        directory_(run.rank.parts().directory()),
        vae_(run.rank.parts().vae_model().traits()),
        shape_(run.facts.latent),
        count_(run.facts.chunks),
        policy_(to.options, described(run, count_), run.first_step, to.result.earlier_seconds) {}

  void run() {
    encode_sound();
    try {
      for (clip_ = 0; clip_ < count_; ++clip_) {
        to_.clock.clip(clip_, count_);
        if (clip_ < first_clip())
          draw_again();
        else
          denoise();
        motion_ = {};
        if (clip_ + 1 < count_) encode_motion();
        output_->end_part();
        rank_.parts().done_with_vae();
        to_.result.decode_high_water = std::max<uint64_t>(
            to_.result.decode_high_water, to_.meter.stage_ended(MemoryMeter::kDecode));
      }
      if (rank_.placement.root()) to_.result.signature = hash_.hex();
      output_->finish(to_.result, to_.started);
      policy_.finish(to_.result);
    } catch (...) {
      policy_.finish(to_.result);
      throw;
    }
  }

 private:
  static Checkpoint described(ClipRun& run, int clips) {
    run.about.total = clips * run.facts.sampler.steps();
    return std::move(run.about);
  }
  int first_clip() const { return run_.first_step / run_.facts.sampler.steps(); }
  void encode_sound();
  Tensor kept_clip(int clip) const;
  void draw_again();
  Start start();
  void denoise();
  std::array<Tensor, 2> signals();
  StepAction decide(int first, int done);
  StepAction decide(int done);
  void keep(int done, Snapshot snapshot);
  void decode(const TensorView& latent);
  void keep_rows(int64_t first, const TensorView& rows);
  void encode_motion();

  const ClipRun& run_;
  const Rank& rank_;
  const ClipReceivers& to_;
  const ModelDirectory& directory_;
  const VaeTraits& vae_;
  const std::array<int64_t, 4> shape_;  // of a clip's latent
  const int count_;                     // of clips
  CheckpointPolicy policy_;
  int clip_ = 0;
  int64_t written_ = 0;  // pictures of the clips before
  Tensor features_;      // of the whole sound [states, columns, frames], on the host
  Tensor motion_;        // [C, F, h, w] of the pictures before the clip, on the device
  // The latents of the clips so far, on the host of a root that keeps checkpoints.
  std::vector<Tensor> finished_;
  // This rank's rows of the last pictures of a clip [n, 3, rows, W], and the first one's number in
  // what is decoded with it.
  Tensor last_;
  int64_t first_last_ = 0;
  Sha256 hash_;  // of the final latents
  std::optional<VideoOutput> output_;
};

void ClipLoop::encode_sound() {
  const SoundLength sound = *run_.facts.sound;
  to_.clock.enter(Zone::kEncodeAudio, 1);
  const Tensor samples = is_dry_run(rank_.stream) ? Tensor(DType::kF32, {sound.samples})
                                                  : read_given(run_.facts.request.audio, "audio");
  features_ = encode_audio(rank_, {samples, sound.fps, sound.clip_frames});
  to_.clock.step(1);
  to_.meter.stage_ended(MemoryMeter::kEncodeAudio);
}

// Returns what the clip's frames hear, per branch: silence for the negative prompt.
std::array<Tensor, 2> ClipLoop::signals() {
  const TransformerModel& model = rank_.parts().expert_model(0);
  const int64_t each = clip_pictures(directory_), frames = shape_[1] / model.traits().patch[0];
  std::array<Tensor, 2> signals;
  for (size_t branch = 0; branch < signals.size(); ++branch) {
    if (!run_.prompts[branch]) continue;
    signals[branch] =
        Tensor(DType::kF32, {frames, model.traits().signal_columns}, rank_.stream.device());
    make_on_host(rank_.stream, signals[branch], [&](const TensorView& rows) {
      std::fill_n(rows.as<float>(), rows.count(), 0.0f);
      if (branch == 0) model.signal_rows(features_.view().slice(2, clip_ * each, each), rows);
    });
  }
  return signals;
}

// Reports the steps of the clip, of which this run's first one is `first`, and decides.
StepAction ClipLoop::decide(int first, int done) {
  if (done == first) to_.clock.enter(Zone::kDenoise, run_.facts.sampler.steps(), first);
  // The first of several stages updates nothing, so it reports the finished step here.
  if (done > first && rank_.placement.layout()[Axis::kLayers] > 1)
    to_.clock.step(done, run_.facts.sampler.sigmas()[done - 1]);
  return decide(done);
}

// The root's decision after so many steps of the clip.
StepAction ClipLoop::decide(int done) {
  if (!to_.options.stop) return StepAction::kContinue;
  const int steps = run_.facts.sampler.steps();
  const Tag tag{.kind = Payload::kControl, .pass = {.step = done}, .topic = Topic::kStep};
  auto own = StepAction::kContinue;
  // Decoding a clip takes a while, in which the job may be stopped.
  if (rank_.placement.root()) own = policy_.decide(clip_ * steps + done, done < steps);
  if (keeps(own) && done % steps == 0) {  // there are only whole clips to keep
    keep(done, {});
    own = stops(own) ? StepAction::kStop : StepAction::kContinue;
  }
  return static_cast<StepAction>(
      rank_.placement.agreed(rank_.stream, tag, static_cast<int64_t>(own)));
}

// Writes a checkpoint of the clips before and, where there are steps of it, of the present one.
void ClipLoop::keep(int done, Snapshot snapshot) {
  std::vector<TensorView> clips(finished_.begin(), finished_.end());
  if (snapshot.latent) clips.push_back(snapshot.latent);
  const auto [channels, frames, height, width] = shape_;
  Tensor all(DType::kF32, {channels, std::ssize(clips) * frames, height, width});
  Stream host = host_stream(rank_.stream);
  for (size_t clip = 0; clip < clips.size(); ++clip)
    copy(host, clips[clip], all.view().slice(1, static_cast<int64_t>(clip) * frames, frames));
  snapshot.latent = std::move(all);
  policy_.keep(clip_ * run_.facts.sampler.steps() + done, std::move(snapshot));
}

// A clip of the checkpoint, on the host of the root; elsewhere empty.
Tensor ClipLoop::kept_clip(int clip) const {
  const Checkpoint* const from = to_.options.resume.get();
  if (!from) return {};
  Tensor latent(DType::kF32, shape_);
  Stream host = host_stream(rank_.stream);
  copy(host, from->latent.view().slice(1, clip * shape_[1], shape_[1]), latent);
  return latent;
}

// Decodes a clip that an earlier run has denoised. The root sends its latent to every other rank.
void ClipLoop::draw_again() {
  Tensor latent = kept_clip(clip_);
  if (!latent) latent = Tensor(DType::kF32, shape_);
  latent = on_device(rank_.stream, std::move(latent));
  const Tag tag{
      .kind = Payload::kLatent, .pass = {.clip = clip_ % (1 << 16)}, .topic = Topic::kClip};
  if (!rank_.placement.alone())
    rank_.placement.communicator().broadcast(rank_.stream, tag, latent, 0);
  decode(latent);
}

// The state that the clip starts from. Nothing else is read from the checkpoint.
Start ClipLoop::start() {
  const int done = run_.first_step % run_.facts.sampler.steps();
  Checkpoint* const from = to_.options.resume.get();
  Checkpoint own;
  if (from && clip_ == first_clip()) {
    own.step = done;
    if (done > 0) own.latent = kept_clip(clip_);
    own.history = std::move(from->history);
    from->latent = {};
  }
  if (clip_ > first_clip() || done == 0)
    return {.step = 0,
            .latent =
                on_device(rank_.stream, initial_noise(rank_, run_.facts, clip_, to_.options.tap))};
  return agreed_start(rank_.stream, rank_.placement, from ? &own : nullptr, run_.facts.sampler,
                      rank_.placement.split(shape_, rank_.parts().traits().patch[0]),
                      to_.options.stop);
}

void ClipLoop::denoise() {
  const std::array<Tensor, 2> heard = signals();
  Start start = this->start();
  DenoisePlanConfig config = plan_config(run_.facts, rank_.parts(), rank_.placement, clip_ > 0);
  config.first_step = start.step;
  Job job{.facts = run_.facts,
          .embeds = run_.prompts,
          .latent = std::move(start.latent),
          .history = std::move(start.history),
          .pictures = {.reference = run_.reference},
          .signal = {heard[0].view(), heard[1].view()},
          .motion = motion_.view(),
          .on_update =
              [&](int step) {
                to_.clock.kept(policy_.kept());
                to_.clock.step(step + 1, run_.facts.sampler.sigmas()[step]);
              },
          .decode = [&](const TensorView& latent) { decode(latent); },
          .before_step = [&, first = start.step](int done) { return decide(first, done); },
          .preview = run_.preview};
  job.keep = [&](int done, Snapshot snapshot) { keep(done, std::move(snapshot)); };
  Denoiser denoiser(rank_, run_.graphs);
  denoiser.run(config, job);
  to_.result.streaming += denoiser.streaming();
}

// Decodes the clip behind the latents that it goes on from, whose pictures are there already.
void ClipLoop::decode(const TensorView& on_device) {
  to_.meter.stage_ended(MemoryMeter::kDenoise);
  const HostCopy copied(rank_.stream, on_device);
  const TensorView& latent = copied.view();
  if (rank_.placement.root()) hash_.update(latent.data, latent.bytes());
  if (to_.options.tap) to_.options.tap->tap("latents_final", latent);
  if (rank_.placement.root() && policy_.keeps_any()) {
    Stream host = host_stream(rank_.stream);
    copy(host, latent, finished_.emplace_back(DType::kF32, shape_));
  }
  if (stops(decide(run_.facts.sampler.steps())))
    throw Error(ErrorKind::kStopped, "stopped after clip " + std::to_string(clip_ + 1) + " of " +
                                         std::to_string(count_));
  const HostCopy before(rank_.stream, motion_ ? motion_.view() : run_.reference);
  const int64_t total = before.view()[1] + shape_[1], pictures = vae_.frames(total);
  const int64_t begin =
      pictures - clip_pictures(directory_) + (clip_ == 0 ? directory_.clips.dropped_frames : 0);
  const int64_t end = std::min(pictures, begin + run_.facts.request.frames - written_);
  written_ += end - begin;
  const VideoEncoder bands(rank_.stream, rank_.arena, rank_.placement, vae_, shape_);
  const bool decodes = bands.rows().size() > 0;
  DecoderSettings settings{.traits = vae_,
                           .vae = decodes ? &rank_.parts().vae(rank_.stream) : nullptr,
                           .latent = {shape_[0], shape_[2], shape_[3]},
                           .total = total,
                           .pictures = run_.facts.request.frames,
                           .shown = {begin, end}};
  if (clip_ + 1 < count_ && decodes) {
    const int64_t kept = directory_.clips.motion_frames;
    last_ = Tensor(DType::kF32, {kept, 3, bands.rows().size(), run_.facts.request.width},
                   rank_.stream.device());
    first_last_ = pictures - kept;
    settings.on_rows = [this](int64_t first, const TensorView& rows) { keep_rows(first, rows); };
  }
  if (output_)
    output_->begin_part(settings);
  else
    output_.emplace(rank_, settings, VideoReceivers{to_.sink, to_.options.tap, to_.clock});
  output_->write(before.view(), to_.options.stop);
  output_->write(latent, to_.options.stop);
}

// Keeps the rows of pictures that end the clip.
void ClipLoop::keep_rows(int64_t first, const TensorView& rows) {
  for (int64_t i = std::max<int64_t>(0, first_last_ - first); i < rows[0]; ++i)
    clamp(rank_.stream, rows.select(0, i), -1, 1, last_.view().select(0, first + i - first_last_));
}

void ClipLoop::encode_motion() {
  const std::array<int64_t, 4> shape{shape_[0], vae_.latent_frames(directory_.clips.motion_frames),
                                     shape_[2], shape_[3]};
  VideoEncoder encoder(rank_.stream, rank_.arena, rank_.placement, vae_, shape);
  int done = 0;
  to_.clock.clip(clip_ + 1, count_);
  to_.clock.enter(Zone::kEncodeImage, static_cast<int>(shape[1]));
  const auto fill = [&](int64_t first, const TensorView& pictures) {
    copy(rank_.stream, last_.view().slice(0, first, pictures[0]), pictures);
  };
  Tensor own;
  if (encoder.rows().size() > 0)
    own = encoder.encode_rows(rank_.parts().vae(rank_.stream), "the end of a clip", fill,
                              [&] { to_.clock.step(++done); });
  last_ = {};
  motion_ = encoder.join(std::move(own));
}

}  // namespace

void check_clips_resumable(const Checkpoint& checkpoint, const std::string& record,
                           const JobFacts& facts) {
  const auto& shape = facts.latent;
  const Sampler& sampler = facts.sampler;
  const int total = facts.chunks * sampler.steps();
  const int step = std::clamp(checkpoint.step, 1, total);
  NeededState needed{.total = total, .latent = shape};
  if (step % sampler.steps() > 0)
    for (const auto& entry : sampler.history(SamplerState(0)))
      needed.history.emplace_back(entry.first, shape[0] * shape[1] * shape[2] * shape[3]);
  needed.latent[1] = (step + sampler.steps() - 1) / sampler.steps() * shape[1];
  check_resumable(checkpoint, record, needed, sampler.config().to_string());
}

void run_clips(ClipRun run, const ClipReceivers& receivers) { ClipLoop(run, receivers).run(); }

}  // namespace weft
