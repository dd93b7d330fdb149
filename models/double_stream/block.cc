#include "models/double_stream/block.h"

#include <algorithm>
#include <array>
#include <cmath>

namespace weft {

namespace {

// A stream's rows of the hidden state and of a block's scratch.
struct StreamRows {
  const StreamWeights& weights;
  TensorView m;     // [6, D] f32, its modulation
  TensorView x, y;  // [rows, D] f32
  TensorView h;     // [rows, D] in the compute dtype
};

using BothStreams = std::array<StreamRows, 2>;

LayerNorm norm_of(const StreamRows& rows, int first) {
  return {.weight = rows.m.select(0, first + kScaleRow),
          .bias = rows.m.select(0, first + kShiftRow),
          .eps = kDoubleStreamEps,
          .modulated = true};
}

// Writes the joint attention of the rows h [n + T, D] to the streams' y; h is overwritten.
void joint_attention(Context& context, const BothStreams& streams, const JointPass& pass,
                     const TensorView& h) {
  const Arena::Scope scope(context.arena);
  Stream& stream = context.stream;
  const HeadWeights &latent = streams[0].weights.heads, &text = streams[1].weights.heads;
  const Heads heads = room_for_heads(context, text.joined() ? text : latent, h[0]);
  int64_t first = 0;
  for (const StreamRows& own : streams) {
    project_heads(stream, own.h, own.weights.heads, heads, first);
    first += own.h[0];
  }
  const int64_t all = h[0], width = latent.columns();
  const TensorView merged = reuse(h, {all, width});
  attend_jointly(context, pass, heads, latent, text, merged.reshape({all, heads.q[1], heads.q[2]}));
  first = 0;
  for (const StreamRows& own : streams) {
    row_linear(context, merged.slice(0, first, own.y[0]), own.weights.to_out, own.y);
    first += own.y[0];
  }
}

// Writes ffn_out gelu(ffn_in h) to y, some rows at a time.
void feed_forward(Context& context, const StreamRows& rows, DType dtype) {
  const Arena::Scope scope(context.arena);
  const StreamWeights& own = rows.weights;
  const int64_t n = rows.h[0];
  const int64_t chunk = rows_at_once(context.stream, n, {&own.ffn_in, &own.ffn_out.packed});
  const TensorView hidden = context.arena.alloc(dtype, {chunk, own.ffn_in.out()});
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t count = std::min(chunk, n - begin);
    const TensorView part = hidden.slice(0, 0, count);
    linear(context.stream, rows.h.slice(0, begin, count), own.ffn_in, LinearActivation::kGeluTanh,
           part);
    row_linear(context, part, own.ffn_out, rows.y.slice(0, begin, count));
  }
}

}  // namespace

void add_stream_tensors(std::vector<TensorSpec>& list, const std::string& block,
                        const StreamNames& names, const DoubleStreamSizes& sizes) {
  const int64_t d = sizes.width, e = sizes.head_dim();
  add_linear(list, block + names.modulation, 2 * kSublayerRows * d, d);
  for (const char* name : {names.to_q, names.to_k, names.to_v, names.to_out})
    add_linear(list, block + name, d, d);
  for (const char* name : {names.norm_q, names.norm_k})
    list.push_back({block + name + ".weight", {e}});
  add_linear(list, block + names.ffn_in, sizes.ffn, d);
  add_linear(list, block + names.ffn_out, d, sizes.ffn);
}

TensorPart stream_part(const TensorSpec& tensor, const StreamNames& names,
                       const DoubleStreamSizes& sizes, const WidthSlice& width) {
  const Range channels = sizes.channels(width), ffn = width.of(sizes.heads, sizes.ffn).ffn;
  const auto is = [&](const char* name) {
    return tensor.name.find("." + std::string(name) + ".") != std::string::npos;
  };
  const bool matrix = tensor.shape.size() > 1;
  for (const char* name : {names.to_q, names.to_k, names.to_v})
    if (is(name)) return {.dim = 0, .range = channels};
  for (const char* name : {names.to_out, names.modulation})
    if (is(name) && matrix) return {.dim = 1, .range = channels};
  if (is(names.ffn_in)) return {.dim = 0, .range = ffn};
  if (is(names.ffn_out) && matrix) return {.dim = 1, .range = ffn};
  return {.dim = 0, .range = {0, tensor.shape[0]}};
}

StreamWeights load_stream(Stream& stream, const CheckpointPart& tensors,
                          const TransformerLoad& load, const std::string& block,
                          const StreamNames& names) {
  const auto linear = [&](const char* name) {
    return tensors.linear(stream, block + name, load.dtype, load.weights);
  };
  const auto row_linear = [&](const char* name, WeightFormat format) {
    return tensors.row_linear(stream, block + name, load.dtype, format);
  };
  return {.modulation = row_linear(names.modulation, WeightFormat::kCompute),
          .heads = load_heads(stream, tensors,
                              {block + names.to_q, block + names.to_k, block + names.to_v,
                               block + names.norm_q, block + names.norm_k},
                              load.dtype, load.weights),
          .to_out = row_linear(names.to_out, load.weights),
          .ffn_in = linear(names.ffn_in),
          .ffn_out = row_linear(names.ffn_out, load.weights)};
}

