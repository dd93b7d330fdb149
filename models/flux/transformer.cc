#include "models/flux/transformer.h"

#include <algorithm>

#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/flux/names.h"

namespace weft {

namespace {

// The name of the second range of a tensor's columns, of which a slice holds two.
std::string second_name(const std::string& name) { return name + ".second"; }

// Checks the file's tensors and finds the part of each that the slice holds.
CheckpointPart checked_tensors(const TensorFile& file, const FluxConfig& config,
                               const TransformerLoad& load) {
  WeightBinder binder(file, "transformer");
  CheckpointPart tensors(file, load.weights, load.resident > 0);
  for (const TensorSpec& tensor : flux_tensors(config)) {
    binder.take(tensor.name, tensor.shape);
    const auto [first, second] = flux_part(config, tensor, load.width);
    tensors.add(tensor.name, tensor.name, first, tensor.shape);
    if (second.range.size() > 0)
      tensors.add(second_name(tensor.name), tensor.name, second, tensor.shape);
  }
  binder.finish();
  return tensors;
}

// Packs a single-stream block's proj_out. Its inputs are the attention's and then the
// feed-forward's hidden columns, and a slice of the width holds a range of either.
RowLinear load_proj_out(Stream& stream, const CheckpointPart& tensors, const TransformerLoad& load,
                        const std::string& name) {
  const HeldWeight first = tensors.held(stream, name + ".weight", load.dtype);
  if (first.whole()) return tensors.row_linear(stream, name, load.dtype, load.weights);
  const HeldWeight second = tensors.held(stream, second_name(name + ".weight"), load.dtype);
  Stream host = host_stream(stream);
  const int64_t columns = first.view()[1], more = second.view()[1];
  const Tensor both(load.dtype, {first.view()[0], columns + more}, host.device());
  copy(host, first.view(), both.view().slice(1, 0, columns));
  copy(host, second.view(), both.view().slice(1, columns, more));
  // The two parts do not lie in a row in the file, so they cannot stay as it stores them.
  const WeightFormat format = rounds_to_8bit(load.weights) ? load.weights : WeightFormat::kCompute;
  return {.packed = pack_linear(stream, both, {}, load.dtype, format),
          .bias = rounded_bias(stream, tensors.held(stream, name + ".bias").view(), load.dtype)};
}

FluxSingleBlock load_single_block(Stream& stream, const CheckpointPart& tensors,
                                  const TransformerLoad& load, const std::string& block) {
  const std::string attention = block + "attn.";
  return {.modulation = tensors.row_linear(stream, block + "norm.linear", load.dtype),
          .heads = load_heads(stream, tensors,
                              {attention + "to_q", attention + "to_k", attention + "to_v",
                               attention + "norm_q", attention + "norm_k"},
                              load.dtype, load.weights),
          .proj_mlp = tensors.linear(stream, block + "proj_mlp", load.dtype, load.weights),
          .proj_out = load_proj_out(stream, tensors, load, block + "proj_out")};
}

}  // namespace

FluxTransformer FluxTransformer::load(Stream& stream, const TensorFile& given,
                                      const FluxConfig& config, const TransformerLoad& load) {
  FluxTransformer model;
  if (std::optional<TensorFile> renamed = with_diffusers_names(given, config))
    model.renamed_ = std::make_shared<const TensorFile>(std::move(*renamed));
  const TensorFile& file = model.renamed_ ? *model.renamed_ : given;
  model.set_load(config, load);
  const BlockRange& blocks = model.load_.blocks;
  const CheckpointPart tensors = checked_tensors(file, config, load);
  const auto embedder = [&](const char* name) {
    return load_embedder(stream, tensors, std::string("time_text_embed.") + name);
  };
  model.time_ = embedder("timestep_embedder");
  if (config.guidance_embeds) model.guidance_ = embedder("guidance_embedder");
  model.pooled_ = embedder("text_embedder");
  if (blocks.first()) {
    model.x_embedder_ = tensors.linear(stream, "x_embedder", DType::kF32);
    model.context_embedder_ = tensors.linear(stream, "context_embedder", load.dtype);
  }
  const auto double_block = [tensors, how = model.load_](Stream& own, int index) {
    const std::string block = "transformer_blocks." + std::to_string(index) + ".";
    if (how.resident > 0) tensors.read_ahead(own, block);
    return DoubleStreamBlock{load_stream(own, tensors, how, block, kFluxLatent),
                             load_stream(own, tensors, how, block, kFluxText)};
  };
  model.load_blocks(stream, double_block, {0, config.double_blocks});
  const auto single_block = [tensors, how = model.load_, first = config.double_blocks](Stream& own,
                                                                                       int index) {
    const std::string block = "single_transformer_blocks." + std::to_string(index - first) + ".";
    if (how.resident > 0) tensors.read_ahead(own, block);
    return load_single_block(own, tensors, how, block);
  };
  model.load_blocks<FluxSingleBlock>(stream, single_block, {config.double_blocks, config.blocks()});
  if (blocks.last()) model.head_ = load_head(stream, tensors);
  return model;
}

size_t FluxTransformer::weights_bytes() const {
  return blocks_bytes() + time_.bytes() + guidance_.bytes() + pooled_.bytes() + head_.bytes() +
         bytes_of(std::tie(x_embedder_, context_embedder_));
}

std::unique_ptr<Conditioning> FluxTransformer::prepare(Context& context,
                                                       const Conditions& conditions,
                                                       std::array<int64_t, 3>) const {
  const TensorView &text = conditions.text, &pooled = conditions.pooled;
  CHECK(text.rank == 2 && text[1] == config_.text_dim && text[0] > 0, text.to_string_shape());
  CHECK(pooled && pooled.count() == config_.pooled_dim, "pooled", pooled.to_string_shape());
  check_reducer(context);
  Stream& stream = context.stream;
  const int64_t d = config_.width();
  auto prepared = std::make_unique<FluxConditioning>();
  prepared->rows = text[0];
  prepared->fixed = Tensor(DType::kF32, {1, d}, stream.device());
  const Arena::Scope scope(context.arena);
  const TensorView vector = embedded(context, pooled_, pooled.reshape({1, config_.pooled_dim}));
  copy(stream, vector, prepared->fixed);
  if (config_.guidance_embeds) {
    const TensorView waves = context.arena.alloc(DType::kF32, {1, traits_.time_columns});
    make_on_host(stream, waves, [&](const TensorView& to) {
      time_embedding(static_cast<float>(1000 * conditions.guidance), to.select(0, 0));
    });
    add(stream, prepared->fixed, embedded(context, guidance_, waves), prepared->fixed);
  }
  if (!load_.blocks.first()) return prepared;
  prepared->text = Tensor(DType::kF32, {text[0], d}, stream.device());
  const TensorView rows = context.arena.alloc(load_.dtype, text.shape());
  copy(stream, text, rows);
  linear(stream, rows, context_embedder_, LinearActivation::kNone, prepared->text);
  return prepared;
}

void FluxTransformer::forward(Context& context, const ForwardArgs& args) const {
  const auto& [blocks, in, times, embedding, conditioning, rope, out, hook, signal] = args;
  const auto& prompt = dynamic_cast<const FluxConditioning&>(conditioning);
  Stream& stream = context.stream;
  const int64_t n = context.tokens.size();
  check_forward(context, args);
  CHECK(times.size() == 1, "time segments", times.size());

  const Arena::Scope scope(context.arena);
  const TensorView x =
      blocks.last() ? context.arena.alloc(DType::kF32, {n + prompt.rows, config_.width()}) : out;
  const TensorView time = embed_time(context, embedding, prompt);
  JointPass pass{.time = active_time(context, time, config_.sizes(), load_),
                 .rope = rope,
                 .text_rope = nullptr,
                 .load = load_};
  if (blocks.first()) {
    CHECK(in.rank == 2 && in[0] == n && in[1] == config_.patch_dim(), in.to_string_shape());
    linear(stream, in, x_embedder_, LinearActivation::kNone, x.slice(0, 0, n));
    copy(stream, prompt.text, x.slice(0, n, prompt.rows));
  } else {
    copy(stream, in, x);
  }
  for (pass.layer = blocks.begin; pass.layer < blocks.end; ++pass.layer) {
    const ZoneScope zone(Zone::kBlock, pass.layer);
    if (pass.layer < config_.double_blocks)
      with_block(stream, pass.layer, [&](const DoubleStreamBlock& weights) {
        double_stream_block(context, weights, pass, x);
      });
    else
      with_block<FluxSingleBlock>(stream, pass.layer, [&](const FluxSingleBlock& weights) {
        single_block(context, weights, pass, x);
      });
    const auto [name, number] = traits_.observed_block(pass.layer);
    observe_text_first(context, name, number, x);
  }
  if (!blocks.last()) return;
  if (hook) hook(x);
  apply_head(context, head_, time, x.slice(0, 0, n), out);
}

TensorView FluxTransformer::embed_time(Context& context, const TensorView& embedding,
                                       const FluxConditioning& prompt) const {
  const TensorView time = embedded(context, time_, embedding);
  add(context.stream, time, prompt.fixed, time);
  return time;
}

// Applies a single-stream block to x [n + T, D] f32 in place. The feed-forward runs beside the
// attention, and both end in one matrix, some rows at a time.
void FluxTransformer::single_block(Context& context, const FluxSingleBlock& weights,
                                   const JointPass& pass, const TensorView& x) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t rows = x[0], inner = weights.heads.columns(), ffn = weights.proj_mlp.out();
  const TensorView m = modulation_of(context, weights.modulation, pass, x[1]);
  const TensorView h = context.arena.alloc(load_.dtype, {rows, x[1]});
  const int64_t chunk = rows_at_once(stream, rows, {&weights.proj_mlp, &weights.proj_out.packed});
  const TensorView both = context.arena.alloc(load_.dtype, {chunk, inner + ffn});
  // proj_out reads the attention from where it was written if all rows are one piece.
  const bool whole = chunk == rows;
  const TensorView merged =
      whole ? both.slice(1, 0, inner) : context.arena.alloc(load_.dtype, {rows, inner});
  modulated_layer_norm(stream, x, m.select(0, kScaleRow), m.select(0, kShiftRow), kDoubleStreamEps,
                       h);
  attend(context, weights, pass, h, merged);
  const TensorView y = context.arena.alloc(DType::kF32, {chunk, x[1]});
  for (int64_t begin = 0; begin < rows; begin += chunk) {
    const int64_t count = std::min(chunk, rows - begin);
    const TensorView part = both.slice(0, 0, count), sum = y.slice(0, 0, count);
    if (!whole) copy(stream, merged.slice(0, begin, count), part.slice(1, 0, inner));
    linear(stream, h.slice(0, begin, count), weights.proj_mlp, LinearActivation::kGeluTanh,
           part.slice(1, inner, ffn));
    row_linear(context, part, weights.proj_out, sum);
    const TensorView own = x.slice(0, begin, count);
    gated_add(stream, own, sum, m.select(0, kGateRow), own);
  }
}

// Writes the attention of h [n + T, D] to merged [n + T, D part], whose rows may be strided.
void FluxTransformer::attend(Context& context, const FluxSingleBlock& weights,
                             const JointPass& pass, const TensorView& h,
                             const TensorView& merged) const {
  const Arena::Scope scope(context.arena);
  const Heads heads = room_for_heads(context, weights.heads, h[0]);
  project_heads(context.stream, h, weights.heads, heads);
  TensorView out(merged.data, merged.dtype, heads.q.shape(), merged.device);
  out.stride[0] = merged.stride[0];
  attend_jointly(context, pass, heads, weights.heads, weights.heads, out);
}

}  // namespace weft
