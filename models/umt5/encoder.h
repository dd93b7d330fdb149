#pragma once
// UMT5 encoder (Chung et al. 2023; Raffel et al. 2020): pre-norm blocks of attention with relative
// position bias and gated GELU. The T5 v1.1 encoder differs in one thing: its layers share the
// position bias of the first one.
#include <span>
#include <string>
#include <vector>

#include "models/blocks.h"
#include "models/encoder.h"
#include "parallel/context.h"

namespace weft {

struct Umt5Config {
  int64_t d_model = 4096;
  int64_t d_kv = 64;  // head size
  int64_t d_ff = 10240;
  int64_t num_heads = 64;
  int64_t num_layers = 24;
  int64_t vocab_size = 256384;
  int64_t num_buckets = 32;
  int64_t max_distance = 128;
  float eps = 1e-6f;
  bool shared_bias = false;  // T5: only the first layer has a position bias, which all layers add

  int64_t inner() const { return num_heads * d_kv; }
  TextEncoderTraits traits() const { return {{d_model, num_heads, d_ff}}; }

  // Reads a transformers config.json of model_type "umt5" or "t5". Error(kModel) names the field,
  // its value and what is legal.
  static Umt5Config from_json_file(const std::string& path);
  // Reads what the tensors of a file without a config tell; the rest is as published.
  static Umt5Config from_tensors(const TensorFile& file);
};

std::string to_string(const Umt5Config& config);

// Every tensor of the encoder, including the embedding (as shared.weight).
std::vector<TensorSpec> umt5_tensors(const Umt5Config& config);

// Returns the part of a tensor that the slice `width` holds: outputs of q, k, v and the gated
// layers; inputs of o and wo; heads of the position biases; all of any other tensor.
TensorPart umt5_part(const Umt5Config& config, const TensorSpec& tensor, const WidthSlice& width);

// The row of relative_attention_bias for delta = key position - query position, bidirectional
// (Raffel et al. 2020, section 2.1): half of the buckets per sign; of those the first half exact,
// the rest spaced by logarithm up to max_distance. The logarithm is f32, as the weights were
// trained.
int64_t umt5_bucket(int64_t delta, int64_t num_buckets, int64_t max_distance);

class Umt5Encoder final : public TextEncoder {
 public:
  // If only a part of the width is loaded, encode needs a Context whose Reducer sums over the
  // parts. The embedding stays in the mapped file, in the file's dtype, so `file` must outlive the
  // encoder.
  static Umt5Encoder load(const TensorFile& file, const Umt5Config& config, Stream& stream,
                          const EncoderLoad& load = {});

  // The rows are the final norm's. The ids include </s> but no padding: the model masks keys beyond
  // the prompt, so the result is the same without them.
  void encode(Context& context, std::span<const int32_t> ids, const TensorView& out) const override;

  const Umt5Config& config() const { return config_; }
  DType dtype() const { return dtype_; }
  size_t bytes() const override;  // packed weights, norms and position biases

 private:
  struct Layer {
    Tensor attention_norm;     // [d_model] f32
    PackedLinear q, k, v;      // [inner part, d_model]
    RowLinear o;               // [d_model, inner part]
    Tensor bias;               // [num_buckets, heads part] f32, on the host; empty: the first's
    Tensor feed_forward_norm;  // [d_model] f32
    PackedLinear wi_0, wi_1;   // [d_ff part, d_model]: the gate, then the values it multiplies
    RowLinear wo;              // [d_model, d_ff part]

    auto weights() const {
      return std::tie(attention_norm, q, k, v, o, bias, feed_forward_norm, wi_0, wi_1, wo);
    }
  };

  // `shared_bias` [heads part, n, n] f32 is that of all layers, or empty.
  void attend(Context& context, const Layer& layer, const TensorView& shared_bias,
              const TensorView& x) const;
  void feed_forward(Context& context, const Layer& layer, const TensorView& x) const;

  Umt5Config config_;
  DType dtype_ = DType::kF32;
  WidthSlice width_;
  TableInFile embedding_;  // [vocab_size, d_model]
  std::vector<Layer> layers_;
  Tensor final_norm_;  // [d_model] f32
};

// A UMT5 or T5 v1.1 encoder by its configuration.
std::unique_ptr<TextEncoderModel> make_umt5_model(const Umt5Config& config);

}  // namespace weft
