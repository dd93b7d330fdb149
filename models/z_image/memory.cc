// Predicts the memory that a Z-Image transformer needs on a CPU and on a device, from its config
// alone.
#include <algorithm>
#include <map>

#include "models/z_image/transformer.h"

namespace weft {

namespace {

constexpr size_t kF32 = sizeof(float);
constexpr int64_t kFrequencies = 256, kTimeHidden = 1024;

BlockRange held_blocks(const ZImageConfig& config, const TransformerLoad& load) {
  return load.blocks.total == 0 ? BlockRange::all(config.layers) : load.blocks;
}

// Returns whether a rank with these main layers holds the tensor.
bool is_held(const std::string& name, const BlockRange& blocks) {
  if (name.starts_with("t_embedder.")) return true;
  if (name.starts_with("all_final_layer.")) return blocks.last();
  if (!name.starts_with("layers.")) return blocks.first();
  const int index = std::stoi(name.substr(std::string("layers.").size()));
  return blocks.begin <= index && index < blocks.end;
}

bool is_matrix(const TensorSpec& tensor) {
  return tensor.shape.size() == 2 && tensor.name.ends_with(".weight");
}

bool in_block(const TensorSpec& tensor) {
  return tensor.name.find(".attention.") != std::string::npos ||
         tensor.name.find(".feed_forward.") != std::string::npos;
}

// Matrices of blocks and of the caption's embedder are packed in the compute dtype, everything else
// in f32.
DType packed_dtype(const TensorSpec& matrix, DType dtype) {
  return in_block(matrix) || matrix.name.starts_with("cap_embedder.") ? dtype : DType::kF32;
}

// The bytes of one layer: `packed` in host memory; on a device `kept` if it stays there, `slot` in
// a slot for offloaded layers, `moved` as the pieces that are copied to a slot, and `packing` the
// most that is needed while one of its matrices is packed.
struct LayerBytes {
  size_t packed = 0, kept = 0, slot = 0, moved = 0, packing = 0;
};

// Returns the bytes by main layer. Index -1 stands for the tensors outside of the main layers.
std::map<int, LayerBytes> layer_bytes(const ZImageConfig& config, const TransformerLoad& load,
                                      Bias biases) {
  const BlockRange blocks = held_blocks(config, load);
  std::map<int, LayerBytes> layers;
  for (const TensorSpec& tensor : z_image_tensors(config)) {
    if (!is_held(tensor.name, blocks)) continue;
    const bool main = tensor.name.starts_with("layers.");
    LayerBytes& layer =
        layers[main ? std::stoi(tensor.name.substr(std::string("layers.").size())) : -1];
    const TensorPart part = z_image_part(config, tensor, load.width);
    const auto count = static_cast<size_t>(part.count(tensor));
    if (!is_matrix(tensor)) {
      layer.packed += count * kF32;
      if (tensor.name.ends_with(".bias")) continue;  // on a device, packed with its matrix
      layer.kept += count * kF32;
      layer.slot += count * kF32;
      layer.moved += movable_piece(count * kF32);
      continue;
    }
    const int64_t out = part.dim == 0 ? part.range.size() : tensor.shape[0];
    const int64_t in = static_cast<int64_t>(count) / std::max<int64_t>(out, 1);
    const DType dtype = packed_dtype(tensor, load.dtype);
    const WeightFormat format = in_block(tensor) ? load.weights : WeightFormat::kCompute;
    const Bias bias = in_block(tensor) ? Bias::kNone : biases;
    const Bias slot_bias = in_block(tensor) ? Bias::kNone : Bias::kInF32;
    layer.packed += format == WeightFormat::kCompute
                        ? count * size_of(dtype)
                        : count + static_cast<size_t>(tensor.shape[0]) * 2 * kF32;
    layer.kept += packed_bytes(out, in, dtype, format, bias);
    layer.slot += packed_bytes(out, in, dtype, format, slot_bias);
    layer.moved += movable_bytes(out, in, dtype, format, slot_bias);
    if (format != WeightFormat::kCompute)
      layer.packing = std::max(layer.packing,
                               static_cast<size_t>(packing_rows(out, in, DType::kF32) * in) * kF32);
  }
  return layers;
}

bool streams(const BlockRange& blocks, const TransformerLoad& load) {
  return load.resident > 0 && load.resident < blocks.end - blocks.begin;
}

}  // namespace

size_t z_image_weights_bytes(const ZImageConfig& config, const TransformerLoad& load) {
  const BlockRange blocks = held_blocks(config, load);
  size_t outside = 0, main = 0;
  for (const auto& [index, layer] : layer_bytes(config, load, Bias::kInF32))
    (index < 0 ? outside : main) += layer.packed;
  const auto held = static_cast<size_t>(blocks.end - blocks.begin);
  if (streams(blocks, load)) main = main / held * static_cast<size_t>(load.resident);
  return outside + main;
}

size_t z_image_conditioning_bytes(const ZImageConfig& config, int64_t captions,
                                  const TransformerLoad& load) {
  // The table of the first axis has a row per position, the others have one row.
  int64_t values = captions * config.axes_dims[0] + config.axes_dims[1] + config.axes_dims[2];
  if (held_blocks(config, load).first()) values += captions * config.dim;
  return static_cast<size_t>(values) * kF32;
}

// This repeats the allocations of ZImageTransformer::forward and prepare in order and nesting.
size_t z_image_workspace_bytes(const ZImageConfig& config, const ZImageRows& rows,
                               const TransformerLoad& load, const SeamBytes& seams) {
  const BlockRange blocks = held_blocks(config, load);
  const WidthSlice part = load.width.of(config.heads, config.ffn_dim());
  const int64_t d = config.dim, heads = part.heads.size() * config.head_dim();
  const DType f32 = DType::kF32;
  const auto block = [&](int64_t n, bool modulated, size_t attend) {
    const int64_t chunk = std::min(n, kZImageFfnRows);
    const size_t attention =
        3 * arena_bytes(load.dtype, {n, heads}) + std::max(attend, seams.of_sum(n * d));
    const size_t ffn =
        2 * arena_bytes(load.dtype, {chunk, part.ffn.size()}) + seams.of_sum(chunk * d);
    return (modulated ? arena_bytes(f32, {4, d}) + arena_bytes(f32, {2, d}) : 0) +
           arena_bytes(load.dtype, {n, d}) + arena_bytes(f32, {n, d}) + std::max(attention, ffn);
  };
  const int64_t n = rows.tokens + rows.captions + rows.pads;
  const size_t time = arena_bytes(f32, {1, config.time_dim()});
  const size_t head = blocks.last() ? time + arena_bytes(f32, {1, d}) + arena_bytes(f32, {d}) : 0;
  const size_t forward =
      (blocks.last() ? arena_bytes(f32, {n, d}) : 0) + time +
      std::max({arena_bytes(f32, {1, kTimeHidden}), head, block(n, true, seams.attend)});
  if (!blocks.first()) return forward;
  return std::max(forward, arena_bytes(load.dtype, {rows.captions, config.caption_dim}) +
                               block(rows.captions, false, 0));
}

size_t z_image_streamed_bytes(const ZImageConfig& config, const TransformerLoad& load) {
  const BlockRange blocks = held_blocks(config, load);
  if (!streams(blocks, load)) return 0;
  return static_cast<size_t>(blocks.end - blocks.begin - (load.resident - kWindowSlots)) *
         layer_bytes(config, load, Bias::kInF32).at(blocks.begin).moved;
}

DeviceBytes z_image_device_bytes(const ZImageConfig& config, const TransformerLoad& load,
                                 Bias biases) {
  const BlockRange blocks = held_blocks(config, load);
  const bool offloads = streams(blocks, load);
  const int kept = offloads ? load.resident - kWindowSlots : blocks.end - blocks.begin;
  DeviceBytes bytes;
  size_t packing = 0;
  for (const auto& [index, layer] : layer_bytes(config, load, biases)) {
    if (index < 0 || index - blocks.begin < kept) bytes.weights += layer.kept;
    if (index == blocks.begin && offloads) {
      bytes.weights += kWindowSlots * layer.slot;
      if (kept == 0) bytes.loading = layer.kept;  // a layer on its way to the host, plus both slots
      bytes.loading += kDevicePiece;              // conversions on the window's queue
    }
    packing = std::max(packing, layer.packing);
  }
  bytes.loading += packing;
  return bytes;
}

size_t z_image_scratch_bytes(const ZImageConfig& config, const ZImageRows& rows, int64_t all_rows,
                             const TransformerLoad& load, Bias biases, const DeviceTraits& device) {
  const WidthSlice part = load.width.of(config.heads, config.ffn_dim());
  const int64_t d = config.dim, heads = part.heads.size(), width = heads * config.head_dim();
  const int64_t n = rows.tokens + rows.captions + rows.pads, chunk = std::min(n, kZImageFfnRows);
  size_t most = kTransferPiece;
  const auto consider = [&](LinearShape shape) {
    if (shape.rows > 0 && shape.out > 0) most = std::max(most, linear_scratch_bytes(shape, device));
  };
  const auto plain = [&](int64_t count, int64_t in, int64_t out, DType type, DType result) {
    consider(
        {.rows = count, .in = in, .out = out, .dtype = type, .result = result, .bias = biases});
  };
  const auto of_block = [&](int64_t count, int64_t in, int64_t out, DType result) {
    consider({.rows = count,
              .in = in,
              .out = out,
              .dtype = load.dtype,
              .format = load.weights,
              .result = result,
              .bias = Bias::kNone});
  };
  plain(rows.tokens, config.patch_dim(), d, DType::kF32, DType::kF32);
  plain(rows.tokens, d, config.patch_dim(), DType::kF32, DType::kF32);
  plain(rows.captions, config.caption_dim, d, load.dtype, DType::kF32);
  plain(1, config.time_dim(), 4 * d, DType::kF32, DType::kF32);
  plain(1, kFrequencies, kTimeHidden, DType::kF32, DType::kF32);
  of_block(n, d, width, load.dtype);
  of_block(n, width, d, DType::kF32);
  of_block(chunk, d, part.ffn.size(), load.dtype);
  of_block(chunk, part.ffn.size(), d, DType::kF32);
  const auto attend = [&](int64_t queries, int64_t keys, bool state = false) {
    most = std::max(most, attention_scratch_bytes({.queries = queries,
                                                   .keys = keys,
                                                   .heads = heads,
                                                   .kv_heads = heads,
                                                   .size = config.head_dim(),
                                                   .dtype = load.dtype,
                                                   .format = load.attention,
                                                   .plain = !state},
                                                  device));
  };
  attend(n, all_rows);
  if (n < all_rows) attend(n, n, true);  // a hop of a ring
  attend(rows.captions, rows.captions);
  return most;
}

}  // namespace weft
