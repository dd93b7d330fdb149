// The FLUX.2 transformer's configuration: config file, tensor list, parts of tensors and positions.
#include <cmath>
#include <numeric>

#include "models/config_reader.h"
#include "models/flux2/transformer.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kWidth{1, 1 << 20}, kHeads{1, 1 << 12}, kHeadDim{2, 1 << 12},
    kLayers{0, 1 << 10};
constexpr NumberRange kRatio{1.0 / 64, 64, "1/64 to 64"};

constexpr int64_t kFrequencies = 256;  // of the embedders of the timestep and of the guidance
constexpr int64_t kFirstReference = 10, kReferenceStep = 10;  // their positions in time
constexpr char kAxes[] = "axes_dims_rope";

// The axes of positions.
enum Axis4 { kTime, kRow, kColumn, kText, kAxisCount };

void check_axes(const Flux2Config& config, const std::vector<int64_t>& dims,
                const std::string& path) {
  bool legal = std::ssize(dims) == kAxisCount &&
               std::accumulate(dims.begin(), dims.end(), int64_t{0}) == config.head_dim;
  for (const int64_t each : dims) legal = legal && each % 2 == 0;
  std::string shown;
  for (const int64_t each : dims) shown += (shown.empty() ? "" : ", ") + std::to_string(each);
  if (!legal)
    refuse_model(path, kAxes, " is [", shown, "], legal: four even numbers whose sum is ",
                 config.head_dim, ", the columns of a head");
}

// Writes the cosines and sines of the positions of a row, one per axis.
void write_row(const Flux2Config& config, const std::array<int64_t, kAxisCount>& at, float* out) {
  for (int axis = 0; axis < kAxisCount; ++axis) {
    const int64_t pairs = config.axes_dims[axis] / 2;
    for (int64_t j = 0; j < pairs; ++j) {
      const double omega =
          std::pow(config.rope_theta, -static_cast<double>(j) / static_cast<double>(pairs));
      const double angle = static_cast<double>(at[axis]) * omega;
      *out++ = static_cast<float>(std::cos(angle));
      *out++ = static_cast<float>(std::sin(angle));
    }
  }
}

// The table of an axis of a grid, whose last axis also has the pairs of the text's, at position 0.
Tensor axis_table(const Flux2Config& config, int axis, int64_t count, int64_t start) {
  const auto pairs = [&](int of) { return config.axes_dims[of] / 2; };
  const int64_t all = config.head_dim / 2, own = pairs(axis) + (axis == kColumn ? pairs(kText) : 0);
  int64_t before = 0;
  for (int i = 0; i < axis; ++i) before += pairs(i);
  std::vector<float> row(static_cast<size_t>(2 * all));
  Tensor table(DType::kF32, {count, own, 2});
  for (int64_t i = 0; i < count; ++i) {
    std::array<int64_t, kAxisCount> at{};
    at[axis] = start + i;
    write_row(config, at, row.data());
    std::copy_n(row.data() + 2 * before, 2 * own, table.as<float>() + i * 2 * own);
  }
  return table;
}

}  // namespace

Flux2Config Flux2Config::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  Flux2Config config;
  config.guidance_embeds = true;
  std::vector<int64_t> axes(config.axes_dims.begin(), config.axes_dims.end());
  fields.required("num_attention_heads", config.heads, kHeads);
  fields.required("attention_head_dim", config.head_dim, kHeadDim);
  fields.required("num_layers", config.double_blocks, kLayers);
  fields.required("num_single_layers", config.single_blocks, kLayers);
  fields.required("joint_attention_dim", config.text_dim, kWidth);
  fields.optional("guidance_embeds", config.guidance_embeds);
  fields.optional("in_channels", config.channels, kWidth);
  fields.same("out_channels", "in_channels");
  fields.only("patch_size", {1});
  double ratio = 3;
  fields.optional("mlp_ratio", ratio, kRatio);
  fields.optional(kAxes, axes, kHeadDim, size_t{kAxisCount});
  fields.optional("rope_theta", config.rope_theta, kAboveOne);
  fields.optional("eps", config.eps, kPositive);
  fields.only("timestep_guidance_channels", {kFrequencies});
  fields.finish("a FLUX.2 transformer's configuration");
  if (config.blocks() == 0)
    refuse_model(path, "num_layers and num_single_layers are 0, legal: blocks of one kind");
  config.ffn = static_cast<int64_t>(static_cast<double>(config.width()) * ratio);
  check_axes(config, axes, path);
  std::copy_n(axes.begin(), kAxisCount, config.axes_dims.begin());
  return config;
}

