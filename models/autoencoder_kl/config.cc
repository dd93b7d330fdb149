// Reads AutoencoderKL's configuration file.
#include "models/autoencoder_kl/vae.h"
#include "models/config_reader.h"

namespace weft {

namespace {

// This range is wide enough for any model and narrow enough that products of sizes cannot
// overflow.
constexpr IntRange kWidths{1, 1 << 16};
constexpr size_t kMostLevels = 8;

// Reads the fields of the networks, which both kinds have.
void read_networks(ConfigReader& fields, KlVaeConfig& config) {
  fields.optional("latent_channels", config.latent_channels, kWidths);
  fields.optional("in_channels", config.in_channels, IntRange{3, 3});
  fields.optional("out_channels", config.out_channels, IntRange{3, 3});
  fields.optional("layers_per_block", config.resnets, IntRange{1, 64});
  fields.optional("norm_num_groups", config.groups, kWidths);
  fields.optional("mid_block_add_attention", config.mid_attention);
  fields.optional("use_quant_conv", config.quant_conv);
  fields.optional("use_post_quant_conv", config.post_quant_conv);
  fields.only("act_fn", {"silu"});
  const auto levels = [&](const char* type) {
    return Json(std::vector<std::string>(config.channels.size(), type));
  };
  fields.only("down_block_types", {levels("DownEncoderBlock2D")});
  fields.only("up_block_types", {levels("UpDecoderBlock2D")});
  // force_upcast concerns f16, which is not a compute dtype here; sample_size only names a default.
  fields.ignored({"force_upcast", "sample_size"});
}

void check_groups(const KlVaeConfig& config, const char* key, const std::vector<int64_t>& widths,
                  const std::string& path) {
  for (const int64_t width : widths)
    if (width % config.groups)
      refuse_model(path, key, " holds ", width, ", which is not a multiple of norm_num_groups ",
                   config.groups);
}

}  // namespace

KlVaeConfig KlVaeConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  KlVaeConfig config{.latent_channels = 4, .resnets = 1};
  fields.required("block_out_channels", config.channels, kWidths, kMostLevels);
  read_networks(fields, config);
  fields.optional("scaling_factor", config.scaling_factor, kPositive);
  fields.optional("shift_factor", config.shift_factor, kFinite);
  for (const char* key : {"latents_mean", "latents_std"})
    fields.only(key, {nullptr}, "not supported yet; scaling_factor and shift_factor are");
  fields.finish("an AutoencoderKL's configuration");
  check_groups(config, "block_out_channels", config.channels, path);
  return config;
}

PackedKlVaeConfig PackedKlVaeConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  PackedKlVaeConfig config;
  config.latent_channels = 32;
  fields.optional("block_out_channels", config.channels, kWidths, kMostLevels);
  fields.optional("decoder_block_out_channels", config.decoder_channels, kWidths, kMostLevels);
  read_networks(fields, config);
  fields.optional("batch_norm_eps", config.statistics_eps, kPositive);
  fields.ignored({"batch_norm_momentum"});
  fields.only("patch_size", {Json(std::vector<int64_t>{config.cell, config.cell})});
  fields.finish("an AutoencoderKLFlux2's configuration");
  if (config.decoder_widths().size() != config.channels.size())
    refuse_model(path, "decoder_block_out_channels has ", config.decoder_widths().size(),
                 " widths, legal: ", config.channels.size(), ", as block_out_channels has");
  check_groups(config, "block_out_channels", config.channels, path);
  check_groups(config, "decoder_block_out_channels", config.decoder_widths(), path);
  return config;
}

}  // namespace weft
