#include "models/pre_norm_encoder/blocks.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/meter.h"
#include "models/config_reader.h"

namespace weft {

namespace {

// Limits far beyond any model. They keep counts of values and of bytes within 64 bits.
constexpr IntRange kWidths{1, 1 << 20}, kHeads{1, 4096}, kLayers{1, 1024};

std::string block_name(int64_t layer, const char* rest) {
  return "encoder.layers." + std::to_string(layer) + "." + rest;
}

}  // namespace

EncoderBlocksConfig EncoderBlocksConfig::read(ConfigReader& fields, const EncoderBlockNames& names,
                                              EncoderActivation activation,
                                              const std::vector<Json>& legal) {
  EncoderBlocksConfig config{.activation = activation, .names = names};
  fields.required("hidden_size", config.width, kWidths);
  fields.required("intermediate_size", config.ffn, kWidths);
  fields.required("num_attention_heads", config.heads, kHeads);
  fields.required("num_hidden_layers", config.layers, kLayers);
  fields.divides("num_attention_heads", "hidden_size");
  std::string act;
  fields.optional("hidden_act", act);
  fields.only("hidden_act", legal);
  if (act == "gelu") config.activation = EncoderActivation::kGelu;
  if (act == "quick_gelu") config.activation = EncoderActivation::kQuickGelu;
  fields.optional("layer_norm_eps", config.eps, kPositive);
  return config;
}

void add_norm(int64_t width, const std::string& name, std::vector<TensorSpec>& tensors) {
  tensors.push_back({name + ".weight", {width}});
  tensors.push_back({name + ".bias", {width}});
}

void add_encoder_blocks(const EncoderBlocksConfig& config, std::vector<TensorSpec>& tensors) {
  const int64_t d = config.width;
  const EncoderBlockNames& names = config.names;
  for (int64_t i = 0; i < config.layers; ++i) {
    add_norm(d, block_name(i, names.norm1), tensors);
    for (const char* name : {names.q, names.k, names.v, names.out})
      add_linear(tensors, block_name(i, name), d, d);
    add_norm(d, block_name(i, names.norm2), tensors);
    add_linear(tensors, block_name(i, names.fc1), config.ffn, d);
    add_linear(tensors, block_name(i, names.fc2), d, config.ffn);
  }
}

TensorPart encoder_part(const EncoderBlocksConfig& config, const TensorSpec& tensor,
                        const WidthSlice& width) {
  const WidthSlice all = width.of(config.heads, config.ffn);
  const Range channels{all.heads.begin * config.head_dim(), all.heads.end * config.head_dim()};
  const EncoderBlockNames& names = config.names;
  const auto is = [&](const char* layer, const char* part) {
    return tensor.name.ends_with(std::string(".") + layer + part);
  };
  for (const char* part : {".weight", ".bias"}) {
    if (is(names.q, part) || is(names.k, part) || is(names.v, part))
      return {.dim = 0, .range = channels};
    if (is(names.fc1, part)) return {.dim = 0, .range = all.ffn};
  }
  if (is(names.out, ".weight")) return {.dim = 1, .range = channels};
  if (is(names.fc2, ".weight")) return {.dim = 1, .range = all.ffn};
  return {.dim = 0, .range = {0, tensor.shape[0]}};
}

NormWeights NormWeights::load(Stream& stream, const CheckpointPart& held, const std::string& name) {
  return {.weight = held.vector(stream, name + ".weight"),
          .bias = held.vector(stream, name + ".bias")};
}

EncoderBlocks EncoderBlocks::load(Stream& stream, const CheckpointPart& held,
                                  const EncoderBlocksConfig& config, int64_t count,
                                  const EncoderLoad& load) {
  EncoderBlocks blocks;
  blocks.config_ = config;
  blocks.dtype_ = load.dtype;
  blocks.width_ = load.width.of(config.heads, config.ffn);
  CHECK(!rounds_to_8bit(load.weights) || blocks.width_.heads.size() == config.heads,
        "8-bit weights of a part of the width");
  for (int64_t i = 0; i < count; ++i) {
    const EncoderBlockNames& names = config.names;
    const auto norm = [&](const char* name) {
      return NormWeights::load(stream, held, block_name(i, name));
    };
    const auto linear = [&](const char* name) {
      return held.linear(stream, block_name(i, name), load.dtype, load.weights);
    };
    const auto row_linear = [&](const char* name) {
      return held.row_linear(stream, block_name(i, name), load.dtype, load.weights);
    };
    blocks.blocks_.push_back({.norm1 = norm(names.norm1),
                              .q = linear(names.q),
                              .k = linear(names.k),
                              .v = linear(names.v),
                              .out = row_linear(names.out),
                              .norm2 = norm(names.norm2),
                              .fc1 = linear(names.fc1),
                              .fc2 = row_linear(names.fc2)});
  }
  return blocks;
}

void EncoderBlocks::run(Context& context, Mask mask, const char* name, const TensorView& x,
                        const std::function<void(int64_t block)>& after) const {
  CHECK((context.reducer.parts() == 1) == (width_.heads.size() == config_.heads), "a sum over",
        context.reducer.parts(), "parts for heads", to_string(width_.heads), "of", config_.heads);
  for (size_t i = 0; i < blocks_.size(); ++i) {
    const ZoneScope zone(Zone::kBlock, static_cast<int>(i));
    attend(context, blocks_[i], mask, x);
    feed_forward(context, blocks_[i], x);
    context.observe(name, x, static_cast<int>(i));
    if (after) after(static_cast<int64_t>(i));
  }
}

void EncoderBlocks::attend(Context& context, const Block& block, Mask mask,
                           const TensorView& x) const {
  const Arena::Scope scope(context.arena);
  Stream& stream = context.stream;
  const int64_t n = x[0], heads = width_.heads.size(), e = config_.head_dim(), inner = heads * e;
  const TensorView h = context.arena.alloc(dtype_, x.shape());
  layer_norm(stream, x, block.norm1.weight, block.norm1.bias, config_.eps, h);
  TensorView q, k, v;
  for (const auto& [view, weight] :
       {std::pair{&q, &block.q}, std::pair{&k, &block.k}, std::pair{&v, &block.v}}) {
    *view = context.arena.alloc(dtype_, {n, heads, e});
    linear(stream, h, *weight, LinearActivation::kNone, view->reshape({n, inner}));
  }
  const TensorView mixed = context.arena.alloc(dtype_, {n, heads, e});
  const KVSegment keys{.k = k, .v = v};
  attention(stream, {.q = q,
                     .segments = {&keys, 1},
                     .scale = 1 / std::sqrt(static_cast<float>(e)),
                     .causal = mask == Mask::kCausal,
                     .out = mixed});
  row_linear_add(context, mixed.reshape({n, inner}), block.out, x);
}

void EncoderBlocks::feed_forward(Context& context, const Block& block, const TensorView& x) const {
  const Arena::Scope scope(context.arena);
  Stream& stream = context.stream;
  const TensorView h = context.arena.alloc(dtype_, x.shape());
  layer_norm(stream, x, block.norm2.weight, block.norm2.bias, config_.eps, h);
  const TensorView hidden = context.arena.alloc(dtype_, {x[0], width_.ffn.size()});
  linear(stream, h, block.fc1, LinearActivation::kNone, hidden);
  if (config_.activation == EncoderActivation::kGelu)
    gelu_erf(stream, hidden, hidden);
  else
    gelu_quick(stream, hidden, hidden);
  row_linear_add(context, hidden, block.fc2, x);
}

size_t EncoderBlocks::bytes() const {
  size_t total = 0;
  for (const Block& block : blocks_) total += bytes_of(block.weights());
  return total;
}

}  // namespace weft
