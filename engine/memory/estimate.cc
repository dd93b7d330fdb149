#include "engine/memory/estimate.h"

#include <algorithm>

#include "engine/decoding/frame_writer.h"
#include "engine/denoising/denoiser.h"
#include "engine/long_video/queue_run.h"
#include "engine/long_video/queue_video.h"
#include "models/footprint.h"
#include "parallel/methods/block_context.h"
#include "parallel/transport/silent.h"

namespace weft {
namespace {

uint64_t f32_bytes(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

}  // namespace

std::array<int64_t, 4> latent_shape(const Components& parts, const Request& request) {
  const VaeTraits& vae = parts.vae_model().traits();
  return {vae.channels, vae.latent_frames(request.frames), request.height / vae.spatial_factor,
          request.width / vae.spatial_factor};
}

std::array<int64_t, 3> token_grid(const Components& parts, const Request& request) {
  const auto shape = latent_shape(parts, request);
  return parts.expert_model(0).traits().grid(shape[1], shape[2], shape[3]);
}

Sequence sequence_of(const Components& parts, const Request& request) {
  const auto grid = token_grid(parts, request);
  return {grid[0] * grid[1] * grid[2], grid[0]};
}

namespace {

std::array<int64_t, 4> held_latent(const Components& parts, const Request& request) {
  const auto whole = latent_shape(parts, request);
  if (!is_queue(request)) return whole;
  return QueueVideo(request, whole, parts.vae_model().traits()).window();
}

std::vector<int64_t> rows_of_schedule(const Components& parts, const Request& request) {
  std::vector<int64_t> rows;
  for (const ScheduledPrompt& later : request.schedule)
    rows.push_back(static_cast<int64_t>(parts.model()->tokens(later.prompt)->ids.size()));
  return rows;
}

// The most prompts that the blocks of a queue show together, beside one.
int more_prompts(const Components& parts, const Request& request) {
  if (request.schedule.empty()) return 0;
  const QueueVideo video(request, latent_shape(parts, request), parts.vae_model().traits());
  int most = 0;
  for (int tail = 0; tail < video.blocks(); ++tail)
    most = std::max(most, video.prompt(tail) - video.prompt(std::max(0, tail - request.steps + 1)));
  return most;
}

// The dry run of a job on one rank of the replica.
class RankRun {
 public:
  RankRun(const Components& parts, const RankPlacement& of, const Request& request,
          std::array<int64_t, 2> prompt_rows)
      : parts_(parts),
        request_(request),
        prompt_rows_(prompt_rows),
        queue_(is_queue(request)),
        shape_(held_latent(parts, request)),
        latent_(f32_bytes(shape_[0] * shape_[1] * shape_[2] * shape_[3])),
        embeds_(f32_bytes((prompt_rows[0] + prompt_rows[1]) * parts.text_model().traits().columns)),
        begun_(latent_ / static_cast<uint64_t>(shape_[1]) *
               static_cast<uint64_t>(
                   of.split(shape_, parts.traits().patch[0]).frames[of.rank()].size())),
        stages_messages_(of.stages_messages()),
        later_rows_(rows_of_schedule(parts, request)),
        transport_(std::make_shared<SilentTransport>(of.rank(), of.ranks())),
        placement_(Communicator(transport_), of.layout()),
        run_(parts.device()) {
    placement_.set_dual_scope(dual_scope_of(request.method, 0));
    place_patches(placement_, request, token_grid(parts, request));
    for (const int64_t rows : later_rows_)
      embeds_ += f32_bytes(rows * parts.text_model().traits().columns);
  }

  ComponentBytes bytes(size_t kept, bool decodes_meanwhile);
  uint64_t checkpoint_bytes(uint64_t kept) const;

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
  Stage denoising(int model, uint64_t held, ComponentBytes& bytes);
  Footprint forwards(const Transformer& transformer, std::array<int64_t, 3> grid, int64_t& joint);
  uint64_t frame_bytes() const { return latent_ / static_cast<uint64_t>(shape_[1]); }
  // The latent frames that a decoder of the queue keeps.
  uint64_t last_frames() const {
    return static_cast<uint64_t>(
        std::min(latent_shape(parts_, request_)[1], parts_.vae_model().traits().history));
  }
  uint64_t queue_rows(const BlockRange& blocks, uint64_t rows) const;
  void exchange_rows(int64_t own, int64_t joint, const TransformerTraits& traits);
  Stage decoding(ComponentBytes& bytes);
  uint64_t decoded_latent() const;

