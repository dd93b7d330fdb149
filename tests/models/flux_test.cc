#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>

#include "models/flux/names.h"
#include "models/flux/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/transformer_cases.h"
#include "tests/support/single_files.h"

namespace weft::test {
namespace {

const std::string kFluxCase = "dit_flux";

// The prompt's vector and the scale of the guidance change the output.
TEST(FluxForward, EveryConditionMatters) {
  TransformerCase c(kFluxCase);
  TransformerRun model(c);
  const std::vector<double> expected = to_f64(model.run());
  const auto differs = [&] { return relative_l2(to_f64(model.run()), expected) > 1e-4; };
  c.conditions.guidance = 2;
  EXPECT_TRUE(differs());
  c.conditions.guidance = 3.5;
  c.conditions.pooled.as<float>()[3] += 1;
  EXPECT_TRUE(differs());
}

// A file with the names of Black Forest Labs' repository, where some matrices are joined, holds the
// same model.
TEST(FluxNames, OriginalOnesAreRead) {
  const TransformerCase c(kFluxCase);
  const std::string path = testing::TempDir() + "weft_flux_original.safetensors";
  save_flux_transformer(c.file, FluxConfig::from_json_file(c.config()), path);
  const TensorFile file = TensorFile::open(path);
  EXPECT_TRUE(file.contains("single_blocks.0.linear1.bias"));
  EXPECT_TRUE(holds_flux(file));
  TransformerRun model(c, file, {});
  EXPECT_TRUE(bitwise_equal(model.run(), TransformerRun(c).run()));
  // A joined matrix of another size is named.
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const std::string& name : file.names()) tensors.emplace_back(name, file.view(name));
  const auto qkv = std::ranges::find(tensors, "double_blocks.0.img_attn.qkv.weight",
                                     &std::pair<std::string, TensorView>::first);
  ASSERT_NE(qkv, tensors.end());
  qkv->second = qkv->second.slice(0, 0, 1);
  const std::string other = testing::TempDir() + "weft_flux_misshapen.safetensors";
  write_safetensors(other, tensors);
  EXPECT_THROW(c.model->load(model.stream, TensorFile::open(other), {}), Error);
  std::remove(other.c_str());
  std::remove(path.c_str());
}

// A model's first blocks are its double-stream blocks.
TEST(FluxModel, WithFewerBlocks) {
  FluxConfig config;
  config.double_blocks = 1;
  config.single_blocks = 2;
  const auto model = make_flux_model(config);
  for (const auto& [blocks, doubles, singles] : {std::array{1, 1, 0}, {2, 1, 1}, {3, 1, 2}}) {
    config.double_blocks = doubles;
    config.single_blocks = singles;
    EXPECT_EQ(model->with_blocks(blocks)->description(), to_string(config));
    EXPECT_EQ(model->with_blocks(blocks)->traits().blocks, blocks);
  }
  const auto [name, number] = model->traits().observed_block(2);
  EXPECT_EQ(std::string(name), "single_transformer_blocks");
  EXPECT_EQ(number, 1);
}

TEST(FluxConfig, EveryFieldIsRead) {
  const auto config =
      config_with<FluxConfig>(TransformerCase(kFluxCase).config(),
                              {{"in_channels", 16}, {"guidance_embeds", false}, {"num_layers", 5}});
  EXPECT_EQ(
      to_string(config),
      "FLUX.1 transformer: width 32 = 2 heads x 16, 5 double-stream and 2 single-stream blocks, "
      "ffn 128, channels 4, text 20 and 12, no guidance");
  EXPECT_EQ(config.axes_dims, (std::array<int64_t, 3>{4, 6, 6}));
}

}  // namespace
}  // namespace weft::test
