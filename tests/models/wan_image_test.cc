// Wan 2.1 image to video: rows of pictures, and channels that are given beside the latent's.
#include <gtest/gtest.h>

#include <cstdio>

#include "models/wan/names.h"
#include "models/wan/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

// A case whose latent's channels are followed by given ones.
struct ImageCase {
  explicit ImageCase(const std::string& name)
      : golden(name),
        file(TensorFile::open(golden.folder + "/model/transformer")),
        config(WanConfig::from_json_file(golden.folder + "/model/transformer/config.json")),
        latent(golden.input("hidden_states")),
        text(golden.input("encoder_hidden_states")),
        image(golden.input("encoder_hidden_states_image")) {
    const TransformerTraits traits = config.traits();
    const TensorView& x = latent.view();
    grid = traits.grid(x[1], x[2], x[3]);
    tokens = grid[0] * grid[1] * grid[2];
    own = x.slice(0, 0, traits.out_channels);
    given = x.slice(0, traits.out_channels, traits.given_channels());
    time = golden.input("timestep").as<float>()[0];
  }
  Conditions conditions() const {
    return {.text = text, .text_length = text.view()[0], .image = image, .channels = given};
  }
  // The velocity of the whole latent, by blocks that this rank holds a part of.
  Tensor run(const WanTransformer& model, Context& context, BlockRange blocks, const TensorView& in,
             const Conditioning& conditioning) const {
    const TimeSegment all{{0, tokens}, time};
    Tensor out = blocks.last() ? Tensor(DType::kF32, own.shape())
                               : Tensor(DType::kF32, {tokens, config.width()});
    forward(model, context, blocks, in, {&all, 1}, conditioning, rope_of(model, grid), out);
    return out;
  }

  GoldenCase golden;
  TensorFile file;
  WanConfig config;
  Tensor latent, text, image;
  TensorView own, given;
  std::array<int64_t, 3> grid{};
  int64_t tokens = 0;
  float time = 0;
};

class WanImage : public testing::TestWithParam<std::tuple<const char*, DType>> {};

TEST_P(WanImage, MatchesReferenceInPartsToo) {
  const auto& [name, dtype] = GetParam();
  const ImageCase c(name);
  for (const int parts : {1, 2})
    run_parts(parts, [&](int rank, Reducer& reducer) {
      Stream stream = Stream::cpu(1, Determinism::kFixed);
      const WanTransformer model = WanTransformer::load(
          stream, c.file, c.config,
          {.dtype = dtype, .width = width_part(c.config.heads, c.config.ffn_dim, parts, rank)});
      Arena arena(size_t{1} << 28);
      SerialSeams seams;
      Recorder seen;
      Context context{
          stream, arena, seams.mixer, reducer, seams.halo, {}, TokenRanges::all(c.tokens), &seen};
      const auto conditioning = model.prepare(context, c.conditions(), c.grid);
      seen.seen["output"] =
          c.run(model, context, BlockRange::all(c.config.layers), c.own, *conditioning);
      EXPECT_EQ(arena.used(), 0u);
      if (rank > 0) return;
      for (const std::string& tensor : c.golden.expected.names()) {
        ASSERT_TRUE(seen.seen.count(tensor)) << tensor;
        EXPECT_TRUE(c.golden.matches(tensor, seen.seen[tensor], dtype)) << parts;
      }
    });
}

INSTANTIATE_TEST_SUITE_P(Cases, WanImage,
                         testing::Combine(testing::Values("dit_wan_i2v21", "dit_wan_flf2v"),
                                          testing::Values(DType::kF32, DType::kBF16)));

// The rows of both pictures have positions, so the dry run knows their number.
TEST(WanImageMemory, IsThatOfTheDryRun) {
  const ImageCase c("dit_wan_flf2v");
  Stream stream = Stream::cpu(1, Determinism::kFixed);
  const TransformerLoad load{.dtype = DType::kBF16};
  const WanTransformer model = WanTransformer::load(stream, c.file, c.config, load);
  EXPECT_EQ(model.weights_bytes(), dry_weights(*make_wan_model(c.config), load));
  Arena arena(size_t{1} << 28);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(c.tokens));
  const size_t before = tensor_bytes_live();
  const auto conditioning = model.prepare(context, c.conditions(), c.grid);
  // Alignment adds up to 128 bytes to each tensor: three, and four of each layer.
  EXPECT_LE(conditioning->bytes(), tensor_bytes_live() - before);
  EXPECT_GE(conditioning->bytes() + 128 * static_cast<size_t>(3 + 4 * c.config.layers),
            tensor_bytes_live() - before);
  const Rope rope = rope_of(model, c.grid);
  const size_t held = tensor_bytes_live() - before;
  c.run(model, context, BlockRange::all(c.config.layers), c.own, *conditioning);
  const int64_t rows = c.text.view()[0];
  const Footprint dry =
      dry_forward(*make_wan_model(c.config), load, c.grid, {rows, rows}, *silent_reducer(1, 0));
  EXPECT_EQ(arena.high_water(), dry.arena);
  EXPECT_EQ(dry.held, held);
}

