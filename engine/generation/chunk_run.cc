#include <algorithm>
#include <optional>
#include <utility>

#include "engine/conditions/video_encoder.h"
#include "engine/decoding/video_output.h"
#include "engine/generation/cached_steps.h"
#include "engine/generation/checkpoint_policy.h"
#include "engine/generation/job_run.h"
#include "engine/job/resume.h"
#include "engine/job/speech_chunks.h"
#include "engine/parts/audio_features.h"
#include "engine/schedules/denoiser.h"
#include "io/sha256.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

class ChunkLoop final : JobHost {
 public:
  explicit ChunkLoop(JobRun& run)
      : run_(run),
        rank_(run.rank),
        facts_(run.facts),
        directory_(run.rank.parts().directory()),
        vae_(run.rank.parts().vae_model().traits),
        shape_(run.facts.latent),
        steps_(run.facts.sampler.steps()),
        policy_(run.options, run.about, run.first, run.result.earlier_seconds,
                run.first < run.about.total ? why_not_between_steps(run.facts.request) : "",
                [this](int done) { return facts_.request.method->goes_on_after(done); }) {}

  void run();

 private:
  bool root() const { return rank_.placement.root(); }
  bool last() const { return chunk_ + 1 == facts_.chunks; }
  // The steps of the present chunk that an earlier run has done.
  int done_before() const { return std::clamp(run_.first - chunk_ * steps_, 0, steps_); }
  void encode_sound();
  Tensor kept_chunk();
  void draw_again();
  void denoise();
  Snapshot start();
  std::array<Tensor, 2> signals();
  void noise(const Segment& segment, const TensorView& latent) override;
  StepAction before_turn(int done, int64_t word) override;
  void stepped(const Step& step) override;
  void preview(int done, const TensorView& colours) override;
  void keep(int done, Snapshot snapshot) override;
  void take(const Segment& segment, const TensorView& latent) override;
  void take_channels(const Channels& each) override;
  StepAction agreed_action(int done);
  bool writes_file();
  void write_file(const TensorView& latent, const TensorParts& parts);
  void finish(const TensorView& latent);
  DecoderSettings decoder(int64_t frames_before);
  void show(const TensorView& latent);
  void keep_rows(int64_t first, const TensorView& rows);
  void encode_motion();

  JobRun& run_;
  const Rank& rank_;
  const JobFacts& facts_;
  const ModelDirectory& directory_;
  const VaeTraits& vae_;
  const std::array<int64_t, 4> shape_;  // of a chunk's latent
  const int steps_;                     // of a chunk
  CheckpointPolicy policy_;
  std::optional<Denoiser> denoiser_;  // of the present chunk
  PreviewBudget previews_{run_.preview_share};
  int chunk_ = 0;
  int64_t written_ = 0;  // pictures of the chunks before
  Tensor features_;      // of the whole sound [states, columns, frames], on the host
  Tensor motion_;        // [C, F, h, w] of the pictures before the chunk, on the device
  // The latents of the chunks so far, on the host of a root that keeps checkpoints.
  std::vector<Tensor> finished_;
  // This rank's rows of the last pictures of a chunk [n, 3, rows, W], and the first one's number in
  // what is decoded with it.
  Tensor last_;
  int64_t first_last_ = 0;
  Sha256 hash_;  // of the final latents
  std::optional<VideoOutput> output_;
};

void ChunkLoop::run() {
  if (facts_.sound) encode_sound();
  try {
    for (; chunk_ < facts_.chunks; ++chunk_) {
      run_.clock.chunk(chunk_, facts_.chunks);
      // No rank holds a whole latent of clips: a plan without steps brings each its frames.
      if (done_before() == steps_ && !rank_.placement.has_clips())
        draw_again();
      else
        denoise();
      motion_ = {};
      if (!last()) encode_motion();
      output_->end_part();
      if (facts_.sound) rank_.parts().done_with_vae();
      run_.result.decode_high_water = std::max<uint64_t>(
          run_.result.decode_high_water, run_.meter.stage_ended(MemoryMeter::kDecode));
    }
    output_->finish(run_.result, run_.started);
  } catch (...) {
    policy_.finish(run_.result);
    throw;
  }
}

void ChunkLoop::encode_sound() {
  const SoundLength sound = *facts_.sound;
  run_.clock.enter(Zone::kEncodeAudio, 1);
  const bool reads = rank_.placement.root() && !is_dry_run(rank_.stream);
  const Tensor samples =
      reads ? read_given(facts_.request.audio, "audio") : Tensor(DType::kF32, {sound.samples});
  features_ = encode_audio(rank_, {samples, sound.fps, sound.chunk_frames});
  run_.clock.step(1);
  run_.meter.stage_ended(MemoryMeter::kEncodeAudio);
}

