// Reads the VAE's configuration file and translates between its two spellings of tensor names.
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "io/json.h"
#include "models/config_check.h"
#include "models/wan/vae.h"

namespace weft {

namespace {

// This range is wide enough for any model and narrow enough that products of sizes cannot overflow.
constexpr IntRange kWidths{1, 1 << 16};

[[noreturn]] void reject(const std::string& path, const std::string& message) {
  throw Error(ErrorKind::kModel, path + ": " + message);
}

std::vector<float> read_latent_statistic(const nlohmann::json& json, const char* field,
                                         const std::string& path, int64_t z_dim,
                                         const std::vector<float>& published) {
  std::vector<float> values;
  if (json_has(json, field)) {
    for (const double value : json_numbers(json, field, path))
      values.push_back(static_cast<float>(value));
  } else {
    values = published;  // older files lack the field
  }
  if (static_cast<int64_t>(values.size()) != z_dim)
    reject(path, std::string(field) + " has " + std::to_string(values.size()) +
                     " values, z_dim is " + std::to_string(z_dim));
  for (const float value : values)
    if (!std::isfinite(value)) reject(path, std::string(field) + " holds a non-finite value");
  return values;
}

// A shortcut averages or repeats the values of a cell, so each level is as wide as the one before
// it times a number that divides the cells of both directions.
void check_shortcuts(const WanVaeConfig& config, const std::string& path) {
  const size_t levels = config.dim_mult.size();
  const auto cell = [&](size_t level) { return config.temporal_downsample[level] ? 8 : 4; };
  int64_t before = 1;
  for (size_t level = 0; level < levels; ++level) {
    const int64_t now = config.dim_mult[level];
    const int64_t down = level + 1 < levels ? cell(level) : 1;
    // The decoder comes from this level when it doubles to the one below it.
    const int64_t up = level >= 2 ? cell(level - 2) : down;
    if (now % before || down % (now / before) || up % (now / before))
      reject(path, "dim_mult[" + std::to_string(level) + "] is " + std::to_string(now) +
                       ", legal with is_residual: " + std::to_string(before) +
                       " times a number that divides " + std::to_string(std::gcd(down, up)));
    before = now;
  }
}

// Removes the first dot-separated part of a name such as "down_blocks.3.conv1.weight" and returns
// it.
std::string next_part(std::string& name) {
  const size_t dot = name.find('.');
  const std::string part = name.substr(0, dot);
  name = dot == std::string::npos ? "" : name.substr(dot + 1);
  return part;
}

// The original name of a tensor of a residual block, or of a resampling, whose names are the same
// in both spellings.
std::string original_block_tensor(const std::string& rest) {
  static constexpr std::pair<std::string_view, std::string_view> kTable[] = {
      {"norm1.", "residual.0."},
      {"conv1.", "residual.2."},
      {"norm2.", "residual.3."},
      {"conv2.", "residual.6."},
      {"conv_shortcut.", "shortcut."}};
  for (const auto& [ours, theirs] : kTable)
    if (rest.starts_with(ours)) return std::string(theirs) + rest.substr(ours.size());
  return rest;
}

}  // namespace

std::string wan_vae_original_name(const WanVaeConfig& config, const std::string& name) {
  std::string rest = name;
  const std::string side = next_part(rest);
  if (side == "quant_conv") return "conv1." + rest;
  if (side == "post_quant_conv") return "conv2." + rest;
  const std::string group = next_part(rest);
  if (group == "conv_in") return side + ".conv1." + rest;
  if (group == "norm_out") return side + ".head.0." + rest;
  if (group == "conv_out") return side + ".head.2." + rest;
  if (group == "mid_block") {  // the order is resnets.0, attentions.0, resnets.1
    const bool attention = next_part(rest) == "attentions";
    const std::string index = next_part(rest);
    if (attention) return side + ".middle.1." + rest;
    return side + ".middle." + (index == "0" ? "0." : "2.") + original_block_tensor(rest);
  }
  const bool down = group == "down_blocks";
  if (config.residual) {  // the resampling of a level follows its residual blocks
    const std::string level = next_part(rest);
    const bool resnet = next_part(rest) == "resnets";
    const std::string item =
        resnet ? next_part(rest) : std::to_string(config.num_res_blocks + (down ? 0 : 1));
    const std::string of = down ? ".downsamples." : ".upsamples.";
    return side + of + level + of + item + "." + original_block_tensor(rest);
  }
  if (down) {
    const std::string index = next_part(rest);
    return side + ".downsamples." + index + "." + original_block_tensor(rest);
  }
  // The original numbers up_blocks.B.resnets.J and up_blocks.B.upsamplers.0 as one flat list.
  const int64_t block = std::stoll(next_part(rest));
  const bool upsampler = next_part(rest) == "upsamplers";
  const int64_t item = std::stoll(next_part(rest)) + (upsampler ? config.num_res_blocks + 1 : 0);
  return side + ".upsamples." + std::to_string(block * (config.num_res_blocks + 2) + item) + "." +
         original_block_tensor(rest);
}

void WanVaeConfig::check(const std::string& path) const {
  if (temporal_downsample.size() + 1 != dim_mult.size())
    reject(path, "temperal_downsample has " + std::to_string(temporal_downsample.size()) +
                     " entries, dim_mult wants " + std::to_string(dim_mult.size() - 1));
  const int64_t pixels = patch_size * patch_size;
  for (const auto& [field, channels] :
       {std::pair{"in_channels", in_channels}, std::pair{"out_channels", out_channels}})
    if (channels != 3 * pixels)
      reject(path, std::string(field) + " is " + std::to_string(channels) + ", must be " +
                       std::to_string(3 * pixels) + " (RGB, patch_size " +
                       std::to_string(patch_size) + ")");
  if (residual) check_shortcuts(*this, path);
  for (size_t level = 1; level < dim_mult.size() && !residual; ++level)
    if (decoder_base_dim * dim_mult[level] < 2)
      reject(path, "base_dim " + std::to_string(decoder_base_dim) +
                       " is too narrow to be halved by an up-sampling");
}

WanVaeConfig WanVaeConfig::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  ConfigCheck check(json, path);
  check.keys({}, {"attn_scales", "base_dim", "clip_output", "decoder_base_dim", "dim_mult",
                  "dropout", "in_channels", "input_channels", "is_residual", "latents_mean",
                  "latents_std", "num_res_blocks", "out_channels", "patch_size",
                  "scale_factor_spatial", "scale_factor_temporal", "temperal_downsample", "z_dim"});
  check.finish("a Wan VAE's configuration");
  if (json_has(json, "attn_scales") && !json_numbers(json, "attn_scales", path).empty())
    reject(path, "attn_scales must be empty: attention runs in the middle block only");

