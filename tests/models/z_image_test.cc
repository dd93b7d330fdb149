#include <gtest/gtest.h>

#include <cstdio>

#include "models/z_image/names.h"
#include "models/z_image/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_cases.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// A single file, whose q, k and v are one matrix, gives the same model.
TEST(ZImageNames, SingleFilesGiveTheSameModel) {
  ZImageConfig config;
  config.dim = 256;
  config.heads = 2;
  config.layers = 1;
  config.refiner_layers = 1;
  config.caption_dim = 20;
  const NamedTensors ours = random_weights(z_image_tensors(config), 5);
  const std::string path = testing::TempDir() + "weft_z_image_names.safetensors";
  Stream stream = Stream::cpu(1);
  const Tensor latent =
      f32_copy(stream, ours.at("all_x_embedder.2-1.weight").view().slice(0, 0, 24), {16, 8, 12});
  const Tensor caption =
      f32_copy(stream, ours.at("cap_embedder.1.weight").view().slice(0, 0, 5), {5, 20});
  TransformerCase c("dit_zimage");
  const auto run = [&] {
    const TensorFile file = TensorFile::open(path);
    const ZImageConfig found = ZImageConfig::from_tensors(file);
    EXPECT_EQ(to_string(found), to_string(config));
    c.model = make_z_image_model(found);
    c.traits = c.model->traits();
    c.set_latent(latent);
    c.conditions.text = caption;
    return TransformerRun(c, file, {}).run();
  };
  write_file(path, ours);
  const Tensor expected = run();
  for (const bool ones : {true, false}) {  // of the tokens of the padding
    const ZImageNames names{.single_file = true};
    NamedTensors theirs;
    for (const auto& [name, tensor] : ours) {
      const TensorPlace place = names(name);
      std::vector<int64_t> shape(tensor.view().shape().begin(), tensor.view().shape().end());
      shape[0] *= place.parts;
      if (!ones && shape[0] == 1) shape.erase(shape.begin());
      Tensor& whole = theirs[place.name];
      if (!whole) whole = Tensor(DType::kF32, shape);
      const bool dropped = shape.size() < tensor.view().shape().size();
      const int64_t rows = dropped ? shape[0] : tensor.view()[0];
      copy(stream, dropped ? tensor.view().select(0, 0) : tensor.view(),
           whole.view().slice(0, place.part * rows, rows));
    }
    EXPECT_TRUE(theirs.count("layers.0.attention.qkv.weight"));
    EXPECT_TRUE(theirs.count("final_layer.adaLN_modulation.1.bias"));
    EXPECT_EQ(theirs.at("x_pad_token").view().rank, ones ? 2 : 1);
    theirs["norm_final.weight"] = Tensor(DType::kF32, {256});
    write_file(path, theirs);
    EXPECT_TRUE(bitwise_equal(run(), expected)) << ones;
  }
  std::remove(path.c_str());
}

TEST(ZImageConfig, EveryFieldIsRead) {
  EXPECT_EQ(ZImageConfig().ffn_dim(), 10240);
  const auto config =
      config_with<ZImageConfig>(TransformerCase("dit_zimage").config(),
                                {{"in_channels", 8}, {"norm_eps", 0.5}, {"t_scale", 10}});
  EXPECT_EQ(to_string(config),
            "Z-Image transformer: width 48 = 2 heads x 24, 2 layers and 2 x 1 refiner layers, ffn "
            "128, channels 8, text 20, patch 1x2x2");
  EXPECT_EQ(config.eps, 0.5f);
  EXPECT_EQ(config.t_scale, 10);
  EXPECT_EQ(config.rope_theta, 256);
  EXPECT_EQ(config.axes_lens, (std::array<int64_t, 3>{256, 32, 32}));
}

TEST(ZImageLimits, PositionsBeyondTheTables) {
  TransformerCase c("dit_zimage");
  TransformerRun model(c);
  Context context = model.context();
  const auto message = [](auto&& run) { return error_of([&] { run(); }, ErrorKind::kUsage); };
  const auto prepare = [&](int64_t tokens) {
    const Tensor caption(DType::kF32, {tokens, 20});
    c.conditions.text = caption;
    model.prepare(context);
  };
  EXPECT_EQ(message([&] { prepare(224); }), "");
  EXPECT_TRUE(contains(message([&] { prepare(225); }), "225 tokens"));
  const ZImageConditioning none;
  EXPECT_EQ(message([&] { model.transformer->rope({1, 32, 32}, {}, none); }), "");
  EXPECT_TRUE(contains(message([&] {
                         model.transformer->rope({1, 33, 32}, {}, none);
                       }),
                       "66 rows"));
}

}  // namespace
}  // namespace weft::test
