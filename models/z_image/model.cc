// The Z-Image transformer as a TransformerModel.
#include "models/z_image/transformer.h"

namespace weft {

namespace {

class ZImageModel final : public TransformerModel {
 public:
  explicit ZImageModel(const ZImageConfig& config)
      : TransformerModel(config.traits()), config_(config) {}

  std::string description() const override { return to_string(config_); }
  std::vector<TensorSpec> tensors() const override { return z_image_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    ZImageConfig config = config_;
    config.layers = blocks;
    return make_z_image_model(config);
  }
  std::unique_ptr<Transformer> load(Stream& stream, const TensorFile& file,
                                    const TransformerLoad& load) const override {
    return std::make_unique<ZImageTransformer>(
        ZImageTransformer::load(stream, file, config_, load));
  }
  int64_t joint_rows(const ForwardSize& size) const override {
    return rows(size).captions + rows(size).pads;
  }
  size_t weights_bytes(const TransformerLoad& load) const override {
    return z_image_weights_bytes(config_, load);
  }
  size_t conditioning_bytes(const ForwardSize& size, const TransformerLoad& load) const override {
    return z_image_conditioning_bytes(config_, rows(size).captions, load);
  }
  // make_rope's tables hold cos and sin of every position of each axis.
  size_t rope_bytes(std::array<int64_t, 3> grid) const override {
    int64_t values = 0;
    for (int axis = 0; axis < 3; ++axis) values += grid[axis] * config_.axes_dims[axis];
    return static_cast<size_t>(values) * sizeof(float);
  }
  size_t workspace_bytes(const ForwardSize& size, const TransformerLoad& load,
                         const SeamBytes& seams) const override {
    return z_image_workspace_bytes(config_, rows(size), load, seams);
  }
  DeviceBytes device_bytes(const TransformerLoad& load, Bias biases) const override {
    return z_image_device_bytes(config_, load, biases);
  }
  size_t streamed_bytes(const TransformerLoad& load) const override {
    return z_image_streamed_bytes(config_, load);
  }
  size_t scratch_bytes(const ForwardSize& size, const TransformerLoad& load, Bias biases,
                       const DeviceTraits& device) const override {
    return z_image_scratch_bytes(config_, rows(size), size.all_tokens + joint_rows(size), load,
                                 biases, device);
  }

 private:
  static ZImageRows rows(const ForwardSize& size) {
    return {.tokens = size.tokens,
            .captions = size.text + z_image_pads(size.text),
            .pads = z_image_pads(size.all_tokens)};
  }

  ZImageConfig config_;
};

}  // namespace

std::unique_ptr<TransformerModel> make_z_image_model(const ZImageConfig& config) {
  return std::make_unique<ZImageModel>(config);
}

}  // namespace weft
