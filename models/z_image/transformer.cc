#include "models/z_image/transformer.h"

#include <algorithm>
#include <cmath>

#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/z_image/names.h"

namespace weft {

namespace {

// The parts of a block's modulation, in the order of its rows.
enum Modulation { kAttentionScale, kAttentionGate, kFfnScale, kFfnGate };

// Returns `vector` [D] as `count` equal rows.
TensorView repeated(const TensorView& vector, int64_t count) {
  TensorView rows = vector.reshape({1, vector.count()});
  rows.extent[0] = count;
  rows.stride[0] = 0;
  return rows;
}

// Checks the file's tensors and finds the part of each that the slice holds.
CheckpointPart checked_tensors(const TensorFile& file, const ZImageConfig& config,
                               const TransformerLoad& load) {
  const ZImageNames names = detect_z_image_names(file);
  WeightBinder binder(file, "transformer");
  binder.ignore("norm_final.weight");  // some files hold it, no model uses it
  CheckpointPart tensors(file, load.weights, load.resident > 0);
  for (const TensorSpec& tensor : z_image_tensors(config))
    tensors.take(binder, tensor, names(tensor.name), z_image_part(config, tensor, load.width));
  binder.finish();
  return tensors;
}

// Packs the layer whose inputs (dimension 1) or outputs (dimension 0) are a patch's values. The
// file has them with C fastest, the rows of a latent with C slowest.
PackedLinear patch_linear(Stream& stream, const CheckpointPart& tensors, const ZImageConfig& config,
                          const std::string& name, int dim) {
  const HeldWeight weight = tensors.held(stream, name + ".weight"),
                   bias = tensors.held(stream, name + ".bias");
  const int64_t channels = config.in_channels, places = config.patch_dim() / channels;
  const auto channels_first = [&](const TensorView& from, int at) {
    Stream host = host_stream(stream);
    Tensor to(DType::kF32, from.shape(), host.device());
    for (int64_t c = 0; c < channels; ++c)
      for (int64_t i = 0; i < places; ++i)
        copy(host, from.slice(at, i * channels + c, 1), to.view().slice(at, c * places + i, 1));
    return to;
  };
  const Tensor ordered = channels_first(weight.view(), dim);
  if (dim == 1) return pack_linear(stream, ordered, bias.view(), DType::kF32);
  return pack_linear(stream, ordered, channels_first(bias.view(), 0), DType::kF32);
}

ZImageBlock load_block(Stream& stream, const CheckpointPart& tensors, const TransformerLoad& load,
                       const std::string& name) {
  if (load.resident > 0) tensors.read_ahead(stream, name);
  const auto linear = [&](const char* part) {
    return tensors.linear(stream, name + part, load.dtype, load.weights);
  };
  const auto row_linear = [&](const char* part) {
    return tensors.row_linear(stream, name + part, load.dtype, load.weights);
  };
  const auto vector = [&](const char* part) { return tensors.vector(stream, name + part); };
  const std::string attention = name + "attention.";
  return {.attention_norm1 = vector("attention_norm1.weight"),
          .attention_norm2 = vector("attention_norm2.weight"),
          .ffn_norm1 = vector("ffn_norm1.weight"),
          .ffn_norm2 = vector("ffn_norm2.weight"),
          .heads = load_heads(stream, tensors,
                              {attention + "to_q", attention + "to_k", attention + "to_v",
                               attention + "norm_q", attention + "norm_k"},
                              load.dtype, load.weights),
          .to_out = row_linear("attention.to_out.0"),
          .w1 = linear("feed_forward.w1"),
          .w3 = linear("feed_forward.w3"),
          .w2 = row_linear("feed_forward.w2"),
          .modulation = name.starts_with("context_refiner")
                            ? PackedLinear()
                            : tensors.linear(stream, name + "adaLN_modulation.0", DType::kF32)};
}

}  // namespace

size_t ZImageConditioning::bytes() const { return bytes_of(caption) + bytes_of(positions); }

ZImageTransformer ZImageTransformer::load(Stream& stream, const TensorFile& file,
                                          const ZImageConfig& config, const TransformerLoad& load) {
  ZImageTransformer model;
  model.set_load(config, load);
  const BlockRange& blocks = model.load_.blocks;
  const CheckpointPart tensors = checked_tensors(file, config, load);
  const auto block = [tensors, how = model.load_](Stream& own, const std::string& name, int index) {
    return load_block(own, tensors, how, name + "." + std::to_string(index) + ".");
  };
  model.time_linear_1_ = tensors.linear(stream, "t_embedder.mlp.0", DType::kF32);
  model.time_linear_2_ = tensors.linear(stream, "t_embedder.mlp.2", DType::kF32);
  const std::string patch = std::to_string(config.patch[1]) + "-" + std::to_string(config.patch[0]);
  if (blocks.first()) {
    model.x_embedder_ = patch_linear(stream, tensors, config, "all_x_embedder." + patch, 1);
    model.caption_norm_ = tensors.vector(stream, "cap_embedder.0.weight");
    model.caption_embedder_ = tensors.linear(stream, "cap_embedder.1", load.dtype);
    model.x_pad_ = tensors.vector(stream, "x_pad_token");
    model.caption_pad_ = tensors.vector(stream, "cap_pad_token");
    for (int i = 0; i < config.refiner_layers; ++i) {
      model.noise_refiner_.push_back(block(stream, "noise_refiner", i));
      model.context_refiner_.push_back(block(stream, "context_refiner", i));
    }
  }
  model.load_blocks(stream,
                    [block](Stream& own, int index) { return block(own, "layers", index); });
  if (blocks.last()) {
    const std::string final = "all_final_layer." + patch + ".";
    model.final_modulation_ = tensors.linear(stream, final + "adaLN_modulation.1", DType::kF32);
    model.final_linear_ = patch_linear(stream, tensors, config, final + "linear", 0);
  }
  return model;
}

size_t ZImageTransformer::weights_bytes() const {
  size_t total =
      blocks_bytes() +
      bytes_of(std::tie(x_embedder_, time_linear_1_, time_linear_2_, caption_norm_,
                        caption_embedder_, x_pad_, caption_pad_, final_modulation_, final_linear_));
  for (const std::vector<ZImageBlock>* list : {&noise_refiner_, &context_refiner_})
    for (const ZImageBlock& block : *list) total += bytes_of(block.weights());
  return total;
}

std::unique_ptr<Conditioning> ZImageTransformer::prepare(Context& context,
                                                         const Conditions& conditions,
                                                         std::array<int64_t, 3> grid) const {
  const TensorView& embeds = conditions.text;
  const int64_t length = embeds[0];
  CHECK(embeds.rank == 2 && embeds[1] == config_.caption_dim && length > 0, "embeds",
        embeds.to_string_shape());
  check_reducer(context);
  Stream& stream = context.stream;
  auto prepared = std::make_unique<ZImageConditioning>();
  const int64_t rows = prepared->rows = length + z_image_pads(length);
  prepared->pads = z_image_pads(grid[0] * grid[1] * grid[2]);
  // The caption's positions count from 1 on; the image is at the one after them.
  if (rows + 1 >= config_.axes_lens[0])
    throw Error(ErrorKind::kUsage, "a prompt of " + std::to_string(length) +
                                       " tokens is too long for this model (legal: fewer than " +
                                       std::to_string(config_.axes_lens[0] - 1) +
                                       ", rounded up to a multiple of 32)");
  prepared->positions = on_device(stream, config_.rope({rows, 1, 1}, {1, 0, 0}));
  if (!load_.blocks.first()) return prepared;

  const Arena::Scope scope(context.arena);
  prepared->caption = Tensor(DType::kF32, {rows, config_.dim}, stream.device());
  const TensorView& x = prepared->caption;
  const TensorView normed = rms_normed(context, embeds, caption_norm_, config_.eps, load_.dtype);
  linear(stream, normed, caption_embedder_, LinearActivation::kNone, x.slice(0, 0, length));
  copy(stream, repeated(caption_pad_, rows - length), x.slice(0, length, rows - length));
  // Every rank has all of the caption, so no rank needs another.
  FullMixer mixer;
  Context alone = context;
  alone.tokens = TokenRanges::all(rows);
  for (int i = 0; i < config_.refiner_layers; ++i) {
    block(alone, context_refiner_[i], {},
          {.mixer = mixer, .layer = i, .rope = &prepared->positions}, x);
    context.observe("context_refiner", x, i);
  }
  return prepared;
}

Rope ZImageTransformer::rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start,
                             const Conditioning& conditioning) const {
  for (int axis = 1; axis < 3; ++axis)
    if (start[axis] + grid[axis] > config_.axes_lens[axis])
      throw Error(ErrorKind::kUsage,
                  "a latent of " + std::to_string(grid[1] * config_.patch[1]) + " rows and " +
                      std::to_string(grid[2] * config_.patch[2]) +
                      " columns is too large for this model (legal: at most " +
                      std::to_string(config_.axes_lens[1] * config_.patch[1]) + " rows and " +
                      std::to_string(config_.axes_lens[2] * config_.patch[2]) + " columns)");
  start[0] += 1 + dynamic_cast<const ZImageConditioning&>(conditioning).rows;
  return config_.rope(grid, start);
}

