#pragma once
// Wan video diffusion transformer (Wan Team 2025, arXiv 2503.20314): config, weights, forward.
#include <array>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "models/block_transformer.h"

namespace weft {

class ConfigReader;

// Everything in which Wan transformers differ. The defaults are those of the public configs. The
// sizes come from the checkpoint.
struct WanConfig {
  int heads = 0, head_dim = 0, layers = 0;
  int64_t ffn_dim = 0, in_channels = 0, out_channels = 0;
  int64_t text_dim = 4096, freq_dim = 256;
  // Pictures that condition the model (Wan 2.1): columns of an image encoder's rows, or 0: none.
  int64_t image_dim = 0;
  bool image_keys = false;  // cross-attention has keys, values and a softmax of its own for them
  int64_t image_positions = 0;  // rows that have a learned position (first and last frame), or 0
  int64_t audio_dim = 0;  // values of the sound that a latent frame follows; 0: it hears nothing
  std::array<int64_t, 3> patch{1, 2, 2};  // frames, rows, columns of the latent per token
  float eps = 1e-6f;
  int64_t rope_max_seq_len = 1024;

  // Reads transformer/config.json in the diffusers or the original spelling. Throws Error(kModel)
  // that lists every unknown, missing and unsupported key at once.
  static WanConfig from_json_file(const std::string& path);
  // Reads the fields that all Wan transformers have, in either spelling, and finishes the reader.
  void read(ConfigReader& fields, bool original, const std::string& kind);
  // Derives the config from names and shapes, for single-file checkpoints without a config.
  static WanConfig from_tensors(const TensorFile& file);

  int64_t width() const { return int64_t{heads} * head_dim; }  // D
  TransformerTraits traits() const;
  Rope rope(std::array<int64_t, 3> grid, std::array<int64_t, 3> start) const {
    return make_rope(grid, start, head_dim);
  }
};

std::string to_string(const WanConfig& config);

// Every tensor of the checkpoint in its order, with diffusers names. The loader, the counts and
// `weft inspect` all use this list.
std::vector<TensorSpec> wan_tensors(const WanConfig& config);

// Returns the part of a tensor that the slice `width` holds: outputs of the projections to heads
// and to the feed-forward's hidden layer; inputs of the projections back; all of any other tensor.
TensorPart wan_part(const WanConfig& config, const TensorSpec& tensor, const WidthSlice& width);

// Rows beside the latent's tokens that have a timestep of their own: those of a picture that a clip
// shows, and of the frames before it. Self-attention joins them to the tokens.
struct WanJointRows {
  int64_t rows = 0;
  Tensor temb{}, proj{};  // [D] and [6, D] f32, the conditioning of their timestep
  Rope positions{};
};

// Checks that the file holds the list's tensors, in either spelling, and finds the part of each
// that `part` gives.
CheckpointPart checked_wan_tensors(const TensorFile& file, const WanConfig& config,
                                   const TransformerLoad& load, const std::vector<TensorSpec>& list,
                                   const std::function<TensorPart(const TensorSpec&)>& part);

// A prompt's keys and values for every cross-attention. They do not depend on the timestep and are
// computed once per prompt. The padding rows are equal, so one of them stands for all, weighted in
// the softmax. The rows of pictures have no padding.
struct WanText : Conditioning {
  int64_t length = 0;            // rows of the prompt
  int64_t text_length = 0;       // rows that the model was trained on, padding included
  BlockRange blocks{};           // layers whose keys and values are held
  Tensor context{};              // [rows, D] compute dtype; rows = length (+ 1 where padded)
  std::vector<Tensor> k{}, v{};  // per layer [rows, A part, E] compute dtype
  Tensor image_context{};        // [image rows, D] compute dtype, or empty
  std::vector<Tensor> image_k{}, image_v{};  // per layer [image rows, A part, E], or none
  Tensor channels{};  // the input's given channels [given_channels, F, H, W] f32, or empty
  WanJointRows joint{};

  int64_t rows() const { return length + (text_length > length ? 1 : 0); }
  size_t bytes() const override;
  int64_t joint_rows() const override { return joint.rows; }
};

struct WanBlock {
  struct Attention {
    PackedLinear to_q, to_k, to_v;  // [D part, D]
    RowLinear to_out;               // [D, D part]
    Tensor norm_q, norm_k;          // [D part] f32

    auto weights() const { return std::tie(to_q, to_k, to_v, to_out, norm_q, norm_k); }
  };
  // Cross-attention's own keys and values for rows of pictures. Empty where it has none.
  struct ImageKeys {
    PackedLinear add_k, add_v;  // [D part, D]
    Tensor norm;                // [D part] f32

    auto weights() const { return std::tie(add_k, add_v, norm); }
  };
  Tensor scale_shift_table;         // [6, D] f32
  Attention attn1;                  // self
  Tensor norm2_weight, norm2_bias;  // [D] f32
  Attention attn2;                  // cross
  ImageKeys image_keys;
  PackedLinear ffn_in;  // [ffn part, D]
  RowLinear ffn_out;    // [D, ffn part]

