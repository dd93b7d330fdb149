#include "models/wan/transformer.h"

#include <algorithm>
#include <cmath>
#include <map>

#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/wan/names.h"
#include "models/weights.h"

namespace weft {

namespace {

// Rows of the modulation tables (Wan's order: shift, scale, gate, for attention and feed-forward).
enum Modulation { kShift = 0, kScale = 1, kGate = 2, kAttention = 0, kFeedForward = 3 };

// Returns the memory of `x` as a view of another shape with at most as many elements. The values of
// x are no longer needed.
TensorView reuse(const TensorView& x, std::initializer_list<int64_t> shape) {
  TensorView out(x.data, x.dtype, shape, x.device);
  CHECK(x.contiguous() && out.count() <= x.count(), out.to_string_shape(), "in",
        x.to_string_shape());
  return out;
}

// Gives access to a checkpoint's tensors by their diffusers names, cuts out the part that the slice
// holds, and packs it.
class Source {
 public:
  Source(Stream& stream, const TensorFile& file, const WanConfig& config, const WidthSlice& width)
      : stream_(stream), file_(file), names_(detect_wan_names(file)) {
    WeightBinder binder(file, "transformer", names_);
    // Checkpoints that old diffusers versions saved contain a norm that the model does not use.
    for (int i = 0; i < config.layers; ++i)
      binder.ignore(names_("blocks." + std::to_string(i) + ".attn2.norm_added_q.weight"));
    // A single-file checkpoint may contain other models beside the transformer.
    if (!names_.prefix.empty())
      for (const std::string& name : file.names())
        if (!name.starts_with(names_.prefix)) binder.ignore(name);
    for (const TensorSpec& tensor : wan_tensors(config)) {
      binder.take(tensor.name, tensor.shape);
      parts_[tensor.name] = wan_part(config, tensor, width);
    }
    binder.finish();
  }

  // Packs the same tensors on another stream.
  Source(Stream& stream, const Source& other)
      : stream_(stream), file_(other.file_), names_(other.names_), parts_(other.parts_) {}

  // Packs a linear layer. Convolution weights become matrices [out, rest].
  PackedLinear linear(const std::string& name, DType dtype,
                      WeightFormat format = WeightFormat::kCompute) const {
    const HeldWeight weight = held(name + ".weight", dtype), bias = held(name + ".bias");
    const TensorView& view = weight.view();
    return pack_linear(stream_, view.reshape({view[0], view.count() / view[0]}), bias.view(), dtype,
                       format);
  }
  // If only a part of the inputs is held, the bias is stored separately.
  RowLinear row_linear(const std::string& name, DType dtype, WeightFormat format) const {
    const HeldWeight weight = held(name + ".weight", dtype);
    if (weight.whole()) return {.packed = linear(name, dtype, format), .bias = {}};
    return {.packed = pack_linear(stream_, weight.view(), {}, dtype),
            .bias = vector(name + ".bias")};
  }
  Tensor vector(const std::string& name) const {
    const HeldWeight weight = held(name);
    return f32_copy(stream_, weight.view(), {weight.view().count()});
  }
  Tensor table(const std::string& name) const {  // [1, rows, D] -> [rows, D]
    const HeldWeight weight = held(name);
    return f32_copy(stream_, weight.view(), {weight.view()[1], weight.view()[2]});
  }

 private:
  HeldWeight held(const std::string& name, DType dtype = DType::kF32) const {
    return HeldWeight(stream_, file_, names_(name), parts_.at(name), dtype);
  }

