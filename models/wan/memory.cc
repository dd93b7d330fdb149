// Predicts the memory that a Wan transformer needs on a CPU and on a device, from its config alone.
#include <algorithm>
#include <map>

#include "models/wan/transformer.h"

namespace weft {

namespace {

// Returns whether a rank with these blocks holds the tensor.
bool is_held(const std::string& name, const BlockRange& blocks) {
  if (name == "scale_shift_table" || name.starts_with("proj_out")) return blocks.last();
  if (name.starts_with("patch_embedding")) return blocks.first();
  if (!name.starts_with("blocks.")) return true;
  const int index = std::stoi(name.substr(std::string("blocks.").size()));
  return blocks.begin <= index && index < blocks.end;
}

BlockRange held_blocks(const WanConfig& config, const TransformerLoad& load) {
  return load.blocks.total == 0 ? BlockRange::all(config.layers) : load.blocks;
}

}  // namespace

// Matrices of blocks and of the text embedder are packed in the compute dtype, everything else in
// f32.
size_t wan_weights_bytes(const WanConfig& config, const TransformerLoad& load) {
  const BlockRange blocks = held_blocks(config, load);
  size_t all[2] = {};  // bytes outside of the blocks; bytes of the blocks
  for (const TensorSpec& tensor : wan_tensors(config)) {
    if (!is_held(tensor.name, blocks)) continue;
    size_t& bytes = all[tensor.name.starts_with("blocks.")];
    const bool matrix = tensor.shape.size() == 2 &&
                        tensor.name.find("time_") == std::string::npos &&
                        !tensor.name.starts_with("proj_out");
    const auto count = static_cast<size_t>(wan_part(config, tensor, load.width).count(tensor));
    if (load.weights != WeightFormat::kCompute && matrix && tensor.name.starts_with("blocks.") &&
        tensor.name.ends_with(".weight"))  // 8-bit values, a scale and a correction per output
      bytes += count + static_cast<size_t>(tensor.shape[0]) * 2 * sizeof(float);
    else
      bytes += count * size_of(matrix ? load.dtype : DType::kF32);
  }
  const int held = blocks.end - blocks.begin;
  if (load.resident > 0 && load.resident < held) all[1] = all[1] / held * load.resident;
  return all[0] + all[1];
}

size_t wan_text_bytes(const WanConfig& config, int64_t text_rows, const TransformerLoad& load) {
  const BlockRange blocks = held_blocks(config, load);
  const int64_t width = load.width.of(config.heads, config.ffn_dim).heads.size() * config.head_dim;
  return static_cast<size_t>(text_rows *
                             (config.width() + 2 * int64_t{blocks.end - blocks.begin} * width)) *
         size_of(load.dtype);
}

// This repeats the allocations of WanTransformer::forward and prepare in order and nesting.
size_t wan_workspace_bytes(const WanConfig& config, int64_t tokens, int64_t text_rows,
                           const TransformerLoad& load, const SeamBytes& seams) {
  const BlockRange blocks = held_blocks(config, load);
  const WidthSlice part = load.width.of(config.heads, config.ffn_dim);
  const int64_t d = config.width(), n = tokens;
  const int64_t per_token = config.patch[0] * config.patch[1] * config.patch[2];
  const DType dtype = load.dtype, f32 = DType::kF32;
  const size_t row = arena_bytes(f32, {1, d}), sums = arena_bytes(f32, {n});
  const size_t x = arena_bytes(f32, {n, d}), hidden = arena_bytes(dtype, {n, d});
  const size_t heads = arena_bytes(dtype, {n, part.heads.size() * config.head_dim});
  const size_t times = row + arena_bytes(f32, {1, 6, d});
  const size_t time_scratch = 2 * row;
  const int64_t chunk = std::min(n, kFfnRows);
  const size_t attention =
      3 * heads + std::max({sums + seams.of_sum(n), seams.attend, seams.of_sum(n * d)});
  const size_t ffn = arena_bytes(dtype, {chunk, part.ffn.size()}) + seams.of_sum(chunk * d);
  const size_t block = arena_bytes(f32, {1, 6, d}) + hidden + x + std::max(attention, ffn);
  const size_t head = blocks.last()
                          ? std::max(arena_bytes(f32, {2, d}),
                                     arena_bytes(f32, {n, config.out_channels * per_token}))
                          : 0;
  const size_t forward = (blocks.last() ? x : 0) + times + std::max({time_scratch, block, head});
  const size_t text = arena_bytes(dtype, {text_rows, config.text_dim}) +
                      arena_bytes(dtype, {text_rows, d}) + arena_bytes(f32, {text_rows}) +
                      seams.of_sum(text_rows);
  return std::max(forward, text);
}

size_t wan_weights_bytes(const WanConfig& config, DType dtype) {
  return wan_weights_bytes(config, TransformerLoad{.dtype = dtype, .blocks = {}});
}

size_t wan_text_bytes(const WanConfig& config, int64_t text_rows, DType dtype) {
  return wan_text_bytes(config, text_rows, TransformerLoad{.dtype = dtype, .blocks = {}});
}

size_t wan_workspace_bytes(const WanConfig& config, int64_t tokens, int64_t text_rows,
                           DType dtype) {
  return wan_workspace_bytes(config, tokens, text_rows,
                             TransformerLoad{.dtype = dtype, .blocks = {}});
}

namespace {

constexpr size_t kF32 = sizeof(float);

bool is_matrix(const TensorSpec& tensor) {
  return tensor.shape.size() > 1 && tensor.name.ends_with(".weight");
}

// The dtype that a matrix is packed in.
DType packed_dtype(const TensorSpec& matrix, DType dtype) {
  const bool conditioning = matrix.shape.size() != 2 ||
                            matrix.name.find("time_") != std::string::npos ||
                            matrix.name.starts_with("proj_out");
  return conditioning ? DType::kF32 : dtype;
}

// The bytes of one layer: `kept` if it stays on the device, `slot` in a slot for offloaded layers,
// `moved` as the pieces that are copied to a slot, and `packing` the most that is needed while one
// of its matrices is packed.
struct LayerBytes {
  size_t kept = 0, slot = 0, moved = 0, packing = 0;
};

// Returns the bytes by block index. Index -1 stands for the tensors outside of the blocks.
std::map<int, LayerBytes> layer_bytes(const WanConfig& config, const TransformerLoad& load,
                                      Bias biases) {
  const BlockRange blocks = held_blocks(config, load);
  std::map<int, LayerBytes> layers;
  for (const TensorSpec& tensor : wan_tensors(config)) {
    if (!is_held(tensor.name, blocks)) continue;
    const bool in_block = tensor.name.starts_with("blocks.");
    LayerBytes& layer =
        layers[in_block ? std::stoi(tensor.name.substr(std::string("blocks.").size())) : -1];
    const TensorPart part = wan_part(config, tensor, load.width);
    const auto count = static_cast<size_t>(part.count(tensor));
    if (tensor.name.ends_with(".bias") && tensor.name.find("norm") == std::string::npos)
      continue;  // packed with its matrix
    if (!is_matrix(tensor)) {
      layer.kept += count * kF32;
      layer.slot += count * kF32;
      layer.moved += movable_piece(count * kF32);
      continue;
    }
    const int64_t out = part.dim == 0 ? part.range.size() : tensor.shape[0];
    const int64_t in = static_cast<int64_t>(count) / std::max<int64_t>(out, 1);
    const DType dtype = packed_dtype(tensor, load.dtype);
    const WeightFormat format = in_block ? load.weights : WeightFormat::kCompute;
    const bool aside = part.dim == 1 && !part.whole(tensor);  // RowLinear stores its bias apart
    layer.kept += packed_bytes(out, in, dtype, format, aside ? Bias::kInF32 : biases);
    layer.slot += packed_bytes(out, in, dtype, format, Bias::kInF32);
    layer.moved += movable_bytes(out, in, dtype, format, Bias::kInF32);
    if (format != WeightFormat::kCompute)
      layer.packing = std::max(layer.packing,
                               static_cast<size_t>(packing_rows(out, in, DType::kF32) * in) * kF32);
  }
  return layers;
}

}  // namespace

size_t wan_streamed_bytes(const WanConfig& config, const TransformerLoad& load) {
  const BlockRange blocks = held_blocks(config, load);
  const int held = blocks.end - blocks.begin;
  if (load.resident == 0 || load.resident >= held) return 0;
  return static_cast<size_t>(held - (load.resident - kWindowSlots)) *
         layer_bytes(config, load, Bias::kInF32).at(blocks.begin).moved;
}

DeviceBytes wan_device_bytes(const WanConfig& config, const TransformerLoad& load, Bias biases) {
  const BlockRange blocks = held_blocks(config, load);
  const int held = blocks.end - blocks.begin;
  const bool streams = load.resident > 0 && load.resident < held;
  const int kept = streams ? load.resident - kWindowSlots : held;
  DeviceBytes bytes;
  size_t packing = 0;
  for (const auto& [index, layer] : layer_bytes(config, load, biases)) {
    if (index < 0 || index - blocks.begin < kept) bytes.weights += layer.kept;
    if (index >= 0 && index == blocks.begin && streams) {
      bytes.weights += kWindowSlots * layer.slot;
      if (kept == 0) bytes.loading = layer.kept;  // a layer on its way to the host, plus both slots
      bytes.loading += kDevicePiece;              // conversions on the window's queue
    }
    packing = std::max(packing, layer.packing);
  }
  bytes.loading += packing;
  return bytes;
}

size_t wan_scratch_bytes(const WanConfig& config, int64_t tokens, int64_t all_tokens,
                         int64_t text_rows, const TransformerLoad& load, Bias biases,
                         const DeviceTraits& device) {
  const WidthSlice part = load.width.of(config.heads, config.ffn_dim);
  const bool whole = part.heads.size() == config.heads;
  const int64_t d = config.width(), heads = part.heads.size(), width = heads * config.head_dim;
  const int64_t per_token = config.patch[0] * config.patch[1] * config.patch[2];
  const int64_t chunk = std::min(tokens, kFfnRows);
  const DType dtype = load.dtype;
  // Offloaded blocks keep only one copy of their biases.
  const Bias in_block = load.resident > 0 && biases == Bias::kInBf16 ? Bias::kInF32 : biases;
  size_t most = kTransferPiece;
  const auto consider = [&](const LinearShape& shape) {
    if (shape.rows > 0 && shape.out > 0) most = std::max(most, linear_scratch_bytes(shape, device));
  };
  const auto plain = [&](int64_t rows, int64_t in, int64_t out, DType type) {
    consider({.rows = rows, .in = in, .out = out, .dtype = type, .result = type, .bias = biases});
  };
  const auto of_block = [&](int64_t rows, int64_t in, int64_t out, DType result,
                            LinearActivation activation, Bias bias) {
    consider({.rows = rows,
              .in = in,
              .out = out,
              .dtype = dtype,
              .format = load.weights,
              .result = result,
              .activation = activation,
              .bias = bias});
  };
  constexpr LinearActivation kNone = LinearActivation::kNone;
  plain(tokens, config.in_channels * per_token, d, DType::kF32);
  plain(tokens, d, config.out_channels * per_token, DType::kF32);
  plain(text_rows, config.text_dim, d, dtype);
  plain(text_rows, d, d, dtype);
  of_block(text_rows, d, width, dtype, kNone, in_block);
  of_block(tokens, d, width, dtype, kNone, in_block);
  of_block(tokens, width, d, DType::kF32, kNone, whole ? in_block : Bias::kNone);
  of_block(chunk, d, part.ffn.size(), dtype, LinearActivation::kGeluTanh, in_block);
  of_block(chunk, part.ffn.size(), d, DType::kF32, kNone, whole ? in_block : Bias::kNone);
  const auto attend = [&](int64_t keys, int64_t segments, AttentionFormat format,
                          bool state = false) {
    most = std::max(most, attention_scratch_bytes({.queries = tokens,
                                                   .keys = keys,
                                                   .heads = heads,
                                                   .kv_heads = heads,
                                                   .size = config.head_dim,
                                                   .segments = segments,
                                                   .dtype = dtype,
                                                   .format = format,
                                                   .plain = !state},
                                                  device));
  };
  attend(all_tokens, 1, load.attention);
  if (tokens < all_tokens) attend(tokens, 1, load.attention, true);  // a hop of a ring
  attend(text_rows, 1, AttentionFormat::kCompute);
  attend(text_rows, 2, AttentionFormat::kCompute);  // the prompt's rows, and the padding's one
  return most;
}

}  // namespace weft
