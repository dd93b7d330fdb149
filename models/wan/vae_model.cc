// Wan's VAE as a VaeModel.
#include "models/wan/vae.h"

namespace weft {

namespace {

class WanVaeModel final : public VaeModel {
 public:
  explicit WanVaeModel(const WanVaeConfig& config) : VaeModel(config.traits()), config_(config) {}

  std::vector<TensorSpec> tensors() const override { return wan_vae_tensors(config_); }
  std::unique_ptr<Vae> load(Stream& stream, const TensorFile& file, DType dtype,
                            VaeParts parts) const override {
    return std::make_unique<WanVae>(WanVae::load(file, config_, stream, dtype, parts));
  }

 private:
  WanVaeConfig config_;
};

}  // namespace

std::unique_ptr<VaeModel> make_wan_vae_model(const WanVaeConfig& config) {
  return std::make_unique<WanVaeModel>(config);
}

}  // namespace weft