  Stream& stream_;
  const TensorFile& file_;
  WanNames names_;
  std::map<std::string, TensorPart> parts_;
};

}  // namespace

size_t WanText::bytes() const {
  size_t bytes = context.view().bytes();
  for (size_t i = 0; i < k.size(); ++i) bytes += k[i].view().bytes() + v[i].view().bytes();
  return bytes;
}

template <class Weights>
WanTransformer::Block WanTransformer::load_block(const Weights& source, const TransformerLoad& load,
                                                 int index) {
  const std::string name = "blocks." + std::to_string(index) + ".";
  const DType dtype = load.dtype;
  const auto attention = [&](const std::string& part) {
    return Attention{.to_q = source.linear(part + "to_q", dtype, load.weights),
                     .to_k = source.linear(part + "to_k", dtype, load.weights),
                     .to_v = source.linear(part + "to_v", dtype, load.weights),
                     .to_out = source.row_linear(part + "to_out.0", dtype, load.weights),
                     .norm_q = source.vector(part + "norm_q.weight"),
                     .norm_k = source.vector(part + "norm_k.weight")};
  };
  return {.scale_shift_table = source.table(name + "scale_shift_table"),
          .attn1 = attention(name + "attn1."),
          .norm2_weight = source.vector(name + "norm2.weight"),
          .norm2_bias = source.vector(name + "norm2.bias"),
          .attn2 = attention(name + "attn2."),
          .ffn_in = source.linear(name + "ffn.net.0.proj", dtype, load.weights),
          .ffn_out = source.row_linear(name + "ffn.net.2", dtype, load.weights)};
}

WanTransformer WanTransformer::load(Stream& stream, const TensorFile& file, const WanConfig& config,
                                    const TransformerLoad& load) {
  WanTransformer model;
  model.config_ = config;
  model.traits_ = config.traits();
  model.load_ = load;
  BlockRange& blocks = model.load_.blocks;
  if (blocks.total == 0) blocks = BlockRange::all(config.layers);
  CHECK(blocks.total == config.layers && 0 <= blocks.begin && blocks.begin <= blocks.end &&
            blocks.end <= blocks.total,
        "blocks", blocks.begin, blocks.end, blocks.total);
  model.load_.width = load.width.of(config.heads, config.ffn_dim);
  CHECK(load.weights == WeightFormat::kCompute || model.load_.width.heads.size() == config.heads,
        "8-bit weights of a part of the width");

  const Source source(stream, file, config, load.width);
  const DType dtype = load.dtype, f32 = DType::kF32;
  const std::string embedder = "condition_embedder.";
  if (blocks.first()) model.patch_embedding_ = source.linear("patch_embedding", f32);
  model.time_linear_1_ = source.linear(embedder + "time_embedder.linear_1", f32);
  model.time_linear_2_ = source.linear(embedder + "time_embedder.linear_2", f32);
  model.time_proj_ = source.linear(embedder + "time_proj", f32);
  model.text_linear_1_ = source.linear(embedder + "text_embedder.linear_1", dtype);
  model.text_linear_2_ = source.linear(embedder + "text_embedder.linear_2", dtype);
  const int count = blocks.end - blocks.begin;
  if (load.resident == 0 || load.resident >= count) {
    for (int i = blocks.begin; i < blocks.end; ++i)
      model.blocks_.push_back(load_block(source, model.load_, i));
  } else {
    model.window_ = std::make_unique<DeviceWindow<Block>>(
        stream_on(stream.device(), stream.threads()), count, load.resident,
        [&](Stream& copies, int i) {
          const Source own(copies, source);
          return load_block(own, model.load_, blocks.begin + i);
        },
        pieces);
  }
  if (blocks.last()) {
    model.scale_shift_table_ = source.table("scale_shift_table");
    model.proj_out_ = source.linear("proj_out", f32);
  }
  return model;
}

size_t WanTransformer::weights_bytes() const {
  size_t total = patch_embedding_.bytes() + time_linear_1_.bytes() + time_linear_2_.bytes() +
                 time_proj_.bytes() + text_linear_1_.bytes() + text_linear_2_.bytes() +
                 (scale_shift_table_ ? scale_shift_table_.view().bytes() : 0) + proj_out_.bytes();
  for (const Block& block : blocks_) total += bytes(block);
  if (window_)
    window_->for_resident([&](const Block& block, bool passing) {
      if (!passing) total += bytes(block);
      if (passing)
        for (const TensorView& piece : pieces(block)) total += piece.bytes();
    });
  return total;
}

size_t WanTransformer::bytes(const Block& block) {
  size_t total = block.ffn_in.bytes() + block.ffn_out.bytes();
  for (const Attention* part : {&block.attn1, &block.attn2})
    total += part->to_q.bytes() + part->to_k.bytes() + part->to_v.bytes() + part->to_out.bytes();
  for_vectors(block, [&](const Tensor& vector) { total += vector.view().bytes(); });
  return total;
}

std::vector<TensorView> WanTransformer::pieces(const Block& block) {
  std::vector<TensorView> all;
  const auto add = [&](const PackedLinear& linear) { append_pieces(linear, all); };
  for (const Attention* part : {&block.attn1, &block.attn2}) {
    for (const PackedLinear* linear : {&part->to_q, &part->to_k, &part->to_v}) add(*linear);
    add(part->to_out.packed);
    if (part->to_out.bias) all.push_back(part->to_out.bias);
  }
  add(block.ffn_in);
  add(block.ffn_out.packed);
  if (block.ffn_out.bias) all.push_back(block.ffn_out.bias);
  for_vectors(block, [&](const Tensor& vector) { all.push_back(vector); });
  return all;
}

// Calls f(tensor) for every tensor of a block that is not part of a linear layer.
template <class F>
void WanTransformer::for_vectors(const Block& block, F&& f) {
  for (const Attention* part : {&block.attn1, &block.attn2}) {
    f(part->norm_q);
    f(part->norm_k);
  }
  f(block.scale_shift_table);
  f(block.norm2_weight);
  f(block.norm2_bias);
}

// The reducer must sum over several ranks exactly if this rank holds only a part of the width.
void WanTransformer::check_reducer(const Context& context) const {
  const bool whole = load_.width.heads.size() == config_.heads;
  CHECK((context.reducer.parts() == 1) == whole, "a sum over", context.reducer.parts(),
        "parts for heads", to_string(load_.width.heads), "of", config_.heads);
}

std::unique_ptr<Conditioning> WanTransformer::prepare(Context& context,
                                                      const Conditions& conditions,
                                                      std::array<int64_t, 3>) const {
  const TensorView& embeds = conditions.text;
  const int64_t text_length = conditions.text_length;
  CHECK(embeds.rank == 2 && embeds[1] == config_.text_dim && embeds[0] <= text_length &&
            text_length > 0,
        "embeds", embeds.to_string_shape(), "text length", text_length);
  check_reducer(context);
  Stream& stream = context.stream;
  auto prepared = std::make_unique<WanText>();
  WanText& text = *prepared;
  text.length = embeds[0];
  text.text_length = text_length;
  text.blocks = load_.blocks;
  const int64_t rows = text.rows(), d = config_.width();
  Arena::Scope scope(context.arena);

  // Padding rows are zero before the MLP, so they all become the same row.
  const TensorView in = context.arena.alloc(load_.dtype, {rows, config_.text_dim});
  copy(stream, embeds, in.slice(0, 0, text.length));
  fill_zero(stream, in.slice(0, text.length, rows - text.length));
  const TensorView hidden = context.arena.alloc(load_.dtype, {rows, d});
  text.context = Tensor(load_.dtype, {rows, d}, stream.device());
  linear(stream, in, text_linear_1_, LinearActivation::kGeluTanh, hidden);
  linear(stream, hidden, text_linear_2_, LinearActivation::kNone, text.context);

  for (int i = load_.blocks.begin; i < load_.blocks.end; ++i)
    with_block(stream, i, [&](const Block& block) { text_keys(context, block.attn2, text); });

  if (context.observer) {
    const TensorView all = context.arena.alloc(DType::kF32, {text_length, d});
    copy(stream, text.context.view().slice(0, 0, text.length), all.slice(0, 0, text.length));
    for (int64_t row = text.length; row < text_length; ++row)
      copy(stream, text.context.view().slice(0, text.length, 1), all.slice(0, row, 1));
    context.observe("context", all);
  }
  return prepared;
}

// Appends the next layer's keys and values of the prompt.
void WanTransformer::text_keys(Context& context, const Attention& weights, WanText& text) const {
  Stream& stream = context.stream;
  const int64_t rows = text.rows(), width = weights.to_k.out();
  const std::initializer_list<int64_t> heads = {rows, width / config_.head_dim, config_.head_dim};
  const TensorView& k = text.k.emplace_back(load_.dtype, heads, stream.device());
  const TensorView& v = text.v.emplace_back(load_.dtype, heads, stream.device());
  linear(stream, text.context, weights.to_k, LinearActivation::kNone, k.reshape({rows, width}));
  full_rms_norm(context, k.reshape({rows, width}), config_.width(), weights.norm_k, config_.eps);
  linear(stream, text.context, weights.to_v, LinearActivation::kNone, v.reshape({rows, width}));
}

Rope WanTransformer::rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start,
                          const Conditioning&) const {
  return make_rope(grid, start, config_.head_dim);
}

