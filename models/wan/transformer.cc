#include "models/wan/transformer.h"

#include <algorithm>
#include <cmath>

#include "kernels/meter.h"
#include "models/wan/names.h"

namespace weft {

namespace {

// Rows of the modulation tables (Wan's order: shift, scale, gate, for attention and feed-forward).
enum Modulation { kShift = 0, kScale = 1, kGate = 2, kAttention = 0, kFeedForward = 3 };

WanBlock load_block(Stream& stream, const CheckpointPart& tensors, const TransformerLoad& load,
                    int index, bool image_keys) {
  const std::string name = "blocks." + std::to_string(index) + ".";
  if (load.resident > 0) tensors.read_ahead(stream, name);
  const auto linear = [&](const std::string& part) {
    return tensors.linear(stream, name + part, load.dtype, load.weights);
  };
  const auto row_linear = [&](const std::string& part) {
    return tensors.row_linear(stream, name + part, load.dtype, load.weights);
  };
  const auto vector = [&](const std::string& part) { return tensors.vector(stream, name + part); };
  const auto attention = [&](const std::string& part) {
    return WanBlock::Attention{.to_q = linear(part + "to_q"),
                               .to_k = linear(part + "to_k"),
                               .to_v = linear(part + "to_v"),
                               .to_out = row_linear(part + "to_out.0"),
                               .norm_q = vector(part + "norm_q.weight"),
                               .norm_k = vector(part + "norm_k.weight")};
  };
  return {.scale_shift_table = tensors.table(stream, name + "scale_shift_table"),
          .attn1 = attention("attn1."),
          .norm2_weight = vector("norm2.weight"),
          .norm2_bias = vector("norm2.bias"),
          .attn2 = attention("attn2."),
          .image_keys = image_keys
                            ? WanBlock::ImageKeys{.add_k = linear("attn2.add_k_proj"),
                                                  .add_v = linear("attn2.add_v_proj"),
                                                  .norm = vector("attn2.norm_added_k.weight")}
                            : WanBlock::ImageKeys{},
          .ffn_in = linear("ffn.net.0.proj"),
          .ffn_out = row_linear("ffn.net.2")};
}

}  // namespace

CheckpointPart checked_wan_tensors(const TensorFile& file, const WanConfig& config,
                                   const TransformerLoad& load, const std::vector<TensorSpec>& list,
                                   const std::function<TensorPart(const TensorSpec&)>& part) {
  const WanNames names = detect_wan_names(file);
  WeightBinder binder(file, "transformer", names);
  // Checkpoints that old diffusers versions saved contain a norm that the model does not use.
  for (int i = 0; i < config.layers; ++i)
    binder.ignore(names("blocks." + std::to_string(i) + ".attn2.norm_added_q.weight"));
  CheckpointPart tensors(file, load.weights, load.resident > 0);
  for (const TensorSpec& tensor : list) {
    binder.take(tensor.name, tensor.shape);
    tensors.add(tensor.name, names(tensor.name), part(tensor), tensor.shape);
  }
  binder.finish();
  return tensors;
}

size_t WanText::bytes() const {
  size_t bytes = context.view().bytes();
  for (const auto* list : {&k, &v, &image_k, &image_v})
    for (const Tensor& x : *list) bytes += x.view().bytes();
  return bytes + bytes_of(std::tie(image_context, channels, joint.temb, joint.proj)) +
         bytes_of(joint.positions);
}

WanTransformer WanTransformer::load(Stream& stream, const TensorFile& file, const WanConfig& config,
                                    const TransformerLoad& load) {
  WanTransformer model;
  model.set_load(config, load);
  const CheckpointPart tensors = checked_wan_tensors(
      file, config, load, wan_tensors(config),
      [&](const TensorSpec& tensor) { return wan_part(config, tensor, load.width); });
  model.load_parts(stream, tensors, config, load);
  return model;
}

void WanTransformer::load_parts(Stream& stream, const CheckpointPart& tensors,
                                const WanConfig& config, const TransformerLoad& load) {
  const BlockRange& blocks = load_.blocks;
  const DType dtype = load.dtype, f32 = DType::kF32;
  const std::string embedder = "condition_embedder.";
  if (blocks.first() || blocks.last())
    patch_embedding_ = tensors.linear(stream, "patch_embedding", f32);
  time_linear_1_ = tensors.linear(stream, embedder + "time_embedder.linear_1", f32);
  time_linear_2_ = tensors.linear(stream, embedder + "time_embedder.linear_2", f32);
  time_proj_ = tensors.linear(stream, embedder + "time_proj", f32);
  if (config.audio_dim) {
    audio_linear_1_ = tensors.linear(stream, embedder + "audio_embedder.linear_1", f32);
    audio_linear_2_ = tensors.linear(stream, embedder + "audio_embedder.linear_2", f32);
  }
  text_linear_1_ = tensors.linear(stream, embedder + "text_embedder.linear_1", dtype);
  text_linear_2_ = tensors.linear(stream, embedder + "text_embedder.linear_2", dtype);
  if (config.image_dim) load_image_embedder(stream, tensors);
  load_blocks(stream,
              [tensors, how = load_, image_keys = config.image_keys](Stream& own, int index) {
                return load_block(own, tensors, how, index, image_keys);
              });
  if (blocks.last()) {
    scale_shift_table_ = tensors.table(stream, "scale_shift_table");
    proj_out_ = tensors.linear(stream, "proj_out", f32);
  }
}

size_t WanTransformer::weights_bytes() const {
  return blocks_bytes() + bytes_of(image_.weights()) +
         bytes_of(std::tie(patch_embedding_, time_linear_1_, time_linear_2_, time_proj_,
                           audio_linear_1_, audio_linear_2_, text_linear_1_, text_linear_2_,
                           scale_shift_table_, proj_out_));
}

std::unique_ptr<Conditioning> WanTransformer::prepare(Context& context,
                                                      const Conditions& conditions,
                                                      std::array<int64_t, 3>) const {
  auto prepared = std::make_unique<WanText>();
  prepare_text(context, conditions, *prepared);
  return prepared;
}

void WanTransformer::prepare_text(Context& context, const Conditions& conditions,
                                  WanText& text) const {
  const TensorView& embeds = conditions.text;
  const int64_t text_length = conditions.text_length;
  CHECK(embeds.rank == 2 && embeds[1] == config_.text_dim && embeds[0] <= text_length &&
            text_length > 0,
        "embeds", embeds.to_string_shape(), "text length", text_length);
  check_reducer(context);
  check_given(conditions);
  Stream& stream = context.stream;
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

  if (conditions.image) embed_image(context, conditions.image, text);
  if (conditions.channels && load_.blocks.first()) {
    text.channels = Tensor(DType::kF32, conditions.channels.shape(), stream.device());
    copy(stream, conditions.channels, text.channels);
  }

  for (int i = load_.blocks.begin; i < load_.blocks.end; ++i)
    with_block(stream, i, [&](const WanBlock& block) { add_keys(context, block, text); });

  if (context.observer) {
    const TensorView all = context.arena.alloc(DType::kF32, {text_length, d});
    copy(stream, text.context.view().slice(0, 0, text.length), all.slice(0, 0, text.length));
    for (int64_t row = text.length; row < text_length; ++row)
      copy(stream, text.context.view().slice(0, text.length, 1), all.slice(0, row, 1));
    context.observe("context", all);
  }
}

void WanTransformer::forward(Context& context, const ForwardArgs& args) const {
  forward_with(context, args, {});
}

void WanTransformer::forward_with(Context& context, const ForwardArgs& args,
                                  const Additions& additions) const {
  const auto& [blocks, in, times, embedding, conditioning, rope, out, hook, signal] = args;
  const auto& text = dynamic_cast<const WanText&>(conditioning);
  const int64_t n = context.tokens.size(), d = config_.width();
  check_forward(context, args);
  CHECK(int(text.k.size()) == load_.blocks.end - load_.blocks.begin, "text of", text.k.size(),
        "layers for blocks", load_.blocks.begin, load_.blocks.end);

  Arena::Scope scope(context.arena);
  const TensorView x =
      blocks.last() ? context.arena.alloc(DType::kF32, {n + text.joint.rows, d}) : out;
  if (blocks.first()) {
    embed_patches(context, in, text, x.slice(0, 0, n));
    if (additions.embedded) additions.embedded(x);
  } else {
    copy(context.stream, in, x);
  }
  const std::vector<TimeRows> rows = embed_times(context, args, text.joint);
  for (int i = blocks.begin; i < blocks.end; ++i) {
    with_block(context.stream, i, [&](const WanBlock& weights) {
      block(context, i, weights, {.times = rows, .text = text, .rope = args.rope}, x);
    });
    if (additions.after_block) additions.after_block(i, rows, x);
    context.observe("blocks", x, i);
  }
  if (!blocks.last()) return;
  if (hook) hook(x);
  head(context, {rows.data(), rows.size() - (text.joint.rows > 0)}, x.slice(0, 0, n), out);
}

// The given channels follow the latent's, and channels are slowest within a row.
void WanTransformer::embed_patches(Context& context, const TensorView& rows, const WanText& text,
                                   const TensorView& x) const {
  Arena::Scope scope(context.arena);
  TensorView all = rows;
  if (text.channels) {
    const int64_t own = rows[1], columns = patch_embedding_.in();
    all = context.arena.alloc(DType::kF32, {rows[0], columns});
    copy(context.stream, rows, all.slice(1, 0, own));
    patchify(context.stream, text.channels, config_.patch, context.tokens,
             all.slice(1, own, columns - own));
  }
  linear(context.stream, all, patch_embedding_, LinearActivation::kNone, x);
  context.observe("patch_embedding", x);
}

void WanTransformer::embed_timesteps(Context& context, const TensorView& embedding,
                                     const TensorView& signal, const TensorView& temb,
                                     const TensorView& proj) const {
  Stream& stream = context.stream;
  Arena::Scope scope(context.arena);
  const int64_t s = temb[0], d = temb[1];
  const TensorView hidden = context.arena.alloc(DType::kF32, {s, d});
  const TensorView active = context.arena.alloc(DType::kF32, {s, d});
  linear(stream, embedding, time_linear_1_, LinearActivation::kSilu, hidden);
  linear(stream, hidden, time_linear_2_, LinearActivation::kNone, temb);
  if (config_.audio_dim) {
    linear(stream, signal, audio_linear_1_, LinearActivation::kSilu, hidden);
    linear(stream, hidden, audio_linear_2_, LinearActivation::kNone, active);
    add(stream, temb, active, temb);
  }
  silu(stream, temb, active);
  linear(stream, active, time_proj_, LinearActivation::kNone, proj.reshape({s, 6 * d}));
}

// The joint rows come last.
std::vector<WanTransformer::TimeRows> WanTransformer::embed_times(Context& context,
                                                                  const ForwardArgs& args,
                                                                  const WanJointRows& joint) const {
  const std::span<const TimeSegment> times = args.times;
  const int64_t s = static_cast<int64_t>(times.size()), d = config_.width();
  const TensorView temb = context.arena.alloc(DType::kF32, {s, d});
  const TensorView proj = context.arena.alloc(DType::kF32, {s, 6, d});
  embed_timesteps(context, args.embedding, args.signal, temb, proj);
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
                      .segment = i,
                      .temb = temb.select(0, i),
                      .proj = proj.select(0, i)});
      covered += end - begin;
    }
    first += range.size();
  }
  CHECK(covered == context.tokens.size(), "time segments cover", covered, "of",
        context.tokens.size(), "tokens");
  if (joint.rows > 0)
    rows.push_back({.rows = {first, first + joint.rows},
                    .segment = -1,
                    .temb = joint.temb,
                    .proj = joint.proj});
  return rows;
}

