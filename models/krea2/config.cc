// The Krea-2 transformer's configuration: config file, tensor list and parts of tensors.
#include "models/config_reader.h"
#include "models/krea2/transformer.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kWidth{1, 1 << 20}, kHeads{1, 1 << 12}, kHeadDim{2, 1 << 12},
    kLayers{1, 1 << 10}, kTextBlocks{0, 1 << 8}, kTaps{1, 1 << 8}, kTimeColumns{2, 1 << 16};

constexpr char kAxes[] = "axes_dims_rope";
constexpr std::array<int64_t, 3> kPatch{1, 2, 2};
constexpr int64_t kPatchValues = kPatch[1] * kPatch[2];

// Appends the tensors of a block of attention and feed-forward.
void add_block(std::vector<TensorSpec>& list, const std::string& block, int64_t width,
               int64_t key_columns, int64_t head, int64_t ffn) {
  const auto add = [&](const char* name, std::vector<int64_t> shape) {
    list.push_back({block + name + ".weight", std::move(shape)});
  };
  for (const char* name : {"norm1", "norm2"}) add(name, {width});
  for (const char* name : {"attn.to_q", "attn.to_gate", "attn.to_out.0"}) add(name, {width, width});
  for (const char* name : {"attn.to_k", "attn.to_v"}) add(name, {key_columns, width});
  for (const char* name : {"attn.norm_q", "attn.norm_k"}) add(name, {head});
  for (const char* name : {"ff.gate", "ff.up"}) add(name, {ffn, width});
  add("ff.down", {width, ffn});
}

}  // namespace

void Krea2Config::check(const std::string& path) const {
  check_rotary_axes(kAxes, axes_dims, head_dim, path);
  const auto divides = [&](const char* key, int64_t part, const char* of, int64_t whole) {
    if (whole % part)
      refuse_model(path, key, " is ", part, ", legal: a divisor of ", of, ", which is ", whole);
  };
  divides("num_key_value_heads", kv_heads, "num_attention_heads", heads);
  divides("text_num_attention_heads", text_heads, "text_hidden_dim", text_dim);
  divides("text_num_key_value_heads", text_kv_heads, "text_num_attention_heads", text_heads);
  if (patch_dim % kPatchValues)
    refuse_model(path, "in_channels is ", patch_dim, ", legal: multiples of ", kPatchValues);
  if (time_columns % 2)
    refuse_model(path, "timestep_embed_dim is ", time_columns, ", legal: even numbers");
}

Krea2Config Krea2Config::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  Krea2Config config;
  fields.required("num_attention_heads", config.heads, kHeads);
  fields.optional("num_key_value_heads", config.kv_heads, kHeads);
  fields.required("attention_head_dim", config.head_dim, kHeadDim);
  fields.required("num_layers", config.layers, kLayers);
  fields.optional("in_channels", config.patch_dim, kWidth);
  fields.optional("intermediate_size", config.ffn, kWidth);
  fields.optional("timestep_embed_dim", config.time_columns, kTimeColumns);
  fields.optional("text_hidden_dim", config.text_dim, kWidth);
  fields.optional("text_intermediate_size", config.text_ffn, kWidth);
  fields.optional("num_text_layers", config.taps, kTaps);
  fields.optional("text_num_attention_heads", config.text_heads, kHeads);
  fields.optional("text_num_key_value_heads", config.text_kv_heads, kHeads);
  fields.optional("num_layerwise_text_blocks", config.tap_blocks, kTextBlocks);
  fields.optional("num_refiner_text_blocks", config.refiner_blocks, kTextBlocks);
  fields.optional(kAxes, config.axes_dims, kHeadDim);
  fields.optional("rope_theta", config.rope_theta, kAboveOne);
  fields.optional("norm_eps", config.eps, kPositive);
  fields.finish("a Krea-2 transformer's configuration");
  config.check(path);
  return config;
}