std::string to_string(const Flux2Config& config) {
  return text_of("FLUX.2 transformer: width ", config.width(), " = ", config.heads, " heads x ",
                 config.head_dim, ", ", config.double_blocks, " double-stream and ",
                 config.single_blocks, " single-stream blocks, ffn ", config.ffn, ", channels ",
                 config.channels, ", text ", config.text_dim,
                 config.guidance_embeds ? ", guidance embedded" : "");
}

TransformerTraits Flux2Config::traits() const {
  return {.width = width(),
          .blocks = blocks(),
          .heads = heads,
          .head_dim = head_dim,
          .ffn_columns = ffn,
          .in_channels = channels,
          .out_channels = channels,
          .text_columns = text_dim,
          .reads_guidance = guidance_embeds,
          .time_columns = kFrequencies,
          .reads_references = true,
          .block_name = double_blocks > 0 ? "transformer_blocks" : "single_transformer_blocks",
          .joint_first = true,
          .second_blocks = double_blocks,
          .second_block_name = "single_transformer_blocks"};
}

Rope Flux2Config::rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const {
  Rope rope;
  rope.grid = grid;
  rope.start = start;
  for (int axis = kTime; axis <= kColumn; ++axis) {
    rope.table[axis] = axis_table(*this, axis, grid[axis], start[axis]);
    rope.pairs[axis] = static_cast<int>(rope.table[axis].view()[1]);
  }
  return rope;
}

Rope Flux2Config::joint_rope(const std::vector<std::array<int64_t, 2>>& references,
                             int64_t text) const {
  int64_t rows = text;
  for (const auto& [height, width] : references) rows += height * width;
  Rope rope;
  rope.grid = {rows, 1, 1};
  rope.pairs = {head_dim / 2, 0, 0};
  rope.table[0] = Tensor(DType::kF32, {rows, head_dim / 2, 2});
  float* out = rope.table[0].as<float>();
  const auto add = [&](const std::array<int64_t, kAxisCount>& at) {
    write_row(*this, at, out);
    out += head_dim;
  };
  int64_t time = kFirstReference;
  for (const auto& [height, width] : references) {
    for (int64_t i = 0; i < height * width; ++i) add({time, i / width, i % width, 0});
    time += kReferenceStep;
  }
  for (int64_t i = 0; i < text; ++i) add({0, 0, 0, i});
  return rope;
}

std::vector<TensorSpec> flux2_tensors(const Flux2Config& config) {
  const int64_t d = config.width(), f = config.ffn, e = config.head_dim;
  std::vector<TensorSpec> list;
  const auto add = [&](const std::string& name, std::vector<int64_t> shape) {
    list.push_back({name + ".weight", std::move(shape)});
  };
  const auto add_embedder = [&](const std::string& name) {
    add("time_guidance_embed." + name + ".linear_1", {d, kFrequencies});
    add("time_guidance_embed." + name + ".linear_2", {d, d});
  };
  add("x_embedder", {d, config.channels});
  add("context_embedder", {d, config.text_dim});
  add_embedder("timestep_embedder");
  if (config.guidance_embeds) add_embedder("guidance_embedder");
  add("double_stream_modulation_img.linear", {2 * kSublayerRows * d, d});
  add("double_stream_modulation_txt.linear", {2 * kSublayerRows * d, d});
  add("single_stream_modulation.linear", {kSublayerRows * d, d});
  for (int i = 0; i < config.double_blocks; ++i) {
    const std::string block = "transformer_blocks." + std::to_string(i) + ".";
    for (const char* name : {"to_q", "to_k", "to_v", "to_out.0", "add_q_proj", "add_k_proj",
                             "add_v_proj", "to_add_out"})
      add(block + "attn." + name, {d, d});
    for (const char* name : {"norm_q", "norm_k", "norm_added_q", "norm_added_k"})
      add(block + "attn." + name, {e});
    for (const char* name : {"ff", "ff_context"}) {
      add(block + name + ".linear_in", {2 * f, d});
      add(block + name + ".linear_out", {d, f});
    }
  }
  for (int i = 0; i < config.single_blocks; ++i) {
    const std::string block = "single_transformer_blocks." + std::to_string(i) + ".attn.";
    add(block + "to_qkv_mlp_proj", {3 * d + 2 * f, d});
    add(block + "to_out", {d, d + f});
    for (const char* name : {"norm_q", "norm_k"}) add(block + name, {e});
  }
  add("norm_out.linear", {2 * d, d});
  add("proj_out", {config.channels, d});
  return list;
}

