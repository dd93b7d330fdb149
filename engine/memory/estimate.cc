#include "engine/memory/estimate.h"

#include <algorithm>

#include "engine/decoding/stream_decoder.h"
#include "engine/denoising/denoiser.h"
#include "engine/generation/prompt_rows.h"
#include "engine/job/shortened.h"
#include "engine/long_video/queue_denoiser.h"
#include "engine/long_video/queue_run.h"
#include "engine/pictures/picture_conditions.h"
#include "engine/pictures/video_encoder.h"
#include "engine/sound/audio_features.h"
#include "models/footprint.h"
#include "parallel/transport/silent.h"

namespace weft {
namespace {

// The first chunk of a video has a single picture, and two chunks are used in turn.
constexpr int64_t kDecodedChunks = 3;

uint64_t f32_bytes(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

// The ids of every prompt of the request, for the encoder that makes one vector of it.
std::vector<int64_t> pooled_ids_of(const Components& parts, const MeasuredJob& job) {
  std::vector<int64_t> counts;
  const auto add = [&](const std::string& text) {
    counts.push_back(std::ssize(parts.model()->tokens(text)->pooled_ids));
  };
  if (!parts.pooled_model()) return counts;
  add(job.facts.request.prompt);
  if (job.facts.guided()) add(*job.facts.request.negative_prompt);
  for (const ScheduledPrompt& later : job.facts.request.schedule) add(later.prompt);
  return counts;
}

TransformerLoad with_resident(TransformerLoad how, int blocks) {
  how.resident = blocks;
  return how;
}

// The dry run of a job on one rank of the replica.
class RankRun {
 public:
  RankRun(const Components& parts, const RankPlacement& of, const MeasuredJob& job)
      : parts_(parts),
        job_(job),
        facts_(job.facts),
        request_(facts_.request),
        prompt_rows_(facts_.prompt_rows),
        queue_(request_.method->in_blocks()),
        shape_(facts_.window),
        latent_(f32_bytes(shape_[0] * shape_[1] * shape_[2] * shape_[3])),
        embeds_(
            f32_bytes((prompt_rows_[0] + prompt_rows_[1]) * parts.text_model().traits().columns)),
        begun_(latent_ / static_cast<uint64_t>(shape_[1]) *
               static_cast<uint64_t>(
                   of.split(shape_, parts.traits().patch[0]).frames[of.rank()].size())),
        stages_messages_(of.stages_messages()),
        transport_(std::make_shared<SilentTransport>(of.rank(), of.ranks())),
        placement_(Communicator(transport_), of.layout()),
        run_(parts.device()),
        dry_(parts.model(), with_resident(parts.how(), job.resident_blocks), parts.vae_dtype(),
             placement_, parts.device(), parts.text_weights()),
        rank_(run_.stream(), run_.arena(), dry_, placement_),
        seams_(placement_) {
    const int64_t columns = parts.text_model().traits().columns;
    for (size_t branch = 0; branch < texts_.size(); ++branch)
      texts_[branch] = run_.tensor(DType::kF32, {prompt_rows_[branch], columns});
    for (const int64_t rows : facts_.later_rows) {
      embeds_ += f32_bytes(rows * columns);
      if (!later_ || later_.view()[0] < rows) later_ = run_.tensor(DType::kF32, {rows, columns});
    }
    if (!parts.pooled_model()) return;
    const int64_t vector = parts.pooled_model()->traits().columns;
    pooled_ = run_.tensor(DType::kF32, {1, vector});
    embeds_ += f32_bytes(std::ssize(pooled_ids_of(parts, job)) * vector);
  }

  ComponentBytes bytes();
  uint64_t checkpoint_bytes(uint64_t kept) const;
  // The latents of the clips that are denoised, twice, where checkpoints are kept of them.
  uint64_t clip_bytes(uint64_t kept, int clips) const {
    return kept > 0 && parts_.directory().clips.any() ? 2 * latent_ * static_cast<uint64_t>(clips)
                                                      : 0;
  }

 private:
  // The bytes of a stage while its weights are loaded, when it holds little else, and after that.
  struct Stage {
    StageBytes loads, runs;
  };
  // `tensors` counts what is not in the footprint of the ops.
  Stage stage(uint64_t tensors, const Footprint& load, const Footprint& ran) const {
    return {.loads = {.loading = load.passing},
            .runs = {.tensors = tensors + ran.held + ran.passing,
                     .arena = ran.arena,
                     .scratch = on_device() ? std::max(kTransferPiece, ran.scratch) : 0}};
  }
  bool on_device() const { return parts_.device().has_value(); }
  Stage encoding(ComponentBytes& bytes);
  Stage hearing(ComponentBytes& bytes);
  void hold_clip();
  Stage encoding_pictures(ComponentBytes& bytes);
  Stage denoising(uint64_t held, ComponentBytes& bytes);
  void run_steps();
  Footprint run_queue();
  Footprint run_queue(const JobFacts& few);
  uint64_t frame_bytes() const { return latent_ / static_cast<uint64_t>(shape_[1]); }
  // The latent frames that a decoder of the queue keeps.
  uint64_t last_frames() const {
    return static_cast<uint64_t>(std::min(facts_.latent[1], parts_.vae_model().traits().history));
  }
  Sequence sequence() const {
    const auto [frames, rows, columns] = parts_.traits().grid(shape_[1], shape_[2], shape_[3]);
    return {frames * rows * columns, frames};
  }
  // The rows of a forward's latent that the rank owns.
  uint64_t own_rows() const {
    return f32_bytes(placement_.tokens(sequence(), facts_.patches).size() * parts_.traits().row());
  }
  uint64_t compared_bytes() const;
  Stage decoding(ComponentBytes& bytes);
  uint64_t decoded_latent() const;
  Stage encoding_motion(const Vae* vae, uint64_t held);

  const Components& parts_;
  const MeasuredJob& job_;
  const JobFacts& facts_;
  const Request& request_;
  std::array<int64_t, 2> prompt_rows_;
  const bool queue_;              // the method
  std::array<int64_t, 4> shape_;  // of the latent that a forward computes
  uint64_t latent_, embeds_;      // bytes of the whole latent, and of the prompt embeddings
  uint64_t begun_;                // bytes of the latent that the rank begins with
  uint64_t kept_ = 0;             // bytes of the sets that the sample's cache does not have
  bool stages_messages_;
  std::shared_ptr<SilentTransport> transport_;
  const RankPlacement placement_;
  DryRun run_;
  Components dry_;  // loaded in the dry run
  const Rank rank_;
  EncoderSeams seams_;
  std::array<Tensor, 2> texts_;  // embeddings of the prompts
  Tensor later_;                 // those of the longest prompt of the schedule
  PictureConditions pictures_;
  // The signal of a clip that follows a sound, and the latents before it where it has some.
  std::array<Tensor, 2> signal_;
  Tensor motion_;
  Tensor pooled_;  // the vector of a prompt, where the model reads one
};

// The largest of what two parts of a program take when one follows the other.
void take_most(Footprint& most, const Footprint& footprint) {
  most.passing = std::max(most.passing, footprint.passing);
  most.arena = std::max(most.arena, footprint.arena);
  most.scratch = std::max(most.scratch, footprint.scratch);
}

// Two stages that take turns: both hold their tensors, and they share the arena and the ops'
// scratch. `shared` counts tensors that are in both.
StageBytes together(const StageBytes& a, const StageBytes& b, uint64_t shared) {
  return {.tensors = a.tensors + b.tensors - shared,
          .arena = std::max(a.arena, b.arena),
          .scratch = std::max(a.scratch, b.scratch),
          .loading = std::max(a.loading, b.loading)};
}

RankRun::Stage RankRun::encoding(ComponentBytes& bytes) {
  Footprint weights, most;
  const auto load = [&](const TextEncoderModel& model, auto&& get) -> const TextEncoder* {
    if (!placement_.encodes_text(model.traits())) return nullptr;
    const TextEncoder* encoder = nullptr;
    const Footprint own = run_.measure([&] { encoder = &get(); });
    bytes.text_encoder += own.held;
    take_most(weights, own);
    return encoder;
  };
  const TextEncoderModel& rows_model = parts_.text_model();
  const TextEncoderModel* pooled_model = parts_.pooled_model();
  const auto context_of = [&](const TextEncoderModel& model, int64_t rows) {
    return seams_.context(run_.stream(), run_.arena(), {}, model.traits(), rows);
  };
  if (const auto* encoder = load(
          rows_model, [&]() -> auto& { return dry_.text_encoder(run_.stream()); })) {
    std::vector<int64_t> all(prompt_rows_.begin(), prompt_rows_.end());
    all.insert(all.end(), facts_.later_rows.begin(), facts_.later_rows.end());
    for (const int64_t rows : all) {
      if (rows == 0) continue;  // no negative prompt
      // The sums of a short prompt may take a star, which holds more than the ring of a long one.
      Context context = context_of(rows_model, rows);
      take_most(most, dry_encode(run_, *encoder, context, rows, rows_model.traits().columns));
    }
  }
  if (!pooled_model) return stage(embeds_, weights, most);
  if (const auto* encoder = load(
          *pooled_model, [&]() -> auto& { return dry_.pooled_encoder(run_.stream()); })) {
    for (const int64_t count : pooled_ids_of(parts_, job_)) {
      const std::vector<int32_t> ids(static_cast<size_t>(count));
      Context context = context_of(*pooled_model, count);
      take_most(most, run_.measure([&] { encode_pooled(context, *encoder, ids, 0, pooled_); }));
    }
  }
  return stage(embeds_, weights, most);
}

// Adds the features, which stay until the job ends, to `embeds_`. On a device they are the host's.
RankRun::Stage RankRun::hearing(ComponentBytes& bytes) {
  const auto [samples, fps, clip_frames] = *facts_.sound;
  const AudioEncoderTraits& traits = parts_.audio_model().traits();
  const TextEncoderTraits split = traits.split();
  const int64_t rows = feature_rows(traits, samples), states = traits.rows(samples);
  const auto frames = std::ssize(rows_of_frames(rows, fps, clip_frames));
  const uint64_t features = f32_bytes(traits.states * traits.columns * frames);
  const bool encodes = placement_.encodes_text(split);
  // The sound, the rows of one hidden state at the features' rate, and on a device its copy.
  const uint64_t on_host =
      f32_bytes(samples + (encodes ? (rows + (on_device() ? states : 0)) * traits.columns : 0));
  if (on_device())
    bytes.host.buffers += features + on_host;
  else
    embeds_ += features;
  const uint64_t tensors = embeds_ + (on_device() ? 0 : on_host);
  if (!encodes) return stage(tensors, {}, {});
  std::unique_ptr<AudioEncoder> encoder;
  const Footprint weights = run_.measure([&] { encoder = dry_.audio_encoder(run_.stream()); });
  bytes.audio_encoder = weights.held;
  Context context = seams_.context(run_.stream(), run_.arena(), {}, split, states);
  return stage(tensors, weights, dry_encode(run_, *encoder, context, samples));
}

// The encoders' weights are tensors of the stage. Afterwards the conditions are left.
RankRun::Stage RankRun::encoding_pictures(ComponentBytes& bytes) {
  if (pictures_of(request_).empty()) return {};
  const auto weigh = [&](const std::function<void()>& load) {
    const Footprint weights = run_.measure(load);
    bytes.picture_encoder = std::max<uint64_t>(bytes.picture_encoder, weights.held);
    dry_.done_with_pictures();
  };
  const auto& image_model = parts_.directory().image_model;
  if (image_model && placement_.encodes_text(image_model->traits().split()))
    weigh([&] { dry_.image_encoder(run_.stream()); });
  if (placement_.band(shape_[2]).size() > 0) weigh([&] { dry_.vae_encoder(run_.stream()); });
  PictureEncoder encoder(rank_, facts_);
  const Footprint ran = run_.measure([&] { pictures_ = encoder.encode([](int) {}); });
  pictures_.frames = {};
  if (on_device()) bytes.host.buffers += ran.host;
  return stage(embeds_, {}, ran);
}

// Makes what a clip has from its encoded sound to its pictures.
void RankRun::hold_clip() {
  const ModelDirectory& directory = parts_.directory();
  if (!directory.clips.any()) return;
  const int64_t frames = shape_[1] / parts_.traits().patch[0];
  for (size_t branch = 0; branch < signal_.size(); ++branch)
    if (prompt_rows_[branch] > 0)
      signal_[branch] = run_.tensor(DType::kF32, {frames, parts_.traits().signal_columns});
  if (facts_.chunks > 1)
    motion_ = run_.tensor(
        DType::kF32,
        {shape_[0], parts_.vae_model().traits().latent_frames(directory.clips.motion_frames),
         shape_[2], shape_[3]});
  embeds_ += signal_[0].view().bytes() + signal_[1].view().bytes() + motion_.view().bytes();
}

void RankRun::run_steps() {
  const JobFacts few = memory_sample(facts_).facts;
  const DenoisePlanConfig config = plan_config(few, parts_, placement_, static_cast<bool>(motion_));
  const auto begins = placement_.split(shape_, parts_.traits().patch[0]).held(placement_.rank());
  std::optional<PreviewJob> preview;
  if (job_.preview) preview.emplace(PreviewJob{*job_.preview});
  Job job{.facts = few,
          .embeds = {texts_[0].view(), texts_[1].view()},
          .pooled = {pooled_.view(), pooled_.view()},
          .latent = Tensor(DType::kF32, begins, run_.stream().device()),
          .pictures = pictures_.views(),
          .signal = {signal_[0].view(), signal_[1].view()},
          .motion = motion_.view(),
          .decode = [](const TensorView&) {},
          .preview = preview ? &*preview : nullptr};
  Denoiser(rank_).run(config, job);
}

Footprint RankRun::run_queue() {
  const MemorySample sample = memory_sample(facts_);
  Footprint less;
  if (sample.smaller) less = run_queue(*sample.smaller);
  Footprint out = run_queue(sample.facts);
  kept_ *= static_cast<uint64_t>(sample.kept_sets);
  out.held += static_cast<uint64_t>(sample.more) * (out.held - less.held);
  out.passing += static_cast<uint64_t>(sample.more) * (out.passing - less.passing);
  return out;
}

// Sets `kept_` to the bytes of one set of its cache.
Footprint RankRun::run_queue(const JobFacts& few) {
  std::vector<TensorView> texts(few.block_prompts.back() + 1, later_);
  texts[0] = texts_[0];
  QueueJob job{.facts = few, .prompts = texts, .negative = texts_[1], .noise = {}, .decode = {}};
  return run_.measure([&] {
    QueueDenoiser denoiser(rank_, parts_.wire_dtype());
    denoiser.run(queue_plan(few, parts_, placement_), job);
    kept_ = denoiser.set_bytes();
  });
}

// `held` is the size of what stays from stage to stage: prompt embeddings and copies of latents for
// checkpoints.
RankRun::Stage RankRun::denoising(uint64_t held, ComponentBytes& bytes) {
  Footprint loads;
  for (int model = 0; model < parts_.experts(); ++model) {
    Footprint weights;
    size_t streamed = 0;
    if (computes_with(facts_, placement_, model)) {
      weights =
          run_.measure([&] { streamed = dry_.expert(run_.stream(), model).streamed_bytes(); });
      // The window's queue has scratch of its own, for conversions.
      if (streamed > 0 && on_device()) weights.passing += kDevicePiece;
      if (streamed > 0 && !on_device()) bytes.reading = std::max(bytes.reading, weights.passing);
    }
    bytes.experts.push_back(weights.held);
    bytes.streamed.push_back(streamed);
    take_most(loads, weights);
  }
  if (on_device()) bytes.host.buffers += compared_bytes();
  const Footprint ran = queue_ ? run_queue() : run_.measure([&] { run_steps(); });
  return stage(held + kept_, loads, ran);
}

// The copies in host memory of the two device tensors that a step cache compares (change_of):
// velocities on the last stage, hidden rows on the first one where the first block decides.
uint64_t RankRun::compared_bytes() const {
  const BlockRange blocks = placement_.blocks(parts_.traits().blocks);
  const StepCacheKind kind = request_.cache.kind;
  uint64_t bytes = kind != StepCacheKind::kNone && !queue_ && blocks.last() ? own_rows() : 0;
  if (kind == StepCacheKind::kFirstBlock && blocks.first()) {
    const int64_t joint = parts_.expert_model(0).joint_rows(
        sequence().tokens, std::max(prompt_rows_[0], prompt_rows_[1]));
    const int64_t rows = placement_.tokens(sequence(), facts_.patches).size() + joint;
    bytes = std::max(bytes, f32_bytes(rows * parts_.traits().width));
  }
  return 2 * bytes;
}

// Decodes a few frames, or a block of the queue. The latent is not of it, and neither are the
// frames that wait for the writer.
RankRun::Stage RankRun::decoding(ComponentBytes& bytes) {
  const bool decodes = placement_.band(shape_[2]).size() > 0;
  const Vae* vae = nullptr;
  Footprint weights;
  if (decodes) weights = run_.measure([&] { vae = &dry_.vae(run_.stream()); });
  bytes.vae = weights.held;
  const int64_t frames = decodes ? std::min(shape_[1], kDecodedChunks) : shape_[1];
  const Tensor latents = run_.tensor(DType::kF32, {shape_[0], frames, shape_[2], shape_[3]});
  const DecoderSettings settings{.traits = parts_.vae_model().traits(),
                                 .vae = vae,
                                 .latent = {shape_[0], shape_[2], shape_[3]}};
  std::optional<StreamDecoder> decoder;
  const Footprint ran = run_.measure([&] {
    decoder.emplace(run_.stream(), run_.arena(), placement_, settings);
    queue_ ? decoder->push(latents) : decoder->decode(latents, nullptr);
    decoder->finish();
  });
  uint64_t pictures = 0;
  if (placement_.root())
    pictures = static_cast<uint64_t>(
        std::min<int64_t>(request_.frames, static_cast<int64_t>(kFramesWaiting) + 2) * 3 *
        request_.height * request_.width);
  if (queue_ && decodes) pictures += frame_bytes() * last_frames();
  // A queue's blocks reach the rank that decodes them, and no other.
  const uint64_t latent = decodes || !queue_ ? decoded_latent() : 0;
  uint64_t held = embeds_;
  if (motion_ && decodes)  // the rows of the pictures that end the clip
    held +=
        f32_bytes(parts_.directory().clips.motion_frames * 3 * request_.width *
                  placement_.band(shape_[2]).size() * parts_.vae_model().traits().spatial_factor);
  if (on_device()) {
    bytes.host.copies += ran.host;
    bytes.host.buffers += pictures;
  } else {
    held += pictures;
  }
  const Stage decodes_clip = stage(held + latent, weights, ran);
  if (!motion_) return decodes_clip;
  const Stage encodes = encoding_motion(vae, held + ran.held);
  return encodes.runs.held(on_device()) > decodes_clip.runs.held(on_device())
             ? Stage{.loads = decodes_clip.loads, .runs = encodes.runs}
             : decodes_clip;
}

// Encodes the pictures that end a clip. Then its latent and its signal are gone.
RankRun::Stage RankRun::encoding_motion(const Vae* vae, uint64_t held) {
  VideoEncoder encoder(run_.stream(), run_.arena(), placement_, parts_.vae_model().traits(),
                       {shape_[0], motion_.view()[1], shape_[2], shape_[3]});
  const Footprint ran = run_.measure([&] {
    Tensor own;
    if (vae) own = encoder.encode_rows(*vae, "the end of a clip", [](auto...) {});
    encoder.join(std::move(own));
  });
  const uint64_t gone =
      signal_[0].view().bytes() + signal_[1].view().bytes() + motion_.view().bytes();
  return stage(held - gone, {}, ran);
}

// The bytes of the latent while it is decoded: all of it, or with clips the own rows of it on the
// first and the last pipeline stage and, where the rank decodes, a frame and the parts of the next.
// Before, the root holds a channel of the whole latent.
uint64_t RankRun::decoded_latent() const {
  if (!placement_.has_clips()) return latent_;
  const BlockRange blocks = placement_.blocks(parts_.traits().blocks);
  const uint64_t rows = blocks.first() || blocks.last() ? own_rows() : 0;
  const uint64_t frame = frame_bytes() * static_cast<uint64_t>(parts_.traits().patch[0]);
  const uint64_t frames = receives_frames(placement_.layout(), placement_.rank()) ? 2 * frame : 0;
  return rows + std::max(frames, placement_.root() ? latent_ / shape_[0] : 0);
}

// The bytes of a checkpoint of `kept` tensors. The queue's has the blocks of the queue and the one
// before them, their histories, and the frames that the decoder needs. Clips are held beside it.
uint64_t RankRun::checkpoint_bytes(uint64_t kept) const {
  if (!queue_ || kept == 0) return latent_ * kept + clip_bytes(kept, facts_.chunks - 1);
  const BlockFrames frames = std::get<Queue>(request_.method).frames();
  const int longest = std::min(request_.steps, facts_.blocks());
  return frame_bytes() * (kept * static_cast<uint64_t>(frames.first(longest)) +
                          static_cast<uint64_t>(frames.block) + last_frames());
}

ComponentBytes RankRun::bytes() {
  const size_t kept = job_.kept;
  ComponentBytes bytes;
  bytes.decodes_meanwhile = job_.decodes_meanwhile;
  bytes.decodes_between = facts_.chunks > 1;
  bytes.streams_from_file = !on_device();
  if (on_device()) {
    const int queues = dry_.resident_blocks() > 0 ? 2 : 1;
    bytes.host.copies = queues * kTransferSlots * kTransferPiece;
    bytes.host.buffers = 2 * begun_ + checkpoint_bytes(kept);
  }
  const auto book = [&](uint64_t& loading, uint64_t& running, const Stage& stage) {
    loading = std::max(loading, stage.loads.held(on_device()));
    running = std::max(running, stage.runs.held(on_device()));
    bytes.scratch = std::max(bytes.scratch, stage.runs.scratch);
  };
  book(bytes.load_text, bytes.encode_text, encoding(bytes));
  // On a device the tensors of a checkpoint are copied to the host one at a time.
  const uint64_t copies =
      on_device() ? latent_ * std::min<uint64_t>(kept, 1) : checkpoint_bytes(kept);
  const Stage pictures = encoding_pictures(bytes);
  bytes.encode_image = pictures.runs.tensors > 0 ? pictures.runs.held(on_device()) : 0;
  bytes.scratch = std::max(bytes.scratch, pictures.runs.scratch);
  embeds_ += pictures_.reference.view().bytes();
  if (facts_.sound) book(bytes.load_audio, bytes.encode_audio, hearing(bytes));
  const uint64_t given = pictures_.rows.view().bytes() + pictures_.channels.view().bytes();
  hold_clip();
  // Messages are staged in the stages' order.
  Stage denoise = denoising(embeds_ + given + copies, bytes);
  pictures_ = {};
  if (!on_device()) embeds_ += clip_bytes(kept, facts_.chunks);
  Stage decode = decoding(bytes);
  decode.loads.tensors += bytes.reading;
  decode.runs.tensors += bytes.reading;
  if (bytes.decodes_meanwhile) denoise.runs = together(denoise.runs, decode.runs, embeds_);
  book(bytes.load_expert, bytes.denoise, denoise);
  book(bytes.load_vae, bytes.decode, decode);
  if (stages_messages_) bytes.host.copies += static_cast<uint64_t>(transport_->staged());
  return bytes;
}

}  // namespace

ComponentBytes predict_bytes(const Components& parts, const RankPlacement& placement,
                             const MeasuredJob& job) {
  return RankRun(parts, placement, job).bytes();
}

}  // namespace weft
