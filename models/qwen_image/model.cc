// The Qwen-Image transformer as a TransformerModel.
#include "models/qwen_image/transformer.h"

namespace weft {

namespace {

class QwenImageModel final : public TransformerModel {
 public:
  explicit QwenImageModel(const QwenImageConfig& config)
      : TransformerModel(config.traits()), config_(config) {}

  std::string description() const override { return to_string(config_); }
  std::vector<TensorSpec> tensors() const override { return qwen_image_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    QwenImageConfig config = config_;
    config.layers = blocks;
    return make_qwen_image_model(config);
  }
  std::unique_ptr<Transformer> load(Stream& stream, const TensorFile& file,
                                    const TransformerLoad& load) const override {
    return std::make_unique<QwenImageTransformer>(
        QwenImageTransformer::load(stream, file, config_, load));
  }
  int64_t joint_rows(int64_t /*tokens*/, int64_t text) const override { return text; }

 private:
  QwenImageConfig config_;
};

}  // namespace

std::unique_ptr<TransformerModel> make_qwen_image_model(const QwenImageConfig& config) {
  return std::make_unique<QwenImageModel>(config);
}

}  // namespace weft