std::string to_string(const Krea2Config& config) {
  return text_of("Krea-2 transformer: width ", config.width(), " = ", config.heads, " heads (",
                 config.kv_heads, " of keys) x ", config.head_dim, ", ", config.layers,
                 " blocks, ffn ", config.ffn, ", channels ", config.patch_dim / kPatchValues,
                 ", text ", config.taps, " x ", config.text_dim, " by ", config.tap_blocks, " and ",
                 config.refiner_blocks, " blocks, patch ", kPatch[0], "x", kPatch[1], "x",
                 kPatch[2]);
}

TransformerTraits Krea2Config::traits() const {
  return {.width = width(),
          .blocks = layers,
          .heads = heads,
          .head_dim = head_dim,
          .kv_heads = kv_heads,
          .ffn_columns = ffn,
          .in_channels = patch_dim / kPatchValues,
          .out_channels = patch_dim / kPatchValues,
          .patch = kPatch,
          .text_columns = taps * text_dim,
          .time_columns = time_columns,
          .block_name = "transformer_blocks",
          .joint_first = true};
}

Rope Krea2Config::rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const {
  return make_rope(grid, start, rotary_pairs(axes_dims), rope_theta);
}

std::vector<TensorSpec> krea2_tensors(const Krea2Config& config) {
  const int64_t d = config.width();
  std::vector<TensorSpec> list;
  add_linear(list, "img_in", d, config.patch_dim);
  add_linear(list, "time_embed.linear_1", d, config.time_columns);
  add_linear(list, "time_embed.linear_2", d, d);
  add_linear(list, "time_mod_proj", 6 * d, d);
  list.push_back({"text_fusion.projector.weight", {1, config.taps}});
  for (const auto& [name, count] :
       {std::pair{"layerwise", config.tap_blocks}, {"refiner", config.refiner_blocks}})
    for (int i = 0; i < count; ++i)
      add_block(list, text_of("text_fusion.", name, "_blocks.", i, "."), config.text_dim,
                config.text_kv_heads * config.text_head_dim(), config.text_head_dim(),
                config.text_ffn);
  list.push_back({"txt_in.norm.weight", {config.text_dim}});
  add_linear(list, "txt_in.linear_1", d, config.text_dim);
  add_linear(list, "txt_in.linear_2", d, d);
  for (int i = 0; i < config.layers; ++i) {
    const std::string block = text_of("transformer_blocks.", i, ".");
    list.push_back({block + "scale_shift_table", {6, d}});
    add_block(list, block, d, int64_t{config.kv_heads} * config.head_dim, config.head_dim,
              config.ffn);
  }
  list.push_back({"final_layer.scale_shift_table", {2, d}});
  list.push_back({"final_layer.norm.weight", {d}});
  add_linear(list, "final_layer.linear", config.patch_dim, d);
  return list;
}

TensorPart krea2_part(const Krea2Config& config, const TensorSpec& tensor,
                      const WidthSlice& width) {
  const WidthSlice slice = width.of(config.heads, config.ffn);
  const Range all{0, tensor.shape[0]}, heads = slice.heads;
  if (!tensor.name.starts_with("transformer_blocks.")) return {.dim = 0, .range = all};
  const int64_t group = config.heads / config.kv_heads;
  const auto columns = [&](int64_t begin, int64_t end) {
    return Range{begin * config.head_dim, end * config.head_dim};
  };
  const Range queries = columns(heads.begin, heads.end),
              keys = columns(heads.begin / group, (heads.end + group - 1) / group);
  const auto is = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
  if (is(".to_q.") || is(".to_gate.")) return {.dim = 0, .range = queries};
  if (is(".to_k.") || is(".to_v.")) return {.dim = 0, .range = keys};
  if (is(".to_out.0.")) return {.dim = 1, .range = queries};
  if (is(".ff.gate.") || is(".ff.up.")) return {.dim = 0, .range = slice.ffn};
  if (is(".ff.down.")) return {.dim = 1, .range = slice.ffn};
  return {.dim = 0, .range = all};
}

}  // namespace weft
