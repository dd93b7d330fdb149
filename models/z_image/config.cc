// The Z-Image transformer's configuration: config file, tensor list and counts.
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/config_check.h"
#include "models/files/tensor_sizes.h"
#include "models/z_image/names.h"
#include "models/z_image/transformer.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kWidth{6, 1 << 20}, kHeads{1, 1 << 16}, kLayers{1, 1 << 10},
    kRefiners{0, 1 << 8}, kChannels{1, 1 << 12}, kPatch{1, 64}, kLength{1, 1 << 22};

constexpr int64_t kFrequencies = 256, kTimeHidden = 1024;  // of the time embedder
constexpr double kLargestScale = 1e6;                      // of a timestep

void check_keys(const nlohmann::json& json, const std::string& path) {
  ConfigCheck check(json, path);
  check.keys({"dim", "n_heads", "n_layers"},
             {"all_f_patch_size", "all_patch_size", "axes_dims", "axes_lens", "cap_feat_dim",
              "in_channels", "n_kv_heads", "norm_eps", "n_refiner_layers", "qk_norm", "rope_theta",
              "siglip_feat_dim", "t_scale"});
  if (json_has(json, "qk_norm") && json.at("qk_norm") != true)
    check.refuse("qk_norm", "only true is supported");
  if (json_has(json, "siglip_feat_dim"))
    check.refuse("siglip_feat_dim", "image conditioning is not supported yet");
  if (json_has(json, "n_kv_heads") && json_has(json, "n_heads") &&
      json.at("n_kv_heads") != json.at("n_heads"))
    check.refuse("n_kv_heads", "only the value of n_heads is supported");
  check.finish("a Z-Image transformer's configuration");
}

// Reads the one patch size that a supported model has.
int64_t read_patch(const nlohmann::json& json, const char* key, const std::string& path,
                   int64_t fallback) {
  if (!json_has(json, key)) return fallback;
  const std::vector<int64_t> sizes = json_ints(json, key, path, kPatch);
  if (sizes.size() != 1)
    throw Error(ErrorKind::kModel, path + ": " + key + " = " + json.at(key).dump() +
                                       " (only one patch size is supported)");
  return sizes[0];
}

void check_sizes(const ZImageConfig& config, const std::string& path) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kModel, path + ": " + why);
  };
  const auto text = [](int64_t value) { return std::to_string(value); };
  if (config.dim % config.heads)
    refuse("dim " + text(config.dim) + " is not a multiple of n_heads " + text(config.heads));
  if (!(config.eps > 0) || !std::isfinite(config.eps))
    refuse("norm_eps is " + std::to_string(config.eps) + " (legal: positive and finite)");
  if (!(config.rope_theta > 1) || !std::isfinite(config.rope_theta))
    refuse("rope_theta is " + std::to_string(config.rope_theta) + " (legal: finite and above 1)");
  if (!(std::abs(config.t_scale) <= kLargestScale))
    refuse("t_scale is " + std::to_string(config.t_scale) + " (legal: -1e6 to 1e6)");
  check_rotary_axes("axes_dims", config.axes_dims, config.head_dim(), path);
}

}  // namespace

ZImageConfig ZImageConfig::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  check_keys(json, path);
  ZImageConfig config;
  config.dim = json_int(json, "dim", path, kWidth);
  config.heads = static_cast<int>(json_int(json, "n_heads", path, kHeads));
  config.layers = static_cast<int>(json_int(json, "n_layers", path, kLayers));
  config.refiner_layers = static_cast<int>(
      json_int_or(json, "n_refiner_layers", path, config.refiner_layers, kRefiners));
  config.in_channels = json_int_or(json, "in_channels", path, config.in_channels, kChannels);
  config.caption_dim = json_int_or(json, "cap_feat_dim", path, config.caption_dim, kWidth);
  const int64_t side = read_patch(json, "all_patch_size", path, config.patch[1]);
  config.patch = {read_patch(json, "all_f_patch_size", path, config.patch[0]), side, side};
  read_axes(json, "axes_dims", path, kHeads, config.axes_dims);
  read_axes(json, "axes_lens", path, kLength, config.axes_lens);
  config.eps = static_cast<float>(json_number_or(json, "norm_eps", path, config.eps));
  config.rope_theta = json_number_or(json, "rope_theta", path, config.rope_theta);
  config.t_scale = json_number_or(json, "t_scale", path, config.t_scale);
  check_sizes(config, path);
  return config;
}