  const Components& parts_;
  const Request& request_;
  std::array<int64_t, 2> prompt_rows_;
  const bool queue_;              // the method
  std::array<int64_t, 4> shape_;  // of the latent that a forward computes
  uint64_t latent_, embeds_;      // bytes of the whole latent, and of the prompt embeddings
  uint64_t begun_;                // bytes of the latent that the rank begins with
  bool stages_messages_;
  std::vector<int64_t> later_rows_;  // of the schedule's prompts
  std::shared_ptr<SilentTransport> transport_;
  RankPlacement placement_;
  std::optional<BlockContext> context_;  // of the queue
  DryRun run_;
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
  const TextEncoderTraits& traits = parts_.text_model().traits();
  if (!placement_.encodes_text(traits)) return stage(embeds_, {}, {});
  std::unique_ptr<TextEncoder> encoder;
  const Footprint weights = run_.measure([&] {
    encoder = parts_.text_model().load(run_.stream(), *parts_.model()->text_file, parts_.dtype(),
                                       placement_.text_width(traits));
  });
  bytes.text_encoder = weights.held;
  Footprint most;
  std::vector<int64_t> all(prompt_rows_.begin(), prompt_rows_.end());
  all.insert(all.end(), later_rows_.begin(), later_rows_.end());
  for (const int64_t rows : all) {
    if (rows == 0) continue;  // no negative prompt
    // The sums of a short prompt may take a star, which holds more than the ring of a long one.
    Context context = placement_.text_context(run_.stream(), run_.arena(), {}, traits, rows);
    take_most(most, dry_encode(run_, *encoder, context, rows, traits.columns));
  }
  return stage(embeds_, weights, most);
}

// The prepare and forward of every branch that this rank computes. `joint` is the most joint rows
// that a branch has. The queue's first block keeps keys, and the next one reads them.
Footprint RankRun::forwards(const Transformer& transformer, std::array<int64_t, 3> grid,
                            int64_t& joint) {
  Footprint most;
  const Sequence all{grid[0] * grid[1] * grid[2], grid[0]};
  std::vector<int> branches;
  for (int branch = 0; branch < 2; ++branch)
    if (prompt_rows_[branch] > 0 && placement_.computes(branch)) branches.push_back(branch);
  const TransformerTraits& traits = transformer.traits();
  Rope rope;
  if (queue_) {
    const int64_t frames = queue_settings(request_.method).frames.context / traits.patch[0];
    rope = weft::on_device(run_.stream(), make_rope({frames, grid[1], grid[2]}, {},
                                                    static_cast<int>(traits.head_dim)));
    context_.emplace(transformer.loaded().blocks, branches, Range{0, frames * grid[1] * grid[2]});
    placement_.set_inner_mixer([this] { return std::make_unique<BlockContextMixer>(*context_); });
  }
  for (int block = 0; block < (queue_ ? 2 : 1); ++block)
    for (const int branch : branches) {
      if (queue_) context_->begin({block > 0 ? std::optional(0) : std::nullopt, block, &rope});
      Context context = placement_.context(run_.stream(), run_.arena(), {.branch = branch}, all);
      const int64_t rows = prompt_rows_[branch];
      const DryForward forward =
          dry_forward(run_, transformer, context, grid, rows, parts_.text_length(rows));
      if (block == 0) most.held += forward.footprint.held;
      take_most(most, forward.footprint);
      joint = std::max(joint, forward.joint_rows);
    }
  const int more = more_prompts(parts_, request_);
  if (more > 0 && placement_.computes(0)) {
    if (queue_) context_->begin({std::nullopt, std::nullopt, &rope});
    const int64_t rows = std::ranges::max(later_rows_);
    Context context = placement_.context(run_.stream(), run_.arena(), {}, all);
    const DryForward forward =
        dry_forward(run_, transformer, context, grid, rows, parts_.text_length(rows));
    most.held += static_cast<uint64_t>(more) * forward.footprint.held;
    take_most(most, forward.footprint);
  }
  context_.reset();
  return most;
}

// The messages between forwards: a pipeline stage sends hidden rows while it receives the next
// ones, and the root gathers the rows of the latent.
void RankRun::exchange_rows(int64_t own, int64_t joint, const TransformerTraits& traits) {
  if (placement_.alone()) return;
  const Tensor latent = run_.tensor(DType::kF32, {own, traits.row()});
  const Tensor in = run_.tensor(parts_.dtype(), {own + joint, traits.width});
  const Tensor out = run_.tensor(parts_.dtype(), {own + joint, traits.width});
  const int peer = placement_.root() ? 1 : 0;
  const Message rows{peer, {.kind = Payload::kLatent}, latent};
  const Message to{peer, {.kind = Payload::kHidden}, out}, from{peer, to.tag, in};
  Communicator& communicator = placement_.communicator();
  communicator.exchange(run_.stream(), {&rows, 1}, {});
  if (placement_.layout()[Axis::kLayers] > 1)
    communicator.exchange(run_.stream(), {&to, 1}, {&from, 1});
}

// `held` is the size of what stays from stage to stage: prompt embeddings and copies of latents for
// checkpoints.
RankRun::Stage RankRun::denoising(int model, uint64_t held, ComponentBytes& bytes) {
  const auto [transformer, weights] =
      dry_load(run_, parts_.expert_model(model), *parts_.model()->expert_files[model],
               parts_.load_of(model));
  bytes.experts.push_back(weights.held);
  if (on_device()) bytes.streamed.push_back(transformer->streamed_bytes());
  const TransformerTraits& traits = transformer->traits();
  const BlockRange blocks = transformer->loaded().blocks;
  const auto grid = traits.grid(shape_[1], shape_[2], shape_[3]);
  const int64_t own = placement_.tokens({grid[0] * grid[1] * grid[2], grid[0]}).size();
  int64_t joint = 0;
  Footprint forward = forwards(*transformer, grid, joint);
  exchange_rows(own, joint, traits);
  // A rank holds the rows that it owns: on the first and the last pipeline stage those of the
  // latent, on the last also those of every branch's velocity and of the solver's history. Between
  // stages are the hidden rows of the branches that it computes, in the dtype they are sent in, and
  // f32 copies of the blocks' input and output. An update guides and steps a copy of the velocity.
  // Before decoding, the latent is made whole, from the rows of all ranks where there are several;
  // clips stay apart.
  constexpr uint64_t kHistory = 3;  // SamplerState
  const uint64_t branches = prompt_rows_[1] > 0 ? 2 : 1;
  const uint64_t computed = placement_.layout()[Axis::kCfg] == 1 ? branches : 1;
  const Layout& layout = placement_.layout();
  const uint64_t rows = f32_bytes(own * traits.row());
  const auto hidden = static_cast<uint64_t>((own + joint) * traits.width);
  const bool first = blocks.first(), last = blocks.last();
  const DType wire = queue_ ? parts_.wire_dtype() : parts_.dtype();
  uint64_t patch = 0;  // hidden rows of the largest patch, which three buffers hold
  if (const auto& pipefusion = placement_.pipefusion())
    patch = static_cast<uint64_t>(
        (partition(std::ranges::max(pipefusion->patches), layout.sequence(), 0).size() + joint) *
        traits.width);
  const uint64_t slots = (first || last ? rows : 0) + (last ? rows * branches : 0) +
                         (first && last ? 0 : 3 * patch * size_of(wire)) +
                         (first && last ? 0 : hidden * computed * size_of(wire));
  const uint64_t whole = placement_.has_clips()                          ? begun_
                         : layout.sequence() * layout[Axis::kLayers] > 1 ? 2 * latent_
                                                                         : latent_;
  forward.arena += ((first ? 0 : hidden) + (last ? 0 : hidden)) * sizeof(float) +
                   arena_bytes(DType::kF32, {1, traits.time_columns});
  if (last)
    forward.arena = std::max(forward.arena, 2 * arena_bytes(DType::kF32, {own, traits.row()}));
  if (queue_) return stage(held + slots + queue_rows(blocks, rows), weights, forward);
  if (last && request_.cache.kind != StepCacheKind::kNone) {  // BlockCache
    forward.held += hidden * computed * sizeof(float) + rows;
    if (on_device() && model == 0) bytes.host.buffers += 2 * rows;
  }
  if (request_.cache.kind == StepCacheKind::kFirstBlock) {  // its rows, and FirstBlock
    forward.held += ((first || last) + first) * hidden * computed * sizeof(float);
    if (first && on_device() && model == 0) bytes.host.buffers += 2 * hidden * sizeof(float);
  }
  forward.held = std::max(forward.held + (last ? kHistory * rows : 0), whole);
  return stage(held + slots, weights, forward);
}

// The blocks in the queue, on a rank that computes `rows` bytes of a forward's latent: each has the
// rows of its own frames on the first and on the last stage, and the solver's history on the last.
uint64_t RankRun::queue_rows(const BlockRange& blocks, uint64_t rows) const {
  constexpr uint64_t kHistory = 3;  // SamplerState
  const BlockFrames frames = queue_settings(request_.method).frames;
  const QueueVideo video(request_, latent_shape(parts_, request_), parts_.vae_model().traits());
  const auto longest = static_cast<uint64_t>(std::min(request_.steps, video.blocks()));
  const auto of_block =
      rows * static_cast<uint64_t>(frames.block) / static_cast<uint64_t>(frames.count(0));
  return longest * of_block *
         ((blocks.first() || blocks.last() ? 1 : 0) + (blocks.last() ? kHistory : 0));
}

// The pictures of a chunk take 1 byte per value in host memory: a rank has two of its band, and the
// root those of the other bands and the frames that wait for the writer.
RankRun::Stage RankRun::decoding(ComponentBytes& bytes) {
  const VaeTraits& traits = parts_.vae_model().traits();
  const int64_t rows = placement_.band(shape_[2]).size();
  const int64_t chunk_frames = shape_[1] > 1 ? traits.temporal_factor : 1;
  const int64_t row = chunk_frames * 3 * traits.spatial_factor * request_.width;
  auto pictures = static_cast<uint64_t>(2 * row * rows);
  if (placement_.root()) {
    const int64_t waiting =
        std::min<int64_t>(request_.frames, static_cast<int64_t>(kFramesWaiting) + 2);
    pictures += static_cast<uint64_t>(row * (shape_[2] - rows) +
                                      waiting * 3 * request_.height * request_.width);
  }
  if (on_device()) {
    bytes.host.copies += static_cast<uint64_t>(2 * row * rows);
    bytes.host.buffers += pictures - static_cast<uint64_t>(2 * row * rows);
    pictures = 0;
  }
  if (rows == 0) return stage(embeds_ + decoded_latent() + pictures, {}, {});
  if (queue_ && on_device()) bytes.host.buffers += frame_bytes() * last_frames();
  if (queue_ && !on_device()) pictures += frame_bytes() * last_frames();
  std::unique_ptr<Vae> vae;
  const Footprint weights = run_.measure([&] {
    vae = parts_.vae_model().load(run_.stream(), *parts_.model()->vae_file, parts_.vae_dtype(),
                                  VaeParts::kDecoder);
  });
  bytes.vae = weights.held;
  Context context = placement_.vae_context(run_.stream(), run_.arena(), {}, shape_[2]);
  Footprint decode = dry_decode(run_, *vae, context, rows, shape_[3], shape_[1]);
  decode.arena += f32_bytes(row * rows);
  return stage(embeds_ + decoded_latent() + f32_bytes(shape_[0] * rows * shape_[3]) + pictures,
               weights, decode);
}

// The bytes of the latent while it is decoded: all of it, or with clips the own rows of it on the
// first and the last pipeline stage and, where the rank decodes, a frame and the parts of the next.
// Before, the root holds a channel of the whole latent.
uint64_t RankRun::decoded_latent() const {
  if (!placement_.has_clips()) return latent_;
  const TransformerTraits& traits = parts_.traits();
  const auto grid = traits.grid(shape_[1], shape_[2], shape_[3]);
  const BlockRange blocks = placement_.blocks(traits.blocks);
  const int64_t own = placement_.tokens({grid[0] * grid[1] * grid[2], grid[0]}).size();
  const uint64_t rows = blocks.first() || blocks.last() ? f32_bytes(own * traits.row()) : 0;
  const uint64_t frame = latent_ / static_cast<uint64_t>(grid[0]);
  const uint64_t frames = receives_frames(placement_.layout(), placement_.rank()) ? 2 * frame : 0;
  return rows + std::max(frames, placement_.root() ? latent_ / shape_[0] : 0);
}

// The bytes of a checkpoint of `kept` tensors. The queue's has the blocks of the queue and the one
// before them, their histories, and the frames that the decoder needs.
uint64_t RankRun::checkpoint_bytes(uint64_t kept) const {
  if (!queue_ || kept == 0) return latent_ * kept;
  const BlockFrames frames = queue_settings(request_.method).frames;
  const QueueVideo video(request_, latent_shape(parts_, request_), parts_.vae_model().traits());
  const int longest = std::min(request_.steps, video.blocks());
  return frame_bytes() * (kept * static_cast<uint64_t>(frames.first(longest)) +
                          static_cast<uint64_t>(frames.block) + last_frames());
}

ComponentBytes RankRun::bytes(size_t kept, bool decodes_meanwhile) {
  ComponentBytes bytes;
  bytes.decodes_meanwhile = decodes_meanwhile;
  if (on_device()) {
    const int queues = parts_.resident_blocks() > 0 ? 2 : 1;
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
  std::vector<Stage> denoises;  // messages are staged in the order of the stages
  for (int model = 0; model < parts_.experts(); ++model) {
    if (computes_with(request_, placement_, model)) {
      denoises.push_back(denoising(model, embeds_ + copies, bytes));
    } else {
      bytes.experts.push_back(0);
      if (on_device()) bytes.streamed.push_back(0);
    }
  }
  const Stage decode = decoding(bytes);
  for (Stage& denoise : denoises) {
    if (decodes_meanwhile) denoise.runs = together(denoise.runs, decode.runs, embeds_);
    book(bytes.load_expert, bytes.denoise, denoise);
  }
  book(bytes.load_vae, bytes.decode, decode);
  if (stages_messages_) bytes.host.copies += static_cast<uint64_t>(transport_->staged());
  return bytes;
}

}  // namespace

ComponentBytes predict_bytes(const Components& parts, const RankPlacement& placement,
                             const Request& request, std::array<int64_t, 2> prompt_rows,
                             size_t kept, bool decodes_meanwhile) {
  return RankRun(parts, placement, request, prompt_rows).bytes(kept, decodes_meanwhile);
}

namespace {

// Suggests the largest --resident-layers that fits. Where host memory is short, suggests the
// smallest one instead that leaves the host enough. Empty where no number fits.
std::string fitting_layers(const MemoryPlan& plan, const Changes& changes) {
  constexpr int kLeast = 2;
  const auto offer = [&](int layers) {
    const MemoryPlan changed = changes.resident(layers);
    const std::string host =
        plan.fits_host() ? "" : " and " + format_bytes(changed.host.total()) + " of the host";
    return changed.fits() ? "--resident-layers " + std::to_string(layers) + " (" +
                                format_bytes(changed.high_water) + host + ")"
                          : std::string();
  };
  const int last = plan.fits_host() ? changes.layers - 1 : changes.layers;
  for (int i = kLeast; i <= last; ++i) {
    const std::string line = offer(plan.fits_host() ? last + kLeast - i : i);
    if (!line.empty()) return line;
  }
  return {};
}

// "--layout tensor=4 (1.20 GiB) or layers=4 (1.31 GiB)": at most two layouts that fit, or "".
std::string fitting_layouts(const Changes& changes) {
  std::string offers;
  int offered = 0;
  for (const Layout& layout : changes.layouts) {
    uint64_t most = 0;
    bool fits = true;
    for (int rank = 0; fits && rank < layout.ranks(); ++rank) {
      const MemoryPlan plan = changes.layout(layout, rank);
      most = std::max(most, plan.high_water);
      fits = plan.fits();
    }
    if (!fits || ++offered > 2) continue;
    offers +=
        (offered == 1 ? "--layout " : " or ") + to_string(layout) + " (" + format_bytes(most) + ")";
  }
  return offers;
}

std::string shortage(const MemoryPlan& plan) {
  if (!plan.fits_host())
    return "the job needs " + format_bytes(plan.host.total()) +
           " of host memory beside the device's (pinned: weights of streamed layers " +
           format_bytes(plan.host.streamed) + ", copies " + format_bytes(plan.host.copies) +
           "; latents and frames " + format_bytes(plan.host.buffers) + "), " +
           format_bytes(plan.host_available) + " are available. Try ";
  return "the job needs " + format_bytes(plan.high_water) + " (weights " +
         format_bytes(plan.weights) + ", encode_text " + format_bytes(plan.parts.encode_text) +
         ", denoise " + format_bytes(plan.parts.denoise) + ", decode " +
         format_bytes(plan.parts.decode) + "), " + format_bytes(plan.available) +
         " are available. Try ";
}

}  // namespace

std::vector<Layout> other_layouts(const Layout& layout, const LayoutLimits& limits) {
  constexpr size_t kMost = 8;
  std::vector<Layout> layouts = legal_layouts(layout.ranks(), limits);
  std::erase_if(layouts, [&](Layout& other) {
    other.take_stages(layout);
    return other[Axis::kData] > 1 || other == layout;
  });
  std::ranges::stable_sort(layouts, std::greater(), [](const Layout& other) {
    return other[Axis::kTensor] * other[Axis::kLayers];
  });
  layouts.resize(std::min(layouts.size(), kMost));
  return layouts;
}

std::string refusal(const Request& request, const MemoryPlan& plan, const ModelLimits& limits,
                    DType dtype, const Changes& changes) {
  const std::string text = shortage(plan);
  std::vector<std::string> advice;
  if (const std::string layouts = fitting_layouts(changes); !layouts.empty())
    advice.push_back(layouts);
  if (changes.layers > 0) {
    const std::string layers = fitting_layers(plan, changes);
    if (!layers.empty()) advice.push_back(layers);
  }
  const auto offer = [&](const Request& changed, const std::string& flag) {
    const MemoryPlan smaller = changes.request(changed);
    if (smaller.fits()) advice.push_back(flag + " (" + format_bytes(smaller.high_water) + ")");
    return smaller.fits();
  };
  Request fewer = request;  // the longest clip that fits
  for (int64_t k = (request.frames - 1) / limits.frame_multiple; k > 0;) {
    k = k * 3 / 4;
    fewer.frames = k * limits.frame_multiple + 1;
    if (offer(fewer, "--num-frames " + std::to_string(fewer.frames))) break;
  }
  Request smaller = request;  // the largest picture of about this shape that fits
  for (int eighths = 7; eighths > 0 && advice.size() < 2; --eighths) {
    const auto scaled = [&](int64_t size) {
      return std::max<int64_t>(size * eighths / 8 / limits.size_multiple, 1) * limits.size_multiple;
    };
    smaller.width = scaled(request.width);
    smaller.height = scaled(request.height);
    if (smaller.width == request.width && smaller.height == request.height) continue;
    if (offer(smaller,
              "--size " + std::to_string(smaller.width) + "x" + std::to_string(smaller.height))) {
      break;
    }
  }
  if (advice.size() < 2 && dtype == DType::kF32) advice.push_back("--dtype bf16");
  if (advice.size() < 2) advice.push_back("a machine with more memory free");
  if (advice.size() < 2)
    advice.push_back(plan.fits_host() ? "a higher --memory-limit" : "a higher --host-memory-limit");
  return text + advice[0] + " or " + advice[1];
}

}  // namespace weft
