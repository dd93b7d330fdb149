// The FLUX.2 transformer as a TransformerModel.
#include <algorithm>

#include "models/flux2/names.h"
#include "models/flux2/transformer.h"

namespace weft {

namespace {

class Flux2Model final : public ConfiguredModel<Flux2Config, Flux2Transformer> {
 public:
  using ConfiguredModel::ConfiguredModel;

  std::vector<TensorSpec> tensors() const override { return flux2_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    Flux2Config config = config_;
    config.double_blocks = std::min(blocks, config_.double_blocks);
    config.single_blocks = blocks - config.double_blocks;
    return make_flux2_model(config);
  }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    return {{.name = name}, flux2_original_place(name)};
  }
  // klein is told no guidance.
  bool relatives_have(const std::string& module) const override {
    return module.find("guidance_in") != std::string::npos ||
           module.find("guidance_embedder") != std::string::npos;
  }
  int64_t joint_rows(int64_t /*tokens*/, int64_t text) const override { return text; }
};

}  // namespace

std::unique_ptr<TransformerModel> make_flux2_model(const Flux2Config& config) {
  return std::make_unique<Flux2Model>(config);
}

}  // namespace weft
