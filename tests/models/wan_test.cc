#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <map>

#include "kernels/ops.h"
#include "models/registry.h"
#include "models/wan/names.h"
#include "models/wan/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/transformer_cases.h"
#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

// One padding row, weighted by the logarithm of their number, gives the result of all padding rows.
TEST(WanText, PadRowsShareOneKey) {
  for (const int64_t rows : {0, 1, 5, 15}) {
    TransformerCase c("dit_wan_tiny");
    TransformerRun model(c);
    const TensorView text = c.conditions.text;
    fill_zero(model.stream, text.slice(0, rows, text[0] - rows));
    Recorder full, short_one;
    const std::vector<double> expected = to_f64(model.run(&full));
    c.conditions.text = text.slice(0, 0, rows);
    EXPECT_LT(relative_l2(to_f64(model.run(&short_one)), expected), kParallelL2) << rows;
    EXPECT_TRUE(bitwise_equal(full.seen["context"], short_one.seen["context"])) << rows;
    // Without the padding the result differs.
    if (rows == 0) continue;
    c.conditions.text_length = rows;
    EXPECT_GT(relative_l2(to_f64(model.run()), expected), 1e-3);
  }
}

TEST(WanText, IsHeldAsTheDryRunSays) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    TransformerCase c("dit_wan_tiny_sharded");
    c.conditions.text = c.conditions.text.slice(0, 0, 7);
    TransformerRun model(c, {.dtype = dtype});
    Context context = model.context();
    const size_t before = tensor_bytes_live();
    const auto text = model.prepare(context);
    const Rope rope = model.transformer->rope(c.grid, {}, *text);
    EXPECT_EQ(dynamic_cast<const WanText&>(*text).rows(), 8);
    EXPECT_EQ(tensor_bytes_live() - before,
              dry_forward(*c.model, {.dtype = dtype}, c.grid, {7, 20}, *silent_reducer(1, 0)).held);
  }
}

// Attention depends only on differences of positions.
TEST(WanForward, ShiftedPositionsGiveTheSamePicture) {
  const TransformerCase c("dit_wan_tiny_sharded");
  TransformerRun model(c);
  Context context = model.context();
  const Tensor shifted = model.run(context, c.latent, *model.prepare(context), {7, -3, 11});
  EXPECT_LT(relative_l2(to_f64(shifted), to_f64(model.run())), kParallelL2);
}

TEST(WanForward, TimeSegmentsOfOneTimeAreOneSegment) {
  TransformerCase c("dit_wan_tiny");
  TransformerRun model(c);
  const float time = c.times[0].timestep;
  const Tensor expected = model.run();
  c.times = {{{0, 5}, time}, {{5, 18}, time}};
  EXPECT_TRUE(bitwise_equal(model.run(), expected));
  Recorder two, one;
  c.times[0].timestep = 0;
  model.run(&two);
  c.times = {{{0, 18}, 0.0f}};
  model.run(&one);
  EXPECT_FALSE(bitwise_equal(two.seen["output"], expected));
  // Each segment has the conditioning of its own time.
  EXPECT_TRUE(bitwise_equal(two.seen["temb"].view().select(0, 0), one.seen["temb"]));
}

// Packed matrices may be padded to the tiles of the GEMM, so the widths must not be tiny.
TEST(WanMemory, WeightsAreThePredictedBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const TransformerCase c("dit_wan_original_names");
    const TransformerRun model(c, {.dtype = dtype});
    const auto predicted = static_cast<double>(dry_weights(*c.model, {.dtype = dtype}));
    EXPECT_NEAR(static_cast<double>(model.transformer->weights_bytes()), predicted,
                0.05 * predicted);
  }
}

WanConfig published_wan(int heads, int layers, int64_t ffn, int64_t in, int64_t out) {
  WanConfig config;
  config.heads = heads;
  config.head_dim = 128;
  config.layers = layers;
  config.ffn_dim = ffn;
  config.in_channels = in;
  config.out_channels = out;
  return config;
}

