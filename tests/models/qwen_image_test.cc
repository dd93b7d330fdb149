#include <gtest/gtest.h>

#include <cstdio>

#include "models/qwen_image/names.h"
#include "models/qwen_image/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/picture_testing.h"
#include "tests/models/slices_testing.h"

namespace weft {
namespace {

using test::bitwise_equal;
using test::GoldenPicture;
using test::PictureModel;
using test::relative_l2;
using test::to_f64;

const std::string kCase = "dit_qwen_image";
const std::string kConfig = "tests/golden/" + kCase + "/model/transformer/config.json";

QwenImageConfig tiny() { return QwenImageConfig::from_json_file(kConfig); }

GoldenPicture golden(const TransformerLoad& load = {}, const Ops& ops = reference_ops()) {
  return GoldenPicture(kCase, *make_qwen_image_model(tiny()), load, ops);
}

struct OpTable {
  const char* ops;
  DType dtype;
};

class QwenImageGolden : public testing::TestWithParam<OpTable> {};

TEST_P(QwenImageGolden, MatchesReference) {
  const OpTable run = GetParam();
  GoldenPicture model =
      golden({.dtype = run.dtype}, std::string(run.ops) == "cpu" ? cpu_ops() : reference_ops());
  test::Recorder recorder;
  const Tensor out = model.run(&recorder);
  recorder.seen["output"] = model.picture(out);
  for (const std::string& name : model.expected.names()) {
    ASSERT_TRUE(recorder.seen.count(name)) << name;
    EXPECT_TRUE(model.matches(name, recorder.seen[name], run.dtype));
  }
  EXPECT_EQ(model.arena.used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Tables, QwenImageGolden,
                         testing::Values(OpTable{"reference", DType::kF32},
                                         OpTable{"reference", DType::kBF16},
                                         OpTable{"cpu", DType::kF32}, OpTable{"cpu", DType::kBF16}),
                         [](const auto& info) {
                           return std::string(info.param.ops) + "_" +
                                  std::string(to_string(info.param.dtype));
                         });

// A pipeline that splits the blocks only moves data. Its later stages embed no text.
TEST(QwenImageForward, BlockRangesComposeBitwise) {
  GoldenPicture whole = golden();
  const Tensor expected = whole.run();
  GoldenPicture a = golden({.blocks = {0, 1, 2}}), b = golden({.blocks = {1, 2, 2}});
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
  GoldenPicture model = golden({}, cpu_ops());
  const Tensor expected = model.run();
  for (const int threads : {1, 3}) {
    model.stream = Stream::cpu(threads, Determinism::kFixed, &cpu_ops());
    EXPECT_TRUE(bitwise_equal(model.run(), expected)) << threads;
  }
}

// Rows and columns count from the middle of the picture, the prompt from its edge on.
TEST(QwenImageForward, PositionsCountFromTheMiddle) {
  const QwenImageConfig config = tiny();
  EXPECT_EQ(config.rope({1, 4, 7}, {}).start, (std::array<int64_t, 3>{0, -2, -4}));
  EXPECT_EQ(config.text_rope({1, 4, 7}, 5).start[0], 3);
  EXPECT_EQ(config.text_rope({1, 9, 6}, 5).start[0], 4);
  GoldenPicture model = golden();
  Context c = model.context();
  const Tensor expected = model.run();
  const Tensor moved = model.run(c, BlockRange::all(2), model.rows, *model.prepare(c), {0, 1, 0});
  EXPECT_GT(relative_l2(to_f64(moved), to_f64(expected)), 1e-4);
}

// Parts of the width give the result of the whole, and each reads nothing but its part.
TEST(QwenImageSlices, PartsSumToTheWhole) {
  GoldenPicture whole = golden();
  const Tensor expected = whole.run();
  const QwenImageConfig config = tiny();
  const std::vector<TensorSpec> specs = qwen_image_tensors(config);
  test::NamedTensors tensors;
  const TensorFile source = TensorFile::open(whole.folder + "/model/transformer");
  for (const TensorSpec& spec : specs) tensors[spec.name] = test::load_tensor(source, spec.name);
  test::run_parts(2, [&](int rank, Reducer& reducer) {
    const WidthSlice width = test::width_part(config.heads, config.ffn(), 2, rank);
    const std::string path =
        testing::TempDir() + "weft_qwen_image_part_" + std::to_string(rank) + ".safetensors";
    test::write_poisoned(path, specs, tensors, [&](const TensorSpec& tensor, TensorPart* part) {
      *part = qwen_image_part(config, tensor, width);
      return true;
    });
    const auto described = make_qwen_image_model(config);
    PictureModel model(*described, TensorFile::open(path), {.width = width});
    std::remove(path.c_str());
    model.set_latent(whole.latent);
    model.time = whole.time;
    model.text = f32_copy(model.stream, whole.text, {7, 20});
    Context c{model.stream,
              model.arena,
              model.seams.mixer,
              reducer,
              model.seams.halo,
              {},
              TokenRanges::all(model.tokens)};
    const Tensor out = model.run(c, BlockRange::all(2), model.rows, *model.prepare(c));
    EXPECT_LT(relative_l2(to_f64(out), to_f64(expected)), test::kParallelL2) << rank;
    EXPECT_EQ(model.arena.high_water(), test::dry_forward(*described, {.width = width}, model.grid,
                                                          {7, 7}, *test::silent_reducer(2, rank))
                                            .arena);
  });
}

TEST(QwenImageMemory, IsThatOfTheDryRun) {
  const BlockRange ranges[] = {{0, 2, 2}, {0, 1, 2}, {1, 2, 2}};
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const BlockRange& blocks : ranges)
      for (const int64_t length : {1, 7, 70}) {
        const TransformerLoad load{.dtype = dtype, .blocks = blocks};
        GoldenPicture model = golden(load);
        model.text = Tensor(DType::kF32, {length, model.traits.text_columns});
        Context c = model.context();
        const size_t before = tensor_bytes_live();
        const auto conditioning = model.prepare(c);
        const Rope rope = model.transformer->rope(model.grid, {}, *conditioning);
        const size_t held = tensor_bytes_live() - before;
        const std::unique_ptr<TransformerModel> described = make_qwen_image_model(tiny());
        const Footprint dry = test::dry_forward(*described, load, model.grid, {length, length},
                                                *test::silent_reducer(1, 0));
        EXPECT_EQ(held, dry.held);
        EXPECT_EQ(conditioning->joint_rows(), described->joint_rows(model.tokens, length));
        const Tensor hidden(DType::kF32, {model.tokens + length, model.traits.width});
        model.run(c, blocks, blocks.first() ? model.rows.view() : hidden.view(), *conditioning);
        EXPECT_EQ(model.arena.high_water(), dry.arena)
            << to_string(dtype) << " blocks " << blocks.begin << " " << blocks.end << " prompt "
            << length;
      }
}

// A small model of the published heads.
QwenImageConfig small() {
  QwenImageConfig config;
  config.heads = 2;
  config.layers = 3;
  config.text_dim = 64;
  return config;
}

// Packed matrices may be padded to the tiles of the GEMM, so the widths must not be tiny.
TEST(QwenImageMemory, WeightsAreThePredictedBytes) {
  const std::string path = testing::TempDir() + "weft_qwen_image_weights.safetensors";
  test::write_file(path, test::random_weights(qwen_image_tensors(small()), 5));
  const auto described = make_qwen_image_model(small());
  const BlockRange ranges[] = {{0, 3, 3}, {0, 1, 3}, {1, 2, 3}, {2, 3, 3}};
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const BlockRange& blocks : ranges) {
      const TransformerLoad load{.dtype = dtype, .blocks = blocks};
      const PictureModel model(*described, TensorFile::open(path), load);
      const auto predicted = static_cast<double>(test::dry_weights(*described, load));
      EXPECT_NEAR(static_cast<double>(model.transformer->weights_bytes()), predicted,
                  0.05 * predicted);
    }
  std::remove(path.c_str());
}

// A single file has a prefix, and may hold other models beside this one.
TEST(QwenImageNames, SingleFilesGiveTheSameModel) {
  const test::NamedTensors ours = test::random_weights(qwen_image_tensors(small()), 5);
  const std::string path = testing::TempDir() + "weft_qwen_image_names.safetensors";
  Stream stream = Stream::cpu(1);
  for (const std::string prefix : {"", "diffusion_model.", "model.diffusion_model."}) {
    test::NamedTensors theirs;
    for (const auto& [name, tensor] : ours) {
      Tensor& own = theirs[prefix + name] = Tensor(DType::kF32, tensor.view().shape());
      copy(stream, tensor, own);
    }
    if (!prefix.empty()) theirs["vae.something"] = Tensor(DType::kF32, {3});
    test::write_file(path, theirs);
    const TensorFile file = TensorFile::open(path);
    EXPECT_TRUE(holds_qwen_image(file));
    const QwenImageConfig found = QwenImageConfig::from_tensors(file);
    EXPECT_EQ(to_string(found), to_string(small()));
    EXPECT_GT(PictureModel(*make_qwen_image_model(found), file, {}).transformer->weights_bytes(),
              0u);
  }
  std::remove(path.c_str());
  EXPECT_FALSE(holds_qwen_image(TensorFile::open("tests/golden/dit_zimage/model/transformer")));
}

TEST(QwenImageConfig, CountsOfThePublishedModel) {
  EXPECT_EQ(parameter_count(qwen_image_tensors({})), 20'430'401'088);
}

class QwenImageConfigFile : public test::ConfigFile<QwenImageConfig> {
 protected:
  QwenImageConfigFile() : ConfigFile(kConfig) {}
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
