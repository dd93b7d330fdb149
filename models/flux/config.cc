// The FLUX.1 transformer's configuration: config file, tensor list and counts.
#include "models/config_reader.h"
#include "models/flux/transformer.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kWidth{1, 1 << 20}, kHeads{1, 1 << 12}, kHeadDim{2, 1 << 12},
    kLayers{1, 1 << 10};

constexpr int64_t kFrequencies = 256;  // of the embedders of the timestep and of the guidance
constexpr double kRopeTheta = 10000;
constexpr char kAxes[] = "axes_dims_rope";

}  // namespace

const StreamNames kFluxLatent{"norm1.linear", "ff.net.0.proj", "ff.net.2"};
const StreamNames kFluxText =
    text_stream("norm1_context.linear", "ff_context.net.0.proj", "ff_context.net.2");

FluxConfig FluxConfig::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  FluxConfig config;
  config.guidance_embeds = false;
  fields.required("num_attention_heads", config.heads, kHeads);
  fields.required("attention_head_dim", config.head_dim, kHeadDim);
  fields.required("num_layers", config.double_blocks, kLayers);
  fields.required("num_single_layers", config.single_blocks, kLayers);
  fields.required("joint_attention_dim", config.text_dim, kWidth);
  fields.required("pooled_projection_dim", config.pooled_dim, kWidth);
  fields.optional("guidance_embeds", config.guidance_embeds);
  int64_t in = config.patch_dim();
  fields.optional("in_channels", in, kWidth);
  fields.same("out_channels", "in_channels");
  // The pipeline cuts the latent into patches, and the transformer sees their values as channels.
  fields.only("patch_size", {1});
  fields.optional(kAxes, config.axes_dims, kHeadDim);
  fields.finish("a FLUX.1 transformer's configuration");
  const int64_t places = config.patch[1] * config.patch[2];
  if (in % places)
    refuse_model(path, "in_channels is ", in, " (legal: multiples of ", places,
                 ", the places of a patch)");
  config.channels = in / places;
  check_rotary_axes(kAxes, config.axes_dims, config.head_dim, path);
  return config;
}

std::string to_string(const FluxConfig& config) {
  return text_of("FLUX.1 transformer: width ", config.width(), " = ", config.heads, " heads x ",
                 config.head_dim, ", ", config.double_blocks, " double-stream and ",
                 config.single_blocks, " single-stream blocks, ffn ", config.ffn(), ", channels ",
                 config.channels, ", text ", config.text_dim, " and ", config.pooled_dim,
                 config.guidance_embeds ? ", guidance embedded" : ", no guidance");
}

TransformerTraits FluxConfig::traits() const {
  return {.width = width(),
          .blocks = blocks(),
          .heads = heads,
          .head_dim = head_dim,
          .ffn_columns = ffn(),
          .in_channels = channels,
          .out_channels = channels,
          .patch = patch,
          .text_columns = text_dim,
          .pooled_columns = pooled_dim,
          .reads_guidance = guidance_embeds,
          .time_columns = kFrequencies,
          .block_name = double_blocks > 0 ? "transformer_blocks" : "single_transformer_blocks",
          .joint_first = true,
          .second_blocks = double_blocks,
          .second_block_name = "single_transformer_blocks"};
}

Rope FluxConfig::rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const {
  return make_rope(grid, start, rotary_pairs(axes_dims), kRopeTheta);
}

std::vector<TensorSpec> flux_tensors(const FluxConfig& config) {
  const int64_t d = config.width(), f = config.ffn();
  std::vector<TensorSpec> list;
  const auto add_embedder = [&](const std::string& name, int64_t in) {
    add_linear(list, "time_text_embed." + name + ".linear_1", d, in);
    add_linear(list, "time_text_embed." + name + ".linear_2", d, d);
  };
  add_linear(list, "x_embedder", d, config.patch_dim());
  add_linear(list, "context_embedder", d, config.text_dim);
  add_embedder("timestep_embedder", kFrequencies);
  if (config.guidance_embeds) add_embedder("guidance_embedder", kFrequencies);
  add_embedder("text_embedder", config.pooled_dim);
  for (int i = 0; i < config.double_blocks; ++i)
    for (const StreamNames* names : {&kFluxLatent, &kFluxText})
      add_stream_tensors(list, "transformer_blocks." + std::to_string(i) + ".", *names,
                         config.sizes());
  for (int i = 0; i < config.single_blocks; ++i) {
    const std::string block = "single_transformer_blocks." + std::to_string(i) + ".";
    add_linear(list, block + "norm.linear", kSublayerRows * d, d);
    for (const char* name : {"to_q", "to_k", "to_v"})
      add_linear(list, block + "attn." + name, d, d);
    for (const char* name : {"norm_q", "norm_k"})
      list.push_back({block + "attn." + name + ".weight", {config.head_dim}});
    add_linear(list, block + "proj_mlp", f, d);
    add_linear(list, block + "proj_out", d, d + f);
  }
  add_linear(list, "norm_out.linear", 2 * d, d);
  add_linear(list, "proj_out", config.patch_dim(), d);
  return list;
}

FluxPart flux_part(const FluxConfig& config, const TensorSpec& tensor, const WidthSlice& width) {
  const DoubleStreamSizes sizes = config.sizes();
  const Range channels = sizes.channels(width), ffn = width.of(config.heads, config.ffn()).ffn;
  const bool matrix = tensor.shape.size() > 1;
  const auto ends = [&](const char* name) {
    return tensor.name.starts_with("single_transformer_blocks.") &&
           tensor.name.find("." + std::string(name) + ".") != std::string::npos;
  };
  if (ends("proj_mlp")) return {{.dim = 0, .range = ffn}};
  if (ends("norm.linear") && matrix) return {{.dim = 1, .range = channels}};
  if (ends("proj_out") && matrix && channels.size() < config.width())
    return {{.dim = 1, .range = channels},
            {.dim = 1, .range = {config.width() + ffn.begin, config.width() + ffn.end}}};
  for (const StreamNames* names : {&kFluxLatent, &kFluxText}) {
    const TensorPart part = stream_part(tensor, *names, sizes, width);
    if (!part.whole(tensor)) return {part};
  }
  return {{.dim = 0, .range = {0, tensor.shape[0]}}};
}

}  // namespace weft