// The present chunk of the checkpoint, on the host of the root; elsewhere empty.
Tensor ChunkLoop::kept_chunk() {
  Checkpoint* const from = run_.options.resume.get();
  if (!from) return {};
  if (facts_.chunks == 1) return std::move(from->latent);
  Tensor latent(DType::kF32, shape_);
  Stream host = host_stream(rank_.stream);
  copy(host, from->latent.view().slice(1, chunk_ * shape_[1], shape_[1]), latent);
  return latent;
}

// Decodes a chunk that an earlier run has denoised. The root sends its latent to every other rank.
void ChunkLoop::draw_again() {
  Tensor latent = kept_chunk();
  if (!latent) latent = Tensor(DType::kF32, shape_);
  latent = on_device(rank_.stream, std::move(latent));
  const Tag tag{
      .kind = Payload::kLatent, .pass = {.segment = chunk_ % (1 << 16)}, .topic = Topic::kClip};
  if (!rank_.placement.alone())
    rank_.placement.communicator().broadcast(rank_.stream, tag, latent, 0);
  finish(latent);
}

// Returns, on the root, the state of the chunk after the steps that an earlier run has done.
// Nothing else is read from the checkpoint.
Snapshot ChunkLoop::start() {
  Checkpoint* const from = run_.options.resume.get();
  if (!from) return {};
  Snapshot out;
  if (done_before() > 0) {
    out = {kept_chunk(), std::move(from->history)};
    run_.pictures.frames = {};  // they are among the latent's
  }
  from->latent = {};
  return out;
}

// Returns what the chunk's frames hear, per branch: silence for the negative prompt.
std::array<Tensor, 2> ChunkLoop::signals() {
  std::array<Tensor, 2> signals;
  if (!facts_.sound) return signals;
  const TransformerModel& model = rank_.parts().expert_model(0);
  const int64_t each = chunk_pictures(directory_), frames = shape_[1] / model.traits().patch[0];
  for (size_t branch = 0; branch < signals.size(); ++branch) {
    if (facts_.prompt_rows[branch] == 0) continue;
    signals[branch] =
        Tensor(DType::kF32, {frames, model.traits().signal_columns}, rank_.stream.device());
    make_on_host(rank_.stream, signals[branch], [&](const TensorView& rows) {
      std::fill_n(rows.as<float>(), rows.count(), 0.0f);
      if (branch == 0) model.signal_rows(features_.view().slice(2, chunk_ * each, each), rows);
    });
  }
  return signals;
}

// Noise, after the latent frames that are given.
void ChunkLoop::noise(const Segment& segment, const TensorView& latent) {
  initial_noise(facts_, chunk_, segment.frames.begin, latent, run_.options.tap);
  if (const TensorView given = run_.pictures.frames; given) {
    Stream host = host_stream(rank_.stream);
    copy(host, given, latent.slice(1, 0, given[1]));
  }
  run_.pictures.frames = {};
}

void ChunkLoop::denoise() {
  const std::array<Tensor, 2> heard = signals();
  DenoisePlanConfig config = plan_config(facts_, rank_.parts(), rank_.placement, chunk_ > 0);
  const int first = config.first_step = done_before();
  Denoiser& denoiser = denoiser_.emplace(rank_, run_.graphs);
  Job job = run_.job(*this);
  job.conditions.motion = motion_;
  job.signal = {heard[0].view(), heard[1].view()};
  job.cache_audit = run_.options.cache_audit;
  job.skipped = agreed_skips(rank_.stream, rank_.placement, run_.options.resume.get(), first,
                             run_.result.request);
  job.start = start();
  denoiser.run(config, job);
  if (root() && first < steps_)
    report_cached(*rank_.parts().model(), facts_, denoiser, run_.result);
  run_.result.streaming += denoiser.streaming();
  denoiser_.reset();
}

void ChunkLoop::stepped(const Step& step) {
  if (step.kind != Step::Kind::kUpdate) return;
  run_.clock.kept(policy_.kept());
  run_.clock.step(step.pass.step + 1, facts_.sampler.sigmas()[step.pass.step]);
}

void ChunkLoop::preview(int done, const TensorView& colours) {
  ProgressListener* const listener = run_.options.listener;
  if (!listener) return;
  previews_.spend(listener->wants_preview(done, steps_), [&] {
    listener->preview(preview_of(colours, vae_, done, steps_, facts_.request.fps));
  });
}

void ChunkLoop::take(const Segment&, const TensorView& latent) {
  rank_.placement.has_clips() ? show(latent) : finish(latent);
}

