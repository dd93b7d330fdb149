#include "models/krea2/transformer.h"

#include <algorithm>
#include <cmath>

#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/krea2/names.h"

namespace weft {

namespace {

// The rows of a block's modulation, and of the sum with its table.
enum Krea2Modulation {
  kAttentionScale,
  kAttentionShift,
  kAttentionGate,
  kFeedForwardScale,
  kFeedForwardShift,
  kFeedForwardGate,
  kModulationRows
};

// Checks the file's tensors, with either names, and finds the part of each that the slice holds.
CheckpointPart checked_tensors(const TensorFile& file, const Krea2Config& config,
                               const TransformerLoad& load) {
  const bool original = has_original_krea2_names(file);
  WeightBinder binder(file, "transformer");
  CheckpointPart tensors(file, load.weights, load.resident > 0);
  for (const TensorSpec& tensor : krea2_tensors(config)) {
    const std::string name = original ? krea2_original_name(tensor.name) : tensor.name;
    std::vector<int64_t> shape = tensor.shape;
    TensorPart part = krea2_part(config, tensor, load.width);
    // The tables of blocks are one row in single files.
    if (original && shape[0] == kModulationRows && tensor.name.ends_with("scale_shift_table")) {
      shape = {shape[0] * shape[1]};
      part = {.dim = 0, .range = {0, shape[0]}};
    }
    binder.take(name, shape);
    tensors.add(tensor.name, name, part, shape);
  }
  binder.finish();
  return tensors;
}

// Returns a vector of the file plus one.
Tensor one_more(Stream& stream, const CheckpointPart& tensors, const std::string& name) {
  Stream host = host_stream(stream);
  const HeldWeight weight = tensors.held(stream, name);
  Tensor out(DType::kF32, {weight.view().count()}, host.device());
  const Tensor ones(DType::kF32, {out.count()}, host.device());
  copy(host, weight.view().reshape({out.count()}), out);
  make_on_host(host, ones,
               [](const TensorView& to) { std::fill_n(to.as<float>(), to.count(), 1.0f); });
  add(host, out, ones, out);
  return on_device(stream, std::move(out));
}

// Returns the factors [1, n] of a file as rows [n, columns] of equal values.
Tensor rows_of_factors(Stream& stream, const CheckpointPart& tensors, const std::string& name,
                       int64_t columns) {
  Stream host = host_stream(stream);
  const HeldWeight weight = tensors.held(stream, name);
  TensorView factors = weight.view().reshape({weight.view().count(), 1});
  Tensor out(DType::kF32, {factors[0], columns}, host.device());
  factors.extent[1] = columns;
  factors.stride[1] = 0;
  copy(host, factors, out);
  return on_device(stream, std::move(out));
}

// `name` begins the names of the block's tensors.
Krea2Block load_krea2_block(Stream& stream, const CheckpointPart& tensors,
                            const TransformerLoad& load, const std::string& name) {
  if (load.resident > 0) tensors.read_ahead(stream, name);
  const std::string attention = name + "attn.";
  const auto linear = [&](const std::string& part) {
    return tensors.linear(stream, name + part, load.dtype, load.weights);
  };
  const auto row_linear = [&](const std::string& part) {
    return tensors.row_linear(stream, name + part, load.dtype, load.weights);
  };
  Krea2Block block{.norm1 = one_more(stream, tensors, name + "norm1.weight"),
                   .norm2 = one_more(stream, tensors, name + "norm2.weight"),
                   .heads = load_heads(stream, tensors,
                                       {attention + "to_q", attention + "to_k", attention + "to_v",
                                        attention + "norm_q", attention + "norm_k"},
                                       load.dtype, load.weights),
                   .to_gate = linear("attn.to_gate"),
                   .to_out = row_linear("attn.to_out.0"),
                   .gate = linear("ff.gate"),
                   .up = linear("ff.up"),
                   .down = row_linear("ff.down"),
                   .table = {}};
  block.heads.norm_q = one_more(stream, tensors, attention + "norm_q.weight");
  block.heads.norm_k = one_more(stream, tensors, attention + "norm_k.weight");
  if (name.starts_with("transformer_blocks.")) {
    const HeldWeight table = tensors.held(stream, name + "scale_shift_table");
    block.table =
        f32_copy(stream, table.view(), {kModulationRows, table.view().count() / kModulationRows});
  }
  return block;
}

// Its bf16 would err as much as that of all other blocks, and it runs once.
Krea2Fusion load_fusion(Stream& stream, const CheckpointPart& tensors, const Krea2Config& config) {
  const TransformerLoad load{.dtype = DType::kF32};
  Krea2Fusion fusion{.tap_blocks = {},
                     .refiner_blocks = {},
                     .projector = rows_of_factors(stream, tensors, "text_fusion.projector.weight",
                                                  config.text_dim),
                     .norm = one_more(stream, tensors, "txt_in.norm.weight"),
                     .linear_1 = tensors.linear(stream, "txt_in.linear_1", load.dtype),
                     .linear_2 = tensors.linear(stream, "txt_in.linear_2", load.dtype)};
  const auto blocks = [&](std::vector<Krea2Block>& list, const std::string& name, int count) {
    for (int i = 0; i < count; ++i)
      list.push_back(load_krea2_block(
          stream, tensors, load, "text_fusion." + name + "_blocks." + std::to_string(i) + "."));
  };
  blocks(fusion.tap_blocks, "layerwise", config.tap_blocks);
  blocks(fusion.refiner_blocks, "refiner", config.refiner_blocks);
  return fusion;
}

}  // namespace

Krea2Transformer Krea2Transformer::load(Stream& stream, const TensorFile& file,
                                        const Krea2Config& config, const TransformerLoad& load) {
  Krea2Transformer model;
  model.set_load(config, load);
  const BlockRange& blocks = model.load_.blocks;
  const CheckpointPart tensors = checked_tensors(file, config, load);
  model.time_ = load_embedder(stream, tensors, "time_embed");
  model.time_mod_ = tensors.linear(stream, "time_mod_proj", DType::kF32);
  if (blocks.first()) {
    model.img_in_ = tensors.linear(stream, "img_in", DType::kF32);
    model.fusion_ = load_fusion(stream, tensors, config);
  }
  model.load_blocks(stream, [tensors, how = model.load_](Stream& own, int index) {
    return load_krea2_block(own, tensors, how, "transformer_blocks." + std::to_string(index) + ".");
  });
  if (blocks.last()) {
    model.final_table_ = tensors.table(stream, "final_layer.scale_shift_table");
    model.final_norm_ = one_more(stream, tensors, "final_layer.norm.weight");
    model.final_out_ = tensors.linear(stream, "final_layer.linear", DType::kF32);
  }
  return model;
}

size_t Krea2Transformer::weights_bytes() const {
  return blocks_bytes() + time_.bytes() + fusion_.bytes() +
         bytes_of(std::tie(img_in_, time_mod_, final_table_, final_norm_, final_out_));
}

std::unique_ptr<Conditioning> Krea2Transformer::prepare(Context& context,
                                                        const Conditions& conditions,
                                                        std::array<int64_t, 3>) const {
  const TensorView& text = conditions.text;
  CHECK(text.rank == 2 && text[1] == traits_.text_columns && text[0] > 0, text.to_string_shape());
  check_reducer(context);
  auto prepared = std::make_unique<Krea2Prompt>();
  prepared->count = text[0];
  if (!load_.blocks.first()) return prepared;
  prepared->rows = Tensor(DType::kF32, {text[0], config_.width()}, context.stream.device());
  fuse(context, text, prepared->rows);
  context.observe("context", prepared->rows);
  return prepared;
}

void Krea2Transformer::forward(Context& context, const ForwardArgs& args) const {
  const auto& [blocks, in, times, embedding, conditioning, rope, out, hook, signal] = args;
  const auto& prompt = dynamic_cast<const Krea2Prompt&>(conditioning);
  Stream& stream = context.stream;
  const int64_t n = context.tokens.size(), text = prompt.count, d = config_.width();
  check_forward(context, args);
  CHECK(times.size() == 1, "time segments", times.size());

  const Arena::Scope scope(context.arena);
  const TensorView x = blocks.last() ? context.arena.alloc(DType::kF32, {n + text, d}) : out;
  if (blocks.first()) {
    CHECK(in.rank == 2 && in[0] == n && in[1] == config_.patch_dim, in.to_string_shape());
    linear(stream, in, img_in_, LinearActivation::kNone, x.slice(0, 0, n));
    copy(stream, prompt.rows, x.slice(0, n, text));
  } else {
    copy(stream, in, x);
  }
  const TensorView time = embed_time(context, embedding);
  const TensorView modulation = blocks.begin < blocks.end ? modulate(context, time) : TensorView();
  for (int i = blocks.begin; i < blocks.end; ++i) {
    const ZoneScope zone(Zone::kBlock, i);
    with_block(stream, i, [&](const Krea2Block& weights) {
      block(context, weights,
            {.layer = i, .text = text, .rope = args.rope, .modulation = modulation}, x);
    });
    observe_text_first(context, traits_.block_name, i, x);
  }
  if (!blocks.last()) return;
  if (hook) hook(x);
  head(context, time, x.slice(0, 0, n), out);
}

// Returns the vector [1, D] f32 of a timestep, in the arena.
TensorView Krea2Transformer::embed_time(Context& context, const TensorView& embedding) const {
  const TensorView time = context.arena.alloc(DType::kF32, {1, config_.width()});
  const Arena::Scope scope(context.arena);
  const TensorView hidden = context.arena.alloc(DType::kF32, time.shape());
  linear(context.stream, embedding, time_.linear_1, LinearActivation::kGeluTanh, hidden);
  linear(context.stream, hidden, time_.linear_2, LinearActivation::kNone, time);
  return time;
}

// Returns the modulation [6, D] f32 that all blocks share, in the arena.
TensorView Krea2Transformer::modulate(Context& context, const TensorView& time) const {
  Stream& stream = context.stream;
  const TensorView m = context.arena.alloc(DType::kF32, {kModulationRows, config_.width()});
  const Arena::Scope scope(context.arena);
  const TensorView active = context.arena.alloc(DType::kF32, time.shape());
  gelu_tanh(stream, time, active);
  linear(stream, active, time_mod_, LinearActivation::kNone, m.reshape({1, m.count()}));
  return m;
}

// Applies a block to x [n + text, D] f32 in place.
void Krea2Transformer::block(Context& context, const Krea2Block& weights, const Pass& pass,
                             const TensorView& x) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const TensorView m = context.arena.alloc(DType::kF32, pass.modulation.shape());
  add(stream, pass.modulation, weights.table, m);
  const TensorView h = context.arena.alloc(load_.dtype, x.shape());
  const TensorView y = context.arena.alloc(DType::kF32, x.shape());
  modulated_norm(context, x,
                 {weights.norm1, m.select(0, kAttentionScale), m.select(0, kAttentionShift)}, y, h);
  const HeadNorms norms = weights.heads.norms(config_.eps);
  gated_attention(
      context, weights, h,
      [&](const Heads& heads, const TensorView& out) {
        norm_and_attend(context, context.mixer,
                        {.layer = pass.layer,
                         .q = heads.q,
                         .k = heads.k,
                         .v = heads.v,
                         .out = out,
                         .rope = &pass.rope,
                         .scale = 1 / std::sqrt(static_cast<float>(config_.head_dim)),
                         .format = load_.attention,
                         .replicated = pass.text,
                         .norms = norms,
                         .replicated_norms = norms});
      },
      y);
  context.reducer.sum(context, y);
  gated_add(stream, x, y, m.select(0, kAttentionGate), x);
  modulated_norm(context, x,
                 {weights.norm2, m.select(0, kFeedForwardScale), m.select(0, kFeedForwardShift)}, y,
                 h);
  feed_forward(context, weights, h, y);
  context.reducer.sum(context, y);
  gated_add(stream, x, y, m.select(0, kFeedForwardGate), x);
}