namespace {

// The beginning of a tensor's name where it ends so, or "".
std::string before(const TensorSpec& tensor, const std::string& end) {
  const std::string& name = tensor.name;
  return name.ends_with(end) ? name.substr(0, name.size() - end.size()) : "";
}

Range moved(const Range& range, int64_t by) { return {range.begin + by, range.end + by}; }

// The two halves of a tensor's rows, cut to `own`.
std::vector<Flux2Piece> halves(const std::string& first, const std::string& second,
                               const Range& own, int64_t half) {
  return {{first + ".weight", {.dim = 0, .range = own}},
          {second + ".weight", {.dim = 0, .range = moved(own, half)}}};
}

}  // namespace

std::vector<Flux2Piece> flux2_pieces(const Flux2Config& config, const TensorSpec& tensor,
                                     const WidthSlice& width, bool swapped) {
  const int64_t d = config.width(), f = config.ffn;
  const WidthSlice slice = width.of(config.heads, f);
  const Range channels{slice.heads.begin * config.head_dim, slice.heads.end * config.head_dim};
  if (const std::string block = before(tensor, "attn.to_qkv_mlp_proj.weight"); !block.empty()) {
    std::vector<Flux2Piece> pieces = halves(block + "ff.gate", block + "ff.up", slice.ffn, f);
    for (Flux2Piece& piece : pieces) piece.part.range = moved(piece.part.range, 3 * d);
    int64_t first = 0;
    for (const char* name : {"to_q", "to_k", "to_v"}) {
      pieces.push_back({block + "attn." + name + ".weight", {0, moved(channels, first)}});
      first += d;
    }
    return pieces;
  }
  if (const std::string ff = before(tensor, ".linear_in.weight"); !ff.empty())
    return halves(ff + ".gate", ff + ".up", slice.ffn, f);
  if (const std::string ff = before(tensor, ".linear_out.weight"); !ff.empty())
    return {{ff + ".out.weight", {.dim = 1, .range = slice.ffn}}};
  if (const std::string block = before(tensor, "attn.to_out.weight"); !block.empty())
    return {{block + "attn.to_out.weight", {.dim = 1, .range = channels}},
            {block + "ff.out.weight", {.dim = 1, .range = moved(slice.ffn, d)}}};
  if (tensor.name == "norm_out.linear.weight")
    return swapped ? halves("norm_out.shift", "norm_out.scale", {0, d}, d)
                   : halves("norm_out.scale", "norm_out.shift", {0, d}, d);
  for (const char* name : {"to_q", "to_k", "to_v", "add_q_proj", "add_k_proj", "add_v_proj"})
    if (!before(tensor, std::string(".") + name + ".weight").empty())
      return {{tensor.name, {.dim = 0, .range = channels}}};
  for (const char* name : {".to_out.0.weight", ".to_add_out.weight"})
    if (!before(tensor, name).empty()) return {{tensor.name, {.dim = 1, .range = channels}}};
  return {{tensor.name, {.dim = 0, .range = {0, tensor.shape[0]}}}};
}

}  // namespace weft
