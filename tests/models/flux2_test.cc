// FLUX.2: sizes, positions, names, conditions and the shift of its schedule.
#include <gtest/gtest.h>

#include "models/autoencoder_kl/vae.h"
#include "models/flux2/names.h"
#include "models/flux2/transformer.h"
#include "models/registry.h"
#include "tests/models/lora_testing.h"
#include "tests/models/transformer_cases.h"

namespace weft::test {
namespace {

Flux2Config klein(int heads, int doubles, int singles, int64_t text) {
  Flux2Config config;
  config.heads = heads;
  config.double_blocks = doubles;
  config.single_blocks = singles;
  config.text_dim = text;
  config.ffn = 3 * config.width();
  return config;
}

TEST(Flux2Sizes, AreThePublishedOnes) {
  Flux2Config dev = klein(48, 8, 48, 15360);
  dev.guidance_embeds = true;
  for (const auto& [config, parameters, tensors] :
       {std::tuple{klein(24, 5, 20, 7680), 3'875'544'576l, size_t{169}},
        {klein(32, 8, 24, 12288), 9'078'581'248l, size_t{233}},
        {dev, 32'223'281'152l, size_t{331}}}) {
    const std::vector<TensorSpec> list = flux2_tensors(config);
    EXPECT_EQ(parameter_count(list), parameters);
    EXPECT_EQ(list.size(), tensors);
  }
}

// The list leaves out a number of batches, which is read by no one.
TEST(Flux2Sizes, OfTheVae) {
  PackedKlVaeConfig config;
  config.latent_channels = 32;
  const std::vector<TensorSpec> list = make_packed_kl_vae_model(config).tensors();
  EXPECT_EQ(parameter_count(list), 84'046'115 + 2 * 128);
  EXPECT_EQ(list.size(), size_t{250});
}

// The joint rows of references and text have the angles of grids that begin there.
TEST(Flux2Positions, OfReferencesAndText) {
  const Flux2Config config = klein(2, 1, 1, 24);
  const Rope joint = config.joint_rope({{2, 3}, {1, 2}}, 4);
  EXPECT_EQ(joint.grid, (std::array<int64_t, 3>{6 + 2 + 4, 1, 1}));
  const float* row = joint.table[0].as<float>();
  const int64_t columns = config.head_dim, quarter = columns / 4;
  const auto angle = [&](int64_t at, int axis) {  // the first of an axis has omega 1
    return std::atan2(row[at * columns + axis * quarter + 1], row[at * columns + axis * quarter]);
  };
  const auto wrapped = [](double x) { return std::remainder(x, 2 * 3.14159265358979); };
  for (const auto& [at, position] : {std::pair{0, std::array{10, 0, 0, 0}},
                                     {5, {10, 1, 2, 0}},
                                     {7, {20, 0, 1, 0}},
                                     {8, {0, 0, 0, 0}},
                                     {11, {0, 0, 0, 3}}})
    for (int axis = 0; axis < 4; ++axis)
      EXPECT_NEAR(angle(at, axis), wrapped(position[axis]), 1e-5) << at << " " << axis;
}

TEST(Flux2Forward, EveryConditionMatters) {
  TransformerCase c("dit_flux2_references");
  TransformerRun model(c);
  const std::vector<double> expected = to_f64(model.run());
  const auto differs = [&] { return relative_l2(to_f64(model.run()), expected) > 1e-3; };
  std::swap(c.conditions.references[0], c.conditions.references[1]);
  EXPECT_TRUE(differs());
  std::swap(c.conditions.references[0], c.conditions.references[1]);
  EXPECT_FALSE(differs());
  c.conditions.references.pop_back();
  EXPECT_TRUE(differs());
  TransformerCase dev("dit_flux2_dev");
  TransformerRun guided(dev);
  const std::vector<double> before = to_f64(guided.run());
  dev.conditions.guidance = 2;
  EXPECT_GT(relative_l2(to_f64(guided.run()), before), 1e-3);
}

// The halves of the last modulation lie the other way round in files with original names.
TEST(Flux2References, AreCutNotStretched) {
  const PictureConditioning form =
      open_model_directory("tests/golden/pipeline_flux2_klein/model").pictures;
  EXPECT_EQ(form.form, PictureForm::kReferences);
  using Size = std::array<int64_t, 2>;
  const std::tuple<Size, Size, Size> sizes[] = {
      {{1920, 1080}, {1365, 768}, {1360, 768}},   {{1000, 1000}, {1000, 1000}, {992, 992}},
      {{1025, 1024}, {1024, 1023}, {1024, 1008}}, {{4000, 3000}, {1182, 886}, {1168, 880}},
      {{1024, 1024}, {1024, 1024}, {1024, 1024}}, {{64, 512}, {64, 512}, {64, 512}}};
  for (const auto& [given, resized, cut] : sizes) {
    const ReferenceSize size = form.reference_size(given[0], given[1], form.reference_area, 16);
    EXPECT_EQ(size.resized, resized) << given[0];
    EXPECT_EQ(size.cut, cut) << given[0];
  }
}

TEST(Flux2Names, OriginalPlaces) {
  EXPECT_TRUE(flux2_original_place("norm_out.linear.weight").swapped);
  const TensorPlace value = flux2_original_place("transformer_blocks.3.attn.add_v_proj.weight");
  EXPECT_EQ(value.name, "double_blocks.3.txt_attn.qkv.weight");
  EXPECT_EQ(value.part, 2);
  EXPECT_EQ(value.parts, 3);
  for (const TensorSpec& tensor : flux2_tensors(klein(2, 1, 1, 24)))
    EXPECT_FALSE(flux2_original_place(tensor.name).name.empty()) << tensor.name;
}

// The exponents that the reference pipeline gives, with a jump after 4300 tokens.
TEST(Flux2Schedule, ShiftExponents) {
  for (const auto& [tokens, steps, exponent] : {std::tuple{4096, 4, 2.291180},
                                                {4096, 50, 2.023351},
                                                {1024, 4, 2.030690},
                                                {8160, 28, 1.837910},
                                                {4300, 4, 2.308478},
                                                {4301, 4, 1.184697}})
    EXPECT_NEAR(kFlux2Family.shift_exponent(tokens, steps), exponent, 1e-6);
}

// The joined matrix of a single file's LoRA changes three matrices, and the halves of the last
// modulation are exchanged.
class Flux2Lora : public LoraTest {
 protected:
  Flux2Lora() {
    Flux2Config config = klein(2, 1, 1, 24);
    config.head_dim = 16;
    config.axes_dims = {4, 4, 4, 4};
    config.channels = 8;
    config.ffn = 3 * config.width();
    open(make_flux2_model(config));
  }
};

TEST_F(Flux2Lora, OriginalNamesChangeParts) {
  constexpr int64_t d = 32;
  for (const std::string name :
       {"diffusion_model.double_blocks.0.txt_attn.qkv", "lora_unet_double_blocks_0_txt_attn_qkv"}) {
    const Shared difference = tensor_of({3 * d, d}, 3);
    const TensorFile file = merged({write({{name + ".diff", difference}})});
    int64_t part = 0;
    for (const char* each : {"add_q_proj", "add_k_proj", "add_v_proj"}) {
      const std::string tensor = std::string("transformer_blocks.0.attn.") + each + ".weight";
      const std::vector<float> before = values(*base_, tensor), after = values(file, tensor);
      for (int64_t i = 0; i < d * d; ++i)
        ASSERT_EQ(after[i], before[i] + difference->as<float>()[part * d * d + i]);
      ++part;
    }
  }
  const Shared halves = tensor_of({2 * d, d}, 4);
  const TensorFile file =
      merged({write({{"diffusion_model.final_layer.adaLN_modulation.1.diff", halves}})});
  const std::string tensor = "norm_out.linear.weight";
  const std::vector<float> before = values(*base_, tensor), after = values(file, tensor);
  for (int64_t i = 0; i < 2 * d * d; ++i)
    ASSERT_EQ(after[i], before[i] + halves->as<float>()[(i + d * d) % (2 * d * d)]);
}

}  // namespace
}  // namespace weft::test