// Writes (1 + scale) norm(x) + shift to out. y [.., D] f32 holds values between; it may be out.
void Krea2Transformer::modulated_norm(Context& context, const TensorView& x,
                                      const ModulatedNorm& norm, const TensorView& y,
                                      const TensorView& out) const {
  const Arena::Scope scope(context.arena);
  const TensorView weight = context.arena.alloc(DType::kF32, norm.weight.shape());
  gated_add(context.stream, norm.weight, norm.weight, norm.scale, weight);
  rms_norm(context.stream, x, weight, config_.eps, y);
  add_bias(context.stream, y, norm.shift, out);
}

// Writes this rank's part of the gated attention of h [rows, D] to y f32; h is overwritten.
void Krea2Transformer::gated_attention(Context& context, const Krea2Block& weights,
                                       const TensorView& h, const Attention& attend,
                                       const TensorView& y) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t rows = h[0], columns = weights.heads.columns();
  const TensorView gate = context.arena.alloc(h.dtype, {rows, columns});
  linear(stream, h, weights.to_gate, LinearActivation::kNone, gate);
  const Heads heads = room_for_heads(context, weights.heads, rows);
  project_heads(stream, h, weights.heads, heads);
  const TensorView merged = reuse(h, {rows, columns});
  attend(heads, merged.reshape({rows, heads.q[1], heads.q[2]}));
  sigmoid_mul(stream, gate, merged, merged);
  linear(stream, merged, weights.to_out.packed, LinearActivation::kNone, y);
}

