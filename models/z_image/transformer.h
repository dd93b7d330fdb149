#pragma once
// Z-Image transformer (Z-Image Team 2025, arXiv 2511.22699): one stream of image and caption
// tokens, refined apart by a few layers each and then mixed by the main layers. Config, weights,
// forward.
#include <array>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/block_transformer.h"

namespace weft {

// The defaults are those of the published config.
struct ZImageConfig {
  int64_t dim = 3840;
  int heads = 30, layers = 30, refiner_layers = 2;
  int64_t in_channels = 16, caption_dim = 2560;
  std::array<int64_t, 3> patch{1, 2, 2};
  std::array<int64_t, 3> axes_dims{32, 48, 48};      // dimensions of a head per axis
  std::array<int64_t, 3> axes_lens{1536, 512, 512};  // positions per axis
  float eps = 1e-5f;
  double rope_theta = 256, t_scale = 1000;

  // Reads a diffusers transformer/config.json. Throws Error(kModel) that lists every unknown,
  // missing and unsupported key at once.
  static ZImageConfig from_json_file(const std::string& path);
  // Derives the sizes from names and shapes, for single-file checkpoints without a config.
  static ZImageConfig from_tensors(const TensorFile& file);

  int head_dim() const { return static_cast<int>(dim / heads); }
  int64_t ffn_dim() const { return static_cast<int64_t>(static_cast<double>(dim) / 3 * 8); }
  int64_t time_dim() const { return std::min<int64_t>(dim, 256); }
  // Values of a token's patch.
  int64_t patch_dim() const { return in_channels * patch[0] * patch[1] * patch[2]; }
  TransformerTraits traits() const;
  // The rotary angles of a grid whose first token has this position.
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const;
};

std::string to_string(const ZImageConfig& config);

// Every tensor of the checkpoint with its diffusers name, and the part of it that a slice holds.
std::vector<TensorSpec> z_image_tensors(const ZImageConfig& config);
TensorPart z_image_part(const ZImageConfig& config, const TensorSpec& tensor,
                        const WidthSlice& width);

// Sequences of image and caption tokens are padded to a multiple of this with learned rows that
// take part in attention.
inline constexpr int64_t kZImageMultiple = 32;
inline int64_t z_image_pads(int64_t rows) {
  return (kZImageMultiple - rows % kZImageMultiple) % kZImageMultiple;
}

// A prompt's rows for the main layers. They do not depend on the timestep and are computed once per
// prompt. Behind a rank's own rows come the caption's and then the padding of the image, which has
// no position.
struct ZImageConditioning final : Conditioning {
  int64_t rows = 0;  // caption rows, padded
  int64_t pads = 0;  // padding rows of the image
  Tensor caption{};  // [rows, D] f32, refined; empty where the first main layer is not loaded
  Rope positions{};  // of the caption's rows

  size_t bytes() const override;
  int64_t joint_rows() const override { return rows + pads; }
};

struct ZImageBlock {
  Tensor attention_norm1, attention_norm2, ffn_norm1, ffn_norm2;  // [D] f32
  HeadWeights heads;
  RowLinear to_out;         // [D, D part]
  PackedLinear w1, w3;      // [F part, D]
  RowLinear w2;             // [D, F part]
  PackedLinear modulation;  // [4D, time_dim] f32; empty in the context refiner

  auto weights() const {
    return std::tuple_cat(heads.weights(), std::tie(to_out, w1, w3, w2, modulation, attention_norm1,
                                                    attention_norm2, ffn_norm1, ffn_norm2));
  }
};

class ZImageTransformer final : public BlockTransformer<ZImageConfig, ZImageBlock> {
 public:
  // Loads the slice `load.width` of the weights of the main layers `load.blocks`. The first layer
  // brings the embedders and refiners, the last the final layer, and any the time embedder.
  static ZImageTransformer load(Stream& stream, const TensorFile& file, const ZImageConfig& config,
                                const TransformerLoad& load = {});

  size_t weights_bytes() const override;

  // Embeds and refines the caption. Observes "context_refiner".
  std::unique_ptr<Conditioning> prepare(Context& context, const Conditions& conditions,
                                        std::array<int64_t, 3> grid) const override;
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start,
            const Conditioning& conditioning) const override;
  // One time segment covers all tokens. Observes "noise_refiner" and "layers".
  void forward(Context& context, const ForwardArgs& args) const override;

 private:
  // The rows that attend to each other in a block.
  struct Sequence {
    TokenMixer& mixer;
    int layer;               // number of the attention among those of the pass
    const Rope* rope;        // positions of this rank's own rows
    int64_t replicated = 0;  // rows after them that every rank has
    const Rope* replicated_rope = nullptr;
  };

  TensorView embed_time(Context& context, const TensorView& embedding) const;
  void embed_image(Context& context, const TensorView& in, const TensorView& time,
                   const ZImageConditioning& conditioning, const Rope& rope,
                   const TensorView& x) const;
  void block(Context& context, const ZImageBlock& weights, const TensorView& time,
             const Sequence& sequence, const TensorView& x) const;
  void self_attention(Context& context, const ZImageBlock& weights, const Sequence& sequence,
                      const TensorView& h, const TensorView& y) const;
  void feed_forward(Context& context, const ZImageBlock& weights, const TensorView& h,
                    const TensorView& y) const;
  void head(Context& context, const TensorView& time, const TensorView& x,
            const TensorView& out) const;
  void observe_layer(Context& context, int index, const ZImageConditioning& conditioning,
                     const TensorView& x) const;

  PackedLinear x_embedder_;                     // [D, patch] f32
  PackedLinear time_linear_1_, time_linear_2_;  // [1024, 256], [time_dim, 1024] f32
  Tensor caption_norm_;                         // [caption_dim] f32
  PackedLinear caption_embedder_;               // [D, caption_dim]
  Tensor x_pad_, caption_pad_;                  // [D] f32
  std::vector<ZImageBlock> noise_refiner_, context_refiner_;
  PackedLinear final_modulation_;  // [D, time_dim] f32
  PackedLinear final_linear_;      // [patch, D] f32
};

std::unique_ptr<TransformerModel> make_z_image_model(const ZImageConfig& config);

}  // namespace weft
