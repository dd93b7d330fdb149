#include "models/flux2/transformer.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "models/flux2/names.h"

namespace weft {

namespace {

// Checks the file's tensors, with either names, and finds the pieces that the slice holds.
CheckpointPart checked_tensors(const TensorFile& file, const Flux2Config& config,
                               const TransformerLoad& load) {
  const bool original = has_original_flux2_names(file);
  WeightBinder binder(file, "transformer");
  CheckpointPart tensors(file, load.weights, load.resident > 0);
  for (const TensorSpec& tensor : flux2_tensors(config)) {
    const TensorPlace place =
        original ? flux2_original_place(tensor.name) : TensorPlace{.name = tensor.name};
    std::vector<int64_t> shape = tensor.shape;
    shape[0] *= place.parts;
    binder.take(place.name, shape);
    for (Flux2Piece& piece : flux2_pieces(config, tensor, load.width, place.swapped)) {
      if (piece.part.dim == 0) {
        piece.part.range.begin += place.part * tensor.shape[0];
        piece.part.range.end += place.part * tensor.shape[0];
      }
      tensors.add(piece.name, place.name, piece.part, shape);
    }
  }
  binder.finish();
  return tensors;
}

Flux2FeedForward load_feed_forward(Stream& stream, const CheckpointPart& tensors,
                                   const TransformerLoad& load, const std::string& name) {
  return {.gate = tensors.linear(stream, name + ".gate", load.dtype, load.weights),
          .up = tensors.linear(stream, name + ".up", load.dtype, load.weights),
          .out = tensors.row_linear(stream, name + ".out", load.dtype, load.weights)};
}

// `block` begins the names of its tensors.
Flux2DoubleBlock load_double_block(Stream& stream, const CheckpointPart& tensors,
                                   const TransformerLoad& load, const std::string& block) {
  const std::string attention = block + "attn.";
  const auto heads = [&](const HeadNames& names) {
    return load_heads(stream, tensors, names, load.dtype, load.weights);
  };
  const auto row_linear = [&](const std::string& name) {
    return tensors.row_linear(stream, name, load.dtype, load.weights);
  };
  return {.latent = {.heads = heads({attention + "to_q", attention + "to_k", attention + "to_v",
                                     attention + "norm_q", attention + "norm_k"}),
                     .to_out = row_linear(attention + "to_out.0"),
                     .ff = load_feed_forward(stream, tensors, load, block + "ff")},
          .text = {.heads = heads({attention + "add_q_proj", attention + "add_k_proj",
                                   attention + "add_v_proj", attention + "norm_added_q",
                                   attention + "norm_added_k"}),
                   .to_out = row_linear(attention + "to_add_out"),
                   .ff = load_feed_forward(stream, tensors, load, block + "ff_context")}};
}

Flux2SingleBlock load_single_block(Stream& stream, const CheckpointPart& tensors,
                                   const TransformerLoad& load, const std::string& block) {
  const std::string attention = block + "attn.";
  return {.heads = load_heads(stream, tensors,
                              {attention + "to_q", attention + "to_k", attention + "to_v",
                               attention + "norm_q", attention + "norm_k"},
                              load.dtype, load.weights),
          .to_out = tensors.row_linear(stream, attention + "to_out", load.dtype, load.weights),
          .ff = load_feed_forward(stream, tensors, load, block + "ff")};
}

// A norm with the shift and the scale that begin at row `first` of a modulation.
LayerNorm modulated(const TensorView& m, int first, float eps) {
  return {.weight = m.select(0, first + kScaleRow),
          .bias = m.select(0, first + kShiftRow),
          .eps = eps,
          .modulated = true};
}

void normed(Stream& stream, const TensorView& x, const LayerNorm& norm, const TensorView& out) {
  modulated_layer_norm(stream, x, norm.weight, norm.bias, norm.eps, out);
}

// Writes the sinusoidal embedding of a scale of guidance [2 half] f32. Its angles are f32, as those
// that the model was trained with: they are so large that their rounding shows in the picture.
void guidance_waves(double guidance, const TensorView& out) {
  const int64_t half = out.count() / 2;
  const auto time = static_cast<float>(1000 * guidance);
  for (int64_t i = 0; i < half; ++i) {
    const float exponent =
        static_cast<float>(-std::log(10000.0)) * static_cast<float>(i) / static_cast<float>(half);
    const double angle = time * std::exp(exponent);
    out.as<float>()[i] = static_cast<float>(std::cos(angle));
    out.as<float>()[half + i] = static_cast<float>(std::sin(angle));
  }
}

// Adds the product to sum f32; no sum over ranks.
void add_product(Context& context, const TensorView& x, const PackedLinear& weights,
                 const TensorView& sum) {
  if (adds_in_place(context.stream, weights, x.rows()))
    return linear_add(context.stream, x, weights, sum);
  const Arena::Scope scope(context.arena);
  const TensorView y = context.arena.alloc(DType::kF32, sum.shape());
  linear(context.stream, x, weights, LinearActivation::kNone, y);
  add(context.stream, sum, y, sum);
}

int64_t tokens_of(const std::array<int64_t, 3>& grid) { return grid[0] * grid[1] * grid[2]; }

// Returns whether the tokens are those of a grid and of pictures beside it.
bool has_beside(const TokenRanges& tokens, const std::array<int64_t, 3>& grid) {
  return tokens.total > tokens_of(grid);
}

// The rows of reference pictures of these sizes that the rank with these tokens computes.
TokenRanges own_references(const TokenRanges& tokens, const std::array<int64_t, 3>& grid,
                           const std::vector<std::array<int64_t, 2>>& sizes) {
  int64_t rows = 0;
  for (const auto& [height, width] : sizes) rows += height * width;
  if (!has_beside(tokens, grid)) return TokenRanges::all(rows);
  const int64_t before = tokens_of(grid);
  CHECK(tokens.total == before + rows, "tokens", tokens.total, "of", before, "and", rows);
  TokenRanges own{{}, rows};
  for (const Range& range : tokens.within({before, tokens.total}).ranges)
    own.append({range.begin - before, range.end - before});
  return own;
}

}  // namespace

// The rows of a hidden state are n tokens of this rank, then those of the reference pictures, which
// have the weights of the latent's stream, and the prompt's.
struct Flux2Transformer::Pass {
  int layer = 0;
  int64_t tokens = 0, text = 0;  // rows: tokens that the ranks split, and those of the prompt
  const Rope& rope;
  const Flux2Conditioning& prepared;
  TensorView latent{}, prompt{};  // modulations of the streams of double-stream blocks [6, D]
  TensorView single{};            // of single-stream blocks [3, D]
};

Flux2Transformer Flux2Transformer::load(Stream& stream, const TensorFile& file,
                                        const Flux2Config& config, const TransformerLoad& load) {
  Flux2Transformer model;
  model.set_load(config, load);
  const BlockRange& blocks = model.load_.blocks;
  const CheckpointPart tensors = checked_tensors(file, config, load);
  const Range doubles{0, config.double_blocks};
  const Range singles{config.double_blocks, config.blocks()};
  model.time_ = load_embedder(stream, tensors, "time_guidance_embed.timestep_embedder");
  if (config.guidance_embeds)
    model.guidance_ = load_embedder(stream, tensors, "time_guidance_embed.guidance_embedder");
  const auto modulation = [&](const char* name) {
    return tensors.linear(stream, name, load.dtype);
  };
  if (intersection(doubles, {blocks.begin, blocks.end}).size() > 0) {
    model.latent_modulation_ = modulation("double_stream_modulation_img.linear");
    model.text_modulation_ = modulation("double_stream_modulation_txt.linear");
  }
  if (intersection(singles, {blocks.begin, blocks.end}).size() > 0)
    model.single_modulation_ = modulation("single_stream_modulation.linear");
  if (blocks.first()) {
    model.x_embedder_ = tensors.linear(stream, "x_embedder", DType::kF32);
    model.context_embedder_ = tensors.linear(stream, "context_embedder", load.dtype);
  }
  model.load_blocks(
      stream,
      [tensors, how = model.load_](Stream& own, int index) {
        const std::string block = "transformer_blocks." + std::to_string(index) + ".";
        if (how.resident > 0) tensors.read_ahead(own, block);
        return load_double_block(own, tensors, how, block);
      },
      doubles);
  model.load_blocks<Flux2SingleBlock>(
      stream,
      [tensors, how = model.load_, first = config.double_blocks](Stream& own, int index) {
        const std::string block =
            "single_transformer_blocks." + std::to_string(index - first) + ".";
        if (how.resident > 0) tensors.read_ahead(own, block);
        return load_single_block(own, tensors, how, block);
      },
      singles);
  if (blocks.last()) {
    model.out_scale_ = tensors.linear(stream, "norm_out.scale", DType::kF32);
    model.out_shift_ = tensors.linear(stream, "norm_out.shift", DType::kF32);
    model.proj_out_ = tensors.linear(stream, "proj_out", DType::kF32);
  }
  return model;
}

size_t Flux2Transformer::weights_bytes() const {
  return blocks_bytes() + time_.bytes() + guidance_.bytes() +
         bytes_of(std::tie(x_embedder_, context_embedder_, latent_modulation_, text_modulation_,
                           single_modulation_, out_scale_, out_shift_, proj_out_));
}

std::unique_ptr<Conditioning> Flux2Transformer::prepare(Context& context,
                                                        const Conditions& conditions,
                                                        std::array<int64_t, 3> grid) const {
  const TensorView& text = conditions.text;
  CHECK(text.rank == 2 && text[1] == config_.text_dim && text[0] > 0, text.to_string_shape());
  check_reducer(context);
  Stream& stream = context.stream;
  auto prepared = std::make_unique<Flux2Conditioning>();
  prepared->text_rows = text[0];
  std::vector<std::array<int64_t, 2>> sizes;
  for (const TensorView& reference : conditions.references) {
    CHECK(reference.rank == 3 && reference[0] == config_.channels, reference.to_string_shape());
    sizes.push_back({reference[1], reference[2]});
  }
  const TokenRanges references = own_references(context.tokens, grid, sizes);
  prepared->reference_rows = references.size();
  if (has_beside(context.tokens, grid)) {
    prepared->beside_rows = references.total;
    prepared->beside_positions = on_device(stream, config_.joint_rope(sizes, 0));
    sizes.clear();
  }
  prepared->joint_positions = on_device(stream, config_.joint_rope(sizes, text[0]));
  const Arena::Scope scope(context.arena);
  if (config_.guidance_embeds) {
    prepared->guidance = Tensor(DType::kF32, {1, config_.width()}, stream.device());
    const TensorView waves = context.arena.alloc(DType::kF32, {1, traits_.time_columns});
    make_on_host(stream, waves, [&](const TensorView& to) {
      guidance_waves(conditions.guidance, to.select(0, 0));
    });
    copy(stream, embedded(context, guidance_, waves), prepared->guidance);
  }
  if (load_.blocks.first()) embed_rows(context, conditions, references, *prepared);
  return prepared;
}

// Makes the given rows of the reference pictures, and the prompt's.
void Flux2Transformer::embed_rows(Context& context, const Conditions& conditions,
                                  const TokenRanges& references,
                                  Flux2Conditioning& prepared) const {
  Stream& stream = context.stream;
  prepared.rows = Tensor(DType::kF32, {prepared.joint_rows(), config_.width()}, stream.device());
  int64_t first = 0, before = 0;  // rows made, and those of the references before
  for (const TensorView& reference : conditions.references) {
    const int64_t all = reference[1] * reference[2];
    const TensorView pixels = reference.reshape({config_.channels, all}).permute({1, 0});
    for (const Range& range : references.within({before, before + all}).ranges) {
      const Arena::Scope scope(context.arena);
      const int64_t count = range.size();
      const TensorView rows = context.arena.alloc(DType::kF32, {count, config_.channels});
      copy(stream, pixels.slice(0, range.begin - before, count), rows);
      linear(stream, rows, x_embedder_, LinearActivation::kNone,
             prepared.rows.view().slice(0, first, count));
      first += count;
    }
    before += all;
  }
  const TensorView text = context.arena.alloc(load_.dtype, conditions.text.shape());
  copy(stream, conditions.text, text);
  linear(stream, text, context_embedder_, LinearActivation::kNone,
         prepared.rows.view().slice(0, first, prepared.text_rows));
}

void Flux2Transformer::forward(Context& context, const ForwardArgs& args) const {
  const auto& [blocks, in, times, embedding, conditioning, rope, out, hook, signal] = args;
  const auto& prompt = dynamic_cast<const Flux2Conditioning&>(conditioning);
  Stream& stream = context.stream;
  const int64_t n = context.tokens.within({0, tokens_of(rope.grid)}).size();
  const int64_t joint = prompt.joint_rows();
  check_forward(context, args);
  CHECK(times.size() == 1, "time segments", times.size());

  const Arena::Scope scope(context.arena);
  const TensorView x =
      blocks.last() ? context.arena.alloc(DType::kF32, {n + joint, config_.width()}) : out;
  const TensorView time = embedded(context, time_, embedding);
  if (prompt.guidance) add(stream, time, prompt.guidance, time);
  if (blocks.first()) {
    CHECK(in.rank == 2 && in[0] == n && in[1] == config_.channels, in.to_string_shape());
    linear(stream, in, x_embedder_, LinearActivation::kNone, x.slice(0, 0, n));
    copy(stream, prompt.rows, x.slice(0, n, joint));
  } else {
    copy(stream, in, x);
  }
  Pass pass = begin(context, args, prompt, time);
  for (pass.layer = blocks.begin; pass.layer < blocks.end; ++pass.layer) {
    const ZoneScope zone(Zone::kBlock, pass.layer);
    if (pass.layer < config_.double_blocks)
      with_block(stream, pass.layer,
                 [&](const Flux2DoubleBlock& weights) { double_block(context, weights, pass, x); });
    else
      with_block<Flux2SingleBlock>(stream, pass.layer, [&](const Flux2SingleBlock& weights) {
        single_block(context, weights, pass, x);
      });
    observe(context, pass, x);
  }
  if (!blocks.last()) return;
  if (hook) hook(x);
  head(context, time, x.slice(0, 0, n), out);
}

// Computes the modulations of the blocks that run.
Flux2Transformer::Pass Flux2Transformer::begin(Context& context, const ForwardArgs& args,
                                               const Flux2Conditioning& prompt,
                                               const TensorView& time) const {
  Pass pass{.tokens = context.tokens.size(),
            .text = prompt.text_rows,
            .rope = args.rope,
            .prepared = prompt};
  const bool doubles = args.blocks.begin < std::min(args.blocks.end, config_.double_blocks);
  const bool singles = std::max(args.blocks.begin, config_.double_blocks) < args.blocks.end;
  const TensorView active = context.arena.alloc(load_.dtype, time.shape());
  {
    const Arena::Scope scope(context.arena);
    const TensorView exact = context.arena.alloc(DType::kF32, time.shape());
    silu(context.stream, time, exact);
    copy(context.stream, exact, active);
  }
  if (doubles) {
    pass.latent = modulation(context, latent_modulation_, active);
    pass.prompt = modulation(context, text_modulation_, active);
  }
  if (singles) pass.single = modulation(context, single_modulation_, active);
  return pass;
}

// Returns a modulation [rows, D] f32 in the arena.
TensorView Flux2Transformer::modulation(Context& context, const PackedLinear& weights,
                                        const TensorView& active) const {
  const int64_t d = config_.width();
  const TensorView m = context.arena.alloc(DType::kF32, {weights.out() / d, d});
  linear(context.stream, active, weights, LinearActivation::kNone, m.reshape({1, weights.out()}));
  return m;
}

void Flux2Transformer::double_block(Context& context, const Flux2DoubleBlock& weights,
                                    const Pass& pass, const TensorView& x) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t all = x[0], image = all - pass.text;
  const TensorView h = context.arena.alloc(load_.dtype, x.shape());
  const TensorView y = context.arena.alloc(DType::kF32, x.shape());
  struct Part {
    const Flux2Stream& weights;
    const TensorView& m;
    Range rows;
    TensorView of(const TensorView& whole) const { return whole.slice(0, rows.begin, rows.size()); }
  };
  const Part parts[] = {{weights.latent, pass.latent, {0, image}},
                        {weights.text, pass.prompt, {image, all}}};
  for (const Part& part : parts)
    normed(stream, part.of(x), modulated(part.m, 0, config_.eps), part.of(h));
  {
    const Arena::Scope inner(context.arena);
    const HeadWeights &latent = weights.latent.heads, &text = weights.text.heads;
    const Heads heads = room_for_heads(context, text.joined() ? text : latent, all);
    for (const Part& part : parts)
      project_heads(stream, part.of(h), part.weights.heads, heads, part.rows.begin);
    const TensorView merged = reuse(h, {all, latent.columns()});
    attend(context, pass, heads, latent, text, merged.reshape({all, heads.q[1], heads.q[2]}));
    for (const Part& part : parts)
      row_linear(context, part.of(merged), part.weights.to_out, part.of(y));
  }
  for (const Part& part : parts) {
    gated_add_norm(stream, part.of(x), part.of(y), part.m.select(0, kGateRow),
                   modulated(part.m, kSublayerRows, config_.eps), part.of(h));
    feed_forward(context, part.weights.ff, part.of(h), part.of(y));
    context.reducer.sum(context, part.of(y));
    gated_add(stream, part.of(x), part.of(y), part.m.select(0, kSublayerRows + kGateRow),
              part.of(x));
  }
}

