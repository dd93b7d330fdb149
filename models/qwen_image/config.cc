// The Qwen-Image transformer's configuration: config file, tensor list and counts.
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/config_check.h"
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

void check_keys(const nlohmann::json& json, const std::string& path) {
  ConfigCheck check(json, path);
  check.keys({"attention_head_dim", "num_attention_heads", "num_layers", "joint_attention_dim"},
             {kAxes, "guidance_embeds", "in_channels", "out_channels", "patch_size",
              "pooled_projection_dim", "use_additional_t_cond", "use_layer3d_rope", "zero_cond_t"});
  for (const char* key :
       {"guidance_embeds", "use_additional_t_cond", "use_layer3d_rope", "zero_cond_t"})
    if (json_has(json, key) && json.at(key) != false)
      check.refuse(key, "only false is supported, as text-to-image models have it");
  check.finish("a Qwen-Image transformer's configuration");
}

}  // namespace

const StreamNames kQwenImageLatent{"img_mod.1", "img_mlp.net.0.proj", "img_mlp.net.2"};
const StreamNames kQwenImageText = text_stream("txt_mod.1", "txt_mlp.net.0.proj", "txt_mlp.net.2");

QwenImageConfig QwenImageConfig::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  check_keys(json, path);
  QwenImageConfig config;
  config.heads = static_cast<int>(json_int(json, "num_attention_heads", path, kHeads));
  config.head_dim = static_cast<int>(json_int(json, "attention_head_dim", path, kHeadDim));
  config.layers = static_cast<int>(json_int(json, "num_layers", path, kLayers));
  config.text_dim = json_int(json, "joint_attention_dim", path, kWidth);
  const int64_t side = json_int_or(json, "patch_size", path, config.patch[1], kPatch);
  config.patch = {1, side, side};
  config.channels = json_int_or(json, "out_channels", path, config.channels, kChannels);
  // The file counts the values of a patch as the channels of the input.
  const int64_t in = json_int_or(json, "in_channels", path, config.patch_dim(), kWidth);
  if (in != config.patch_dim())
    throw Error(ErrorKind::kModel, path + ": in_channels is " + std::to_string(in) +
                                       " (legal: " + std::to_string(config.patch_dim()) +
                                       ", which is out_channels times the square of patch_size)");
  read_axes(json, kAxes, path, kHeadDim, config.axes_dims);
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
  const auto text = [](int64_t value) { return std::to_string(value); };
  return "Qwen-Image transformer: width " + text(config.width()) + " = " + text(config.heads) +
         " heads x " + text(config.head_dim) + ", " + text(config.layers) +
         " double-stream blocks, ffn " + text(config.ffn()) + ", channels " +
         text(config.channels) + ", text " + text(config.text_dim) + ", patch " +
         text(config.patch[0]) + "x" + text(config.patch[1]) + "x" + text(config.patch[2]);
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
