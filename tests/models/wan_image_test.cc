// Wan 2.1 image to video: rows of pictures, and channels that are given beside the latent's.
#include <gtest/gtest.h>

#include <cstdio>

#include "models/wan/names.h"
#include "models/wan/transformer.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_cases.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// Without keys of their own, rows of pictures are more rows of the prompt, under one softmax. An
// image MLP whose output is the context row of a prompt's row must act as that row does in a prompt
// that begins with it, of a transformer that reads no pictures.
TEST(WanImage, RowsWithoutKeysShareTheSoftmaxOfThePrompt) {
  TransformerCase c("dit_wan_i2v21");
  constexpr int64_t kImages = 3, kRows = 7, kPadded = 9;
  WanConfig joint = WanConfig::from_json_file(c.config()), plain = joint;
  joint.image_keys = plain.image_keys = false;
  plain.image_dim = 0;
  Stream stream = Stream::cpu(1, Determinism::kFixed);
  const std::string path = testing::TempDir() + "weft_wan_image_rows.safetensors";
  const auto load = [&](const WanConfig& config, const NamedTensors& weights) {
    write_file(path, weights);
    c.model = make_wan_model(config);
    return TransformerRun(c, TensorFile::open(path), {}, cpu_ops());
  };
  const auto weights_of = [&](const WanConfig& config) {
    NamedTensors weights;
    for (const TensorSpec& spec : wan_tensors(config))
      weights[spec.name] = load_tensor(c.file, spec.name);
    return weights;
  };
  // kImages times the prompt's first row, and then the prompt.
  const int64_t columns = joint.text_dim;
  const TensorView text = c.conditions.text.slice(0, 0, kRows), image = c.conditions.image;
  Tensor longer(DType::kF32, {kImages + kRows, columns});
  for (int64_t i = 0; i < kImages; ++i)
    copy(stream, text.slice(0, 0, 1), longer.view().slice(0, i, 1));
  copy(stream, text, longer.view().slice(0, kImages, kRows));

  TransformerRun without = load(plain, weights_of(plain));
  Recorder seen;
  c.conditions.text = longer;
  c.conditions.text_length = kImages + kPadded;
  c.conditions.image = {};
  const std::vector<double> expected = to_f64(without.run(&seen));
  NamedTensors weights = weights_of(joint);
  const std::string norm = "condition_embedder.image_embedder.norm2.";
  fill_zero(stream, weights[norm + "weight"]);
  std::copy_n(seen.seen["context"].as<float>(), joint.width(), weights[norm + "bias"].as<float>());
  TransformerRun with = load(joint, weights);
  c.conditions.text = text;
  c.conditions.text_length = kPadded;
  const auto given = [&](int64_t images) {
    c.conditions.image = image.slice(0, 0, images);
    return to_f64(with.run());
  };
  EXPECT_LT(relative_l2(given(kImages), expected), kParallelL2);
  EXPECT_GT(relative_l2(given(kImages - 1), expected), 100 * kParallelL2);
  std::remove(path.c_str());
}

TEST(WanImage, MissingAndForeignInputsAreErrors) {
  TransformerCase c("dit_wan_flf2v");
  TransformerRun model(c);
  Context context = model.context();
  const auto fault = [&](const Conditions& conditions) -> std::string {
    return error_of([&] { model.transformer->prepare(context, conditions, c.grid); },
                    ErrorKind::kModel);
  };
  Conditions wrong = c.conditions;
  EXPECT_EQ(fault(wrong), "");
  wrong.image = {};
  EXPECT_TRUE(contains(fault(wrong), "image encoder's rows: none given (legal: 4)"));
  wrong.image = c.conditions.image.slice(0, 0, 5);
  EXPECT_TRUE(contains(fault(wrong), "rows of an image encoder: 5 given (legal: 10)"));
  wrong = c.conditions;
  wrong.channels = {};
  EXPECT_TRUE(contains(fault(wrong), "beside the latent's: none given (legal: 20)"));
}

// The counts are those of the published checkpoints.
TEST(WanImage, CountsOfPublishedModels) {
  WanConfig config;
  config.heads = 40;
  config.head_dim = 128;
  config.layers = 40;
  config.ffn_dim = 13824;
  config.in_channels = 36;
  config.out_channels = 16;
  config.image_dim = 1280;
  config.image_keys = true;
  EXPECT_EQ(parameter_count(wan_tensors(config)), 16'394'878'784);
  EXPECT_EQ(wan_tensors(config).size(), 1303u);
  EXPECT_EQ(config.traits().image_rows, 257);
  config.image_positions = 514;
  EXPECT_EQ(parameter_count(wan_tensors(config)), 16'395'536'704);
  EXPECT_EQ(wan_tensors(config).size(), 1304u);
}

// The original repository's names, and the sizes that follow from tensors alone.
TEST(WanImage, OriginalNames) {
  WanConfig config;
  config.heads = 1;
  config.head_dim = 128;
  config.layers = 1;
  config.ffn_dim = 40;
  config.in_channels = 36;
  config.out_channels = 16;
  config.text_dim = 24;
  config.image_dim = 12;
  config.image_keys = true;
  config.image_positions = 6;
  NamedTensors named = random_weights(wan_tensors(config), 3), original;
  const WanNames spelled{.original = true};
  for (auto& [name, tensor] : named) original[spelled(name)] = std::move(tensor);
  for (const char* name : {"img_emb.proj.0.weight", "img_emb.proj.1.bias", "img_emb.proj.3.weight",
                           "img_emb.proj.4.bias", "img_emb.emb_pos",
                           "blocks.0.cross_attn.k_img.weight", "blocks.0.cross_attn.v_img.bias",
                           "blocks.0.cross_attn.norm_k_img.weight", "blocks.0.norm3.weight"})
    EXPECT_TRUE(original.count(name)) << name;
  const std::string path = testing::TempDir() + "weft_wan_image_names.safetensors";
  write_file(path, original);
  const TensorFile file = TensorFile::open(path);
  const WanConfig read = WanConfig::from_tensors(file);
  EXPECT_EQ(to_string(read), to_string(config));
  EXPECT_EQ(read.image_positions, 6);
  EXPECT_TRUE(read.image_keys);
  Stream stream = Stream::cpu(1);
  EXPECT_NO_THROW(WanTransformer::load(stream, file, read, {}));
  std::remove(path.c_str());
}

}  // namespace
}  // namespace weft::test
