#pragma once
// The encoder of wav2vec 2.0 (Baevski et al. 2020, arXiv 2006.11477, sections 2 and 4.2), in its
// large form: convolutions with layer norms over channels, and pre-norm blocks. Wan 2.2 S2V hears
// all of its hidden states.
#include <string>
#include <vector>

#include "io/weights/tensor_names.h"
#include "kernels/conv.h"
#include "models/encoder.h"
#include "models/pre_norm_encoder/blocks.h"

namespace weft {

// One convolution of the feature extractor, without padding.
struct Wav2Vec2Conv {
  int64_t channels = 0, kernel = 0, stride = 0;
};

struct Wav2Vec2Config {
  EncoderBlocksConfig blocks;
  std::vector<Wav2Vec2Conv> convs;
  bool conv_bias = true;
  // The convolution over rows that stands for positions.
  int64_t position_kernel = 128, position_groups = 16;

  int64_t hop() const;     // samples from one row to the next
  int64_t window() const;  // samples under one row
  int64_t features() const { return convs.back().channels; }

  // Reads a transformers config.json of model_type "wav2vec2". Keys that only training or other
  // heads read are known and ignored. Error(kModel) names unknown keys and values that are not
  // supported.
  static Wav2Vec2Config from_json_file(const std::string& path);
};

// Returns whether a file with these names holds such an encoder.
bool holds_wav2vec2(const TensorNames& names);
// Every tensor of the encoder, as Hugging Face names them, without "wav2vec2.". The weight of the
// convolution over rows is named as weight_g and weight_v.
std::vector<TensorSpec> wav2vec2_tensors(const Wav2Vec2Config& config);

class Wav2Vec2 final : public AudioEncoder {
 public:
  // `load` says how the blocks' linear layers are packed; all of the others are. The file may spell
  // the weight norm as a parametrization.
  static Wav2Vec2 load(const TensorFile& file, const Wav2Vec2Config& config, Stream& stream,
                       const EncoderLoad& load = {});

  void encode(Context& context, const TensorView& samples, Output take) const override;
  size_t bytes() const override;

 private:
  struct Conv {
    PackedConv packed;  // [channels, channels before, 1, 1, kernel]; the first one in f32
    NormWeights norm;   // over channels
    int64_t stride = 1;

    auto weights() const { return norm.weights(); }
  };

  void extract(Context& context, const TensorView& samples, const TensorView& x) const;
  TensorView convolve(Context& context, const Conv& conv, const TensorView& in) const;
  void add_positions(Context& context, const TensorView& x) const;

  Wav2Vec2Config config_;
  DType dtype_ = DType::kF32;
  std::vector<Conv> convs_;
  NormWeights projection_norm_;        // [features]
  PackedLinear projection_;            // [D, features]
  std::vector<PackedConv> positions_;  // per group: [D / groups, D / groups, 1, 1, kernel] f32
  EncoderBlocks blocks_;
  NormWeights final_norm_;
};

// A wav2vec 2.0 encoder by its configuration.
std::unique_ptr<AudioEncoderModel> make_wav2vec2_model(const Wav2Vec2Config& config);

}  // namespace weft
