#pragma once
// FLUX.1 transformer (Black Forest Labs 2024): double-stream blocks, then single-stream blocks that
// treat the tokens of a picture and the rows of its prompt alike. Config, weights, forward.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "models/double_stream/block.h"

namespace weft {

// The defaults are those of the published config of FLUX.1-dev.
struct FluxConfig {
  int heads = 24, head_dim = 128;
  int double_blocks = 19, single_blocks = 38;
  int64_t channels = 16;        // of the latent, and of the velocity
  int64_t text_dim = 4096;      // of a prompt's row
  int64_t pooled_dim = 768;     // of a prompt's vector
  bool guidance_embeds = true;  // the model is told the scale of the guidance it was distilled from
  std::array<int64_t, 3> patch{1, 2, 2};
  std::array<int64_t, 3> axes_dims{16, 56, 56};  // dimensions of a head per axis

  // Reads a diffusers transformer/config.json. Throws Error(kModel) that lists every unknown,
  // missing and unsupported key at once.
  static FluxConfig from_json_file(const std::string& path);
  // Reads what the tensors of a file without a config tell.
  static FluxConfig from_tensors(const TensorFile& file);

  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t ffn() const { return 4 * width(); }
  int blocks() const { return double_blocks + single_blocks; }
  int64_t patch_dim() const { return channels * patch[0] * patch[1] * patch[2]; }
  DoubleStreamSizes sizes() const { return {.width = width(), .ffn = ffn(), .heads = heads}; }
  TransformerTraits traits() const;
  // The rotary angles of a picture's tokens. The prompt's rows have no positions.
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const;
};

std::string to_string(const FluxConfig& config);

// Every tensor of the checkpoint with its diffusers name, and the part of it that a slice holds. Of
// a single-stream block's proj_out a slice holds two ranges of columns, `second` being that of the
// feed-forward; the range of any other tensor's `second` is empty.
std::vector<TensorSpec> flux_tensors(const FluxConfig& config);
struct FluxPart {
  TensorPart first, second{};
};
FluxPart flux_part(const FluxConfig& config, const TensorSpec& tensor, const WidthSlice& width);

// The names of a double-stream block's streams.
extern const StreamNames kFluxLatent, kFluxText;

// A prompt's rows before the first block, and the part of the time vector that no step changes.
struct FluxConditioning final : Conditioning {
  int64_t rows = 0;
  Tensor text{};   // [rows, D] f32; empty where the first block is not loaded
  Tensor fixed{};  // [1, D] f32: the prompt's vector and the guidance, embedded

  size_t bytes() const override { return bytes_of(text) + bytes_of(fixed); }
  int64_t joint_rows() const override { return rows; }
};

struct FluxSingleBlock {
  RowLinear modulation;  // [3D, D part]: shift, scale, gate
  HeadWeights heads;
  PackedLinear proj_mlp;  // [F part, D]
  RowLinear proj_out;     // [D, D part + F part]

  auto weights() const {
    return std::tuple_cat(heads.weights(), std::tie(modulation, proj_mlp, proj_out));
  }
};

class FluxTransformer final
    : public BlockTransformer<FluxConfig, DoubleStreamBlock, FluxSingleBlock> {
 public:
  // Loads the slice `load.width` of the weights of the blocks `load.blocks`. The first block brings
  // the embedders of tokens and text, the last the head, and any the embedders of the time vector.
  // If blocks are offloaded, each kind has at least two on the device.
  static FluxTransformer load(Stream& stream, const TensorFile& file, const FluxConfig& config,
                              const TransformerLoad& load = {});

  size_t weights_bytes() const override;

  std::unique_ptr<Conditioning> prepare(Context& context, const Conditions& conditions,
                                        std::array<int64_t, 3> grid) const override;
  // One time segment covers all tokens. Observes "transformer_blocks" and
  // "single_transformer_blocks".
  void forward(Context& context, const ForwardArgs& args) const override;

 private:
  TensorView embed_time(Context& context, const TensorView& embedding,
                        const FluxConditioning& prompt) const;
  void single_block(Context& context, const FluxSingleBlock& weights, const JointPass& pass,
                    const TensorView& x) const;
  void attend(Context& context, const FluxSingleBlock& weights, const JointPass& pass,
              const TensorView& h, const TensorView& merged) const;

  std::shared_ptr<const TensorFile> renamed_;  // set where the file has other names
  PackedLinear x_embedder_;                    // [D, patch] f32
  PackedLinear context_embedder_;              // [D, text_dim]
  VectorEmbedder time_, guidance_, pooled_;
  DoubleStreamHead head_;
};

std::unique_ptr<TransformerModel> make_flux_model(const FluxConfig& config);

}  // namespace weft