// Reports the steps of the chunk, and decides.
StepAction ChunkLoop::before_turn(int done, int64_t) {
  const int first = done_before();
  if (done == first) run_.clock.enter(Zone::kDenoise, steps_, first);
  // The first of several stages updates nothing, so it reports the finished step here.
  if (done > first && rank_.placement.layout()[Axis::kLayers] > 1)
    run_.clock.step(done, facts_.sampler.sigmas()[done - 1]);
  // A checkpoint holds nothing that a skipped step adds, so the job stops before a computed one.
  return denoiser_->skips(done) ? StepAction::kContinue : agreed_action(done);
}

// The root's decision after so many steps of the chunk.
StepAction ChunkLoop::agreed_action(int done) {
  if (!run_.options.stop) return StepAction::kContinue;
  const Tag tag{.kind = Payload::kControl, .pass = {.step = done}, .topic = Topic::kStep};
  auto own = StepAction::kContinue;
  // Decoding a chunk takes a while, in which the job may be stopped.
  if (root()) own = policy_.decide(chunk_ * steps_ + done, done < steps_);
  if (keeps(own) && done % steps_ == 0) {  // there are only whole chunks to keep
    keep(done, {});
    own = stops(own) ? StepAction::kStop : StepAction::kContinue;
  }
  return static_cast<StepAction>(
      rank_.placement.broadcast_from_root(rank_.stream, tag, static_cast<int64_t>(own)));
}

// Writes a checkpoint of the chunks before and, where there are steps of it, of the present one.
void ChunkLoop::keep(int done, Snapshot snapshot) {
  if (!root()) return;
  if (!finished_.empty()) {
    std::vector<TensorView> chunks(finished_.begin(), finished_.end());
    if (snapshot.latent) chunks.push_back(snapshot.latent);
    const auto [channels, frames, height, width] = shape_;
    Tensor all(DType::kF32, {channels, std::ssize(chunks) * frames, height, width});
    Stream host = host_stream(rank_.stream);
    for (size_t chunk = 0; chunk < chunks.size(); ++chunk)
      copy(host, chunks[chunk], all.view().slice(1, static_cast<int64_t>(chunk) * frames, frames));
    snapshot.latent = std::move(all);
  }
  policy_.keep(chunk_ * steps_ + done, std::move(snapshot),
               written_skips(run_.result.request.cache));
}

// Returns whether the root writes the final latent to a file. A job that began with it has the file
// already, which says which steps were skipped.
bool ChunkLoop::writes_file() {
  if (!keeps_latent(facts_.request)) return false;
  if (run_.first < steps_) return root() && !run_.options.latents_path.empty();
  if (const Checkpoint* const from = run_.options.resume.get()) {
    run_.result.latents_path = from->path;
    if (auto skipped = read_skips(*from)) run_.result.request.cache.skipped = std::move(skipped);
  }
  return false;
}

void ChunkLoop::write_file(const TensorView& latent, const TensorParts& parts) {
  RunResult& result = run_.result;
  Checkpoint checkpoint;
  checkpoint.job = run_.about.job;
  checkpoint.notes = run_.about.notes;
  checkpoint.step = checkpoint.total = steps_;
  checkpoint.signature = result.signature;
  checkpoint.written = written_skips(result.request.cache);
  write_checkpoint(run_.options.latents_path, checkpoint, latent, parts);
  result.latents_path = run_.options.latents_path;
}

// Keeps a final latent that no rank has whole.
void ChunkLoop::take_channels(const Channels& each) {
  policy_.finish(run_.result);
  run_.meter.stage_ended(MemoryMeter::kDenoise);
  const auto [channels, frames, height, width] = shape_;
  Tensor whole;
  if (root() && run_.options.tap) whole = Tensor(DType::kF32, shape_);
  int64_t seen = 0;
  each([&](const TensorView& channel) {
    hash_.update(channel.data, channel.bytes());
    if (whole)
      std::copy_n(channel.as<float>(), channel.count(), whole.view().select(0, seen++).as<float>());
  });
  if (root()) run_.result.signature = hash_.hex();
  if (whole) run_.options.tap->tap("latents_final", whole);
  const Tag tag{.kind = Payload::kControl, .topic = Topic::kFile};
  if (!rank_.placement.broadcast_from_root(rank_.stream, tag, writes_file())) return;
  if (root())
    write_file(TensorView(nullptr, DType::kF32, {channels, frames, height, width}), each);
  else
    each({});
}

