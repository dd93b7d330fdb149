#include "models/causal_decoder/decoder.h"

#include <cmath>

#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "models/causal_decoder/names.h"

namespace weft {

namespace {

// Returns whether a tensor does not belong to the decoder: a picture encoder's tensor, or a table
// that follows from the configuration.
bool belongs_elsewhere(const std::string& name) {
  return name.starts_with("visual.") || name.starts_with("model.visual.") ||
         name.ends_with("rotary_emb.inv_freq") || name == "rope_freqs.weight";
}

// Checks the file's tensors and finds the part of each that `load` holds.
CheckpointPart checked_tensors(const TensorFile& file, const DecoderConfig& config,
                               const DecoderLoad& load, const DecoderNames& names) {
  WeightBinder binder(file, "language model", names);
  CheckpointPart tensors(file);
  for (const TensorSpec& tensor : decoder_tensors(config)) {
    binder.take(tensor.name, tensor.shape);
    tensors.add(tensor.name, names(tensor.name), decoder_part(config, tensor, load), tensor.shape);
  }
  for (const std::string& name : file.names())
    if (belongs_elsewhere(name)) binder.ignore(name);
  if (config.tied) binder.ignore(names("lm_head.weight"));
  binder.finish();
  return tensors;
}

}  // namespace

CausalDecoder CausalDecoder::load(const TensorFile& file, const DecoderConfig& config,
                                  Stream& stream, const DecoderLoad& load) {
  CausalDecoder model;
  model.config_ = config;
  model.load_ = load;
  if (!load.blocks.total) model.load_.blocks = BlockRange::all(config.layers);
  model.load_.width = load.width.of(config.heads, config.ffn);
  if (load.vocab == Range{}) model.load_.vocab = {0, config.vocab};
  const DecoderNames names = detect_decoder_names(file);
  const CheckpointPart tensors = checked_tensors(file, config, model.load_, names);
  model.table_ = {&file, names("embed_tokens.weight")};
  // A view of values that have to be computed takes memory for all of them.
  if (load.logits || !file.is_derived()) model.embedding_ = file.view(model.table_.name);

  const BlockRange blocks = model.load_.blocks;
  const int count = blocks.end - blocks.begin;
  if (blocks.last()) {
    model.final_norm_ = tensors.vector(stream, "norm.weight");
  }
  if (blocks.last() && load.logits) {
    model.head_ = config.tied ? pack_linear(stream,
                                            model.embedding_.slice(0, model.load_.vocab.begin,
                                                                   model.load_.vocab.size()),
                                            {}, load.dtype)
                              : tensors.linear(stream, "lm_head", load.dtype);
  }
  const int resident = load.resident && load.resident < count ? load.resident : count;
  model.blocks_ = std::make_unique<LayerWindow<Block>>(
      count, resident,
      [&](int index) { return load_block(stream, tensors, config, model.load_, index); },
      [config, loaded = model.load_, tensors,
       own = stream_on(stream.device(), 1, Determinism::kFast, &stream.ops())](int index) mutable {
        Block block = load_block(own, tensors, config, loaded, index);
        own.sync();  // another stream uses the block
        return block;
      });
  return model;
}

CausalDecoder::Block CausalDecoder::load_block(Stream& stream, const CheckpointPart& tensors,
                                               const DecoderConfig& config, const DecoderLoad& load,
                                               int index) {
  const std::string at = "layers." + std::to_string(load.blocks.begin + index) + ".";
  if (load.resident) tensors.read_ahead(stream, at);
  const auto vector = [&](const char* name) { return tensors.vector(stream, at + name); };
  const auto linear = [&](const char* name) {
    return tensors.linear(stream, at + name, load.dtype, load.weights);
  };
  const auto row_linear = [&](const char* name) {
    return tensors.row_linear(stream, at + name, load.dtype, load.weights);
  };
  // A device keeps these biases in f32 alone, whatever the file's dtype is.
  const auto projection = [&](const std::string& name) {
    if (!config.projection_biases) return linear(name.c_str());
    const Tensor bias = tensors.vector(stream, at + name + ".bias");
    return tensors.matrix(stream, at + name, bias, load.dtype, load.weights);
  };
  const bool normed = config.head_norms;
  return {.attention_norm = vector("input_layernorm.weight"),
          .q = projection("self_attn.q_proj"),
          .k = projection("self_attn.k_proj"),
          .v = projection("self_attn.v_proj"),
          .q_norm = normed ? vector("self_attn.q_norm.weight") : Tensor(),
          .k_norm = normed ? vector("self_attn.k_norm.weight") : Tensor(),
          .o = row_linear("self_attn.o_proj"),
          .ffn_norm = vector("post_attention_layernorm.weight"),
          .gate = linear("mlp.gate_proj"),
          .up = linear("mlp.up_proj"),
          .down = row_linear("mlp.down_proj")};
}

size_t CausalDecoder::bytes(int resident) const {
  size_t total = bytes_of(std::tie(head_, final_norm_));
  int counted = 0;
  blocks_->for_resident([&](const Block& block) {
    if (!resident || counted++ < resident) total += bytes_of(block.weights());
  });
  return total;
}

Rope CausalDecoder::rope(int64_t positions) const {
  return make_line_rope(positions, 0, config_.head_dim, config_.rope_theta, RopePairs::kHalves);
}

void CausalDecoder::embed(Context& context, const TensorView& ids, const TensorView& x) const {
  const std::span<const int32_t> rows(ids.as<int32_t>(), static_cast<size_t>(ids[0]));
  check_ids(rows, config_.vocab);
  if (embedding_)
    gather_rows(context.stream, embedding_, ids, x);
  else
    read_rows(context.stream, table_, rows, x);
  context.observe("hidden_states", x, 0);
}

void CausalDecoder::forward(Context& context, const TensorView& in,
                            std::span<const SequenceRows> sequences, const Rope& rope,
                            const TensorView& out) const {
  const BlockRange blocks = load_.blocks;
  const int64_t n = out[0];
  CHECK(in[0] == n && out.rank == 2 && out[1] == config_.hidden && out.dtype == DType::kF32, "in",
        in.to_string_shape(), "out", out.to_string_shape());
  CHECK((context.reducer.parts() == 1) == (load_.width.heads.size() == config_.heads), "a sum over",
        context.reducer.parts(), "parts for heads", to_string(load_.width.heads), "of",
        config_.heads);
  int64_t row = 0;
  for (const SequenceRows& sequence : sequences) {
    CHECK(sequence.rows.begin == row && sequence.rows.size() == sequence.tokens.size(), "rows",
          to_string(sequence.rows), "tokens", sequence.tokens.size());
    CHECK(sequence.past.empty() || static_cast<int>(sequence.past.size()) == blocks_->size(),
          "past of", sequence.past.size(), "layers");
    row = sequence.rows.end;
  }
  CHECK(row == n, "rows", row, "of", n);
  if (n == 0) return;
  if (blocks.first())
    embed(context, in, out);
  else if (in.data != out.data)
    copy(context.stream, in, out);
  for (int i = 0; i < blocks_->size(); ++i) {
    const ZoneScope zone(Zone::kBlock, blocks.begin + i);
    blocks_->use(i, [&](const Block& block) {
      attend(context, block, i, sequences, rope, out);
      feed_forward(context, block, out);
    });
    if (blocks.begin + i + 1 < blocks.total)
      context.observe("hidden_states", out, blocks.begin + i + 1);
  }
}

void CausalDecoder::attend(Context& context, const Block& block, int index,
                           std::span<const SequenceRows> sequences, const Rope& rope,
                           const TensorView& x) const {
  const Arena::Scope scope(context.arena);
  const int64_t n = x[0], e = config_.head_dim;
  const int64_t heads = load_.width.heads.size(), kv = kv_heads().size();
  const TensorView h = rms_normed(context, x, block.attention_norm, config_.eps, load_.dtype);
  const auto project = [&](const PackedLinear& weight, int64_t count, const Tensor& norm) {
    const TensorView out = context.arena.alloc(load_.dtype, {n, count, e});
    linear(context.stream, h, weight, LinearActivation::kNone, out.reshape({n, count * e}));
    if (norm) rms_norm(context.stream, out, norm, config_.eps, out);
    return out;
  };
  const TensorView q = project(block.q, heads, block.q_norm);
  const TensorView k = project(block.k, kv, block.k_norm);
  const TensorView v = project(block.v, kv, {});
  const TensorView mixed = context.arena.alloc(load_.dtype, {n, heads, e});
  for (const SequenceRows& sequence : sequences) {
    const auto rows = [&](const TensorView& all) {
      return all.slice(0, sequence.rows.begin, sequence.rows.size());
    };
    Context own = context;
    own.tokens = sequence.tokens;
    TokenMixer& mixer = sequence.mixer ? *sequence.mixer : context.mixer;
    mixer.attend(own, {.layer = load_.blocks.begin + index,
                       .q = rows(q),
                       .k = rows(k),
                       .v = rows(v),
                       .out = rows(mixed),
                       .rope = &rope,
                       .mask = Mask::kCausal,
                       .scale = 1 / std::sqrt(static_cast<float>(e)),
                       .past = sequence.past.empty() ? nullptr : &sequence.past[index]});
  }
  row_linear_add(context, mixed.reshape({n, heads * e}), block.o, x);
}

void CausalDecoder::feed_forward(Context& context, const Block& block, const TensorView& x) const {
  const Arena::Scope scope(context.arena);
  const TensorView h = rms_normed(context, x, block.ffn_norm, config_.eps, load_.dtype);
  const TensorView gate = context.arena.alloc(load_.dtype, {x[0], load_.width.ffn.size()});
  const TensorView up = context.arena.alloc(load_.dtype, {x[0], load_.width.ffn.size()});
  linear(context.stream, h, block.gate, LinearActivation::kNone, gate);
  linear(context.stream, h, block.up, LinearActivation::kNone, up);
  silu_mul(context.stream, gate, up, gate);
  row_linear_add(context, gate, block.down, x);
}

void CausalDecoder::norm(Context& context, const TensorView& hidden, const TensorView& out) const {
  rms_norm(context.stream, hidden, final_norm_, config_.eps, out);
}

void CausalDecoder::logits(Context& context, const TensorView& hidden,
                           const TensorView& out) const {
  CHECK(head_ && out[1] == config_.vocab && out[0] == hidden[0], out.to_string_shape());
  const Arena::Scope scope(context.arena);
  const TensorView h = rms_normed(context, hidden, final_norm_, config_.eps, load_.dtype);
  if (load_.vocab.size() == config_.vocab) {
    linear(context.stream, h, head_, LinearActivation::kNone, out);
    return;
  }
  const TensorView part = context.arena.alloc(DType::kF32, {hidden[0], load_.vocab.size()});
  linear(context.stream, h, head_, LinearActivation::kNone, part);
  context.reducer.gather(context, part, 1, out);
}

}  // namespace weft