namespace {

// Calls run(modulation [6, D], rows) for each time, where rows(view) are its rows of a view.
template <class Times, class Run>
void for_times(const Times& times, const TensorView& m, Run&& run) {
  for (size_t i = 0; i < times.size(); ++i) {
    const Range own = times[i].rows;
    run(m.select(0, static_cast<int64_t>(i)),
        [&](const TensorView& view) { return view.slice(0, own.begin, own.size()); });
  }
}

}  // namespace

// Applies one transformer block (Wan Team 2025, figure 10) to x [N, D] f32 in place.
void WanTransformer::block(Context& context, int index, const WanBlock& weights,
                           const BlockInputs& inputs, const TensorView& x) const {
  const ZoneScope zone(Zone::kBlock, index);
  const auto& times = inputs.times;
  Stream& stream = context.stream;
  Arena::Scope scope(context.arena);
  const int64_t s = static_cast<int64_t>(times.size());
  const TensorView m = context.arena.alloc(DType::kF32, {s, 6, x[1]});
  const TensorView h = context.arena.alloc(load_.dtype, {x[0], x[1]});
  const TensorView y = context.arena.alloc(DType::kF32, {x[0], x[1]});
  for (int64_t i = 0; i < s; ++i)
    add(stream, weights.scale_shift_table, times[i].proj, m.select(0, i));

  const auto modulated_norm = [&](int part) {
    for_times(times, m, [&](const TensorView& table, const auto& rows) {
      modulated_layer_norm(stream, rows(x), table.select(0, part + kScale),
                           table.select(0, part + kShift), config_.eps, rows(h));
    });
  };
  modulated_norm(kAttention);
  self_attention(context, index, weights.attn1, inputs, h, y);
  const LayerNorm norm2{
      .weight = weights.norm2_weight, .bias = weights.norm2_bias, .eps = config_.eps};
  for_times(times, m, [&](const TensorView& table, const auto& rows) {
    gated_add_norm(stream, rows(x), rows(y), table.select(0, kAttention + kGate), norm2, rows(h));
  });
  cross_attention(context, index, weights.attn2, inputs.text, h, x);
  modulated_norm(kFeedForward);
  feed_forward(context, weights, h, y);
  for_times(times, m, [&](const TensorView& table, const auto& rows) {
    gated_add(stream, rows(x), rows(y), table.select(0, kFeedForward + kGate), rows(x));
  });
}

