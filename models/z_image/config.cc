// The Z-Image transformer's configuration: config file, tensor list and counts.
#include "models/config_reader.h"
#include "models/files/tensor_sizes.h"
#include "models/z_image/names.h"
#include "models/z_image/transformer.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kWidth{6, 1 << 20}, kHeads{1, 1 << 16}, kLayers{1, 1 << 10},
    kRefiners{0, 1 << 8}, kChannels{1, 1 << 12}, kPatch{1, 64}, kLength{1, 1 << 22};

constexpr int64_t kFrequencies = 256, kTimeHidden = 1024;  // of the time embedder
constexpr NumberRange kTimeScale{-1e6, 1e6, "-1e6 to 1e6"};

// Reads the one patch size that a supported model has.
void read_patch(ConfigReader& fields, const char* key, int64_t& out) {
  std::vector<int64_t> sizes{out};
  fields.optional(key, sizes, kPatch, size_t{1});
  out = sizes[0];
}

}  // namespace

ZImageConfig ZImageConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  ZImageConfig config;
  fields.required("dim", config.dim, kWidth);
  fields.required("n_heads", config.heads, kHeads);
  fields.required("n_layers", config.layers, kLayers);
  fields.optional("n_refiner_layers", config.refiner_layers, kRefiners);
  fields.optional("in_channels", config.in_channels, kChannels);
  fields.optional("cap_feat_dim", config.caption_dim, kWidth);
  read_patch(fields, "all_f_patch_size", config.patch[0]);
  read_patch(fields, "all_patch_size", config.patch[1]);
  config.patch[2] = config.patch[1];
  fields.optional("axes_dims", config.axes_dims, kHeads);
  fields.optional("axes_lens", config.axes_lens, kLength);
  fields.optional("norm_eps", config.eps, kPositive);
  fields.optional("rope_theta", config.rope_theta, kAboveOne);
  fields.optional("t_scale", config.t_scale, kTimeScale);
  fields.only("qk_norm", {true});
  fields.only("siglip_feat_dim", {nullptr}, "image conditioning is not supported yet");
  fields.same("n_kv_heads", "n_heads");
  fields.divides("n_heads", "dim");
  fields.finish("a Z-Image transformer's configuration");
  check_rotary_axes("axes_dims", config.axes_dims, config.head_dim(), path);
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
  check_rotary_axes("axes_dims", config.axes_dims, config.head_dim(), shown_name(file));
  return config;
}

std::string to_string(const ZImageConfig& config) {
  return text_of("Z-Image transformer: width ", config.dim, " = ", config.heads, " heads x ",
                 config.head_dim(), ", ", config.layers, " layers and 2 x ", config.refiner_layers,
                 " refiner layers, ffn ", config.ffn_dim(), ", channels ", config.in_channels,
                 ", text ", config.caption_dim, ", patch ", config.patch[0], "x", config.patch[1],
                 "x", config.patch[2]);
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