void Flux2Transformer::single_block(Context& context, const Flux2SingleBlock& weights,
                                    const Pass& pass, const TensorView& x) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const TensorView h = context.arena.alloc(load_.dtype, x.shape());
  const TensorView y = context.arena.alloc(DType::kF32, x.shape());
  normed(stream, x, modulated(pass.single, 0, config_.eps), h);
  feed_forward(context, weights.ff, h, y);
  {
    const Arena::Scope inner(context.arena);
    const Heads heads = room_for_heads(context, weights.heads, x[0]);
    project_heads(stream, h, weights.heads, heads);
    const TensorView merged = reuse(h, {x[0], weights.heads.columns()});
    attend(context, pass, heads, weights.heads, weights.heads,
           merged.reshape({x[0], heads.q[1], heads.q[2]}));
    add_product(context, merged, weights.to_out.packed, y);
  }
  context.reducer.sum(context, y);
  gated_add(stream, x, y, pass.single.select(0, kGateRow), x);
}

// Writes the joint attention of all rows to out [n + references + text, A part, E].
void Flux2Transformer::attend(Context& context, const Pass& pass, const Heads& heads,
                              const HeadWeights& latent, const HeadWeights& text,
                              const TensorView& out) const {
  Attend attend{
      .layer = pass.layer,
      .q = heads.q,
      .k = heads.k,
      .v = heads.v,
      .out = out,
      .rope = &pass.rope,
      .beside_rope = pass.prepared.beside() > 0 ? &pass.prepared.beside_positions : nullptr,
      .scale = 1 / std::sqrt(static_cast<float>(config_.head_dim)),
      .format = load_.attention,
      .replicated = heads.q[0] - pass.tokens,
      .replicated_rope = &pass.prepared.joint_positions,
      .norms = latent.norms(config_.eps),
      .replicated_norms = text.norms(config_.eps)};
  // The replicated rows are of both streams, whose norms differ, if references are not split.
  if (attend.replicated > pass.text) {
    const int64_t image = heads.q[0] - pass.text;
    for (const auto& [weights, first, count] :
         {std::tuple{&latent, int64_t{0}, image}, {&text, image, pass.text}}) {
      norm_heads(context.stream, heads.q.slice(0, first, count), {weights->norm_q, config_.eps});
      norm_heads(context.stream, heads.k.slice(0, first, count), {weights->norm_k, config_.eps});
    }
    attend.norms = attend.replicated_norms = {};
  }
  norm_and_attend(context, context.mixer, attend);
}

