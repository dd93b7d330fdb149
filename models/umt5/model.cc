// The UMT5 and T5 v1.1 encoders as a TextEncoderModel.
#include "models/umt5/encoder.h"
#include "models/umt5/names.h"

namespace weft {

namespace {

class Umt5Model final : public TextEncoderModel {
 public:
  explicit Umt5Model(const Umt5Config& config)
      : TextEncoderModel(config.traits()), config_(config) {}

  std::vector<TensorSpec> tensors() const override { return umt5_tensors(config_); }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    return {{.name = name},
            {.name = umt5_name(Umt5Spelling::kOriginal, name)},
            {.name = umt5_name(Umt5Spelling::kGguf, name)}};
  }
  std::unique_ptr<TextEncoder> load(Stream& stream, const TensorFile& file, DType dtype,
                                    const WidthSlice& width, WeightFormat weights) const override {
    return std::make_unique<Umt5Encoder>(
        Umt5Encoder::load(file, config_, stream, dtype, width, weights));
  }

 private:
  Umt5Config config_;
};

}  // namespace

std::unique_ptr<TextEncoderModel> make_umt5_model(const Umt5Config& config) {
  return std::make_unique<Umt5Model>(config);
}

}  // namespace weft
