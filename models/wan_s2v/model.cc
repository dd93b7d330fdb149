// Wan 2.2 speech to video as a TransformerModel.
#include <algorithm>

#include "models/wan/names.h"
#include "models/wan_s2v/transformer.h"

namespace weft {

namespace {

class WanS2vModel final : public ConfiguredModel<WanS2vConfig, WanS2vTransformer> {
 public:
  using ConfiguredModel::ConfiguredModel;

  std::vector<TensorSpec> tensors() const override { return wan_s2v_tensors(config_); }
  std::unique_ptr<TransformerModel> with_blocks(int blocks) const override {
    WanS2vConfig config = config_;
    config.wan.layers = blocks;
    std::erase_if(config.injects, [&](int block) { return block >= blocks; });
    return make_wan_s2v_model(config);
  }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    return {{.name = name}, {.name = WanNames{.original = true}(name)}};
  }
  std::vector<std::vector<float>> time_vectors(const TensorFile& file,
                                               std::span<const float> times) const override {
    return wan_time_vectors(config_.wan, file, times);
  }
  void signal_rows(const TensorView& features, const TensorView& rows) const override {
    wan_audio_signal(config_.audio_sizes(), features, rows);
  }
  int64_t motion_rows(std::array<int64_t, 3> grid) const override {
    return std::ssize(wan_motion_positions(grid));
  }
};

}  // namespace

std::unique_ptr<TransformerModel> make_wan_s2v_model(const WanS2vConfig& config) {
  return std::make_unique<WanS2vModel>(config);
}

}  // namespace weft