// The parameter and tensor counts are those of the published checkpoints.
TEST(WanConfig, CountsOfPublishedModels) {
  const struct {
    WanConfig config;
    int64_t parameters, tensors;
  } kModels[] = {{published_wan(12, 30, 8960, 16, 16), 1'418'996'800, 825},
                 {published_wan(40, 40, 13824, 16, 16), 14'288'491'584, 1095},
                 {published_wan(40, 40, 13824, 36, 16), 14'288'901'184, 1095},
                 {published_wan(24, 30, 14336, 48, 48), 4'999'787'712, 825}};
  for (const auto& model : kModels) {
    const std::vector<TensorSpec> tensors = wan_tensors(model.config);
    EXPECT_EQ(parameter_count(tensors), model.parameters) << to_string(model.config);
    EXPECT_EQ(static_cast<int64_t>(tensors.size()), model.tensors);
  }
}

TEST(WanConfig, DiffusersSpelling) {
  const auto config =
      WanConfig::from_json_file("tests/golden/dit_wan_tiny/model/transformer/config.json");
  EXPECT_EQ(
      to_string(config),
      "Wan transformer: width 24 = 2 heads x 12, 2 layers, ffn 32, channels 16 -> 16, text 32, "
      "patch 1x2x2");
  EXPECT_EQ(config.rope_max_seq_len, 64);
}

TEST(WanConfig, OriginalSpelling) {
  nlohmann::json json{
      {"_class_name", "WanModel"}, {"dim", 1536},   {"eps", 1e-6},         {"ffn_dim", 8960},
      {"freq_dim", 256},           {"in_dim", 16},  {"model_type", "t2v"}, {"num_heads", 12},
      {"num_layers", 30},          {"out_dim", 16}, {"text_len", 512}};
  const auto read = [&] { return WanConfig::from_json_file(ConfigFile(json).path()); };
  EXPECT_EQ(parameter_count(wan_tensors(read())), 1'418'996'800);
  json["model_type"] = "s2v";
  EXPECT_TRUE(contains(error_of(read, ErrorKind::kModel), "model_type = \"s2v\""));
}

TEST(WanGrid, PatchesMustFit) {
  const WanConfig config = published_wan(1, 1, 1, 16, 16);
  EXPECT_EQ(config.traits().grid(3, 4, 6), (std::array<int64_t, 3>{3, 2, 3}));
  for (const auto& [height, width] : {std::pair{5, 6}, {4, 7}, {0, 2}})
    thrown_error([&] { config.traits().grid(3, height, width); }, ErrorKind::kUsage);
}

// Holds dit_wan_tiny's tensors, so that tests can change them.
class WanFile : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = "tests/golden/dit_wan_tiny/model/transformer";
    config_ = WanConfig::from_json_file(folder + "/config.json");
    const TensorFile file = TensorFile::open(folder);
    for (const std::string& name : file.names()) tensors_[name] = load_tensor(file, name);
    path_ = testing::TempDir() + "weft_wan_" +
            testing::UnitTest::GetInstance()->current_test_info()->name() + ".safetensors";
  }
  void TearDown() override { std::remove(path_.c_str()); }
  TensorFile written() {
    std::vector<std::pair<std::string, TensorView>> list;
    for (const auto& [name, tensor] : tensors_) list.emplace_back(name, tensor.view());
    write_safetensors(path_, list);
    return TensorFile::open(path_);
  }
  std::string fault() {
    Stream stream = Stream::cpu(1, Determinism::kFast, &reference_ops());
    const TensorFile file = written();
    return error_of([&] { WanTransformer::load(stream, file, config_); }, ErrorKind::kModel);
  }
  WanConfig config_;
  std::map<std::string, Tensor> tensors_;
  std::string path_;
};

TEST_F(WanFile, AnUnusedNormIsIgnored) {
  tensors_["blocks.1.attn2.norm_added_q.weight"] = Tensor(DType::kF32, {24});
  EXPECT_EQ(fault(), "");
}

TEST_F(WanFile, EveryFaultByName) {
  tensors_.erase("blocks.1.attn2.to_k.bias");
  tensors_.erase("scale_shift_table");
  tensors_["blocks.2.ffn.net.2.bias"] = Tensor(DType::kF32, {24});
  tensors_["proj_out.weight"] = Tensor(DType::kF32, {24, 64});
  tensors_["patch_embedding.weight"] = Tensor(DType::kF32, {2, 2, 384});  // as many values
  tensors_["blocks.0.norm2.bias"] = Tensor(DType::kI32, {24});
  const std::string text = fault();
  for (const char* part :
       {"2 missing: ", "blocks.1.attn2.to_k.bias [24]", "scale_shift_table [1, 2, 24]",
        "1 extra: blocks.2.ffn.net.2.bias", "proj_out.weight [24, 64] must be [64, 24]",
        "patch_embedding.weight [2, 2, 384] must be [24, 16, 1, 2, 2]",
        "blocks.0.norm2.bias is i32"})
    EXPECT_TRUE(contains(text, part)) << part << " in: " << text;
}

// Both spellings of the tensor names give the same model.
TEST_F(WanFile, EverySpelling) {
  const TransformerCase c("dit_wan_tiny");
  const Tensor velocity = TransformerRun(c).run();
  const std::map<std::string, Tensor> ours = std::move(tensors_);
  for (const bool original : {false, true}) {
    const WanNames names{.original = original};
    std::vector<std::pair<std::string, TensorView>> list;
    for (const auto& [name, tensor] : ours) list.emplace_back(names(name), tensor.view());
    write_safetensors(path_, list);
    const TensorFile file = TensorFile::open(path_);
    EXPECT_EQ(detect_wan_names(file).original, original);
    EXPECT_TRUE(bitwise_equal(TransformerRun(c, file, {}).run(), velocity)) << original;
  }
}

// Writers with four dimensions merge the first two of a kernel, and drop extents of one.
TEST_F(WanFile, TensorsOfFewerDimensionsGiveTheSameModel) {
  const TransformerCase c("dit_wan_tiny");
  const Tensor velocity = TransformerRun(c).run();
  const std::map<std::string, Tensor> ours = std::move(tensors_);
  const auto merged = [](std::vector<int64_t> shape) {
    if (shape.size() < 5) return shape;
    shape[1] *= shape[0];
    shape.erase(shape.begin());
    return shape;
  };
  const auto dropped = [](std::vector<int64_t> shape) {
    std::erase(shape, 1);
    return shape;
  };
  int ways = 0;
  for (const bool ones : {false, true})
    for (const bool kernels : {false, true})
      for (const DType dtype : {DType::kF32, DType::kBF16}) {
        std::vector<std::pair<std::string, TensorView>> list;
        for (const auto& [name, tensor] : ours) {
          const TensorView& view = tensor.view();
          std::vector<int64_t> shape(view.shape().begin(), view.shape().end());
          if (kernels) shape = merged(shape);
          if (ones) shape = dropped(shape);
          list.emplace_back(WanNames{.original = true}(name),
                            TensorView(view.data, view.dtype, shape));
        }
        write_safetensors(path_, list);
        const TensorFile file = TensorFile::open(path_);
        EXPECT_EQ(file.describe("patch_embedding.weight").rank, 5 - kernels - ones);
        TransformerRun whole(c, file, {.dtype = dtype});
        EXPECT_TRUE(dtype != DType::kF32 || bitwise_equal(whole.run(), velocity));
        // A rank that holds a part of the width reads the same boxes.
        TransformerRun(c, file, {.dtype = dtype, .width = {{0, 1}, {0, 16}}});
        ++ways;
      }
  EXPECT_EQ(ways, 8);
}

// The same in a file without a config, of a model whose heads have 128 columns.
TEST(WanSizes, FollowFromTensorsOfFewerDimensions) {
  WanConfig config;
  config.heads = 2;
  config.head_dim = 128;
  config.layers = 1;
  config.ffn_dim = 40;
  config.in_channels = config.out_channels = 16;
  config.text_dim = 24;
  config.freq_dim = 32;
  for (const bool ones : {false, true})
    for (const bool kernels : {false, true}) {
      std::vector<TensorSpec> tensors = wan_tensors(config);
      for (TensorSpec& tensor : tensors) {
        if (kernels && tensor.shape.size() == 5) {
          tensor.shape[1] *= tensor.shape[0];
          tensor.shape.erase(tensor.shape.begin());
        }
        if (ones) std::erase(tensor.shape, 1);
      }
      const TensorFile file = without_values(tensors);
      const WanConfig read = WanConfig::from_tensors(file);
      EXPECT_EQ(to_string(read), to_string(config));
      DryRun run;
      WanTransformer::load(run.stream(), file, read, {});
    }
}

// A model that hears adds W2 silu(W1 s + b1) + b2 of a segment's sound s to its vector of the time.
TEST_F(WanFile, SoundIsAddedToTheVectorOfTheTime) {
  constexpr int64_t kSound = 10;
  TransformerCase c("dit_wan_tiny");
  c.times = {{{0, 6}, c.times[0].timestep}, {{6, 18}, c.times[0].timestep}};
  Recorder deaf, hearing;
  const Tensor silent = TransformerRun(c).run(&deaf);

  config_.audio_dim = kSound;
  EXPECT_TRUE(
      contains(fault(), "4 missing: condition_embedder.audio_embedder.linear_1.weight [24, 10]"));
  const std::string name = "condition_embedder.audio_embedder.linear_";
  float next = 0;
  const auto make = [&](const std::string& part, std::initializer_list<int64_t> shape) {
    Tensor& tensor = tensors_[name + part] = Tensor(DType::kF32, shape);
    for (float& value : std::span(tensor.as<float>(), tensor.view().count()))
      value = 0.3f * std::sin(next += 1.7f);
    return to_f64(tensor);
  };
  const auto w1 = make("1.weight", {24, kSound}), b1 = make("1.bias", {24});
  const auto w2 = make("2.weight", {24, 24}), b2 = make("2.bias", {24});
  const Tensor sound(DType::kF32, {2, kSound});
  for (int64_t i = 0; i < 2 * kSound; ++i)
    sound.as<float>()[i] = std::cos(0.9f * static_cast<float>(i));
  c.model = make_wan_model(config_);
  c.signal = sound;
  const Tensor heard = TransformerRun(c, written(), {}).run(&hearing);
  EXPECT_FALSE(bitwise_equal(heard, silent));

  const auto s = to_f64(sound), before = to_f64(deaf.seen["temb"]),
             after = to_f64(hearing.seen["temb"]);
  for (int64_t segment = 0; segment < 2; ++segment) {
    std::vector<double> hidden(24);
    for (int64_t i = 0; i < 24; ++i) {
      double sum = b1[i];
      for (int64_t j = 0; j < kSound; ++j) sum += w1[i * kSound + j] * s[segment * kSound + j];
      hidden[i] = sum / (1 + std::exp(-sum));
    }
    for (int64_t i = 0; i < 24; ++i) {
      double sum = b2[i] + before[segment * 24 + i];
      for (int64_t j = 0; j < 24; ++j) sum += w2[i * 24 + j] * hidden[j];
      EXPECT_NEAR(after[segment * 24 + i], sum, 1e-5) << segment << " " << i;
    }
  }

  // A second linear of zeros hears nothing.
  for (const char* part : {"2.weight", "2.bias"}) {
    const TensorView zeros = tensors_[name + part];
    std::fill_n(zeros.as<float>(), zeros.count(), 0.0f);
  }
  EXPECT_TRUE(bitwise_equal(TransformerRun(c, written(), {}).run(), silent));
}

TEST_F(WanFile, AnotherModelIsNamedAsSuch) {
  tensors_.clear();
  tensors_["double_blocks.0.img_attn.qkv.weight"] = Tensor(DType::kF32, {3});
  EXPECT_TRUE(contains(fault(), "no tensor has a name of a Wan transformer"));
}

TEST_F(WanFile, SizesFromTensorsAlone) {
  const TensorFile file = open_part_weights(
      PartKind::kTransformer, "tests/golden/dit_wan_original_names/model/model.safetensors");
  EXPECT_EQ(
      to_string(WanConfig::from_tensors(file)),
      "Wan transformer: width 128 = 1 heads x 128, 1 layers, ffn 64, channels 16 -> 16, text 32, "
      "patch 1x2x2");
  // A width of 24 does not determine the number of heads.
  EXPECT_THROW(WanConfig::from_tensors(written()), Error);
  tensors_["vace_blocks.0.weight"] = Tensor(DType::kF32, {3});
  expect_error(ErrorKind::kModel, "Wan VACE is not supported yet",
               [&] { WanConfig::from_tensors(written()); });
}

// Known values for t = 500.
TEST(TimeEmbedding, CheckVectors) {
  Tensor out(DType::kF32, {256});
  time_embedding(500, out);
  const std::pair<int, float> kExpected[] = {{0, -0.883849f},   {1, 0.945943f},   {127, 0.998557f},
                                             {128, -0.467772f}, {129, 0.324334f}, {255, 0.053705f}};
  for (const auto& [i, value] : kExpected) EXPECT_NEAR(out.as<float>()[i], value, 6e-7) << i;
}

// Head size 128 splits into 44, 42 and 42; each axis has its own exponents.
TEST(WanRope, CheckVectors) {
  const Rope rope = make_rope({2, 2, 2}, {0, 0, 0}, 128);
  EXPECT_EQ(rope.pairs, (std::array<int, 3>{22, 21, 21}));
  const auto angle = [&](int axis, int pair) {  // the angle of position 1
    const float* at = rope.table[axis].as<float>() + (rope.pairs[axis] + pair) * 2;
    return std::atan2(static_cast<double>(at[1]), static_cast<double>(at[0]));
  };
  EXPECT_NEAR(angle(0, 1), 0.657933224657568, 1e-7);
  EXPECT_NEAR(angle(1, 1), 0.644946677103762, 1e-7);
  EXPECT_NEAR(angle(2, 1), 0.644946677103762, 1e-7);
  EXPECT_NEAR(angle(0, 21), 1.519911e-4, 1e-9);
  EXPECT_NEAR(angle(2, 20), 1.550516e-4, 1e-9);
}

}  // namespace
}  // namespace weft::test
