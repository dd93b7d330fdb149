// Reads AutoencoderKL's configuration file.
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/autoencoder_kl/vae.h"
#include "models/config_check.h"

namespace weft {

namespace {

// This range is wide enough for any model and narrow enough that products of sizes cannot overflow.
constexpr IntRange kWidths{1, 1 << 16};

[[noreturn]] void reject(const std::string& path, const std::string& message) {
  throw Error(ErrorKind::kModel, path + ": " + message);
}

void check_types(const nlohmann::json& json, const std::string& path, const char* field,
                 const std::string& legal, size_t levels) {
  if (!json_has(json, field)) return;
  const std::vector<std::string> types = json_strings(json, field, path);
  for (const std::string& type : types)
    if (type != legal) reject(path, std::string(field) + " holds " + type + ", legal: " + legal);
  if (types.size() != levels)
    reject(path, std::string(field) + " has " + std::to_string(types.size()) +
                     " entries, block_out_channels " + std::to_string(levels));
}

}  // namespace

KlVaeConfig KlVaeConfig::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  ConfigCheck check(json, path);
  // force_upcast concerns f16, which is not a compute dtype here; sample_size only names a default.
  check.keys({}, {"act_fn", "block_out_channels", "down_block_types", "force_upcast", "in_channels",
                  "latent_channels", "latents_mean", "latents_std", "layers_per_block",
                  "mid_block_add_attention", "norm_num_groups", "out_channels", "sample_size",
                  "scaling_factor", "shift_factor", "up_block_types", "use_post_quant_conv",
                  "use_quant_conv"});
  check.finish("an AutoencoderKL's configuration");
  if (const std::string act = json_string_or(json, "act_fn", path, "silu"); act != "silu")
    reject(path, "act_fn is " + act + ", legal: silu");
  for (const char* field : {"latents_mean", "latents_std"})
    if (json_has(json, field))
      reject(path, std::string(field) +
                       " is not supported yet (legal: null, with scaling_factor and shift_factor)");

  KlVaeConfig config;
  config.channels = json_ints(json, "block_out_channels", path, kWidths);
  if (config.channels.empty() || config.channels.size() > 8)
    reject(path, "block_out_channels has " + std::to_string(config.channels.size()) +
                     " entries, legal: 1 to 8");
  check_types(json, path, "down_block_types", "DownEncoderBlock2D", config.channels.size());
  check_types(json, path, "up_block_types", "UpDecoderBlock2D", config.channels.size());
  config.latent_channels = json_int_or(json, "latent_channels", path, 4, kWidths);
  config.in_channels = json_int_or(json, "in_channels", path, 3, {3, 3});
  config.out_channels = json_int_or(json, "out_channels", path, 3, {3, 3});
  config.resnets = json_int_or(json, "layers_per_block", path, 1, {1, 64});
  config.groups = json_int_or(json, "norm_num_groups", path, config.groups, kWidths);
  for (const int64_t width : config.channels)
    if (width % config.groups)
      reject(path, "block_out_channels holds " + std::to_string(width) +
                       ", which is not a multiple of norm_num_groups " +
                       std::to_string(config.groups));
  config.mid_attention = json_bool_or(json, "mid_block_add_attention", path, true);
  config.quant_conv = json_bool_or(json, "use_quant_conv", path, true);
  config.post_quant_conv = json_bool_or(json, "use_post_quant_conv", path, true);
  config.scaling_factor =
      static_cast<float>(json_number_or(json, "scaling_factor", path, config.scaling_factor));
  config.shift_factor =
      static_cast<float>(json_number_or(json, "shift_factor", path, config.shift_factor));
  if (!(config.scaling_factor > 0) || !std::isfinite(config.scaling_factor))
    reject(path, "scaling_factor is " + std::to_string(config.scaling_factor) +
                     ", must be positive and finite");
  if (!std::isfinite(config.shift_factor)) reject(path, "shift_factor must be finite");
  return config;
}

}  // namespace weft
