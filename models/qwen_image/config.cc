// The Qwen-Image transformer's configuration: config file, tensor list and counts.
#include "models/config_reader.h"
#include "models/files/tensor_sizes.h"
#include "models/qwen_image/names.h"
#include "models/qwen_image/transformer.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kWidth{1, 1 << 20}, kHeads{1, 1 << 12}, kHeadDim{2, 1 << 12},
    kLayers{1, 1 << 10}, kChannels{1, 1 << 16}, kPatch{1, 64};

constexpr int64_t kFrequencies = 256;  // of the time embedder
constexpr double kRopeTheta = 10000;
constexpr char kAxes[] = "axes_dims_rope";

}  // namespace

const StreamNames kQwenImageLatent{"img_mod.1", "img_mlp.net.0.proj", "img_mlp.net.2"};
const StreamNames kQwenImageText = text_stream("txt_mod.1", "txt_mlp.net.0.proj", "txt_mlp.net.2");

QwenImageConfig QwenImageConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  QwenImageConfig config;
  fields.required("num_attention_heads", config.heads, kHeads);
  fields.required("attention_head_dim", config.head_dim, kHeadDim);
  fields.required("num_layers", config.layers, kLayers);
  fields.required("joint_attention_dim", config.text_dim, kWidth);
  fields.optional("patch_size", config.patch[1], kPatch);
  config.patch[2] = config.patch[1];
  fields.optional("out_channels", config.channels, kChannels);
  int64_t in = config.patch_dim();  // the file counts the values of a patch as channels
  fields.optional("in_channels", in, kWidth);
  fields.optional(kAxes, config.axes_dims, kHeadDim);
  for (const char* key :
       {"guidance_embeds", "use_additional_t_cond", "use_layer3d_rope", "zero_cond_t"})
    fields.only(key, {false}, "as text-to-image models have it");
  fields.ignored({"pooled_projection_dim"});
  fields.finish("a Qwen-Image transformer's configuration");
  if (in != config.patch_dim())
    refuse_model(path, "in_channels is ", in, " (legal: ", config.patch_dim(),
                 ", which is out_channels times the square of patch_size)");
  check_rotary_axes(kAxes, config.axes_dims, config.head_dim, path);
  return config;
}

QwenImageConfig QwenImageConfig::from_tensors(const TensorFile& file) {
  const TensorSizes sizes(file, [](const std::string& name) { return name; });
  QwenImageConfig config;
  const int64_t head = sizes.extent("transformer_blocks.0.attn.norm_q.weight", 0);
  config.head_dim = static_cast<int>(head);
  config.heads = sizes.heads(sizes.extent("img_in.weight", 0), head);
  config.channels = sizes.extent("img_in.weight", 1) / (config.patch[1] * config.patch[2]);
  config.text_dim = sizes.extent("txt_in.weight", 1);
  config.layers = sizes.count("transformer_blocks.", ".img_mod.1.weight");
  check_rotary_axes(kAxes, config.axes_dims, config.head_dim, shown_name(file));
  return config;
}

std::string to_string(const QwenImageConfig& config) {
  return text_of("Qwen-Image transformer: width ", config.width(), " = ", config.heads, " heads x ",
                 config.head_dim, ", ", config.layers, " double-stream blocks, ffn ", config.ffn(),
                 ", channels ", config.channels, ", text ", config.text_dim, ", patch ",
                 config.patch[0], "x", config.patch[1], "x", config.patch[2]);
}

TransformerTraits QwenImageConfig::traits() const {
  return {.width = width(),
          .blocks = layers,
          .heads = heads,
          .head_dim = head_dim,
          .ffn_columns = ffn(),
          .in_channels = channels,
          .out_channels = channels,
          .patch = patch,
          .text_columns = text_dim,
          .time_columns = kFrequencies,
          .block_name = "transformer_blocks",
          .joint_first = true};
}

Rope QwenImageConfig::rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const {
  for (int axis = 1; axis < 3; ++axis) start[axis] -= grid[axis] - grid[axis] / 2;
  return make_rope(grid, start, rotary_pairs(axes_dims), kRopeTheta);
}

Rope QwenImageConfig::text_rope(std::array<int64_t, 3> grid, int64_t rows) const {
  return make_diagonal_rope(rows, std::max(grid[1] / 2, grid[2] / 2), rotary_pairs(axes_dims),
                            kRopeTheta);
}

std::vector<TensorSpec> qwen_image_tensors(const QwenImageConfig& config) {
  const int64_t d = config.width();
  std::vector<TensorSpec> list;
  add_linear(list, "img_in", d, config.patch_dim());
  list.push_back({"txt_norm.weight", {config.text_dim}});
  add_linear(list, "txt_in", d, config.text_dim);
  add_linear(list, "time_text_embed.timestep_embedder.linear_1", d, kFrequencies);
  add_linear(list, "time_text_embed.timestep_embedder.linear_2", d, d);
  for (int i = 0; i < config.layers; ++i)
    for (const StreamNames* names : {&kQwenImageLatent, &kQwenImageText})
      add_stream_tensors(list, "transformer_blocks." + std::to_string(i) + ".", *names,
                         config.sizes());
  add_linear(list, "norm_out.linear", 2 * d, d);
  add_linear(list, "proj_out", config.patch_dim(), d);
  return list;
}

TensorPart qwen_image_part(const QwenImageConfig& config, const TensorSpec& tensor,
                           const WidthSlice& width) {
  for (const StreamNames* names : {&kQwenImageLatent, &kQwenImageText}) {
    const TensorPart part = stream_part(tensor, *names, config.sizes(), width);
    if (!part.whole(tensor)) return part;
  }
  return {.dim = 0, .range = {0, tensor.shape[0]}};
}

}  // namespace weft
