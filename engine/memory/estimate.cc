#include "engine/memory/estimate.h"

#include <algorithm>

#include "engine/generation/decode.h"
#include "engine/generation/denoiser.h"

namespace weft {
namespace {

uint64_t f32_bytes(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

}  // namespace

std::array<int64_t, 4> latent_shape(const Components& parts, const Request& request) {
  const VaeTraits& vae = parts.vae_model().traits();
  return {vae.channels, vae.latent_frames(request.frames), request.height / vae.spatial_factor,
          request.width / vae.spatial_factor};
}

int64_t token_count(const Components& parts, const Request& request) {
  const auto shape = latent_shape(parts, request);
  const auto grid = parts.expert_model(0).traits().grid(shape[1], shape[2], shape[3]);
  return grid[0] * grid[1] * grid[2];
}

namespace {

StageBytes encoding(const Components& parts, const RankPlacement& placement, uint64_t embeds,
                    std::array<int64_t, 2> prompt_rows) {
  const TextEncoderModel& encoder = parts.text_model();
  const TextEncoderTraits& traits = encoder.traits();
  if (!placement.encodes_text(traits)) return {.tensors = embeds};
  const WidthSlice width = placement.text_width(traits);
  StageBytes stage{.tensors = embeds};
  for (const int64_t rows : prompt_rows) {
    if (rows == 0) continue;  // no negative prompt
    // The sums of a short prompt may take a star, which holds more than the ring of a long one.
    stage.arena = std::max<uint64_t>(
        stage.arena,
        encoder.workspace_bytes(rows, parts.dtype(), width, placement.text_seam_bytes(traits)));
    if (parts.device())
      stage.scratch = std::max<uint64_t>(
          stage.scratch, encoder.scratch_bytes(rows, parts.dtype(), width, *parts.device()));
  }
  return stage;
}

// `held` is the size of what stays from stage to stage: prompt embeddings and copies of latents for
// checkpoints.
StageBytes denoising(const Components& parts, const RankPlacement& placement, int model,
                     std::array<int64_t, 4> shape, std::array<int64_t, 2> prompt_rows,
                     uint64_t held) {
  const TransformerModel& transformer = parts.expert_model(model);
  const TransformerTraits& traits = transformer.traits();
  const TransformerLoad load = parts.load_of(model);
  const auto grid = traits.grid(shape[1], shape[2], shape[3]);
  const int64_t tokens = grid[0] * grid[1] * grid[2], own = placement.tokens(tokens).size();
  const int branches = prompt_rows[1] > 0 ? 2 : 1;
  ForwardSize size{.tokens = own, .all_tokens = tokens};
  uint64_t conditions = 0, workspace = 0, scratch = 0;
  int64_t joint = 0;
  int computed = 0;
  for (int branch = 0; branch < branches; ++branch) {
    if (!placement.computes(branch)) continue;
    ++computed;
    size.text = prompt_rows[branch];
    size.text_length = parts.text_length(size.text);
    conditions += transformer.conditioning_bytes(size, load) + transformer.rope_bytes(grid);
    joint = std::max(joint, transformer.joint_rows(size));
    workspace = std::max<uint64_t>(
        workspace, transformer.workspace_bytes(
                       size, load, placement.seam_bytes(traits, tokens, parts.dtype(), joint)));
    if (parts.device())
      scratch = std::max<uint64_t>(
          scratch,
          transformer.scratch_bytes(size, load, parts.expert_biases(model), *parts.device()));
  }
  // A rank holds the rows that it owns: on the first and the last pipeline stage those of the
  // latent, on the last also those of every branch's velocity and of the solver's history. Between
  // stages are the hidden rows of the branches that it computes, in the dtype they are sent in, and
  // f32 copies of the blocks' input and output. An update guides and steps a copy of the velocity.
  // Before decoding, the latent is made whole, from the rows of all ranks where there are several.
  constexpr uint64_t kHistory = 3;  // SamplerState
  const Layout& layout = placement.layout();
  const uint64_t rows = f32_bytes(own * traits.row()), latent = f32_bytes(tokens * traits.row());
  const auto hidden = static_cast<uint64_t>((own + joint) * traits.width);
  const bool first = load.blocks.first(), last = load.blocks.last();
  const uint64_t slots = (first || last ? rows : 0) +
                         (last ? rows * static_cast<uint64_t>(branches) : 0) +
                         (first && last ? 0 : hidden * computed * size_of(parts.dtype()));
  const uint64_t whole = layout.sequence() * layout[Axis::kLayers] > 1 ? 2 * latent : latent;
  const uint64_t forward = workspace +
                           ((first ? 0 : hidden) + (last ? 0 : hidden)) * sizeof(float) +
                           arena_bytes(DType::kF32, {1, traits.time_columns});
  const uint64_t update = last ? 2 * arena_bytes(DType::kF32, {own, traits.row()}) : 0;
  StageBytes stage{
      .tensors = held + slots + std::max(conditions + (last ? kHistory * rows : 0), whole),
      .arena = std::max(forward, update)};
  if (!parts.device()) return stage;
  stage.scratch = scratch;
  stage.loading = parts.expert_loading_bytes(model);
  return stage;
}

StageBytes decoding(const Components& parts, const RankPlacement& placement, const Request& request,
                    std::array<int64_t, 4> shape, uint64_t embeds, uint64_t latent,
                    HostBytes& host) {
  const VaeModel& vae = parts.vae_model();
  const int64_t rows = placement.band(shape[2]).size();
  if (rows == 0) return {.tensors = embeds + latent};
  const int64_t pixels = 3 * request.height * request.width;
  const int64_t chunk_frames = shape[1] > 1 ? vae.traits().temporal_factor : 1;
  const int64_t waiting =
      std::min<int64_t>(request.frames, static_cast<int64_t>(kFramesWaiting) + 2);
  const auto pictures = static_cast<uint64_t>(chunk_frames * pixels);
  const auto frames = static_cast<uint64_t>(waiting * pixels);
  const DType dtype = parts.vae_dtype();
  StageBytes stage{.tensors = embeds + 2 * latent + f32_bytes(shape[0] * rows * shape[3]) +
                              vae.decode_state_bytes(rows, shape[3], dtype),
                   .arena = vae.decode_workspace_bytes(rows, shape[3], dtype, shape[1]) +
                            f32_bytes(chunk_frames * pixels)};
  if (!parts.device()) {
    stage.tensors += frames;
    return stage;
  }
  stage.arena += pictures;
  stage.scratch = vae.decode_scratch_bytes(rows, shape[3], dtype, parts.vae_biases(),
                                           placement.bands(shape[2]), *parts.device());
  if (placement.root()) {
    host.copies += 2 * pictures;
    host.buffers += frames;
  }
  return stage;
}

}  // namespace

ComponentBytes predict_bytes(const Components& parts, const RankPlacement& placement,
                             const Request& request, std::array<int64_t, 2> prompt_rows,
                             size_t kept) {
  const bool device = parts.device().has_value();
  const auto shape = latent_shape(parts, request);
  const uint64_t latent = f32_bytes(shape[0] * shape[1] * shape[2] * shape[3]);
  const uint64_t embeds =
      f32_bytes((prompt_rows[0] + prompt_rows[1]) * parts.text_model().traits().columns);

  ComponentBytes bytes;
  bytes.text_encoder = parts.text_encoder_bytes();
  bytes.vae = parts.vae_bytes();
  const auto book = [&](uint64_t& total, const StageBytes& stage) {
    total = std::max(total, stage.held(device));
    bytes.scratch = std::max(bytes.scratch, stage.scratch);
  };
  book(bytes.encode_text, encoding(parts, placement, embeds, prompt_rows));
  // On a device the tensors of a checkpoint are copied to the host one at a time.
  const uint64_t copies = device ? std::min<uint64_t>(kept, 1) : kept;
  const uint64_t held = embeds + latent * copies;
  for (int model = 0; model < parts.experts(); ++model) {
    bytes.experts.push_back(computes_with(request, placement, model) ? parts.expert_bytes(model)
                                                                     : 0);
    if (device) bytes.streamed.push_back(parts.expert_streamed_bytes(model));
    book(bytes.denoise, denoising(parts, placement, model, shape, prompt_rows, held));
  }
  if (device) {
    const int queues = parts.resident_blocks() > 0 ? 2 : 1;
    bytes.host.copies = queues * kTransferSlots * kTransferPiece;
    bytes.host.buffers = latent * (2 + kept);
  }
  book(bytes.decode, decoding(parts, placement, request, shape, embeds, latent, bytes.host));
  return bytes;
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
    other.text_ranks = layout.text_ranks;
    other.vae_ranks = layout.vae_ranks;
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
