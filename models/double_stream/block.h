#pragma once
// The double-stream block (Esser et al. 2024, arXiv 2403.03206, MM-DiT): the latent's tokens and
// the prompt's rows have weights of their own and attend to each other as one sequence. A rank's
// hidden rows are its own tokens followed by all rows of the prompt.
#include <string>
#include <tuple>
#include <vector>

#include "models/block_transformer.h"

namespace weft {

// The names of one stream's tensors in a block, without ".weight" and ".bias". The attention of the
// latent's stream is named as here.
struct StreamNames {
  const char *modulation, *ffn_in, *ffn_out;
  const char *to_q = "attn.to_q", *to_k = "attn.to_k", *to_v = "attn.to_v", *norm_q = "attn.norm_q",
             *norm_k = "attn.norm_k", *to_out = "attn.to_out.0";
};
// Those of the prompt's stream.
constexpr StreamNames text_stream(const char* modulation, const char* ffn_in, const char* ffn_out) {
  return {modulation,
          ffn_in,
          ffn_out,
          "attn.add_q_proj",
          "attn.add_k_proj",
          "attn.add_v_proj",
          "attn.norm_added_q",
          "attn.norm_added_k",
          "attn.to_add_out"};
}

struct DoubleStreamSizes {
  int64_t width = 0, ffn = 0;
  int heads = 0;
  int head_dim() const { return static_cast<int>(width / heads); }
  // The columns of a hidden row that belong to the heads of a slice.
  Range channels(const WidthSlice& slice) const {
    const WidthSlice all = slice.of(heads, ffn);
    return {all.heads.begin * head_dim(), all.heads.end * head_dim()};
  }
};

// The parts of a block's modulation for one sublayer, in the order of its rows.
enum SublayerModulation { kShiftRow, kScaleRow, kGateRow, kSublayerRows };

struct StreamWeights {
  RowLinear modulation;  // [6D, D part]: shift, scale, gate of attention and feed-forward
  HeadWeights heads;
  RowLinear to_out;     // [D, D part]
  PackedLinear ffn_in;  // [F part, D]
  RowLinear ffn_out;    // [D, F part]

  auto weights() const {
    return std::tuple_cat(heads.weights(), std::tie(modulation, to_out, ffn_in, ffn_out));
  }
};

struct DoubleStreamBlock {
  StreamWeights latent, text;
  auto weights() const { return std::tuple_cat(latent.weights(), text.weights()); }
};

// Appends one stream's tensors of the block whose names begin with `block`.
void add_stream_tensors(std::vector<TensorSpec>& list, const std::string& block,
                        const StreamNames& names, const DoubleStreamSizes& sizes);
// The part of a tensor that a slice of the width holds. Tensors of no stream are held as a whole.
TensorPart stream_part(const TensorSpec& tensor, const StreamNames& names,
                       const DoubleStreamSizes& sizes, const WidthSlice& width);
StreamWeights load_stream(Stream& stream, const CheckpointPart& tensors,
                          const TransformerLoad& load, const std::string& block,
                          const StreamNames& names);

// The inputs of a block beside its weights and rows.
struct JointPass {
  int layer = 0;
  // silu of the time vector [1, D part] in the compute dtype: the columns that the rank's
  // modulations multiply.
  TensorView time{};
  const Rope& rope;       // of the rank's own tokens
  const Rope* text_rope;  // of the prompt's rows; null: they have no positions
  const TransformerLoad& load;
};

// Returns the modulation of a sublayer or of several, [rows, width] f32 in the arena.
TensorView modulation_of(Context& context, const RowLinear& weights, const JointPass& pass,
                         int64_t width);

// Writes the attention of all rows of a rank to out [n + T, A part, E]. The norms of queries and
// keys are those of the latent's and of the prompt's weights.
void attend_jointly(Context& context, const JointPass& pass, const Heads& heads,
                    const HeadWeights& latent, const HeadWeights& text, const TensorView& out);

// Applies a block to x [n + T, D] f32 in place: n tokens of this rank and T rows of the prompt.
void double_stream_block(Context& context, const DoubleStreamBlock& weights, const JointPass& pass,
                         const TensorView& x);

// An embedder of two layers with SiLU between them, f32.
struct VectorEmbedder {
  PackedLinear linear_1, linear_2;  // [D, in], [D, D]
  size_t bytes() const { return linear_1.bytes() + linear_2.bytes(); }
};
VectorEmbedder load_embedder(Stream& stream, const CheckpointPart& tensors,
                             const std::string& name);
// Returns the vector [1, D] f32 of in [1, ..] f32, in the arena.
TensorView embedded(Context& context, const VectorEmbedder& embedder, const TensorView& in);

struct DoubleStreamHead {
  PackedLinear modulation;  // [2D, D] f32: scale, shift
  PackedLinear proj_out;    // [patch, D] f32
  size_t bytes() const { return modulation.bytes() + proj_out.bytes(); }
};
DoubleStreamHead load_head(Stream& stream, const CheckpointPart& tensors);
// Writes the model's output for the tokens' rows x [n, D] f32, which are overwritten. `time` is the
// time vector [1, D] f32.
void apply_head(Context& context, const DoubleStreamHead& head, const TensorView& time,
                const TensorView& x, const TensorView& out);

// Returns silu of the time vector `time` [1, D] f32 as JointPass takes it, in the arena.
TensorView active_time(Context& context, const TensorView& time, const DoubleStreamSizes& sizes,
                       const TransformerLoad& load);

// Shows x [n + T, D] as the golden cases have it: the prompt's rows first.
void observe_text_first(Context& context, const char* name, int index, const TensorView& x);

// The normalisations of these models, of rows and of heads, have this epsilon.
inline constexpr float kDoubleStreamEps = 1e-6f;

}  // namespace weft
