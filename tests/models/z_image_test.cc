#include <gtest/gtest.h>

#include <cstdio>

#include "models/z_image/names.h"
#include "models/z_image/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/picture_laws.h"

namespace weft {
namespace {

using test::bitwise_equal;
using test::GoldenPicture;
using test::PictureModel;
using test::relative_l2;
using test::to_f64;

const std::string kZImageCase = "dit_zimage";
const std::string kZImageConfig = "tests/golden/" + kZImageCase + "/model/transformer/config.json";

ZImageConfig tiny_z_image() { return ZImageConfig::from_json_file(kZImageConfig); }

GoldenPicture golden_z_image(const TransformerLoad& load = {}) {
  return GoldenPicture(kZImageCase, *make_z_image_model(tiny_z_image()), load);
}

class ZImageGolden : public testing::TestWithParam<test::OpTable> {};

TEST_P(ZImageGolden, MatchesReference) {
  test::expect_reference(kZImageCase, *make_z_image_model(tiny_z_image()), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Tables, ZImageGolden, test::every_op_table(), test::op_table_name);

// A pipeline that splits the layers only moves data. Its later stages refine nothing.
TEST(ZImageForward, BlockRangesComposeBitwise) {
  GoldenPicture whole = golden_z_image();
  const Tensor expected = whole.run();
  GoldenPicture a = golden_z_image({.blocks = {0, 1, 2}}),
                b = golden_z_image({.blocks = {1, 2, 2}});
  EXPECT_LT(a.transformer->weights_bytes() + b.transformer->weights_bytes(),
            2 * whole.transformer->weights_bytes());
  Context ca = a.context(), cb = b.context();
  const auto first = a.prepare(ca), second = b.prepare(cb);
  EXPECT_FALSE(dynamic_cast<const ZImageConditioning&>(*second).caption);
  const Tensor hidden = a.run(ca, {0, 1, 2}, a.rows, *first);
  EXPECT_EQ(hidden.view()[0], 24 + 8 + 32);
  EXPECT_TRUE(bitwise_equal(b.run(cb, {1, 2, 2}, hidden, *second), expected));
}

TEST(ZImageForward, SameBitsForAnyThreadCount) {
  test::expect_same_bits_for_any_thread_count(kZImageCase, *make_z_image_model(tiny_z_image()));
}

// Attention depends only on differences of positions, and the caption's count from the image's.
TEST(ZImageForward, PositionsOfTheImageMatter) {
  GoldenPicture model = golden_z_image();
  Context c = model.context();
  const Tensor expected = model.run();
  const Tensor out = model.run(c, BlockRange::all(2), model.rows, *model.prepare(c), {5, 0, 0});
  EXPECT_GT(relative_l2(to_f64(out), to_f64(expected)), 1e-4);
}

TEST(ZImageSlices, HalvesSumToTheWhole) {
  const ZImageConfig config = tiny_z_image();
  test::expect_halves_sum_to_the_whole(kZImageCase, *make_z_image_model(config), config.heads,
                                       config.ffn_dim(),
                                       [&](const TensorSpec& tensor, const WidthSlice& width) {
                                         return z_image_part(config, tensor, width);
                                       });
}

TEST(ZImageMemory, IsThatOfTheDryRun) {
  const std::vector<BlockRange> ranges{{0, 2, 2}, {0, 1, 2}, {1, 2, 2}};
  const std::vector<int64_t> lengths{3, 32, 70};
  test::expect_memory_of_the_dry_run(kZImageCase, *make_z_image_model(tiny_z_image()), ranges,
                                     lengths);
}

// A single file, whose q, k and v are one matrix, gives the same model.
TEST(ZImageNames, SingleFilesGiveTheSameModel) {
  ZImageConfig config;
  config.dim = 256;
  config.heads = 2;
  config.layers = 1;
  config.refiner_layers = 1;
  config.caption_dim = 20;
  const test::NamedTensors ours = test::random_weights(z_image_tensors(config), 5);
  const std::string path = testing::TempDir() + "weft_z_image_names.safetensors";
  Stream stream = Stream::cpu(1);
  const Tensor latent =
      f32_copy(stream, ours.at("all_x_embedder.2-1.weight").view().slice(0, 0, 24), {16, 8, 12});
  const auto run = [&] {
    const TensorFile file = TensorFile::open(path);
    const ZImageConfig found = ZImageConfig::from_tensors(file);
    EXPECT_EQ(to_string(found), to_string(config));
    PictureModel model(*make_z_image_model(found), file, {});
    model.set_latent(latent);
    model.text = f32_copy(stream, ours.at("cap_embedder.1.weight").view().slice(0, 0, 5), {5, 20});
    return model.run();
  };
  test::write_file(path, ours);
  const Tensor expected = run();
  for (const bool ones : {true, false}) {  // of the tokens of the padding
    const ZImageNames names{.single_file = true};
    test::NamedTensors theirs;
    for (const auto& [name, tensor] : ours) {
      const ZImagePlace place = names(name);
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
    test::write_file(path, theirs);
    EXPECT_TRUE(bitwise_equal(run(), expected)) << ones;
  }
  std::remove(path.c_str());
}

ZImageConfig published_z_image() { return {}; }

TEST(ZImageMemory, WeightsAreThePredictedBytes) {
  ZImageConfig config = published_z_image();
  config.dim = 256;
  config.heads = 2;
  config.layers = 3;
  config.caption_dim = 64;
  test::expect_predicted_weights(*make_z_image_model(config));
}

TEST(ZImageConfig, CountsOfThePublishedModel) {
  EXPECT_EQ(parameter_count(z_image_tensors(published_z_image())), 6'154'908'736);
  EXPECT_EQ(published_z_image().ffn_dim(), 10240);
}

class ZImageConfigFile : public test::ConfigFile<ZImageConfig> {
 protected:
  ZImageConfigFile() : ConfigFile(kZImageConfig) {}
};

TEST_F(ZImageConfigFile, EveryFieldIsRead) {
  json_["in_channels"] = 8;
  json_["norm_eps"] = 0.5;
  json_["t_scale"] = 10;
  const ZImageConfig config = read();
  EXPECT_EQ(to_string(config),
            "Z-Image transformer: width 48 = 2 heads x 24, 2 layers and 2 x 1 refiner layers, ffn "
            "128, channels 8, text 20, patch 1x2x2");
  EXPECT_EQ(config.eps, 0.5f);
  EXPECT_EQ(config.t_scale, 10);
  EXPECT_EQ(config.rope_theta, 256);
  EXPECT_EQ(config.axes_lens, (std::array<int64_t, 3>{256, 32, 32}));
}

TEST_F(ZImageConfigFile, EveryFaultAtOnce) {
  json_["surprise"] = 1;
  json_["_fine"] = 1;
  json_["n_kv_heads"] = 1;
  json_["qk_norm"] = false;
  json_["siglip_feat_dim"] = 1152;
  json_.erase("dim");
  const std::string text = fault();
  for (const char* part : {"unknown: surprise (known: ", "missing: dim", "n_kv_heads = 1",
                           "qk_norm = false", "siglip_feat_dim = 1152", "axes_lens"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST_F(ZImageConfigFile, ImpossibleSizes) {
  EXPECT_NE(fault("dim", 49).find("dim 49 is not a multiple of n_heads 2"), std::string::npos);
  EXPECT_NE(fault("axes_dims", {8, 8, 6}).find("axes_dims adds up to 22"), std::string::npos);
  EXPECT_NE(fault("axes_dims", {9, 7, 8}).find("axes_dims holds 9"), std::string::npos);
  EXPECT_NE(fault("axes_dims", {8, 16}).find("axes_dims must have 3 values"), std::string::npos);
  EXPECT_NE(fault("all_patch_size", {2, 4}).find("all_patch_size = [2,4]"), std::string::npos);
}

TEST(ZImageLimits, PositionsBeyondTheTables) {
  GoldenPicture model = golden_z_image();
  Context c = model.context();
  const auto message = [](auto&& run) {
    try {
      run();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
      return std::string(error.what());
    }
    return std::string();
  };
  const auto prepare = [&](int64_t tokens) {
    model.text = Tensor(DType::kF32, {tokens, 20});
    model.prepare(c);
  };
  EXPECT_EQ(message([&] { prepare(224); }), "");
  EXPECT_NE(message([&] { prepare(225); }).find("225 tokens"), std::string::npos);
  const ZImageConditioning none;
  EXPECT_EQ(message([&] { model.transformer->rope({1, 32, 32}, {}, none); }), "");
  EXPECT_NE(message([&] {
              model.transformer->rope({1, 33, 32}, {}, none);
            }).find("66 rows"),
            std::string::npos);
}

}  // namespace
}  // namespace weft
