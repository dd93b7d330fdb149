// The FLUX.1 transformer as a TransformerModel.
#include <algorithm>

#include "models/flux/names.h"
#include "models/flux/transformer.h"

namespace weft {

namespace {

class FluxModel final : public ConfiguredModel<FluxConfig, FluxTransformer> {
 public:
  using ConfiguredModel::ConfiguredModel;

  std::vector<TensorSpec> tensors() const override { return flux_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    FluxConfig config = config_;
    config.double_blocks = std::min(blocks, config_.double_blocks);
    config.single_blocks = blocks - config.double_blocks;
    return make_flux_model(config);
  }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    std::vector<TensorPlace> places{{.name = name}, flux_original_place(config_, name)};
    if (TensorPlace place = flux_processor_place(name); !place.name.empty())
      places.push_back(std::move(place));
    return places;
  }
  // FLUX.1-schnell is told no guidance.
  bool relatives_have(const std::string& module) const override {
    return module.find("guidance_in") != std::string::npos ||
           module.find("guidance_embedder") != std::string::npos;
  }
  int64_t joint_rows(int64_t /*tokens*/, int64_t text) const override { return text; }
};

}  // namespace

std::unique_ptr<TransformerModel> make_flux_model(const FluxConfig& config) {
  return std::make_unique<FluxModel>(config);
}

}  // namespace weft
