#include "engine/estimate.h"

#include <algorithm>

#include "engine/decode.h"
#include "engine/executor.h"

namespace weft {
namespace {

uint64_t f32_bytes(int64_t count) { return static_cast<uint64_t>(count) * sizeof(float); }

// Tables of make_rope: cos and sin of every position of each axis.
uint64_t rope_bytes(const WanConfig& config, std::array<int64_t, 3> grid) {
  const int64_t side = config.head_dim / 6 * 2;
  return f32_bytes(grid[0] * (config.head_dim - 2 * side) + (grid[1] + grid[2]) * side);
}

}  // namespace

std::array<int64_t, 4> latent_shape(const Components& parts, const Request& request) {
  const WanVaeConfig& vae = parts.vae_config();
  return {vae.z_dim, vae.latent_frames(request.frames), request.height / vae.spatial_factor(),
          request.width / vae.spatial_factor()};
}

int64_t token_count(const Components& parts, const Request& request) {
  const auto shape = latent_shape(parts, request);
  const auto grid = wan_grid(parts.directory().config, shape[1], shape[2], shape[3]);
  return grid[0] * grid[1] * grid[2];
}

ComponentBytes predict_bytes(const Components& parts, const Replica& replica,
                             const Request& request, std::array<int64_t, 2> prompt_rows,
                             size_t kept) {
  const auto shape = latent_shape(parts, request);
  const int64_t tokens = token_count(parts, request), own = replica.tokens(tokens).size();
  const uint64_t latent = f32_bytes(shape[0] * shape[1] * shape[2] * shape[3]);
  const int64_t rows = prompt_rows[0] + prompt_rows[1];
  const int64_t longest = std::max(prompt_rows[0], prompt_rows[1]);
  const int branches = prompt_rows[1] > 0 ? 2 : 1;

  ComponentBytes bytes;
  bytes.text_encoder = parts.text_encoder_bytes();
  bytes.vae = parts.vae_bytes();
  const uint64_t embeds = f32_bytes(rows * parts.text_config().d_model);
  bytes.encode_text = embeds + umt5_workspace_bytes(parts.text_config(), longest, parts.dtype(),
                                                    replica.text_width(parts.text_config()),
                                                    replica.text_seam_bytes(parts.text_config()));

  for (int model = 0; model < parts.experts(); ++model) {
    const WanConfig& config = parts.directory().expert_config(model);
    bytes.experts.push_back(parts.expert_bytes(model));
    const WanLoad load = replica.load(config, {.dtype = parts.dtype()});
    uint64_t text = 0;
    int64_t most_rows = 0;
    for (int branch = 0; branch < branches; ++branch) {
      if (!replica.computes(branch)) continue;
      const int64_t length = prompt_rows[branch];
      const int64_t held = length + (parts.text_length() > length ? 1 : 0);
      text += wan_text_bytes(config, held, load);
      most_rows = std::max(most_rows, held);
    }
    const auto grid = wan_grid(config, shape[1], shape[2], shape[3]);
    // Hidden rows of every branch on the wire, and in f32 on both sides of the blocks.
    const uint64_t wires = load.blocks.first() && load.blocks.last()
                               ? 0
                               : static_cast<uint64_t>(own * config.width()) *
                                     (branches * size_of(parts.dtype()) + 2 * sizeof(float));
    constexpr int kHistory = 3;  // SamplerState
    bytes.denoise = std::max(
        bytes.denoise, embeds + latent * (1 + branches + kHistory + kept) + text +
                           rope_bytes(config, grid) +
                           wan_workspace_bytes(config, own, most_rows, load,
                                               replica.seam_bytes(config, tokens, parts.dtype())) +
                           wires);
  }

  const WanVaeConfig& vae = parts.vae_config();
  const int64_t rows_held = replica.band(shape[2]).size();
  if (rows_held == 0) {
    bytes.decode = embeds + latent;
    return bytes;
  }
  const int64_t pixels = 3 * request.height * request.width;
  const int64_t chunk_frames = shape[1] > 1 ? vae.temporal_factor() : 1;
  const int64_t waiting =
      std::min<int64_t>(request.frames, static_cast<int64_t>(kFramesWaiting) + 2);
  bytes.decode = embeds + 2 * latent + f32_bytes(shape[0] * rows_held * shape[3]) +
                 vae_decode_state_bytes(vae, rows_held, shape[3], parts.vae_dtype()) +
                 vae_decode_workspace_bytes(vae, rows_held, shape[3], parts.vae_dtype(), shape[1]) +
                 f32_bytes(chunk_frames * pixels) + static_cast<uint64_t>(waiting * pixels);
  return bytes;
}

std::string refusal(const Request& request, const MemoryPlan& plan, const ModelLimits& limits,
                    DType dtype, const std::function<MemoryPlan(const Request&)>& plan_for) {
  std::string text =
      "the job needs " + format_bytes(plan.high_water) + " (weights " + format_bytes(plan.weights) +
      ", encode_text " + format_bytes(plan.parts.encode_text) + ", denoise " +
      format_bytes(plan.parts.denoise) + ", decode " + format_bytes(plan.parts.decode) + "), " +
      format_bytes(plan.available) + " are available. Try ";
  std::vector<std::string> advice;
  const auto offer = [&](const Request& changed, const std::string& flag) {
    const MemoryPlan smaller = plan_for(changed);
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
  for (int eighths = 7; eighths > 0; --eighths) {
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
  if (advice.size() < 2) advice.push_back("a higher --memory-limit");
  return text + advice[0] + " or " + advice[1];
}

}  // namespace weft