// Writes this rank's part of the feed-forward of h to y [rows, D] f32, some rows at a time.
void Flux2Transformer::feed_forward(Context& context, const Flux2FeedForward& weights,
                                    const TensorView& h, const TensorView& y) const {
  const Arena::Scope scope(context.arena);
  Stream& stream = context.stream;
  const int64_t chunk = rows_at_once(stream, h[0], {&weights.gate, &weights.out.packed});
  const TensorView gate = context.arena.alloc(load_.dtype, {chunk, weights.gate.out()});
  const TensorView up = context.arena.alloc(load_.dtype, gate.shape());
  for (int64_t begin = 0; begin < h[0]; begin += chunk) {
    const int64_t count = std::min(chunk, h[0] - begin);
    const TensorView rows = h.slice(0, begin, count);
    const TensorView a = gate.slice(0, 0, count), b = up.slice(0, 0, count);
    linear(stream, rows, weights.gate, LinearActivation::kNone, a);
    linear(stream, rows, weights.up, LinearActivation::kNone, b);
    silu_mul(stream, a, b, a);
    linear(stream, a, weights.out.packed, LinearActivation::kNone, y.slice(0, begin, count));
  }
}

// Writes the velocity of the tokens' rows x [n, D], which are overwritten.
void Flux2Transformer::head(Context& context, const TensorView& time, const TensorView& x,
                            const TensorView& out) const {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const auto row = [&] { return context.arena.alloc(DType::kF32, time.shape()); };
  const TensorView active = row(), scale = row(), shift = row();
  silu(stream, time, active);
  linear(stream, active, out_scale_, LinearActivation::kNone, scale);
  linear(stream, active, out_shift_, LinearActivation::kNone, shift);
  modulated_layer_norm(stream, x, scale.select(0, 0), shift.select(0, 0), config_.eps, x);
  linear(stream, x, proj_out_, LinearActivation::kNone, out);
}

// Shows the rows of a block as the golden cases have them: the prompt's first, those of the
// reference pictures last.
void Flux2Transformer::observe(Context& context, const Pass& pass, const TensorView& x) const {
  if (!context.observer) return;
  const auto [name, number] = traits_.observed_block(pass.layer);
  if (!context.observer->in_order()) return context.observe(name, x, number);
  const Arena::Scope scope(context.arena);
  const int64_t image = x[0] - pass.text;
  const TensorView rows = context.arena.alloc(DType::kF32, x.shape());
  copy(context.stream, x.slice(0, image, pass.text), rows.slice(0, 0, pass.text));
  copy(context.stream, x.slice(0, 0, image), rows.slice(0, pass.text, image));
  context.observe(name, rows, number);
}

}  // namespace weft