void WanTransformer::forward(Context& context, const ForwardArgs& args) const {
  const auto& [blocks, in, times, embedding, conditioning, rope, out] = args;
  const auto& text = dynamic_cast<const WanText&>(conditioning);
  const int64_t n = context.tokens.size(), d = config_.width();
  CHECK(blocks.begin >= load_.blocks.begin && blocks.end <= load_.blocks.end &&
            blocks.total == config_.layers,
        "blocks", blocks.begin, blocks.end, "loaded", load_.blocks.begin, load_.blocks.end);
  CHECK(rope.grid[0] * rope.grid[1] * rope.grid[2] == context.tokens.total, "grid", rope.grid[0],
        rope.grid[1], rope.grid[2], "tokens", context.tokens.total);
  CHECK(int(text.k.size()) == load_.blocks.end - load_.blocks.begin, "text of", text.k.size(),
        "layers for blocks", load_.blocks.begin, load_.blocks.end);
  check_reducer(context);

  Arena::Scope scope(context.arena);
  const TensorView x = blocks.last() ? context.arena.alloc(DType::kF32, {n, d}) : out;
  if (blocks.first())
    embed_patches(context, in, x);
  else
    copy(context.stream, in, x);
  const std::vector<TimeRows> rows = embed_times(context, times, embedding);
  for (int i = blocks.begin; i < blocks.end; ++i)
    with_block(context.stream, i,
               [&](const Block& weights) { block(context, i, weights, rows, text, rope, x); });
  if (blocks.last()) head(context, rows, x, out);
}

