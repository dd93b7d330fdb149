#pragma once
// FLUX.2 transformer (Black Forest Labs 2025): double-stream blocks, then single-stream blocks, all
// of a kind with one modulation. Reference pictures are rows beside the picture's. Config, weights,
// forward.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "models/double_stream/block.h"

namespace weft {

// The defaults are those of the published config of FLUX.2-klein-4B.
struct Flux2Config {
  int heads = 24, head_dim = 128;
  int double_blocks = 5, single_blocks = 20;
  int64_t channels = 128;        // of the latent, and of the velocity
  int64_t text_dim = 7680;       // of a prompt's row
  bool guidance_embeds = false;  // the model is told the scale of the guidance
  int64_t ffn = 9216;            // columns of a feed-forward's hidden rows
  std::array<int64_t, 4> axes_dims{32, 32, 32,
                                   32};  // dimensions of a head: time, row, column, text
  double rope_theta = 2000;
  float eps = 1e-6f;

  // Reads a diffusers transformer/config.json. Throws Error(kModel) that lists every unknown,
  // missing and unsupported key at once.
  static Flux2Config from_json_file(const std::string& path);
  // Reads what the tensors of a file without a config tell.
  static Flux2Config from_tensors(const TensorFile& file);

  int64_t width() const { return int64_t{heads} * head_dim; }
  int blocks() const { return double_blocks + single_blocks; }
  TransformerTraits traits() const;
  // The rotary angles of a picture's tokens.
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const;
  // Those of the rows of reference pictures, of {rows, columns} each, and of `text` rows after
  // them.
  Rope joint_rope(const std::vector<std::array<int64_t, 2>>& references, int64_t text) const;
};

std::string to_string(const Flux2Config& config);

// Every tensor of the checkpoint with its diffusers name.
std::vector<TensorSpec> flux2_tensors(const Flux2Config& config);

// A part of a tensor that a slice of the width holds under a name of its own. A tensor that joins
// several matrices has a piece for each.
struct Flux2Piece {
  std::string name;
  TensorPart part;
};
// `swapped` says that the file has the shift of norm_out before the scale.
std::vector<Flux2Piece> flux2_pieces(const Flux2Config& config, const TensorSpec& tensor,
                                     const WidthSlice& width, bool swapped = false);

// The rows of a prompt and of reference pictures before the first block. Where the sequence of the
// forward has the references beside the latent, a rank has a part of them; else all of them.
struct Flux2Conditioning final : Conditioning {
  int64_t reference_rows = 0, text_rows = 0;  // of this rank
  int64_t beside_rows = 0;                    // of the references of all ranks, if they are split
  Tensor rows{};      // [references, then text, D] f32; empty where the first block is not loaded
  Tensor guidance{};  // [1, D] f32, embedded; empty where the model is told none
  Rope beside_positions{};  // of split references
  Rope joint_positions{};   // of the rows that are not split

  size_t bytes() const override {
    return bytes_of(rows) + bytes_of(guidance) + bytes_of(beside_positions) +
           bytes_of(joint_positions);
  }
  int64_t joint_rows() const override { return reference_rows + text_rows; }
  int64_t beside() const override { return beside_rows; }
};

// A feed-forward with SwiGLU.
struct Flux2FeedForward {
  PackedLinear gate, up;  // [F part, D]
  RowLinear out;          // [D, F part]
};

// The weights of one stream of a double-stream block.
struct Flux2Stream {
  HeadWeights heads;
  RowLinear to_out;  // [D, D part]
  Flux2FeedForward ff;

  auto weights() const {
    return std::tuple_cat(heads.weights(), std::tie(to_out, ff.gate, ff.up, ff.out));
  }
};

struct Flux2DoubleBlock {
  Flux2Stream latent, text;
  auto weights() const { return std::tuple_cat(latent.weights(), text.weights()); }
};

// A single-stream block. Its attention and its feed-forward run beside each other; the sum of what
// `to_out` and `ff.out` make of them is added to the rows.
struct Flux2SingleBlock {
  HeadWeights heads;
  RowLinear to_out;  // [D, D part]
  Flux2FeedForward ff;

  auto weights() const {
    return std::tuple_cat(heads.weights(), std::tie(to_out, ff.gate, ff.up, ff.out));
  }
};

class Flux2Transformer final
    : public BlockTransformer<Flux2Config, Flux2DoubleBlock, Flux2SingleBlock> {
 public:
  // Loads the slice `load.width` of the weights of the blocks `load.blocks`. The first block brings
  // the embedders of tokens and text, the last the head, and any the embedders of the time vector.
  // If blocks are offloaded, each kind has at least two on the device.
  static Flux2Transformer load(Stream& stream, const TensorFile& file, const Flux2Config& config,
                               const TransformerLoad& load = {});

  size_t weights_bytes() const override;

  std::unique_ptr<Conditioning> prepare(Context& context, const Conditions& conditions,
                                        std::array<int64_t, 3> grid) const override;
  // One time segment covers all tokens. Observes "transformer_blocks" and
  // "single_transformer_blocks".
  void forward(Context& context, const ForwardArgs& args) const override;

 private:
  struct Pass;  // what the blocks of a forward share

  void embed_rows(Context& context, const Conditions& conditions, const TokenRanges& references,
                  Flux2Conditioning& prepared) const;
  Pass begin(Context& context, const ForwardArgs& args, const Flux2Conditioning& prompt,
             const TensorView& time) const;
  TensorView modulation(Context& context, const PackedLinear& weights,
                        const TensorView& active) const;
  void double_block(Context& context, const Flux2DoubleBlock& weights, const Pass& pass,
                    const TensorView& x) const;
  void single_block(Context& context, const Flux2SingleBlock& weights, const Pass& pass,
                    const TensorView& x) const;
  void attend(Context& context, const Pass& pass, const Heads& heads, const HeadWeights& latent,
              const HeadWeights& text, const TensorView& out) const;
  void feed_forward(Context& context, const Flux2FeedForward& weights, const TensorView& h,
                    const TensorView& y) const;
  void head(Context& context, const TensorView& time, const TensorView& x,
            const TensorView& out) const;
  void observe(Context& context, const Pass& pass, const TensorView& x) const;

  PackedLinear x_embedder_;        // [D, channels] f32
  PackedLinear context_embedder_;  // [D, text_dim]
  VectorEmbedder time_, guidance_;
  PackedLinear latent_modulation_, text_modulation_;  // [6D, D]
  PackedLinear single_modulation_;                    // [3D, D]
  PackedLinear out_scale_, out_shift_;                // [D, D] f32
  PackedLinear proj_out_;                             // [channels, D] f32
};

std::unique_ptr<TransformerModel> make_flux2_model(const Flux2Config& config);

}  // namespace weft