void ZImageTransformer::forward(Context& context, const ForwardArgs& args) const {
  const auto& [blocks, in, times, embedding, conditioning, rope, out, hook, signal] = args;
  const auto& prompt = dynamic_cast<const ZImageConditioning&>(conditioning);
  const int64_t n = context.tokens.size(), joint = prompt.joint_rows();
  check_forward(context, args);
  CHECK(times.size() == 1, "time segments", times.size());
  CHECK(prompt.pads == z_image_pads(context.tokens.total), "padding", prompt.pads, "of",
        context.tokens.total, "tokens");

  const Arena::Scope scope(context.arena);
  const TensorView x =
      blocks.last() ? context.arena.alloc(DType::kF32, {n + joint, config_.dim}) : out;
  const TensorView time = embed_time(context, embedding);
  if (blocks.first())
    embed_image(context, in, time, prompt, rope, x);
  else
    copy(context.stream, in, x);
  for (int i = blocks.begin; i < blocks.end; ++i) {
    const ZoneScope zone(Zone::kBlock, i);
    with_block(context.stream, i, [&](const ZImageBlock& weights) {
      block(context, weights, time,
            {.mixer = context.mixer,
             .layer = config_.refiner_layers + i,
             .rope = &args.rope,
             .replicated = joint,
             .replicated_rope = &prompt.positions},
            x);
    });
    observe_layer(context, i, prompt, x);
  }
  if (!blocks.last()) return;
  if (hook) hook(x);
  head(context, time, x.slice(0, 0, n), out);
}