// Keeps and shows the final latent of a chunk.
void ChunkLoop::finish(const TensorView& on_device) {
  if (!facts_.sound) run_.pictures = {};
  run_.meter.stage_ended(MemoryMeter::kDenoise);
  const HostCopy copied(rank_.stream, on_device);
  const TensorView& latent = copied.view();
  if (root()) hash_.update(latent.data, latent.bytes());
  if (root() && last()) run_.result.signature = hash_.hex();
  if (run_.options.tap) run_.options.tap->tap("latents_final", latent);
  if (facts_.sound && root() && policy_.keeps_any()) {
    Stream host = host_stream(rank_.stream);
    copy(host, latent, finished_.emplace_back(DType::kF32, shape_));
  }
  if (facts_.sound && stops(agreed_action(steps_)))
    throw Error(ErrorKind::kStopped, "stopped after clip " + std::to_string(chunk_ + 1) + " of " +
                                         std::to_string(facts_.chunks));
  if (last()) policy_.finish(run_.result);
  if (writes_file()) write_file(latent, {});
  show(latent);
}

// Describes the decoder of the chunk, which sees so many latents before it.
DecoderSettings ChunkLoop::decoder(int64_t frames_before) {
  const bool decodes = rank_.placement.band(shape_[2]).size() > 0;
  DecoderSettings settings{.traits = vae_,
                           .vae = decodes ? &rank_.parts().vae(rank_.stream) : nullptr,
                           .latent = {shape_[0], shape_[2], shape_[3]},
                           .total = frames_before + shape_[1]};
  if (!facts_.sound) return settings;
  const int64_t pictures = vae_.frames(settings.total);
  const int64_t begin =
      pictures - chunk_pictures(directory_) + (chunk_ == 0 ? directory_.chunks.dropped_frames : 0);
  const int64_t end = std::min(pictures, begin + facts_.request.frames - written_);
  written_ += end - begin;
  settings.pictures = facts_.request.frames;
  settings.shown = {begin, end};
  if (last() || !decodes) return settings;
  const VideoEncoder bands(rank_.stream, rank_.arena, rank_.placement, vae_, shape_);
  const int64_t kept = directory_.chunks.motion_frames;
  last_ = Tensor(DType::kF32, {kept, 3, bands.rows().size(), facts_.request.width},
                 rank_.stream.device());
  first_last_ = pictures - kept;
  settings.on_rows = [this](int64_t first, const TensorView& rows) { keep_rows(first, rows); };
  return settings;
}

// Decodes frames of a chunk, after the latents that it goes on from, whose pictures are there
// already.
void ChunkLoop::show(const TensorView& frames) {
  TensorView before;
  if (facts_.sound) before = motion_ ? motion_.view() : run_.pictures.reference.view();
  if (!output_)
    output_.emplace(rank_, decoder(before ? before[1] : 0),
                    VideoReceivers{run_.sink, run_.options.tap, run_.clock});
  else if (facts_.sound)
    output_->begin_part(decoder(before[1]));
  for (const TensorView& latents : {before, frames}) {
    if (!latents.rank) continue;
    if (latents.data)
      output_->write(HostCopy(rank_.stream, latents), run_.options.stop);
    else
      output_->write(latents, run_.options.stop);
  }
}

// Keeps the rows of pictures that end the chunk.
void ChunkLoop::keep_rows(int64_t first, const TensorView& rows) {
  for (int64_t i = std::max<int64_t>(0, first_last_ - first); i < rows[0]; ++i)
    clamp(rank_.stream, rows.select(0, i), -1, 1, last_.view().select(0, first + i - first_last_));
}

void ChunkLoop::encode_motion() {
  const std::array<int64_t, 4> shape{shape_[0], vae_.latent_frames(directory_.chunks.motion_frames),
                                     shape_[2], shape_[3]};
  VideoEncoder encoder(rank_.stream, rank_.arena, rank_.placement, vae_, shape);
  int done = 0;
  run_.clock.chunk(chunk_ + 1, facts_.chunks);
  run_.clock.enter(Zone::kEncodeImage, static_cast<int>(shape[1]));
  const auto fill = [&](int64_t first, const TensorView& pictures) {
    copy(rank_.stream, last_.view().slice(0, first, pictures[0]), pictures);
  };
  Tensor own;
  if (encoder.rows().size() > 0)
    own = encoder.encode_rows(rank_.parts().vae(rank_.stream), "the end of a clip", fill,
                              [&] { run_.clock.step(++done); });
  last_ = {};
  motion_ = encoder.join(std::move(own));
}

}  // namespace

Job JobRun::job(JobHost& host) const {
  Job job{.facts = facts,
          .host = host,
          .conditions = pictures.conditions(),
          .given_frames = pictures.given_frames,
          .preview = preview};
  for (size_t i = 0; i < prompts.size(); ++i) {
    const TensorView rows = prompts[i].embeds.view();
    if (i == 1)
      job.negative = rows;
    else
      job.prompts.push_back(rows);
    if (i < job.pooled.size() && prompts[i].pooled)
      job.pooled[i] = prompts[i].pooled.view().select(0, 0);
  }
  return job;
}

void run_chunks(JobRun& run) { ChunkLoop(run).run(); }

}  // namespace weft
