// The Wan transformer as a TransformerModel.
#include "models/wan/transformer.h"

namespace weft {

namespace {

class WanModel final : public TransformerModel {
 public:
  explicit WanModel(const WanConfig& config) : TransformerModel(config.traits()), config_(config) {}

  std::string description() const override { return to_string(config_); }
  std::vector<TensorSpec> tensors() const override { return wan_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    WanConfig config = config_;
    config.layers = blocks;
    return make_wan_model(config);
  }
  std::unique_ptr<Transformer> load(Stream& stream, const TensorFile& file,
                                    const TransformerLoad& load) const override {
    return std::make_unique<WanTransformer>(WanTransformer::load(stream, file, config_, load));
  }
  size_t weights_bytes(const TransformerLoad& load) const override {
    return wan_weights_bytes(config_, load);
  }
  size_t conditioning_bytes(const ForwardSize& size, const TransformerLoad& load) const override {
    return wan_text_bytes(config_, text_rows(size), load);
  }
  // make_rope's tables hold cos and sin of every position of each axis.
  size_t rope_bytes(std::array<int64_t, 3> grid) const override {
    const int64_t side = config_.head_dim / 6 * 2;
    return static_cast<size_t>(grid[0] * (config_.head_dim - 2 * side) +
                               (grid[1] + grid[2]) * side) *
           sizeof(float);
  }
  size_t workspace_bytes(const ForwardSize& size, const TransformerLoad& load,
                         const SeamBytes& seams) const override {
    return wan_workspace_bytes(config_, size.tokens, text_rows(size), load, seams);
  }
  DeviceBytes device_bytes(const TransformerLoad& load, Bias biases) const override {
    return wan_device_bytes(config_, load, biases);
  }
  size_t streamed_bytes(const TransformerLoad& load) const override {
    return wan_streamed_bytes(config_, load);
  }
  size_t scratch_bytes(const ForwardSize& size, const TransformerLoad& load, Bias biases,
                       const DeviceTraits& device) const override {
    return wan_scratch_bytes(config_, size.tokens, size.all_tokens, text_rows(size), load, biases,
                             device);
  }

 private:
  // One row stands for all rows of the padding.
  static int64_t text_rows(const ForwardSize& size) {
    return size.text + (size.text_length > size.text ? 1 : 0);
  }

  WanConfig config_;
};

}  // namespace

std::unique_ptr<TransformerModel> make_wan_model(const WanConfig& config) {
  return std::make_unique<WanModel>(config);
}

}  // namespace weft