// Without keys of their own, rows of pictures are more rows of the prompt, under one softmax. An
// image MLP whose output is the context row of a prompt's row must act as that row does in a prompt
// that begins with it, of a transformer that reads no pictures.
TEST(WanImage, RowsWithoutKeysShareTheSoftmaxOfThePrompt) {
  const ImageCase c("dit_wan_i2v21");
  constexpr int64_t kImages = 3, kRows = 7, kPadded = 9;
  WanConfig joint = c.config, plain = c.config;
  joint.image_keys = plain.image_keys = false;
  plain.image_dim = 0;
  Stream stream = Stream::cpu(1, Determinism::kFixed);
  Arena arena(size_t{1} << 28);
  SerialSeams seams;
  const std::string path = testing::TempDir() + "weft_wan_image_rows.safetensors";
  const auto load = [&](const WanConfig& config, const NamedTensors& weights) {
    write_file(path, weights);
    return WanTransformer::load(stream, TensorFile::open(path), config, {.dtype = DType::kF32});
  };
  const auto weights_of = [&](const WanConfig& config) {
    NamedTensors weights;
    for (const TensorSpec& spec : wan_tensors(config))
      weights[spec.name] = load_tensor(c.file, spec.name);
    return weights;
  };
  // kImages times the prompt's first row, and then the prompt.
  const int64_t columns = c.config.text_dim;
  const TensorView text = c.text.view().slice(0, 0, kRows);
  Tensor longer(DType::kF32, {kImages + kRows, columns});
  for (int64_t i = 0; i < kImages; ++i)
    copy(stream, text.slice(0, 0, 1), longer.view().slice(0, i, 1));
  copy(stream, text, longer.view().slice(0, kImages, kRows));

  const WanTransformer without = load(plain, weights_of(plain));
  Recorder seen;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(c.tokens), &seen);
  const auto velocity = [&](const WanTransformer& model, const Conditions& conditions) {
    const auto prepared = model.prepare(context, conditions, c.grid);
    return to_f64(c.run(model, context, BlockRange::all(joint.layers), c.own, *prepared));
  };
  const std::vector<double> expected =
      velocity(without, {.text = longer, .text_length = kImages + kPadded, .channels = c.given});
  NamedTensors weights = weights_of(joint);
  const std::string norm = "condition_embedder.image_embedder.norm2.";
  fill_zero(stream, weights[norm + "weight"]);
  std::copy_n(seen.seen["context"].as<float>(), joint.width(), weights[norm + "bias"].as<float>());
  const WanTransformer with = load(joint, weights);
  const auto given = [&](int64_t images) {
    return velocity(with, {.text = text,
                           .text_length = kPadded,
                           .image = c.image.view().slice(0, 0, images),
                           .channels = c.given});
  };
  EXPECT_LT(relative_l2(given(kImages), expected), kParallelL2);
  EXPECT_GT(relative_l2(given(kImages - 1), expected), 100 * kParallelL2);
  std::remove(path.c_str());
}

TEST(WanImage, MissingAndForeignInputsAreErrors) {
  const ImageCase c("dit_wan_flf2v");
  Stream stream = Stream::cpu(1);
  const WanTransformer model = WanTransformer::load(stream, c.file, c.config, {});
  Arena arena(size_t{1} << 28);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(c.tokens));
  const auto fault = [&](const Conditions& conditions) -> std::string {
    try {
      model.prepare(context, conditions, c.grid);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
      return error.what();
    }
    return "";
  };
  Conditions wrong = c.conditions();
  EXPECT_EQ(fault(wrong), "");
  wrong.image = {};
  EXPECT_NE(fault(wrong).find("image encoder's rows: none given (legal: 4)"), std::string::npos);
  wrong.image = c.image.view().slice(0, 0, 5);
  EXPECT_NE(fault(wrong).find("rows of an image encoder: 5 given (legal: 10)"), std::string::npos);
  wrong = c.conditions();
  wrong.channels = {};
  EXPECT_NE(fault(wrong).find("beside the latent's: none given (legal: 20)"), std::string::npos);
}

class WanImageFile : public ConfigFile<WanConfig> {
 protected:
  WanImageFile() : ConfigFile("tests/golden/dit_wan_i2v21/model/transformer/config.json") {}
};

TEST_F(WanImageFile, FaultsAreNamed) {
  EXPECT_EQ(fault(), "");
  EXPECT_NE(fault("added_kv_proj_dim", 25).find("added_kv_proj_dim is 25"), std::string::npos);
  EXPECT_NE(fault("image_dim", nullptr).find("added_kv_proj_dim = 24 (it needs image_dim)"),
            std::string::npos);
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