TensorView modulation_of(Context& context, const RowLinear& weights, const JointPass& pass,
                         int64_t width) {
  const int64_t values = weights.packed.out();
  const TensorView m = context.arena.alloc(DType::kF32, {values / width, width});
  row_linear(context, pass.time, weights, m.reshape({1, values}));
  return m;
}

void attend_jointly(Context& context, const JointPass& pass, const Heads& heads,
                    const HeadWeights& latent, const HeadWeights& text, const TensorView& out) {
  const auto& [q, k, v] = heads;
  norm_and_attend(context, context.mixer,
                  {.layer = pass.layer,
                   .q = q,
                   .k = k,
                   .v = v,
                   .out = out,
                   .rope = &pass.rope,
                   .scale = 1 / std::sqrt(static_cast<float>(q[2])),
                   .format = pass.load.attention,
                   .replicated = q[0] - context.tokens.size(),
                   .replicated_rope = pass.text_rope,
                   .norms = latent.norms(kDoubleStreamEps),
                   .replicated_norms = text.norms(kDoubleStreamEps)});
}

void double_stream_block(Context& context, const DoubleStreamBlock& weights, const JointPass& pass,
                         const TensorView& x) {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t n = context.tokens.size(), width = x[1];
  const TensorView h = context.arena.alloc(pass.load.dtype, {x[0], width});
  const TensorView y = context.arena.alloc(DType::kF32, {x[0], width});
  const auto stream_rows = [&](const StreamWeights& own, const Range& rows) {
    const auto cut = [&](const TensorView& all) { return all.slice(0, rows.begin, rows.size()); };
    return StreamRows{.weights = own,
                      .m = modulation_of(context, own.modulation, pass, width),
                      .x = cut(x),
                      .y = cut(y),
                      .h = cut(h)};
  };
  const BothStreams streams{stream_rows(weights.latent, {0, n}),
                            stream_rows(weights.text, {n, x[0]})};
  for (const StreamRows& rows : streams) {
    const LayerNorm norm = norm_of(rows, 0);
    modulated_layer_norm(stream, rows.x, norm.weight, norm.bias, norm.eps, rows.h);
  }
  joint_attention(context, streams, pass, h);
  for (const StreamRows& rows : streams) {
    gated_add_norm(stream, rows.x, rows.y, rows.m.select(0, kGateRow), norm_of(rows, kSublayerRows),
                   rows.h);
    feed_forward(context, rows, pass.load.dtype);
    gated_add(stream, rows.x, rows.y, rows.m.select(0, kSublayerRows + kGateRow), rows.x);
  }
}

VectorEmbedder load_embedder(Stream& stream, const CheckpointPart& tensors,
                             const std::string& name) {
  return {.linear_1 = tensors.linear(stream, name + ".linear_1", DType::kF32),
          .linear_2 = tensors.linear(stream, name + ".linear_2", DType::kF32)};
}

TensorView embedded(Context& context, const VectorEmbedder& embedder, const TensorView& in) {
  const int64_t d = embedder.linear_2.out();
  const TensorView out = context.arena.alloc(DType::kF32, {1, d});
  const Arena::Scope scope(context.arena);
  const TensorView hidden = context.arena.alloc(DType::kF32, {1, d});
  linear(context.stream, in, embedder.linear_1, LinearActivation::kSilu, hidden);
  linear(context.stream, hidden, embedder.linear_2, LinearActivation::kNone, out);
  return out;
}

DoubleStreamHead load_head(Stream& stream, const CheckpointPart& tensors) {
  return {.modulation = tensors.linear(stream, "norm_out.linear", DType::kF32),
          .proj_out = tensors.linear(stream, "proj_out", DType::kF32)};
}

void apply_head(Context& context, const DoubleStreamHead& head, const TensorView& time,
                const TensorView& x, const TensorView& out) {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t d = x[1];
  const TensorView active = context.arena.alloc(DType::kF32, {1, d});
  const TensorView m = context.arena.alloc(DType::kF32, {2, d});  // scale, shift
  silu(stream, time, active);
  linear(stream, active, head.modulation, LinearActivation::kNone, m.reshape({1, 2 * d}));
  modulated_layer_norm(stream, x, m.select(0, 0), m.select(0, 1), kDoubleStreamEps, x);
  linear(stream, x, head.proj_out, LinearActivation::kNone, out);
}

TensorView active_time(Context& context, const TensorView& time, const DoubleStreamSizes& sizes,
                       const TransformerLoad& load) {
  const Range channels = sizes.channels(load.width);
  const TensorView out = context.arena.alloc(load.dtype, {1, channels.size()});
  const Arena::Scope scope(context.arena);
  const TensorView active = context.arena.alloc(DType::kF32, {1, time[1]});
  silu(context.stream, time, active);
  copy(context.stream, active.slice(1, channels.begin, channels.size()), out);
  return out;
}

void observe_text_first(Context& context, const char* name, int index, const TensorView& x) {
  if (!context.observer) return;
  if (!context.observer->in_order()) return context.observe(name, x, index);
  const Arena::Scope scope(context.arena);
  const int64_t n = context.tokens.size(), text = x[0] - n;
  const TensorView rows = context.arena.alloc(DType::kF32, {x[0], x[1]});
  copy(context.stream, x.slice(0, n, text), rows.slice(0, 0, text));
  copy(context.stream, x.slice(0, 0, n), rows.slice(0, text, n));
  context.observe(name, rows, index);
}

}  // namespace weft