// Writes this rank's part of the feed-forward of h to y [rows, D] f32, some rows at a time. The
// factors of its product are f32, so that bf16 rounds once: guidance makes errors several times as
// large.
void Krea2Transformer::feed_forward(Context& context, const Krea2Block& weights,
                                    const TensorView& h, const TensorView& y) const {
  const Arena::Scope scope(context.arena);
  Stream& stream = context.stream;
  const int64_t chunk = rows_at_once(stream, h[0], {&weights.gate, &weights.down.packed});
  const TensorView gates = context.arena.alloc(DType::kF32, {chunk, weights.gate.out()});
  const TensorView values = context.arena.alloc(DType::kF32, gates.shape());
  for (int64_t begin = 0; begin < h[0]; begin += chunk) {
    const int64_t count = std::min(chunk, h[0] - begin);
    const TensorView rows = h.slice(0, begin, count);
    const TensorView gate = gates.slice(0, 0, count), value = values.slice(0, 0, count);
    linear(stream, rows, weights.gate, LinearActivation::kNone, gate);
    linear(stream, rows, weights.up, LinearActivation::kNone, value);
    silu_mul(stream, gate, value, gate);
    const TensorView hidden(value.data, h.dtype, value.shape(), value.device);
    copy(stream, gate, hidden);
    linear(stream, hidden, weights.down.packed, LinearActivation::kNone, y.slice(0, begin, count));
  }
}

// Writes the velocity of the tokens' rows x [n, D] f32, which are overwritten.
void Krea2Transformer::head(Context& context, const TensorView& time, const TensorView& x,
                            const TensorView& out) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const TensorView m = context.arena.alloc(DType::kF32, {2, config_.width()});
  for (int row = 0; row < 2; ++row)
    add(stream, time.select(0, 0), final_table_.view().select(0, row), m.select(0, row));
  modulated_norm(context, x, {final_norm_, m.select(0, 0), m.select(0, 1)}, x, x);
  linear(stream, x, final_out_, LinearActivation::kNone, out);
}

}  // namespace weft
