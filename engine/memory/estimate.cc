#include "engine/memory/estimate.h"

#include <algorithm>
#include <numeric>

#include "engine/conditions/prompt_rows.h"
#include "engine/conditions/video_encoder.h"
#include "engine/decoding/video_decoder.h"
#include "engine/job/shortened.h"
#include "engine/memory/blank_job.h"
#include "engine/parts/audio_features.h"
#include "engine/schedules/denoiser.h"
#include "parallel/transport/silent.h"

namespace weft {
namespace {

// The first chunk of a video has a single picture, and two chunks are used in turn.
constexpr int64_t kDecodedChunks = 3;

uint64_t f32_bytes(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

// The largest of what two parts of a program take when one follows the other.
void take_most(Footprint& most, const Footprint& footprint) {
  most.passing = std::max(most.passing, footprint.passing);
  most.arena = std::max(most.arena, footprint.arena);
  most.scratch = std::max(most.scratch, footprint.scratch);
}

// The dry run of a job on one rank of the replica.
class RankRun {
 public:
  RankRun(const Components& parts, const RankPlacement& of, const MeasuredJob& job)
      : parts_(parts),
        job_(job),
        facts_(job.facts),
        request_(facts_.request),
        queue_(request_.method->in_segments()),
        shape_(facts_.window),
        latent_(f32_bytes(shape_[0] * shape_[1] * shape_[2] * shape_[3])),
        stages_messages_(of.stages_messages()),
        transport_(
            std::make_shared<SilentTransport>(of.rank(), of.ranks(), of.enqueues_messages())),
        placement_(Communicator(transport_), of.layout()),
        run_(parts.device()),
        dry_(parts.model(), parts.how(), parts.vae_dtype(), placement_, parts.device(),
             parts.text_weights()),
        rank_(run_.stream(), run_.arena(), dry_),
        seams_(placement_),
        blank_(rank_, facts_) {
    dry_.set_resident_blocks(job.resident_blocks);
    dry_.set_wire_dtype(parts.wire_dtype());
  }

  ComponentBytes bytes();

 private:
  uint64_t checkpoint_bytes(uint64_t kept) const;
  // The latents of the chunks that are denoised, twice, where checkpoints are kept of them.
  uint64_t chunk_bytes(uint64_t kept, int chunks) const {
    return kept > 0 && parts_.directory().chunks.any() ? 2 * latent_ * static_cast<uint64_t>(chunks)
                                                       : 0;
  }
  // `tensors` counts what is not in the footprint of the ops.
  StageBytes stage(uint64_t tensors, const Footprint& load, const Footprint& ran) const {
    return {.tensors = tensors + ran.held + ran.passing,
            .arena = ran.arena,
            .scratch = on_device() ? std::max(kTransferPiece, ran.scratch) : 0,
            .loading = load.passing};
  }
  uint64_t running(StageBytes stage) const {  // when its weights are loaded
    stage.loading = 0;
    return stage.held(on_device());
  }
  bool on_device() const { return parts_.device().has_value(); }
  StageBytes encoding(ComponentBytes& bytes);
  StageBytes hearing(ComponentBytes& bytes);
  StageBytes encoding_pictures(ComponentBytes& bytes);
  StageBytes denoising(uint64_t held, ComponentBytes& bytes);
  Footprint run_steps();
  uint64_t frame_bytes() const { return latent_ / static_cast<uint64_t>(shape_[1]); }
  // The latent frames that a decoder of the queue keeps.
  uint64_t last_frames() const {
    return static_cast<uint64_t>(std::min(facts_.latent[1], parts_.vae_model().traits.history));
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
  StageBytes decoding(ComponentBytes& bytes);
  uint64_t decoded_latent() const;
  StageBytes encoding_motion(const Vae* vae, uint64_t held);

  const Components& parts_;
  const MeasuredJob& job_;
  const JobFacts& facts_;
  const Request& request_;
  const bool queue_;              // the method
  std::array<int64_t, 4> shape_;  // of the latent that a forward computes
  uint64_t latent_;               // bytes of the whole latent
  uint64_t kept_ = 0;             // bytes of the sets that the sample's cache does not have
  bool stages_messages_;
  std::shared_ptr<SilentTransport> transport_;
  const RankPlacement placement_;
  DryRun run_;
  Components dry_;  // loaded in the dry run
  const Rank rank_;
  EncoderSeams seams_;
  const BlankJob blank_;
  uint64_t embeds_ = 0;  // bytes of the prompts' embeddings, and of what stays like them
};

// Sets `embeds_`.
StageBytes RankRun::encoding(ComponentBytes& bytes) {
  std::vector<int64_t> rows(facts_.prompt_rows.begin(), facts_.prompt_rows.end()), vectors;
  rows.insert(rows.end(), facts_.later_rows.begin(), facts_.later_rows.end());
  for (const Prompt& prompt : prompts_of(request_, *parts_.model(), facts_.guided()))
    if (!prompt.pooled_ids.empty()) vectors.push_back(std::ssize(prompt.pooled_ids));
  embeds_ = f32_bytes(std::accumulate(rows.begin(), rows.end(), int64_t{0}) *
                          parts_.text_model().traits().columns +
                      std::ssize(vectors) * parts_.traits().pooled_columns);
  const DryEncoding text = dry_encode_text(run_, rank_, seams_, rows, vectors);
  bytes.text_encoder = text.weights.held;
  return stage(embeds_, text.weights, text.ran);
}

// Adds the features, which stay until the job ends, to `embeds_`. On a device they are the host's.
StageBytes RankRun::hearing(ComponentBytes& bytes) {
  const auto [samples, fps, chunk_frames] = *facts_.sound;
  const AudioEncoderTraits& traits = parts_.audio_model().traits();
  const int64_t rows = feature_rows(traits, samples), states = traits.rows(samples);
  const auto frames = std::ssize(rows_of_frames(rows, fps, chunk_frames));
  const uint64_t features = f32_bytes(traits.states * traits.columns * frames);
  const bool encodes = placement_.encodes_text(traits);
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
  Context context = seams_.context(run_.stream(), run_.arena(), {}, traits, states);
  const Tensor sound(DType::kF32, {samples}, {Device::Kind::kMeasuredHost});
  return stage(tensors, weights, dry_encode(run_, *encoder, context, sound, [](auto...) {}));
}

// The encoders' weights are tensors of the stage.
StageBytes RankRun::encoding_pictures(ComponentBytes& bytes) {
  if (pictures_of(request_).empty()) return {};
  const auto weigh = [&](const std::function<void()>& load) {
    const Footprint weights = run_.measure(load);
    bytes.picture_encoder = std::max<uint64_t>(bytes.picture_encoder, weights.held);
    dry_.done_with_pictures();
  };
  const auto& image_model = parts_.directory().image_model;
  if (image_model && placement_.encodes_text(image_model->traits()))
    weigh([&] { dry_.image_encoder(run_.stream()); });
  PictureEncoder encoder(rank_, facts_);
  if (encoder.encodes()) weigh([&] { dry_.vae_encoder(run_.stream()); });
  const Footprint ran = run_.measure([&] { encoder.encode([](int) {}); });
  if (on_device()) bytes.host.buffers += ran.host;
  return stage(embeds_, {}, ran);
}

// The steps that stand for all. Sets `kept_` to the sets of a cache that they do not have.
Footprint RankRun::run_steps() {
  const MemorySample sample = memory_sample(facts_);
  uint64_t set = 0;
  const auto run = [&](const JobFacts& few) {
    return run_.measure([&] { set = blank_.run(few, {}, job_.preview); });
  };
  const Footprint less = sample.smaller ? run(*sample.smaller) : Footprint();
  Footprint out = run(sample.facts);
  kept_ = set * static_cast<uint64_t>(sample.kept_sets);
  out.held += static_cast<uint64_t>(sample.more) * (out.held - less.held);
  out.passing += static_cast<uint64_t>(sample.more) * (out.passing - less.passing);
  return out;
}

// `held` is the size of what stays from stage to stage: prompt embeddings and copies of latents for
// checkpoints.
StageBytes RankRun::denoising(uint64_t held, ComponentBytes& bytes) {
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
  const Footprint ran = run_steps();
  return stage(held + kept_, loads, ran);
}

// The copies in host memory of the two device tensors that a step cache compares (change_of):
// velocities on the last stage, hidden rows on the first one where the first block decides.
uint64_t RankRun::compared_bytes() const {
  const BlockRange blocks = placement_.blocks(parts_.traits().blocks);
  const StepCacheKind kind = request_.cache.kind;
  uint64_t bytes = kind != StepCacheKind::kNone && !queue_ && blocks.last() ? own_rows() : 0;
  if (kind == StepCacheKind::kFirstBlock && blocks.first()) {
    const int64_t joint =
        parts_.expert_model(0).joint_rows(sequence().tokens, std::ranges::max(facts_.prompt_rows)) +
        facts_.reference_rows - facts_.beside();
    const int64_t rows =
        placement_.tokens(facts_.forward_sequence(), facts_.patches).size() + joint;
    bytes = std::max(bytes, f32_bytes(rows * parts_.traits().width));
  }
  return 2 * bytes;
}

// Decodes a few frames, or a segment of the queue. The latent is not of it, and neither are the
// frames that wait for the writer.
StageBytes RankRun::decoding(ComponentBytes& bytes) {
  const bool decodes = placement_.band(shape_[2]).size() > 0;
  const Vae* vae = nullptr;
  Footprint weights;
  if (decodes) weights = run_.measure([&] { vae = &dry_.vae(run_.stream()); });
  bytes.vae = weights.held;
  const int64_t frames = decodes ? std::min(shape_[1], kDecodedChunks) : shape_[1];
  const Tensor latents = run_.tensor(DType::kF32, {shape_[0], frames, shape_[2], shape_[3]});
  const DecoderSettings settings{
      .traits = parts_.vae_model().traits, .vae = vae, .latent = {shape_[0], shape_[2], shape_[3]}};
  std::optional<VideoDecoder> decoder;
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
  // A queue's segments reach the rank that decodes them, and no other.
  const uint64_t latent = decodes || !queue_ ? decoded_latent() : 0;
  uint64_t held = embeds_;
  if (blank_.motion && decodes)  // the rows of the pictures that end the chunk
    held += f32_bytes(parts_.directory().chunks.motion_frames * 3 * request_.width *
                      placement_.band(shape_[2]).size() * parts_.vae_model().traits.spatial_factor);
  if (on_device()) {
    bytes.host.copies += ran.host;
    bytes.host.buffers += pictures;
  } else {
    held += pictures;
  }
  const StageBytes decodes_clip = stage(held + latent, weights, ran);
  if (!blank_.motion) return decodes_clip;
  StageBytes encodes = encoding_motion(vae, held + ran.held);
  encodes.loading = decodes_clip.loading;
  return running(encodes) > running(decodes_clip) ? encodes : decodes_clip;
}

// Encodes the pictures that end a clip. Then its latent and its signal are gone.
StageBytes RankRun::encoding_motion(const Vae* vae, uint64_t held) {
  VideoEncoder encoder(run_.stream(), run_.arena(), placement_, parts_.vae_model().traits,
                       {shape_[0], blank_.motion.view()[1], shape_[2], shape_[3]});
  const Footprint ran = run_.measure([&] {
    Tensor own;
    if (vae) own = encoder.encode_rows(*vae, "the end of a clip", [](auto...) {});
    encoder.join(std::move(own));
  });
  return stage(held - blank_.chunk_bytes(), {}, ran);
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

// The bytes of a checkpoint of `kept` tensors. The queue's has the segments of the queue and the
// one before them, their histories, and the frames that the decoder needs. Chunks are held beside
// it.
uint64_t RankRun::checkpoint_bytes(uint64_t kept) const {
  if (!queue_ || kept == 0) return latent_ * kept + chunk_bytes(kept, facts_.chunks - 1);
  const SegmentFrames frames = std::get<Queue>(request_.method).frames();
  const int longest = std::min(request_.steps, facts_.segments());
  return frame_bytes() * (kept * static_cast<uint64_t>(frames.first(longest)) +
                          static_cast<uint64_t>(frames.segment) + last_frames());
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
    const Range begins =
        placement_.clip_latents(placement_.rank(), shape_[1], parts_.traits().patch[0]);
    bytes.host.buffers =
        2 * frame_bytes() * static_cast<uint64_t>(begins.size()) + checkpoint_bytes(kept);
  }
  // While weights are loaded a stage holds little else: `beside`.
  const auto book = [&](uint64_t& loads, uint64_t& runs, const StageBytes& stage,
                        uint64_t beside = 0) {
    loads = StageBytes{.tensors = beside, .loading = stage.loading}.held(on_device());
    runs = running(stage);
    bytes.scratch = std::max(bytes.scratch, stage.scratch);
  };
  book(bytes.load_text, bytes.encode_text, encoding(bytes));
  // On a device the tensors of a checkpoint are copied to the host one at a time.
  const uint64_t copies =
      on_device() ? latent_ * std::min<uint64_t>(kept, 1) : checkpoint_bytes(kept);
  const StageBytes pictures = encoding_pictures(bytes);
  bytes.encode_image = pictures.tensors > 0 ? running(pictures) : 0;
  bytes.scratch = std::max(bytes.scratch, pictures.scratch);
  embeds_ += blank_.pictures.reference.view().bytes();
  if (facts_.sound) book(bytes.load_audio, bytes.encode_audio, hearing(bytes));
  const uint64_t given =
      blank_.pictures.rows.view().bytes() + blank_.pictures.channels.view().bytes();
  embeds_ += blank_.chunk_bytes();
  // Messages are staged in the stages' order.
  StageBytes denoise = denoising(embeds_ + given + copies, bytes);
  if (!on_device()) embeds_ += chunk_bytes(kept, facts_.chunks);
  StageBytes decode = decoding(bytes);
  decode.tensors += bytes.reading;
  if (bytes.decodes_meanwhile) {  // they take turns, and share the embeddings and the workspace
    denoise.tensors += decode.tensors - embeds_;
    denoise.arena = std::max(denoise.arena, decode.arena);
    denoise.scratch = std::max(denoise.scratch, decode.scratch);
  }
  book(bytes.load_expert, bytes.denoise, denoise);
  book(bytes.load_vae, bytes.decode, decode, bytes.reading);
  // They stay open from the first one to the last.
  const auto connected = static_cast<uint64_t>(transport_->connected());
  for (uint64_t* stage :
       {&bytes.load_text, &bytes.encode_text, &bytes.encode_image, &bytes.load_audio,
        &bytes.encode_audio, &bytes.load_expert, &bytes.denoise, &bytes.load_vae, &bytes.decode})
    if (*stage > 0) *stage += connected;
  if (stages_messages_) bytes.host.copies += static_cast<uint64_t>(transport_->staged());
  return bytes;
}

}  // namespace

DryEncoding dry_encode_text(DryRun& run, const Rank& rank, EncoderSeams& seams,
                            std::span<const int64_t> rows, std::span<const int64_t> vectors) {
  DryEncoding out;
  Components& parts = rank.parts();
  for (const bool pooled : {false, true}) {
    const TextEncoderModel* model = pooled ? parts.pooled_model() : &parts.text_model();
    if (!model || !rank.placement.encodes_text(model->traits())) continue;
    const TextEncoder* encoder = nullptr;
    const Footprint weights = run.measure([&] {
      encoder = &(pooled ? parts.pooled_encoder(run.stream()) : parts.text_encoder(run.stream()));
    });
    out.weights.held += weights.held;
    take_most(out.weights, weights);
    const int64_t columns = model->traits().columns;
    for (const int64_t count : pooled ? vectors : rows) {
      if (count == 0) continue;
      // The sums of a short prompt may take a star, which holds more than the ring of a long one.
      Context context = seams.context(run.stream(), run.arena(), {}, model->traits(), count);
      const std::vector<int32_t> ids(static_cast<size_t>(count));
      const Tensor made = run.tensor(DType::kF32, {pooled ? 1 : count, columns});
      take_most(out.ran, run.measure([&] {
        pooled ? encode_pooled(context, *encoder, ids, 0, made)
               : encoder->encode(context, ids, made);
      }));
    }
  }
  return out;
}

ComponentBytes predict_bytes(const Components& parts, const RankPlacement& placement,
                             const MeasuredJob& job) {
  return RankRun(parts, placement, job).bytes();
}

}  // namespace weft
