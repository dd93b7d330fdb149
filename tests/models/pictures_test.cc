// Transformers of pictures have joint rows of a prompt, and positions.
#include <gtest/gtest.h>

#include <cstdio>

#include "models/flux/transformer.h"
#include "models/qwen_image/transformer.h"
#include "models/z_image/transformer.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_cases.h"

namespace weft::test {
namespace {

// The facts by which the families differ.
struct Flux {
  static constexpr char kName[] = "Flux", kCase[] = "dit_flux";
  static constexpr auto kMakeModel = make_flux_model;
  static constexpr auto kTensors = flux_tensors;
  static constexpr int64_t kJointRows = 7;
  // FLUX.1-dev embeds its guidance, FLUX.1-schnell does not.
  static std::vector<std::pair<FluxConfig, int64_t>> published() {
    FluxConfig schnell;
    schnell.guidance_embeds = false;
    return {{FluxConfig(), 11'901'408'320}, {schnell, 11'891'178'560}};
  }
  // A model of three blocks with heads of the published size.
  static FluxConfig small() {
    FluxConfig config;
    config.heads = 2;
    config.double_blocks = 1;
    config.single_blocks = 2;
    config.text_dim = 64;
    config.pooled_dim = 32;
    return config;
  }
  static const Tensor& text(const Conditioning& prepared) {
    return dynamic_cast<const FluxConditioning&>(prepared).text;
  }
};

struct QwenImage {
  static constexpr char kName[] = "QwenImage", kCase[] = "dit_qwen_image";
  static constexpr auto kMakeModel = make_qwen_image_model;
  static constexpr auto kTensors = qwen_image_tensors;
  static constexpr int64_t kJointRows = 7;
  static std::vector<std::pair<QwenImageConfig, int64_t>> published() {
    return {{QwenImageConfig(), 20'430'401'088}};
  }
  static QwenImageConfig small() {
    QwenImageConfig config;
    config.heads = 2;
    config.layers = 3;
    config.text_dim = 64;
    return config;
  }
  static const Tensor& text(const Conditioning& prepared) {
    return dynamic_cast<const QwenImageConditioning&>(prepared).text;
  }
};

struct ZImage {
  static constexpr char kName[] = "ZImage", kCase[] = "dit_zimage";
  static constexpr auto kMakeModel = make_z_image_model;
  static constexpr auto kTensors = z_image_tensors;
  static constexpr int64_t kJointRows = 8 + 32;  // of the picture's padding, and of the prompt
  static std::vector<std::pair<ZImageConfig, int64_t>> published() {
    return {{ZImageConfig(), 6'154'908'736}};
  }
  static ZImageConfig small() {
    ZImageConfig config;
    config.dim = 256;
    config.heads = 2;
    config.layers = 3;
    config.caption_dim = 64;
    return config;
  }
  static const Tensor& text(const Conditioning& prepared) {
    return dynamic_cast<const ZImageConditioning&>(prepared).caption;
  }
};

template <class Family>
class Pictures : public testing::Test {};

struct FamilyName {
  template <class Family>
  static std::string GetName(int) {
    return Family::kName;
  }
};

using Families = testing::Types<Flux, QwenImage, ZImage>;
TYPED_TEST_SUITE(Pictures, Families, FamilyName);

TYPED_TEST(Pictures, LaterStagesEmbedNoText) {
  const TransformerCase c(TypeParam::kCase);
  const int n = c.traits.blocks;
  TransformerRun a(c, {.blocks = {0, 1, n}}), b(c, {.blocks = {1, n, n}});
  Context ca = a.context(), cb = b.context();
  EXPECT_TRUE(TypeParam::text(*a.prepare(ca)));
  EXPECT_FALSE(TypeParam::text(*b.prepare(cb)));
  EXPECT_EQ(a.run(ca, c.latent, *a.prepare(ca)).view()[0], 24 + TypeParam::kJointRows);
}

// Attention depends on differences of positions, and the prompt's do not move with the picture's.
TYPED_TEST(Pictures, PositionsMatter) {
  const TransformerCase c(TypeParam::kCase);
  TransformerRun model(c);
  const std::vector<double> expected = to_f64(model.run());
  Context context = model.context();
  for (const std::array<int64_t, 3>& start : {std::array<int64_t, 3>{0, 1, 0}, {5, 0, 0}}) {
    const Tensor moved = model.run(context, c.latent, *model.prepare(context), start);
    EXPECT_GT(relative_l2(to_f64(moved), expected), 1e-4) << start[0];
  }
}

// The bytes of packed weights are those predicted. Packed matrices may be padded to the tiles of
// the GEMM, so the widths must not be tiny.
TYPED_TEST(Pictures, WeightsAreThePredictedBytes) {
  const auto model = TypeParam::kMakeModel(TypeParam::small());
  const std::string path = testing::TempDir() + "weft_" + TypeParam::kCase + "_bytes.safetensors";
  write_file(path, random_weights(model->tensors(), 5));
  Stream stream = Stream::cpu(2, Determinism::kFixed, &reference_ops());
  for (const BlockRange& blocks : {BlockRange{0, 3, 3}, {0, 1, 3}, {1, 2, 3}, {2, 3, 3}})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      const TransformerLoad load{.dtype = dtype, .blocks = blocks};
      const auto transformer = model->load(stream, TensorFile::open(path), load);
      const auto predicted = static_cast<double>(dry_weights(*model, load));
      EXPECT_NEAR(static_cast<double>(transformer->weights_bytes()), predicted, 0.05 * predicted);
    }
  std::remove(path.c_str());
}

TYPED_TEST(Pictures, CountsOfThePublishedModels) {
  for (const auto& [config, parameters] : TypeParam::published())
    EXPECT_EQ(parameter_count(TypeParam::kTensors(config)), parameters) << to_string(config);
}

}  // namespace
}  // namespace weft::test