void WanTransformer::embed_patches(Context& context, const TensorView& rows,
                                   const TensorView& x) const {
  linear(context.stream, rows, patch_embedding_, LinearActivation::kNone, x);
  context.observe("patch_embedding", x);
}

std::vector<WanTransformer::TimeRows> WanTransformer::embed_times(
    Context& context, std::span<const TimeSegment> times, const TensorView& embedding) const {
  Stream& stream = context.stream;
  Arena& arena = context.arena;
  const int64_t s = static_cast<int64_t>(times.size()), d = config_.width();
  const TensorView temb = arena.alloc(DType::kF32, {s, d});
  const TensorView proj = arena.alloc(DType::kF32, {s, 6, d});
  {
    Arena::Scope scope(arena);
    const TensorView hidden = arena.alloc(DType::kF32, {s, d});
    const TensorView active = arena.alloc(DType::kF32, {s, d});
    linear(stream, embedding, time_linear_1_, LinearActivation::kSilu, hidden);
    linear(stream, hidden, time_linear_2_, LinearActivation::kNone, temb);
    silu(stream, temb, active);
    linear(stream, active, time_proj_, LinearActivation::kNone, proj.reshape({s, 6 * d}));
  }
  context.observe("temb", s == 1 ? temb.select(0, 0) : temb);
  context.observe("timestep_proj", s == 1 ? proj.select(0, 0) : proj);

  std::vector<TimeRows> rows;
  int64_t first = 0, covered = 0;
  for (const Range& range : context.tokens.ranges) {
    for (int64_t i = 0; i < s; ++i) {
      const int64_t begin = std::max(range.begin, times[i].tokens.begin);
      const int64_t end = std::min(range.end, times[i].tokens.end);
      if (begin >= end) continue;
      rows.push_back({.rows = {first + begin - range.begin, first + end - range.begin},
                      .temb = temb.select(0, i),
                      .proj = proj.select(0, i)});
      covered += end - begin;
    }
    first += range.size();
  }
  CHECK(covered == context.tokens.size(), "time segments cover", covered, "of",
        context.tokens.size(), "tokens");
  return rows;
}

