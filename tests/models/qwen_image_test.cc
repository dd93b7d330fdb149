#include <gtest/gtest.h>

#include <cstdio>

#include "models/qwen_image/names.h"
#include "models/qwen_image/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/picture_laws.h"

namespace weft {
namespace {

using test::bitwise_equal;
using test::GoldenPicture;
using test::PictureModel;
using test::relative_l2;
using test::to_f64;

const std::string kQwenImageCase = "dit_qwen_image";
const std::string kQwenImageConfig =
    "tests/golden/" + kQwenImageCase + "/model/transformer/config.json";

QwenImageConfig tiny_qwen_image() { return QwenImageConfig::from_json_file(kQwenImageConfig); }

GoldenPicture golden_qwen_image(const TransformerLoad& load = {},
                                const Ops& ops = reference_ops()) {
  return GoldenPicture(kQwenImageCase, *make_qwen_image_model(tiny_qwen_image()), load, ops);
}

class QwenImageGolden : public testing::TestWithParam<test::OpTable> {};

TEST_P(QwenImageGolden, MatchesReference) {
  test::expect_reference(kQwenImageCase, *make_qwen_image_model(tiny_qwen_image()), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Tables, QwenImageGolden, test::every_op_table(), test::op_table_name);

// A pipeline that splits the blocks only moves data. Its later stages embed no text.
TEST(QwenImageForward, BlockRangesComposeBitwise) {
  GoldenPicture whole = golden_qwen_image();
  const Tensor expected = whole.run();
  GoldenPicture a = golden_qwen_image({.blocks = {0, 1, 2}}),
                b = golden_qwen_image({.blocks = {1, 2, 2}});
  EXPECT_LT(a.transformer->weights_bytes() + b.transformer->weights_bytes(),
            2 * whole.transformer->weights_bytes());
  Context ca = a.context(), cb = b.context();
  const auto first = a.prepare(ca), second = b.prepare(cb);
  EXPECT_FALSE(dynamic_cast<const QwenImageConditioning&>(*second).text);
  const Tensor hidden = a.run(ca, {0, 1, 2}, a.rows, *first);
  EXPECT_EQ(hidden.view()[0], 24 + 7);
  EXPECT_TRUE(bitwise_equal(b.run(cb, {1, 2, 2}, hidden, *second), expected));
}

TEST(QwenImageForward, SameBitsForAnyThreadCount) {
  test::expect_same_bits_for_any_thread_count(kQwenImageCase,
                                              *make_qwen_image_model(tiny_qwen_image()));
}

// Rows and columns count from the middle of the picture, the prompt from its edge on.
TEST(QwenImageForward, PositionsCountFromTheMiddle) {
  const QwenImageConfig config = tiny_qwen_image();
  EXPECT_EQ(config.rope({1, 4, 7}, {}).start, (std::array<int64_t, 3>{0, -2, -4}));
  EXPECT_EQ(config.text_rope({1, 4, 7}, 5).start[0], 3);
  EXPECT_EQ(config.text_rope({1, 9, 6}, 5).start[0], 4);
  GoldenPicture model = golden_qwen_image();
  Context c = model.context();
  const Tensor expected = model.run();
  const Tensor moved = model.run(c, BlockRange::all(2), model.rows, *model.prepare(c), {0, 1, 0});
  EXPECT_GT(relative_l2(to_f64(moved), to_f64(expected)), 1e-4);
}

TEST(QwenImageSlices, HalvesSumToTheWhole) {
  const QwenImageConfig config = tiny_qwen_image();
  test::expect_halves_sum_to_the_whole(kQwenImageCase, *make_qwen_image_model(config), config.heads,
                                       config.ffn(),
                                       [&](const TensorSpec& tensor, const WidthSlice& width) {
                                         return qwen_image_part(config, tensor, width);
                                       });
}

TEST(QwenImageMemory, IsThatOfTheDryRun) {
  const std::vector<BlockRange> ranges{{0, 2, 2}, {0, 1, 2}, {1, 2, 2}};
  const std::vector<int64_t> lengths{1, 7, 70};
  test::expect_memory_of_the_dry_run(kQwenImageCase, *make_qwen_image_model(tiny_qwen_image()),
                                     ranges, lengths);
}

// A small model of the published heads.
QwenImageConfig small_qwen_image() {
  QwenImageConfig config;
  config.heads = 2;
  config.layers = 3;
  config.text_dim = 64;
  return config;
}

TEST(QwenImageMemory, WeightsAreThePredictedBytes) {
  test::expect_predicted_weights(*make_qwen_image_model(small_qwen_image()));
}

TEST(QwenImageNames, AFileIsKnownByThem) {
  EXPECT_TRUE(holds_qwen_image(without_values(qwen_image_tensors(small_qwen_image()))));
  EXPECT_FALSE(holds_qwen_image(TensorFile::open("tests/golden/dit_zimage/model/transformer")));
}

TEST(QwenImageConfig, CountsOfThePublishedModel) {
  EXPECT_EQ(parameter_count(qwen_image_tensors({})), 20'430'401'088);
}

class QwenImageConfigFile : public test::ConfigFile<QwenImageConfig> {
 protected:
  QwenImageConfigFile() : ConfigFile(kQwenImageConfig) {}
};

TEST_F(QwenImageConfigFile, EveryFieldIsRead) {
  json_["out_channels"] = 4;
  json_["patch_size"] = 4;
  json_["num_layers"] = 5;
  const QwenImageConfig config = read();
  EXPECT_EQ(to_string(config),
            "Qwen-Image transformer: width 32 = 2 heads x 16, 5 double-stream blocks, ffn 128, "
            "channels 4, text 20, patch 1x4x4");
  EXPECT_EQ(config.axes_dims, (std::array<int64_t, 3>{4, 6, 6}));
}

TEST_F(QwenImageConfigFile, EveryFaultAtOnce) {
  json_["surprise"] = 1;
  json_["_fine"] = 1;
  json_["guidance_embeds"] = true;
  json_["zero_cond_t"] = true;
  json_.erase("num_layers");
  const std::string text = fault();
  for (const char* part : {"unknown: surprise (known: ", "missing: num_layers",
                           "guidance_embeds = true", "zero_cond_t = true"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST_F(QwenImageConfigFile, ImpossibleSizes) {
  EXPECT_NE(fault("in_channels", 60).find("in_channels is 60 (legal: 64"), std::string::npos);
  EXPECT_NE(fault("axes_dims_rope", {4, 6, 8}).find("adds up to 18"), std::string::npos);
  EXPECT_NE(fault("axes_dims_rope", {5, 5, 6}).find("holds 5"), std::string::npos);
  EXPECT_NE(fault("axes_dims_rope", {8, 8}).find("must have 3 values"), std::string::npos);
  EXPECT_NE(fault("num_attention_heads", 0).find("num_attention_heads"), std::string::npos);
}

}  // namespace
}  // namespace weft