// Returns the conditioning vector [1, time_dim] f32.
TensorView ZImageTransformer::embed_time(Context& context, const TensorView& embedding) const {
  const TensorView time = context.arena.alloc(DType::kF32, {1, config_.time_dim()});
  const Arena::Scope scope(context.arena);
  const TensorView hidden = context.arena.alloc(DType::kF32, {1, time_linear_1_.out()});
  linear(context.stream, embedding, time_linear_1_, LinearActivation::kSilu, hidden);
  linear(context.stream, hidden, time_linear_2_, LinearActivation::kNone, time);
  return time;
}

// Embeds and refines the image's rows, and writes them, the caption's and the padding rows to x.
void ZImageTransformer::embed_image(Context& context, const TensorView& in, const TensorView& time,
                                    const ZImageConditioning& conditioning, const Rope& rope,
                                    const TensorView& x) const {
  Stream& stream = context.stream;
  const int64_t n = context.tokens.size(), pads = conditioning.pads;
  CHECK(in.rank == 2 && in[0] == n && in[1] == config_.patch_dim(), in.to_string_shape());
  linear(stream, in, x_embedder_, LinearActivation::kNone, x.slice(0, 0, n));
  // The refiner needs the padding rows right after the image's. Later the caption's, which are
  // more than them, come between.
  const TensorView padding = x.slice(0, n, pads);
  copy(stream, repeated(x_pad_, pads), padding);
  const TensorView image = x.slice(0, 0, n + pads);
  for (int i = 0; i < config_.refiner_layers; ++i) {
    block(context, noise_refiner_[i], time,
          {.mixer = context.mixer, .layer = i, .rope = &rope, .replicated = pads}, image);
    context.observe("noise_refiner", image, i);
  }
  copy(stream, padding, x.slice(0, n + conditioning.rows, pads));
  copy(stream, conditioning.caption, x.slice(0, n, conditioning.rows));
}

// Applies one block to x [rows, D] f32 in place. `time` is empty where nothing modulates it.
void ZImageTransformer::block(Context& context, const ZImageBlock& weights, const TensorView& time,
                              const Sequence& sequence, const TensorView& x) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  TensorView m, scaled;  // the four parts of the modulation; the norms' weights with their scales
  if (time) {
    m = context.arena.alloc(DType::kF32, {4, config_.dim});
    scaled = context.arena.alloc(DType::kF32, {2, config_.dim});
    linear(stream, time, weights.modulation, LinearActivation::kNone,
           m.reshape({1, 4 * config_.dim}));
    for (const Modulation gate : {kAttentionGate, kFfnGate})
      tanh(stream, m.select(0, gate), m.select(0, gate));
  }
  const TensorView h = context.arena.alloc(load_.dtype, {x[0], x[1]});
  const TensorView y = context.arena.alloc(DType::kF32, {x[0], x[1]});
  const auto norm = [&](const Tensor& weight, Modulation scale) {
    if (!time) return rms_norm(stream, x, weight, config_.eps, h);
    const TensorView with_scale = scaled.select(0, scale / 2);
    gated_add(stream, weight, weight, m.select(0, scale), with_scale);
    rms_norm(stream, x, with_scale, config_.eps, h);
  };
  const auto residual = [&](const Tensor& weight, Modulation gate) {
    rms_norm(stream, y, weight, config_.eps, y);
    if (time)
      gated_add(stream, x, y, m.select(0, gate), x);
    else
      add(stream, x, y, x);
  };
  norm(weights.attention_norm1, kAttentionScale);
  self_attention(context, weights, sequence, h, y);
  residual(weights.attention_norm2, kAttentionGate);
  norm(weights.ffn_norm1, kFfnScale);
  feed_forward(context, weights, h, y);
  residual(weights.ffn_norm2, kFfnGate);
}

