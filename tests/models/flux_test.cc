#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "models/flux/names.h"
#include "tests/models/config_testing.h"
#include "tests/models/picture_laws.h"
#include "tests/support/single_files.h"

namespace weft {
namespace {

using test::bitwise_equal;
using test::GoldenPicture;
using test::PictureModel;
using test::relative_l2;
using test::to_f64;

const std::string kFluxCase = "dit_flux";
const std::string kFluxConfig = "tests/golden/" + kFluxCase + "/model/transformer/config.json";

FluxConfig tiny_flux() { return FluxConfig::from_json_file(kFluxConfig); }

GoldenPicture golden_flux(const TransformerLoad& load = {}, const Ops& ops = reference_ops()) {
  return GoldenPicture(kFluxCase, *make_flux_model(tiny_flux()), load, ops);
}

class FluxGolden : public testing::TestWithParam<test::OpTable> {};

TEST_P(FluxGolden, MatchesReference) {
  test::expect_reference(kFluxCase, *make_flux_model(tiny_flux()), GetParam());
}

INSTANTIATE_TEST_SUITE_P(Tables, FluxGolden, test::every_op_table(), test::op_table_name);

// A pipeline that splits the blocks only moves data. Its later stages embed no text.
TEST(FluxForward, BlockRangesComposeBitwise) {
  GoldenPicture whole = golden_flux();
  const Tensor expected = whole.run();
  GoldenPicture a = golden_flux({.blocks = {0, 1, 4}}), b = golden_flux({.blocks = {1, 4, 4}});
  EXPECT_LT(a.transformer->weights_bytes() + b.transformer->weights_bytes(),
            2 * whole.transformer->weights_bytes());
  Context ca = a.context(), cb = b.context();
  const auto first = a.prepare(ca), second = b.prepare(cb);
  EXPECT_FALSE(dynamic_cast<const FluxConditioning&>(*second).text);
  const Tensor hidden = a.run(ca, {0, 1, 4}, a.rows, *first);
  EXPECT_EQ(hidden.view()[0], 24 + 7);
  EXPECT_TRUE(bitwise_equal(b.run(cb, {1, 4, 4}, hidden, *second), expected));
}

TEST(FluxForward, SameBitsForAnyThreadCount) {
  test::expect_same_bits_for_any_thread_count(kFluxCase, *make_flux_model(tiny_flux()));
}

// The prompt's vector and the scale of the guidance change the output, as a position does.
TEST(FluxForward, EveryConditionMatters) {
  GoldenPicture model = golden_flux();
  Context c = model.context();
  const Tensor expected = model.run();
  const auto differs = [&](const Tensor& out) {
    return relative_l2(to_f64(out), to_f64(expected)) > 1e-4;
  };
  EXPECT_TRUE(differs(model.run(c, BlockRange::all(4), model.rows, *model.prepare(c), {0, 1, 0})));
  model.guidance = 2;
  EXPECT_TRUE(differs(model.run()));
  model.guidance = 3.5;
  model.pooled.as<float>()[3] += 1;
  EXPECT_TRUE(differs(model.run()));
}

TEST(FluxSlices, HalvesSumToTheWhole) {
  const FluxConfig config = tiny_flux();
  test::expect_halves_sum_to_the_whole(
      kFluxCase, *make_flux_model(config), config.heads, config.ffn(),
      [&](const TensorSpec& tensor, const WidthSlice& width) {
        const auto [first, second] = flux_part(config, tensor, width);
        return second.range.size() > 0 ? TensorPart{0, {0, tensor.shape[0]}} : first;
      });
}

// A file with the names of Black Forest Labs' repository, where some matrices are joined, holds the
// same model.
TEST(FluxNames, OriginalOnesAreRead) {
  GoldenPicture golden_model = golden_flux();
  const Tensor expected = golden_model.run();
  const FluxConfig config = tiny_flux();
  const TensorFile source = TensorFile::open(golden_model.folder + "/model/transformer");
  const std::string path = testing::TempDir() + "weft_flux_original.safetensors";
  test::save_flux_transformer(source, config, path);
  const TensorFile file = TensorFile::open(path);
  EXPECT_TRUE(file.contains("single_blocks.0.linear1.bias"));
  EXPECT_TRUE(holds_flux(file));
  const auto described = make_flux_model(config);
  PictureModel model(*described, TensorFile::open(path), {});
  model.take_inputs(golden_model, golden_model.latent);
  EXPECT_TRUE(bitwise_equal(model.run(), expected));
  // A joined matrix of another size is named.
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.view(name));
  const auto qkv = std::ranges::find(tensors, "double_blocks.0.img_attn.qkv.weight",
                                     &std::pair<std::string, TensorView>::first);
  ASSERT_NE(qkv, tensors.end());
  qkv->second = qkv->second.slice(0, 0, 1);
  const std::string other = testing::TempDir() + "weft_flux_misshapen.safetensors";
  write_safetensors(other, tensors);
  EXPECT_THROW(described->load(model.stream, TensorFile::open(other), {}), Error);
  std::remove(other.c_str());
  std::remove(path.c_str());
}

TEST(FluxMemory, IsThatOfTheDryRun) {
  const std::vector<BlockRange> ranges{{0, 4, 4}, {0, 1, 4}, {1, 3, 4}, {3, 4, 4}};
  const std::vector<int64_t> lengths{1, 7, 70};
  test::expect_memory_of_the_dry_run(kFluxCase, *make_flux_model(tiny_flux()), ranges, lengths);
}

// A small model of the published heads.
FluxConfig small_flux() {
  FluxConfig config;
  config.heads = 2;
  config.double_blocks = 1;
  config.single_blocks = 2;
  config.text_dim = 64;
  config.pooled_dim = 32;
  return config;
}

TEST(FluxMemory, WeightsAreThePredictedBytes) {
  test::expect_predicted_weights(*make_flux_model(small_flux()));
}

// FLUX.1-dev embeds its guidance, FLUX.1-schnell does not.
TEST(FluxConfig, CountsOfThePublishedModels) {
  FluxConfig config;
  EXPECT_EQ(parameter_count(flux_tensors(config)), 11'901'408'320);
  config.guidance_embeds = false;
  EXPECT_EQ(parameter_count(flux_tensors(config)), 11'891'178'560);
}

// A model's first blocks are its double-stream blocks.
TEST(FluxModel, WithFewerBlocks) {
  const auto model = make_flux_model(small_flux());
  for (const auto& [blocks, doubles, singles] : {std::array{1, 1, 0}, {2, 1, 1}, {3, 1, 2}}) {
    FluxConfig config = small_flux();
    config.double_blocks = doubles;
    config.single_blocks = singles;
    EXPECT_EQ(model->with_blocks(blocks)->description(), to_string(config));
    EXPECT_EQ(model->with_blocks(blocks)->traits().blocks, blocks);
  }
  const auto [name, number] = model->traits().observed_block(2);
  EXPECT_EQ(std::string(name), "single_transformer_blocks");
  EXPECT_EQ(number, 1);
}

class FluxConfigFile : public test::ConfigFile<FluxConfig> {
 protected:
  FluxConfigFile() : ConfigFile(kFluxConfig) {}
};

TEST_F(FluxConfigFile, EveryFieldIsRead) {
  json_["in_channels"] = 16;
  json_["guidance_embeds"] = false;
  json_["num_layers"] = 5;
  const FluxConfig config = read();
  EXPECT_EQ(
      to_string(config),
      "FLUX.1 transformer: width 32 = 2 heads x 16, 5 double-stream and 2 single-stream blocks, "
      "ffn 128, channels 4, text 20 and 12, no guidance");
  EXPECT_EQ(config.axes_dims, (std::array<int64_t, 3>{4, 6, 6}));
}

TEST_F(FluxConfigFile, EveryFaultAtOnce) {
  json_["surprise"] = 1;
  json_["_fine"] = 1;
  json_["out_channels"] = 16;
  json_["patch_size"] = 2;
  json_.erase("num_single_layers");
  const std::string text = fault();
  for (const char* part : {"unknown: surprise (known: ", "missing: num_single_layers",
                           "out_channels = 16", "patch_size = 2"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

TEST_F(FluxConfigFile, ImpossibleSizes) {
  EXPECT_NE(fault("in_channels", 63).find("in_channels is 63 (legal: multiples of 4"),
            std::string::npos);
  EXPECT_NE(fault("axes_dims_rope", {4, 6, 8}).find("adds up to 18"), std::string::npos);
  EXPECT_NE(fault("axes_dims_rope", {5, 5, 6}).find("holds 5"), std::string::npos);
  EXPECT_NE(fault("axes_dims_rope", {8, 8}).find("must have 3 values"), std::string::npos);
  EXPECT_NE(fault("num_attention_heads", 0).find("num_attention_heads"), std::string::npos);
}

}  // namespace
}  // namespace weft