// Applies one transformer block (Wan Team 2025, figure 10) to x [N, D] f32 in place.
void WanTransformer::block(Context& context, int index, const Block& weights,
                           std::span<const TimeRows> times, const WanText& text, const Rope& rope,
                           const TensorView& x) const {
  const ZoneScope zone(Zone::kBlock, index);
  Stream& stream = context.stream;
  Arena::Scope scope(context.arena);
  const int64_t s = static_cast<int64_t>(times.size());
  const TensorView m = context.arena.alloc(DType::kF32, {s, 6, x[1]});
  const TensorView h = context.arena.alloc(load_.dtype, {x[0], x[1]});
  const TensorView y = context.arena.alloc(DType::kF32, {x[0], x[1]});
  for (int64_t i = 0; i < s; ++i)
    add(stream, weights.scale_shift_table, times[i].proj, m.select(0, i));

  modulated_norm(stream, times, m, kAttention, x, h);
  self_attention(context, index, weights.attn1, rope, h, y);
  gated_residual(stream, times, m, kAttention, y, x);

  layer_norm(stream, x, weights.norm2_weight, weights.norm2_bias, config_.eps, h);
  cross_attention(context, index, weights.attn2, text, h, y);
  add(stream, x, y, x);

  modulated_norm(stream, times, m, kFeedForward, x, h);
  feed_forward(context, weights, h, y);
  gated_residual(stream, times, m, kFeedForward, y, x);
  context.observe("blocks", x, index);
}

void WanTransformer::modulated_norm(Stream& stream, std::span<const TimeRows> times,
                                    const TensorView& m, int part, const TensorView& x,
                                    const TensorView& out) const {
  for (size_t i = 0; i < times.size(); ++i) {
    const TensorView table = m.select(0, static_cast<int64_t>(i));
    const Range rows = times[i].rows;
    modulated_layer_norm(stream, x.slice(0, rows.begin, rows.size()),
                         table.select(0, part + kScale), table.select(0, part + kShift),
                         config_.eps, out.slice(0, rows.begin, rows.size()));
  }
}

void WanTransformer::gated_residual(Stream& stream, std::span<const TimeRows> times,
                                    const TensorView& m, int part, const TensorView& y,
                                    const TensorView& x) const {
  for (size_t i = 0; i < times.size(); ++i) {
    const TensorView gate = m.select(0, static_cast<int64_t>(i)).select(0, part + kGate);
    const Range rows = times[i].rows;
    const TensorView part_x = x.slice(0, rows.begin, rows.size());
    gated_add(stream, part_x, y.slice(0, rows.begin, rows.size()), gate, part_x);
  }
}

// Writes the self-attention of h [N, D] to y [N, D] f32; h is overwritten.
void WanTransformer::self_attention(Context& context, int index, const Attention& weights,
                                    const Rope& rope, const TensorView& h,
                                    const TensorView& y) const {
  Arena::Scope scope(context.arena);
  const int64_t n = h[0], width = weights.to_q.out(), e = config_.head_dim, a = width / e;
  const TensorView q = context.arena.alloc(load_.dtype, {n, width});
  const TensorView k = context.arena.alloc(load_.dtype, {n, width});
  const TensorView v = context.arena.alloc(load_.dtype, {n, width});
  linear(context.stream, h, weights.to_q, LinearActivation::kNone, q);
  linear(context.stream, h, weights.to_k, LinearActivation::kNone, k);
  linear(context.stream, h, weights.to_v, LinearActivation::kNone, v);
  full_rms_norm(context, q, config_.width(), weights.norm_q, config_.eps);
  full_rms_norm(context, k, config_.width(), weights.norm_k, config_.eps);
  const TensorView merged = reuse(h, {n, width});
  context.mixer.attend(context, {.layer = index,
                                 .q = q.reshape({n, a, e}),
                                 .k = k.reshape({n, a, e}),
                                 .v = v.reshape({n, a, e}),
                                 .out = merged.reshape({n, a, e}),
                                 .rope = &rope,
                                 .scale = 1 / std::sqrt(static_cast<float>(e)),
                                 .format = load_.attention});
  row_linear(context, merged, weights.to_out, y);
}

