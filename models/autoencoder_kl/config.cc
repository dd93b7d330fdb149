// Reads AutoencoderKL's configuration file.
#include "models/autoencoder_kl/vae.h"
#include "models/config_reader.h"

namespace weft {

KlVaeConfig KlVaeConfig::from_json_file(const std::string& path) {
  // This range is wide enough for any model and narrow enough that products of sizes cannot
  // overflow.
  constexpr IntRange kWidths{1, 1 << 16};
  ConfigReader fields(path);
  KlVaeConfig config{.latent_channels = 4, .resnets = 1};
  fields.required("block_out_channels", config.channels, kWidths, size_t{8});
  fields.optional("latent_channels", config.latent_channels, kWidths);
  fields.optional("in_channels", config.in_channels, IntRange{3, 3});
  fields.optional("out_channels", config.out_channels, IntRange{3, 3});
  fields.optional("layers_per_block", config.resnets, IntRange{1, 64});
  fields.optional("norm_num_groups", config.groups, kWidths);
  fields.optional("mid_block_add_attention", config.mid_attention);
  fields.optional("use_quant_conv", config.quant_conv);
  fields.optional("use_post_quant_conv", config.post_quant_conv);
  fields.optional("scaling_factor", config.scaling_factor, kPositive);
  fields.optional("shift_factor", config.shift_factor, kFinite);
  fields.only("act_fn", {"silu"});
  const auto levels = [&](const char* type) {
    return Json(std::vector<std::string>(config.channels.size(), type));
  };
  fields.only("down_block_types", {levels("DownEncoderBlock2D")});
  fields.only("up_block_types", {levels("UpDecoderBlock2D")});
  for (const char* key : {"latents_mean", "latents_std"})
    fields.only(key, {nullptr}, "not supported yet; scaling_factor and shift_factor are");
  // force_upcast concerns f16, which is not a compute dtype here; sample_size only names a default.
  fields.ignored({"force_upcast", "sample_size"});
  fields.finish("an AutoencoderKL's configuration");
  for (const int64_t width : config.channels)
    if (width % config.groups)
      refuse_model(path, "block_out_channels holds ", width,
                   ", which is not a multiple of norm_num_groups ", config.groups);
  return config;
}

}  // namespace weft