// Writes the self-attention of h [N, D] to y [N, D] f32; h is overwritten.
void WanTransformer::self_attention(Context& context, int index, const Attention& weights,
                                    const BlockInputs& inputs, const TensorView& h,
                                    const TensorView& y) const {
  Arena::Scope scope(context.arena);
  const int64_t n = h[0], width = weights.to_q.out(), e = config_.head_dim, a = width / e;
  const TensorView q = context.arena.alloc(load_.dtype, {n, width});
  const TensorView k = context.arena.alloc(load_.dtype, {n, width});
  const TensorView v = context.arena.alloc(load_.dtype, {n, width});
  linear(context.stream, h, weights.to_q, LinearActivation::kNone, q);
  linear(context.stream, h, weights.to_k, LinearActivation::kNone, k);
  linear(context.stream, h, weights.to_v, LinearActivation::kNone, v);
  // The norm is that of all heads, which ranks may share.
  HeadNorms norms;
  if (context.reducer.parts() == 1) {
    norms = {.q = weights.norm_q, .k = weights.norm_k, .eps = config_.eps};
  } else {
    full_rms_norm(context, q, config_.width(), weights.norm_q, config_.eps);
    full_rms_norm(context, k, config_.width(), weights.norm_k, config_.eps);
  }
  const TensorView merged = reuse(h, {n, width});
  norm_and_attend(context, context.mixer,
                  {.layer = index,
                   .q = q.reshape({n, a, e}),
                   .k = k.reshape({n, a, e}),
                   .v = v.reshape({n, a, e}),
                   .out = merged.reshape({n, a, e}),
                   .rope = &inputs.rope,
                   .scale = 1 / std::sqrt(static_cast<float>(e)),
                   .format = load_.attention,
                   .replicated = inputs.text.joint.rows,
                   .replicated_rope = &inputs.text.joint.positions,
                   .norms = norms,
                   .replicated_norms = norms});
  row_linear(context, merged, weights.to_out, y);
}

