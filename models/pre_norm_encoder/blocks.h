#pragma once
// The blocks of pre-norm encoders (CLIP: Radford et al. 2021, section 2.4; wav2vec 2.0 with
// "stable" layer norm: Baevski et al. 2020): pre-norm attention and an MLP, all with biases.
#include <functional>
#include <string>
#include <vector>

#include "models/blocks.h"
#include "models/encoder.h"

namespace weft {

class ConfigReader;
class Json;

// The MLP's activation: GELU by the error function, or x sigmoid(1.702 x).
enum class EncoderActivation : uint8_t { kGelu, kQuickGelu };

// The names that a family gives the layers of a block, without "encoder.layers.N.", ".weight" and
// ".bias".
struct EncoderBlockNames {
  const char* norm1;            // before attention
  const char *q, *k, *v, *out;  // of attention
  const char* norm2;            // before the MLP
  const char *fc1, *fc2;        // of the MLP
};

struct EncoderBlocksConfig {
  int64_t width = 0;  // D
  int64_t ffn = 0;
  int64_t heads = 0;
  int64_t layers = 0;
  float eps = 1e-5f;
  EncoderActivation activation = EncoderActivation::kGelu;
  EncoderBlockNames names{};

  int64_t head_dim() const { return width / heads; }
  // Reads the fields that the encoders of transformers share. `activation` is that of a file which
  // names none of the legal ones.
  static EncoderBlocksConfig read(ConfigReader& fields, const EncoderBlockNames& names,
                                  EncoderActivation activation, const std::vector<Json>& legal);
};

// The tensors of the blocks, and of a norm over `width` values, as Hugging Face names them.
void add_encoder_blocks(const EncoderBlocksConfig& config, std::vector<TensorSpec>& tensors);
void add_norm(int64_t width, const std::string& name, std::vector<TensorSpec>& tensors);

// Returns the part of a tensor that the slice `width` holds: outputs of q, k, v and of the MLP's
// first layer; inputs of the two layers back; all of any other tensor.
TensorPart encoder_part(const EncoderBlocksConfig& config, const TensorSpec& tensor,
                        const WidthSlice& width);

struct NormWeights {
  Tensor weight, bias;  // [D] f32

  static NormWeights load(Stream& stream, const CheckpointPart& held, const std::string& name);
  auto weights() const { return std::tie(weight, bias); }
};

class EncoderBlocks {
 public:
  EncoderBlocks() = default;
  // Packs the first `count` blocks.
  static EncoderBlocks load(Stream& stream, const CheckpointPart& held,
                            const EncoderBlocksConfig& config, int64_t count,
                            const EncoderLoad& load);
  // Applies the blocks to x [n, D] f32 in place. Observes `name` with the block's index, and calls
  // `after` with it, if there is one, when a block is done.
  void run(Context& context, Mask mask, const char* name, const TensorView& x,
           const std::function<void(int64_t block)>& after = {}) const;
  size_t bytes() const;

 private:
  struct Block {
    NormWeights norm1;     // before attention
    PackedLinear q, k, v;  // [D part, D]
    RowLinear out;         // [D, D part]
    NormWeights norm2;     // before the MLP
    PackedLinear fc1;      // [ffn part, D]
    RowLinear fc2;         // [D, ffn part]

    auto weights() const {
      return std::tuple_cat(norm1.weights(), norm2.weights(), std::tie(q, k, v, out, fc1, fc2));
    }
  };

  void attend(Context& context, const Block& block, Mask mask, const TensorView& x) const;
  void feed_forward(Context& context, const Block& block, const TensorView& x) const;

  EncoderBlocksConfig config_;
  DType dtype_ = DType::kF32;
  WidthSlice width_;
  std::vector<Block> blocks_;
};

}  // namespace weft