ZImageConfig ZImageConfig::from_tensors(const TensorFile& file) {
  const ZImageNames names = detect_z_image_names(file);
  const TensorSizes sizes(file, [&](const std::string& name) { return names(name).name; });
  ZImageConfig config;
  const TensorView embedder = sizes.shape("all_x_embedder." + names.patch + ".weight", 2);
  config.dim = embedder[0];
  config.in_channels = embedder[1] / (config.patch[0] * config.patch[1] * config.patch[2]);
  config.caption_dim = sizes.extent("cap_embedder.1.weight", 1);
  config.layers = sizes.count("layers.", ".ffn_norm1.weight");
  config.refiner_layers = sizes.count("noise_refiner.", ".ffn_norm1.weight");
  config.heads = sizes.heads(config.dim, sizes.extent("layers.0.attention.norm_q.weight", 0));
  check_sizes(config, shown_name(file));
  return config;
}

std::string to_string(const ZImageConfig& config) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  return "Z-Image transformer: width " + text(config.dim) + " = " + text(config.heads) +
         " heads x " + text(config.head_dim()) + ", " + text(config.layers) + " layers and 2 x " +
         text(config.refiner_layers) + " refiner layers, ffn " + text(config.ffn_dim()) +
         ", channels " + text(config.in_channels) + ", text " + text(config.caption_dim) +
         ", patch " + text(config.patch[0]) + "x" + text(config.patch[1]) + "x" +
         text(config.patch[2]);
}

TransformerTraits ZImageConfig::traits() const {
  const auto scale = static_cast<float>(t_scale);
  return {.width = dim,
          .blocks = layers,
          .heads = heads,
          .head_dim = head_dim(),
          .ffn_columns = ffn_dim(),
          .in_channels = in_channels,
          .out_channels = in_channels,
          .patch = patch,
          .text_columns = caption_dim,
          .time_columns = kFrequencies,
          // The model was trained on 1 - t / 1000, times t_scale.
          .time_offset = scale,
          .time_scale = -scale / 1000,
          .block_name = "layers"};
}

Rope ZImageConfig::rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const {
  return make_rope(grid, start, rotary_pairs(axes_dims), rope_theta);
}

std::vector<TensorSpec> z_image_tensors(const ZImageConfig& config) {
  const int64_t d = config.dim, f = config.ffn_dim(), e = config.head_dim();
  std::vector<TensorSpec> list;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    list.push_back({name, std::move(shape)});
  };
  const auto add_block = [&](const std::string& block, bool modulated) {
    for (const char* part : {"to_q", "to_k", "to_v", "to_out.0"})
      add(block + "attention." + part + ".weight", {d, d});
    add(block + "attention.norm_q.weight", {e});
    add(block + "attention.norm_k.weight", {e});
    add(block + "feed_forward.w1.weight", {f, d});
    add(block + "feed_forward.w2.weight", {d, f});
    add(block + "feed_forward.w3.weight", {f, d});
    for (const char* norm : {"attention_norm1", "attention_norm2", "ffn_norm1", "ffn_norm2"})
      add(block + norm + ".weight", {d});
    if (modulated) add_linear(list, block + "adaLN_modulation.0", 4 * d, config.time_dim());
  };
  const std::string patch = std::to_string(config.patch[1]) + "-" + std::to_string(config.patch[0]);
  add_linear(list, "all_x_embedder." + patch, d, config.patch_dim());
  add_linear(list, "all_final_layer." + patch + ".linear", config.patch_dim(), d);
  add_linear(list, "all_final_layer." + patch + ".adaLN_modulation.1", d, config.time_dim());
  add_linear(list, "t_embedder.mlp.0", kTimeHidden, kFrequencies);
  add_linear(list, "t_embedder.mlp.2", config.time_dim(), kTimeHidden);
  add("cap_embedder.0.weight", {config.caption_dim});
  add_linear(list, "cap_embedder.1", d, config.caption_dim);
  add("x_pad_token", {1, d});
  add("cap_pad_token", {1, d});
  for (int i = 0; i < config.refiner_layers; ++i) {
    add_block("noise_refiner." + std::to_string(i) + ".", true);
    add_block("context_refiner." + std::to_string(i) + ".", false);
  }
  for (int i = 0; i < config.layers; ++i) add_block("layers." + std::to_string(i) + ".", true);
  return list;
}

TensorPart z_image_part(const ZImageConfig& config, const TensorSpec& tensor,
                        const WidthSlice& width) {
  const WidthSlice all = width.of(config.heads, config.ffn_dim());
  const Range channels{all.heads.begin * config.head_dim(), all.heads.end * config.head_dim()};
  const auto is = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
  if (is(".to_q.") || is(".to_k.") || is(".to_v.")) return {.dim = 0, .range = channels};
  if (is(".to_out.0.")) return {.dim = 1, .range = channels};
  if (is(".w1.") || is(".w3.")) return {.dim = 0, .range = all.ffn};
  if (is(".w2.")) return {.dim = 1, .range = all.ffn};
  return {.dim = 0, .range = {0, tensor.shape[0]}};
}

}  // namespace weft