  WanVaeConfig config;
  config.base_dim = json_int_or(json, "base_dim", path, config.base_dim, kWidths);
  config.decoder_base_dim = json_int_or(json, "decoder_base_dim", path, config.base_dim, kWidths);
  config.z_dim = json_int_or(json, "z_dim", path, config.z_dim, kWidths);
  if (json_has(json, "dim_mult")) config.dim_mult = json_ints(json, "dim_mult", path, {1, 64});
  if (config.dim_mult.empty() || config.dim_mult.size() > 8)
    reject(path,
           "dim_mult has " + std::to_string(config.dim_mult.size()) + " entries, legal: 1 to 8");
  config.num_res_blocks = json_int_or(json, "num_res_blocks", path, config.num_res_blocks, {1, 64});
  if (json_has(json, "temperal_downsample"))
    config.temporal_downsample = json_bools(json, "temperal_downsample", path);
  config.patch_size = json_int_or(json, "patch_size", path, 1, {1, 16});
  config.residual = json_bool_or(json, "is_residual", path, false);
  config.pictures = json_string_or(json, "_class_name", path, "") == "AutoencoderKLQwenImage";
  for (const char* field : {"in_channels", "input_channels"})
    config.in_channels = json_int_or(json, field, path, config.in_channels, kWidths);
  config.out_channels = json_int_or(json, "out_channels", path, config.out_channels, kWidths);
  config.check(path);
  config.latents_mean =
      read_latent_statistic(json, "latents_mean", path, config.z_dim, config.latents_mean);
  config.latents_std =
      read_latent_statistic(json, "latents_std", path, config.z_dim, config.latents_std);
  for (const float value : config.latents_std)
    if (!(value > 0))
      reject(path, "latents_std holds " + std::to_string(value) + ", must be positive");
  return config;
}

}  // namespace weft
