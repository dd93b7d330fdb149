// The Krea-2 transformer as a TransformerModel.
#include "models/krea2/names.h"
#include "models/krea2/transformer.h"

namespace weft {

namespace {

class Krea2Model final : public ConfiguredModel<Krea2Config, Krea2Transformer> {
 public:
  using ConfiguredModel::ConfiguredModel;

  std::vector<TensorSpec> tensors() const override { return krea2_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    Krea2Config config = config_;
    config.layers = blocks;
    return make_krea2_model(config);
  }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    return {{.name = name}, {.name = krea2_original_name(name)}};
  }
  int64_t joint_rows(int64_t /*tokens*/, int64_t text) const override { return text; }
};

}  // namespace

std::unique_ptr<TransformerModel> make_krea2_model(const Krea2Config& config) {
  return std::make_unique<Krea2Model>(config);
}

}  // namespace weft