  auto weights() const {
    return std::tuple_cat(attn1.weights(), attn2.weights(), image_keys.weights(),
                          std::tie(ffn_in, ffn_out, scale_shift_table, norm2_weight, norm2_bias));
  }
};

// The transformer of Wan's text, picture and language conditioned models, and the base of those
// that add modules to it.
class WanTransformer : public BlockTransformer<WanConfig, WanBlock> {
 public:
  // Loads the slice `load.width` of the weights of `load.blocks`; the first block brings the patch
  // embedding, the last the embedding and the head, and any the time and text embedders.
  static WanTransformer load(Stream& stream, const TensorFile& file, const WanConfig& config,
                             const TransformerLoad& load = {});

  const WanConfig& config() const { return config_; }
  size_t weights_bytes() const override;

  // Observes "context".
  std::unique_ptr<Conditioning> prepare(Context& context, const Conditions& conditions,
                                        std::array<int64_t, 3> grid) const override;
  // Observes "patch_embedding", "temb", "timestep_proj", "blocks" with the block's index, and
  // "output".
  void forward(Context& context, const ForwardArgs& args) const override;

 protected:
  // A range of this rank's rows that share a timestep, and the conditioning of that timestep.
  struct TimeRows {
    Range rows;
    int64_t segment;  // of the forward's times; -1: the joint rows
    TensorView temb;  // [D] f32
    TensorView proj;  // [6, D] f32
  };
  // The modules that a model adds to a forward. Empty functions add nothing.
  struct Additions {
    // Changes the embedded tokens' rows, and fills in the joint rows after them.
    std::function<void(const TensorView& x)> embedded{};
    // Changes the rows after a block.
    std::function<void(int block, std::span<const TimeRows> times, const TensorView& x)>
        after_block{};
  };

  // Loads what `load` describes from a checked file.
  void load_parts(Stream& stream, const CheckpointPart& tensors, const WanConfig& config,
                  const TransformerLoad& load);
  // Fills in the keys and values of the prompt and of pictures.
  void prepare_text(Context& context, const Conditions& conditions, WanText& text) const;
  // Writes the time MLP's vectors of embedded timesteps [s, time_columns] to temb [s, D] and proj
  // [s, 6, D] f32. `signal` is as in ForwardArgs.
  void embed_timesteps(Context& context, const TensorView& embedding, const TensorView& signal,
                       const TensorView& temb, const TensorView& proj) const;
  void forward_with(Context& context, const ForwardArgs& args, const Additions& additions) const;
  const PackedLinear& patch_embedding() const { return patch_embedding_; }

 private:
  using Attention = WanBlock::Attention;
  // The inputs of a forward that its blocks share.
  struct BlockInputs {
    std::span<const TimeRows> times;
    const WanText& text;
    const Rope& rope;
  };

  void load_image_embedder(Stream& stream, const CheckpointPart& tensors);
  void check_given(const Conditions& conditions) const;
  void embed_image(Context& context, const TensorView& image, WanText& text) const;
  void add_keys(Context& context, const WanBlock& weights, WanText& text) const;
  std::vector<TimeRows> embed_times(Context& context, const ForwardArgs& args,
                                    const WanJointRows& joint) const;
  void embed_patches(Context& context, const TensorView& rows, const WanText& text,
                     const TensorView& x) const;
  void block(Context& context, int index, const WanBlock& weights, const BlockInputs& inputs,
             const TensorView& x) const;
  void self_attention(Context& context, int index, const Attention& weights,
                      const BlockInputs& inputs, const TensorView& h, const TensorView& y) const;
  void cross_attention(Context& context, int index, const Attention& weights, const WanText& text,
                       const TensorView& h, const TensorView& x) const;
  void add_attention(Context& context, const TensorView& q, const KVSegment& keys,
                     const TensorView& merged) const;
  void feed_forward(Context& context, const WanBlock& weights, const TensorView& h,
                    const TensorView& y) const;
  void head(Context& context, std::span<const TimeRows> times, const TensorView& x,
            const TensorView& velocity) const;

  // The MLP of rows of pictures, between two norms.
  struct ImageEmbedder {
    Tensor positions;                 // [image_positions, image_dim] f32, or empty
    Tensor norm1_weight, norm1_bias;  // [image_dim] f32
    PackedLinear linear_1, linear_2;  // [image_dim, image_dim], [D, image_dim]
    Tensor norm2_weight, norm2_bias;  // [D] f32

    auto weights() const {
      return std::tie(positions, norm1_weight, norm1_bias, linear_1, linear_2, norm2_weight,
                      norm2_bias);
    }
  };

  PackedLinear patch_embedding_;                            // [D, Cin * patch] f32
  PackedLinear time_linear_1_, time_linear_2_, time_proj_;  // [D, 256], [D, D], [6D, D] f32
  PackedLinear audio_linear_1_, audio_linear_2_;            // [D, audio_dim], [D, D] f32
  PackedLinear text_linear_1_, text_linear_2_;              // [D, text_dim], [D, D]
  ImageEmbedder image_;                                     // empty if image_dim is 0
  Tensor scale_shift_table_;                                // [2, D] f32
  PackedLinear proj_out_;                                   // [patch * Cout, D] f32
};

// The vectors [times, D] after the time MLP ("temb"), by sums in f64 and in order.
std::vector<std::vector<float>> wan_time_vectors(const WanConfig& config, const TensorFile& file,
                                                 std::span<const float> times);

// A Wan transformer by its configuration.
std::unique_ptr<TransformerModel> make_wan_model(const WanConfig& config);

}  // namespace weft