// Adds the cross-attention of h [N, D] over the prompt to x [N, D] f32. The models were trained to
// attend to the padding rows, too. These are equal, so one key stands for all of them, with the
// logarithm of their number as bias.
void WanTransformer::cross_attention(Context& context, int index, const Attention& weights,
                                     const WanText& text, const TensorView& h,
                                     const TensorView& x) const {
  Arena::Scope scope(context.arena);
  const int64_t n = h[0], width = weights.to_q.out(), e = config_.head_dim, a = width / e;
  const TensorView q = context.arena.alloc(load_.dtype, {n, width});
  linear(context.stream, h, weights.to_q, LinearActivation::kNone, q);
  full_rms_norm(context, q, config_.width(), weights.norm_q, config_.eps);

  const TensorView& k = text.k[index - load_.blocks.begin];
  const TensorView& v = text.v[index - load_.blocks.begin];
  const int64_t length = text.length, pads = text.text_length - length;
  std::vector<KVSegment> segments;
  const bool image = !text.image_k.empty();
  const TensorView image_k = image ? text.image_k[index - load_.blocks.begin].view() : TensorView();
  const TensorView image_v = image ? text.image_v[index - load_.blocks.begin].view() : TensorView();
  if (image && !config_.image_keys) segments.push_back({.k = image_k, .v = image_v});
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
  if (image && config_.image_keys)
    add_attention(context, q.reshape({n, a, e}), {.k = image_k, .v = image_v}, merged);
  row_linear_add(context, merged, weights.to_out, x);
}

// Writes W2 gelu(W1 h + b1) + b2 to y [N, D] f32, some rows at a time.
void WanTransformer::feed_forward(Context& context, const WanBlock& weights, const TensorView& h,
                                  const TensorView& y) const {
  Arena::Scope scope(context.arena);
  const int64_t n = h[0];
  const int64_t chunk = rows_at_once(context.stream, n, {&weights.ffn_in, &weights.ffn_out.packed});
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
