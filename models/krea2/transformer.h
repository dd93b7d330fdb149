#pragma once
// Krea-2 transformer (Krea 2026): one stream of prompt and picture rows with grouped queries, whose
// attention a sigmoid gates. Small blocks make the prompt's rows of several layers of a language
// model. Config, weights, forward.
#include <array>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "models/double_stream/block.h"

namespace weft {

// The defaults are those of the published config.
struct Krea2Config {
  int heads = 48, kv_heads = 12, head_dim = 128, layers = 28;
  int64_t patch_dim = 64;  // values of a token
  int64_t ffn = 16384;     // columns of a feed-forward's hidden rows
  int64_t time_columns = 256;
  // A prompt's row is the states of `taps` layers, of text_dim columns each. Blocks mix the states
  // of a row (tap_blocks), and the rows that they become (refiner_blocks).
  int64_t text_dim = 2560, text_ffn = 6912;
  int taps = 12, text_heads = 20, text_kv_heads = 20, tap_blocks = 2, refiner_blocks = 2;
  std::array<int64_t, 3> axes_dims{32, 48, 48};  // dimensions of a head per axis
  double rope_theta = 1000;
  float eps = 1e-5f;

  // Reads a diffusers transformer/config.json. Throws Error(kModel) that lists every unknown,
  // missing and unsupported key at once.
  static Krea2Config from_json_file(const std::string& path);
  // Reads what the tensors of a file without a config tell.
  static Krea2Config from_tensors(const TensorFile& file);

  // Throws Error(kModel) that names a key whose value contradicts another's.
  void check(const std::string& path) const;

  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t text_head_dim() const { return text_dim / text_heads; }
  TransformerTraits traits() const;
  // The rotary angles of a picture's tokens.
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const;
};

std::string to_string(const Krea2Config& config);

// Every tensor of the checkpoint with its diffusers name, and the part of it that a slice holds.
std::vector<TensorSpec> krea2_tensors(const Krea2Config& config);
TensorPart krea2_part(const Krea2Config& config, const TensorSpec& tensor, const WidthSlice& width);

// The prompt's rows before the first block. They have no positions.
struct Krea2Prompt final : Conditioning {
  int64_t count = 0;
  Tensor rows{};  // [count, D] f32; empty where the first block is not loaded

  size_t bytes() const override { return bytes_of(rows); }
  int64_t joint_rows() const override { return count; }
};

// A block, also of those that make a prompt's rows. The norms are those that rows are multiplied
// by: the file has them less one.
struct Krea2Block {
  Tensor norm1, norm2;  // [D] f32
  HeadWeights heads;
  PackedLinear to_gate;   // [D part, D]
  RowLinear to_out;       // [D, D part]
  PackedLinear gate, up;  // [F part, D]
  RowLinear down;         // [D, F part]
  Tensor table;           // [6, D] f32, added to the modulation; empty where there is none

  auto weights() const {
    return std::tuple_cat(heads.weights(),
                          std::tie(to_gate, to_out, gate, up, down, norm1, norm2, table));
  }
};

// Makes a prompt's rows, once for all steps and in f32. Every rank that has the first block holds
// all of its weights.
struct Krea2Fusion {
  std::vector<Krea2Block> tap_blocks, refiner_blocks;
  Tensor projector;                 // [taps, text_dim] f32: the factor of each tap, in every column
  Tensor norm;                      // [text_dim] f32
  PackedLinear linear_1, linear_2;  // [D, text_dim], [D, D]

  size_t bytes() const;
};

class Krea2Transformer final : public BlockTransformer<Krea2Config, Krea2Block> {
 public:
  // Loads the slice `load.width` of the weights of the blocks `load.blocks`. The first block brings
  // the embedders of tokens and text, the last the head, and any the embedder of the time.
  static Krea2Transformer load(Stream& stream, const TensorFile& file, const Krea2Config& config,
                               const TransformerLoad& load = {});

  size_t weights_bytes() const override;

  // Observes "context".
  std::unique_ptr<Conditioning> prepare(Context& context, const Conditions& conditions,
                                        std::array<int64_t, 3> grid) const override;
  // One time segment covers all tokens. Observes "transformer_blocks".
  void forward(Context& context, const ForwardArgs& args) const override;

 private:
  // A pass holds what the blocks of a forward share, and the number of one.
  struct Pass {
    int layer = 0;
    int64_t text = 0;  // rows of the prompt, after those of the tokens
    const Rope& rope;
    TensorView modulation{};  // [6, D] f32
  };
  // A norm of rows, times 1 + scale, plus shift; [D] f32 each.
  struct ModulatedNorm {
    TensorView weight, scale, shift;
  };
  // Attends by the heads of some rows, and writes the result to out [rows, A part, E].
  using Attention = std::function<void(const Heads& heads, const TensorView& out)>;

  TensorView embed_time(Context& context, const TensorView& embedding) const;
  TensorView modulate(Context& context, const TensorView& time) const;
  void fuse(Context& context, const TensorView& text, const TensorView& out) const;
  void text_block(Context& context, const Krea2Block& weights, int64_t group,
                  const TensorView& x) const;
  void block(Context& context, const Krea2Block& weights, const Pass& pass,
             const TensorView& x) const;
  void modulated_norm(Context& context, const TensorView& x, const ModulatedNorm& norm,
                      const TensorView& y, const TensorView& out) const;
  void gated_attention(Context& context, const Krea2Block& weights, const TensorView& h,
                       const Attention& attend, const TensorView& y) const;
  void feed_forward(Context& context, const Krea2Block& weights, const TensorView& h,
                    const TensorView& y) const;
  void head(Context& context, const TensorView& time, const TensorView& x,
            const TensorView& out) const;

  PackedLinear img_in_;     // [D, patch] f32
  VectorEmbedder time_;     // f32
  PackedLinear time_mod_;   // [6D, D] f32
  Krea2Fusion fusion_;      // with the first block
  Tensor final_table_;      // [2, D] f32
  Tensor final_norm_;       // [D] f32
  PackedLinear final_out_;  // [patch, D] f32
};

std::unique_ptr<TransformerModel> make_krea2_model(const Krea2Config& config);

}  // namespace weft