// Writes the self-attention of h [rows, D] to y [rows, D] f32; h is overwritten.
void ZImageTransformer::self_attention(Context& context, const ZImageBlock& weights,
                                       const Sequence& sequence, const TensorView& h,
                                       const TensorView& y) const {
  const Arena::Scope scope(context.arena);
  const Heads heads = room_for_heads(context, weights.heads, h[0]);
  project_heads(context.stream, h, weights.heads, heads);
  const TensorView merged = reuse(h, {h[0], weights.heads.columns()});
  const HeadNorms norms = weights.heads.norms(config_.eps);
  norm_and_attend(context, sequence.mixer,
                  {.layer = sequence.layer,
                   .q = heads.q,
                   .k = heads.k,
                   .v = heads.v,
                   .out = merged.reshape({h[0], heads.q[1], heads.q[2]}),
                   .rope = sequence.rope,
                   .scale = 1 / std::sqrt(static_cast<float>(heads.q[2])),
                   .format = load_.attention,
                   .replicated = sequence.replicated,
                   .replicated_rope = sequence.replicated_rope,
                   .norms = norms,
                   .replicated_norms = norms});
  row_linear(context, merged, weights.to_out, y);
}

// Writes w2 (silu(w1 h) * w3 h) to y [rows, D] f32, some rows at a time.
void ZImageTransformer::feed_forward(Context& context, const ZImageBlock& weights,
                                     const TensorView& h, const TensorView& y) const {
  const Arena::Scope scope(context.arena);
  const int64_t n = h[0];
  const int64_t chunk =
      rows_at_once(context.stream, n, {&weights.w1, &weights.w3, &weights.w2.packed});
  const TensorView gates = context.arena.alloc(load_.dtype, {chunk, weights.w1.out()});
  const TensorView values = context.arena.alloc(load_.dtype, {chunk, weights.w3.out()});
  for (int64_t begin = 0; begin < n; begin += chunk) {
    const int64_t count = std::min(chunk, n - begin);
    const TensorView rows = h.slice(0, begin, count);
    const TensorView gate = gates.slice(0, 0, count), value = values.slice(0, 0, count);
    linear(context.stream, rows, weights.w1, LinearActivation::kNone, gate);
    linear(context.stream, rows, weights.w3, LinearActivation::kNone, value);
    silu_mul(context.stream, gate, value, gate);
    row_linear(context, gate, weights.w2, y.slice(0, begin, count));
  }
}

// Writes the model's output for the image rows x [n, D], which are overwritten.
void ZImageTransformer::head(Context& context, const TensorView& time, const TensorView& x,
                             const TensorView& out) const {
  constexpr float kEps = 1e-6f;  // not the config's
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const TensorView active = context.arena.alloc(DType::kF32, {1, config_.time_dim()});
  const TensorView scale = context.arena.alloc(DType::kF32, {1, config_.dim});
  const TensorView shift = context.arena.alloc(DType::kF32, {config_.dim});
  silu(stream, time, active);
  linear(stream, active, final_modulation_, LinearActivation::kNone, scale);
  fill_zero(stream, shift);
  modulated_layer_norm(stream, x, scale.select(0, 0), shift, kEps, x);
  linear(stream, x, final_linear_, LinearActivation::kNone, out);
}

// Shows the rows in the paper's order: image, its padding, caption.
void ZImageTransformer::observe_layer(Context& context, int index,
                                      const ZImageConditioning& conditioning,
                                      const TensorView& x) const {
  if (!context.observer) return;
  if (!context.observer->in_order()) return context.observe("layers", x, index);
  const Arena::Scope scope(context.arena);
  const int64_t n = context.tokens.size(), captions = conditioning.rows;
  const int64_t pads = x[0] - n - captions;
  const TensorView rows = context.arena.alloc(DType::kF32, {x[0], x[1]});
  copy(context.stream, x.slice(0, 0, n), rows.slice(0, 0, n));
  copy(context.stream, x.slice(0, n + captions, pads), rows.slice(0, n, pads));
  copy(context.stream, x.slice(0, n, captions), rows.slice(0, n + pads, captions));
  context.observe("layers", rows, index);
}

}  // namespace weft
