// The Wan transformer as a TransformerModel.
#include "models/wan/names.h"
#include "models/wan/transformer.h"

namespace weft {

namespace {

class WanModel final : public ConfiguredModel<WanConfig, WanTransformer> {
 public:
  using ConfiguredModel::ConfiguredModel;

  std::vector<TensorSpec> tensors() const override { return wan_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    WanConfig config = config_;
    config.layers = blocks;
    return make_wan_model(config);
  }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    return {{.name = name}, {.name = WanNames{.original = true}(name)}};
  }
  // The branch of models that see an image, in both spellings.
  bool relatives_have(const std::string& module) const override {
    for (const char* part : {"k_img", "v_img", "img_emb", "add_k_proj", "add_v_proj",
                             "norm_added_k", "norm_added_q", "image_embedder"})
      if (module.find(part) != std::string::npos) return true;
    return false;
  }
  std::vector<std::vector<float>> time_vectors(const TensorFile& file,
                                               std::span<const float> times) const override {
    return wan_time_vectors(config_, file, times);
  }
};

}  // namespace

std::unique_ptr<TransformerModel> make_wan_model(const WanConfig& config) {
  return std::make_unique<WanModel>(config);
}

}  // namespace weft