// Writes the cross-attention of h [N, D] over the prompt to y [N, D] f32. The models were trained
// to attend to the padding rows, too. These are equal, so one key stands for all of them, with the
// logarithm of their number as bias.
void WanTransformer::cross_attention(Context& context, int index, const Attention& weights,
                                     const WanText& text, const TensorView& h,
                                     const TensorView& y) const {
  Arena::Scope scope(context.arena);
  const int64_t n = h[0], width = weights.to_q.out(), e = config_.head_dim, a = width / e;
  const TensorView q = context.arena.alloc(load_.dtype, {n, width});
  linear(context.stream, h, weights.to_q, LinearActivation::kNone, q);
  full_rms_norm(context, q, config_.width(), weights.norm_q, config_.eps);

  const TensorView& k = text.k[index - load_.blocks.begin];
  const TensorView& v = text.v[index - load_.blocks.begin];
  const int64_t length = text.length, pads = text.text_length - length;
  std::vector<KVSegment> segments;
  if (length > 0) segments.push_back({.k = k.slice(0, 0, length), .v = v.slice(0, 0, length)});
  if (pads > 0)
    segments.push_back({.k = k.slice(0, length, 1),
                        .v = v.slice(0, length, 1),
                        .log_bias = static_cast<float>(std::log(static_cast<double>(pads)))});
  const TensorView merged = reuse(h, {n, width});
  attention(context.stream, {.q = q.reshape({n, a, e}),
                             .segments = segments,
                             .scale = 1 / std::sqrt(static_cast<float>(e)),
                             .out = merged.reshape({n, a, e})});
  row_linear(context, merged, weights.to_out, y);
}

// Writes W2 gelu(W1 h + b1) + b2 to y [N, D] f32, kFfnRows rows at a time.
void WanTransformer::feed_forward(Context& context, const Block& weights, const TensorView& h,
                                  const TensorView& y) const {
  Arena::Scope scope(context.arena);
  const int64_t n = h[0], chunk = std::min(n, kFfnRows);
  const TensorView hidden = context.arena.alloc(load_.dtype, {chunk, weights.ffn_in.out()});
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t count = std::min(chunk, n - begin);
    const TensorView part = hidden.slice(0, 0, count);
    linear(context.stream, h.slice(0, begin, count), weights.ffn_in, LinearActivation::kGeluTanh,
           part);
    row_linear(context, part, weights.ffn_out, y.slice(0, begin, count));
  }
}

void WanTransformer::head(Context& context, std::span<const TimeRows> times, const TensorView& x,
                          const TensorView& velocity) const {
  const int64_t channels = config_.out_channels, places = proj_out_.out() / channels;
  CHECK(velocity.contiguous() && velocity.count() == x[0] * proj_out_.out(),
        velocity.to_string_shape());
  Stream& stream = context.stream;
  Arena::Scope scope(context.arena);
  for (const TimeRows& time : times) {
    Arena::Scope table_scope(context.arena);
    const TensorView m = context.arena.alloc(DType::kF32, {2, x[1]});  // shift, scale
    for (int64_t i = 0; i < 2; ++i)
      add(stream, scale_shift_table_.view().select(0, i), time.temb, m.select(0, i));
    const TensorView rows = x.slice(0, time.rows.begin, time.rows.size());
    modulated_layer_norm(stream, rows, m.select(0, kScale), m.select(0, kShift), config_.eps, rows);
  }
  const TensorView rows = context.arena.alloc(DType::kF32, {x[0], proj_out_.out()});
  linear(stream, x, proj_out_, LinearActivation::kNone, rows);
  // The head's channels are fastest within a row, those of a latent's rows slowest.
  copy(stream, rows.reshape({x[0], places, channels}).permute({0, 2, 1}),
       velocity.reshape({x[0], channels, places}));
  context.observe("output", velocity);
}

}  // namespace weft
