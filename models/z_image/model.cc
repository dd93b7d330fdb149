// The Z-Image transformer as a TransformerModel.
#include "models/z_image/names.h"
#include "models/z_image/transformer.h"

namespace weft {

namespace {

class ZImageModel final : public ConfiguredModel<ZImageConfig, ZImageTransformer> {
 public:
  using ConfiguredModel::ConfiguredModel;

  std::vector<TensorSpec> tensors() const override { return z_image_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    ZImageConfig config = config_;
    config.layers = blocks;
    return make_z_image_model(config);
  }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    return {{.name = name}, ZImageNames{.single_file = true}(name)};
  }
  int64_t joint_rows(int64_t tokens, int64_t text) const override {
    return text + z_image_pads(text) + z_image_pads(tokens);
  }
};

}  // namespace

std::unique_ptr<TransformerModel> make_z_image_model(const ZImageConfig& config) {
  return std::make_unique<ZImageModel>(config);
}

}  // namespace weft
