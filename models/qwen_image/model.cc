// The Qwen-Image transformer as a TransformerModel.
#include "models/qwen_image/transformer.h"

namespace weft {

namespace {

class QwenImageModel final : public ConfiguredModel<QwenImageConfig, QwenImageTransformer> {
 public:
  using ConfiguredModel::ConfiguredModel;

  std::vector<TensorSpec> tensors() const override { return qwen_image_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    QwenImageConfig config = config_;
    config.layers = blocks;
    return make_qwen_image_model(config);
  }
  int64_t joint_rows(int64_t /*tokens*/, int64_t text) const override { return text; }
};

}  // namespace

std::unique_ptr<TransformerModel> make_qwen_image_model(const QwenImageConfig& config) {
  return std::make_unique<QwenImageModel>(config);
}

}  // namespace weft
