#pragma once
// Qwen-Image transformer (Qwen Team 2025, arXiv 2508.02324): double-stream blocks over the tokens
// of a picture and the rows of its prompt. Config, weights, forward.
#include <array>
#include <memory>
#include <string>
#include <vector>

#include "models/double_stream/block.h"

namespace weft {

// The defaults are those of the published config.
struct QwenImageConfig {
  int heads = 24, head_dim = 128, layers = 60;
  int64_t channels = 16;    // of the latent, and of the velocity
  int64_t text_dim = 3584;  // of a prompt's row
  std::array<int64_t, 3> patch{1, 2, 2};
  std::array<int64_t, 3> axes_dims{16, 56, 56};  // dimensions of a head per axis

  // Reads a diffusers transformer/config.json. Throws Error(kModel) that lists every unknown,
  // missing and unsupported key at once.
  static QwenImageConfig from_json_file(const std::string& path);
  // Derives the sizes from names and shapes, for single-file checkpoints without a config.
  static QwenImageConfig from_tensors(const TensorFile& file);

  int64_t width() const { return int64_t{heads} * head_dim; }
  int64_t ffn() const { return 4 * width(); }
  int64_t patch_dim() const { return channels * patch[0] * patch[1] * patch[2]; }
  DoubleStreamSizes sizes() const { return {.width = width(), .ffn = ffn(), .heads = heads}; }
  TransformerTraits traits() const;
  // The rotary angles of a picture's tokens, whose rows and columns count from the middle, and of
  // the rows of its prompt.
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const;
  Rope text_rope(std::array<int64_t, 3> grid, int64_t rows) const;
};

std::string to_string(const QwenImageConfig& config);

// Every tensor of the checkpoint with its diffusers name, and the part of it that a slice holds.
std::vector<TensorSpec> qwen_image_tensors(const QwenImageConfig& config);
TensorPart qwen_image_part(const QwenImageConfig& config, const TensorSpec& tensor,
                           const WidthSlice& width);

// The names of a block's streams.
extern const StreamNames kQwenImageLatent, kQwenImageText;

// A prompt's rows before the first block. They do not depend on the timestep.
struct QwenImageConditioning final : Conditioning {
  int64_t rows = 0;
  Tensor text{};     // [rows, D] f32; empty where the first block is not loaded
  Rope positions{};  // of the rows

  size_t bytes() const override;
  int64_t joint_rows() const override { return rows; }
};

class QwenImageTransformer final : public BlockTransformer<QwenImageConfig, DoubleStreamBlock> {
 public:
  // Loads the slice `load.width` of the weights of the blocks `load.blocks`. The first block brings
  // the embedders, the last the head, and any the time embedder.
  static QwenImageTransformer load(Stream& stream, const TensorFile& file,
                                   const QwenImageConfig& config, const TransformerLoad& load = {});

  size_t weights_bytes() const override;

  std::unique_ptr<Conditioning> prepare(Context& context, const Conditions& conditions,
                                        std::array<int64_t, 3> grid) const override;
  // One time segment covers all tokens. Observes "transformer_blocks".
  void forward(Context& context, const ForwardArgs& args) const override;

 private:
  void embed(Context& context, const TensorView& in, const QwenImageConditioning& prompt,
             const TensorView& x) const;

  PackedLinear image_in_;  // [D, patch] f32
  Tensor text_norm_;       // [text_dim] f32
  PackedLinear text_in_;   // [D, text_dim]
  VectorEmbedder time_;
  DoubleStreamHead head_;
};

std::unique_ptr<TransformerModel> make_qwen_image_model(const QwenImageConfig& config);

}  // namespace weft
