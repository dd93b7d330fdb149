// Reads the VAE's configuration file and translates between its two spellings of tensor names.
#include <numeric>
#include <utility>

#include "models/config_reader.h"
#include "models/wan/vae.h"

namespace weft {

namespace {

// This range is wide enough for any model and narrow enough that products of sizes cannot overflow.
constexpr IntRange kWidths{1, 1 << 16};

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
      refuse_model(path, "dim_mult[", level, "] is ", now, ", legal with is_residual: ", before,
                   " times a number that divides ", std::gcd(down, up));
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
    refuse_model(path, "temperal_downsample has ", temporal_downsample.size(),
                 " entries, dim_mult wants ", dim_mult.size() - 1);
  const int64_t pixels = patch_size * patch_size;
  for (const auto& [field, channels] :
       {std::pair{"in_channels", in_channels}, std::pair{"out_channels", out_channels}})
    if (channels != 3 * pixels)
      refuse_model(path, field, " is ", channels, ", must be ", 3 * pixels, " (RGB, patch_size ",
                   patch_size, ")");
  if (residual) check_shortcuts(*this, path);
  for (size_t level = 1; level < dim_mult.size() && !residual; ++level)
    if (decoder_base_dim * dim_mult[level] < 2)
      refuse_model(path, "base_dim ", decoder_base_dim,
                   " is too narrow to be halved by an up-sampling");
}

WanVaeConfig WanVaeConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  WanVaeConfig config;
  fields.optional("base_dim", config.base_dim, kWidths);
  config.decoder_base_dim = config.base_dim;
  fields.optional("decoder_base_dim", config.decoder_base_dim, kWidths);
  fields.optional("z_dim", config.z_dim, kWidths);
  fields.optional("dim_mult", config.dim_mult, IntRange{1, 64}, size_t{8});
  fields.optional("num_res_blocks", config.num_res_blocks, IntRange{1, 64});
  fields.optional("temperal_downsample", config.temporal_downsample);
  fields.optional("patch_size", config.patch_size, IntRange{1, 16});
  fields.optional("is_residual", config.residual);
  for (const char* key : {"in_channels", "input_channels"})
    fields.optional(key, config.in_channels, kWidths);
  fields.optional("out_channels", config.out_channels, kWidths);
  fields.optional("latents_mean", config.latents_mean, kFinite);  // older files lack both
  fields.optional("latents_std", config.latents_std, kPositive);
  fields.only("attn_scales", {Json::array()}, "attention runs in the middle block only");
  fields.ignored({"clip_output", "dropout", "scale_factor_spatial", "scale_factor_temporal"});
  std::string class_name;
  fields.optional("_class_name", class_name);
  config.pictures = class_name == "AutoencoderKLQwenImage";
  fields.finish("a Wan VAE's configuration");
  config.check(path);
  for (const auto& [key, values] :
       {std::pair{"latents_mean", &config.latents_mean}, {"latents_std", &config.latents_std}})
    if (std::ssize(*values) != config.z_dim)
      refuse_model(path, key, " has ", values->size(), " values, z_dim is ", config.z_dim);
  return config;
}

}  // namespace weft
