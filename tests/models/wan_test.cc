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
#include "tests/models/transformer_testing.h"
#include "tests/support/golden_case.h"

namespace weft {
namespace {

using test::bitwise_equal;
using test::OpsRun;
using test::Recorder;
using test::relative_l2;
using test::to_f64;

struct Model {
  Model(const std::string& name, DType dtype = DType::kF32, const Ops& ops = reference_ops(),
        const TransformerLoad* load = nullptr)
      : golden(name), stream(Stream::cpu(2, Determinism::kFixed, &ops)) {
    const bool original = golden.spec.value("format", "") == "original";
    const std::string part = test::golden_part(name, "transformer");
    const TensorFile file = open_part_weights(
        PartKind::kTransformer, original ? golden.folder + "/model/model.safetensors" : part);
    config =
        original ? WanConfig::from_tensors(file) : WanConfig::from_json_file(part + "/config.json");
    wan = WanTransformer::load(stream, file, config,
                               load ? *load : TransformerLoad{.dtype = dtype, .blocks = {}});
    latent = golden.input("hidden_states");
    text = golden.input("encoder_hidden_states");
    time = golden.input("timestep").as<float>()[0];
    grid = config.traits().grid(latent.view()[1], latent.view()[2], latent.view()[3]);
    tokens = grid[0] * grid[1] * grid[2];
    out = Tensor(DType::kF32, latent.view().shape());
  }
  Context context(Observer* observer = nullptr) {
    return seams.context(stream, arena, {}, TokenRanges::all(tokens), observer);
  }
  // Computes the velocity of the case's latent with `rows` prompt rows, padded with zeros.
  Tensor run(int64_t rows, Observer* observer = nullptr, std::vector<TimeSegment> times = {}) {
    Context c = context(observer);
    const WanText prompt =
        test::prepare_text(wan, c, text.view().slice(0, 0, rows), text.view()[0]);
    return run(c, prompt, test::rope_of(wan, grid), std::move(times));
  }
  Tensor run(Context& c, const WanText& prompt, const Rope& rope,
             std::vector<TimeSegment> times = {}) {
    if (times.empty()) times = {{.tokens = {0, tokens}, .timestep = time}};
    test::forward(wan, c, BlockRange::all(config.layers), latent, times, prompt, rope, out, sound);
    return f32_copy(stream, out, {out.view()[0], out.view()[1], out.view()[2], out.view()[3]});
  }

  // The dry run of this model; `prompt` is the number of its rows and the text length.
  Footprint dry(std::array<int64_t, 2> prompt) {
    return test::dry_forward(*make_wan_model(config), wan.loaded(), grid, prompt,
                             *test::silent_reducer(1, 0));
  }

  test::GoldenCase golden;
  Stream stream;
  Arena arena{size_t{1} << 30};
  SerialSeams seams;
  WanConfig config;
  WanTransformer wan;
  Tensor latent, text, out;
  Tensor sound;  // of a model that hears: [time segments, audio_dim]
  float time = 0;
  std::array<int64_t, 3> grid{};
  int64_t tokens = 0;
};

class WanGolden : public testing::TestWithParam<std::tuple<const char*, OpsRun>> {};

TEST_P(WanGolden, MatchesReference) {
  const auto& [name, run] = GetParam();
  Model model(name, run.dtype, run.table());
  Recorder recorder;
  Tensor velocity = model.run(model.text.view()[0], &recorder);
  recorder.seen["output"] = std::move(velocity);  // of the whole latent, not its rows
  for (const std::string& tensor : model.golden.expected.names()) {
    ASSERT_TRUE(recorder.seen.count(tensor)) << tensor;
    EXPECT_TRUE(model.golden.matches(tensor, recorder.seen[tensor], run.dtype));
  }
  EXPECT_EQ(model.arena.used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(
    Cases, WanGolden,
    testing::Combine(testing::Values("dit_wan_tiny", "dit_wan_tiny_image", "dit_wan_tiny_sharded",
                                     "dit_wan_hd128_bf16_weights", "dit_wan_original_names"),
                     testing::Values(OpsRun{"reference", DType::kF32},
                                     OpsRun{"reference", DType::kBF16}, OpsRun{"cpu", DType::kF32},
                                     OpsRun{"cpu", DType::kBF16})),
    [](const auto& info) {
      const OpsRun& run = std::get<1>(info.param);
      return std::string(std::get<0>(info.param)) + "_" + run.ops + "_" +
             std::string(to_string(run.dtype));
    });

// One padding row, weighted by the logarithm of their number, gives the result of all padding rows.
TEST(WanText, PadRowsShareOneKey) {
  for (const int64_t rows : {0, 1, 5, 15}) {
    Model model("dit_wan_tiny");
    const int64_t all = model.text.view()[0];
    fill_zero(model.stream, model.text.view().slice(0, rows, all - rows));
    Recorder full, short_one;
    const Tensor expected = model.run(all, &full), got = model.run(rows, &short_one);
    EXPECT_LT(relative_l2(to_f64(got), to_f64(expected)), test::kParallelL2) << rows;
    EXPECT_TRUE(bitwise_equal(full.seen["context"], short_one.seen["context"])) << rows;
    // Without the padding the result differs.
    Context c = model.context();
    if (rows == 0) continue;
    const WanText cut = test::prepare_text(model.wan, c, model.text.view().slice(0, 0, rows), rows);
    EXPECT_GT(relative_l2(to_f64(model.run(c, cut, test::rope_of(model.wan, model.grid))),
                          to_f64(expected)),
              1e-3);
  }
}

TEST(WanText, IsHeldAsTheDryRunSays) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Model model("dit_wan_tiny_sharded", dtype);
    Context c = model.context();
    const size_t before = tensor_bytes_live();
    const WanText text = test::prepare_text(model.wan, c, model.text.view().slice(0, 0, 7), 20);
    const Rope rope = test::rope_of(model.wan, model.grid);
    EXPECT_EQ(text.rows(), 8);
    EXPECT_EQ(tensor_bytes_live() - before, model.dry({7, 20}).held);
  }
}

// Attention depends only on differences of positions.
TEST(WanForward, ShiftedPositionsGiveTheSamePicture) {
  Model model("dit_wan_tiny_sharded");
  Context c = model.context();
  const WanText text = test::prepare_text(model.wan, c, model.text, model.text.view()[0]);
  const Tensor expected = model.run(c, text, test::rope_of(model.wan, model.grid));
  const Tensor got = model.run(c, text, test::rope_of(model.wan, model.grid, {7, -3, 11}));
  EXPECT_LT(relative_l2(to_f64(got), to_f64(expected)), test::kParallelL2);
}

// A pipeline that splits the layers only moves data.
TEST(WanForward, BlockRangesComposeBitwise) {
  Model whole("dit_wan_tiny_sharded");
  const Tensor expected = whole.run(20);
  const TransformerLoad first{.dtype = DType::kF32, .blocks = {0, 1, 3}},
      second{.dtype = DType::kF32, .blocks = {1, 3, 3}};
  Model a("dit_wan_tiny_sharded", DType::kF32, reference_ops(), &first);
  Model b("dit_wan_tiny_sharded", DType::kF32, reference_ops(), &second);
  EXPECT_LT(a.wan.weights_bytes(), whole.wan.weights_bytes());
  const TimeSegment time{.tokens = {0, a.tokens}, .timestep = a.time};
  Tensor hidden(DType::kF32, {a.tokens, a.config.width()}),
      out(DType::kF32, a.latent.view().shape());
  Context ca = a.context(), cb = b.context();
  test::forward(a.wan, ca, first.blocks, a.latent, {&time, 1},
                test::prepare_text(a.wan, ca, a.text, 20), test::rope_of(a.wan, a.grid), hidden);
  test::forward(b.wan, cb, second.blocks, hidden, {&time, 1},
                test::prepare_text(b.wan, cb, b.text, 20), test::rope_of(b.wan, b.grid), out);
  EXPECT_TRUE(bitwise_equal(out, expected));
}

TEST(WanForward, TimeSegmentsOfOneTimeAreOneSegment) {
  Model model("dit_wan_tiny");
  const Tensor expected = model.run(16);
  EXPECT_TRUE(bitwise_equal(model.run(16, nullptr, {{{0, 5}, model.time}, {{5, 18}, model.time}}),
                            expected));
  Recorder two, one;
  model.run(16, &two, {{{0, 5}, 0.0f}, {{5, 18}, model.time}});
  model.run(16, &one, {{{0, 18}, 0.0f}});
  EXPECT_FALSE(bitwise_equal(two.seen["output"], expected));
  // Each segment has the conditioning of its own time.
  EXPECT_TRUE(bitwise_equal(two.seen["temb"].view().select(0, 0), one.seen["temb"]));
}

TEST(WanForward, SameBitsForAnyThreadCount) {
  Model model("dit_wan_tiny_sharded", DType::kF32, cpu_ops());
  const Tensor expected = model.run(20);
  for (const int threads : {1, 3}) {
    model.stream = Stream::cpu(threads, Determinism::kFixed, &cpu_ops());
    EXPECT_TRUE(bitwise_equal(model.run(20), expected)) << threads;
  }
}

TEST(WanMemory, WorkspaceIsThatOfTheDryRun) {
  for (const char* name : {"dit_wan_tiny", "dit_wan_tiny_sharded", "dit_wan_hd128_bf16_weights",
                           "dit_wan_original_names"})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      Model model(name, dtype);
      const int64_t rows = model.text.view()[0];
      model.arena.reset_high_water();
      model.run(rows);
      EXPECT_EQ(model.arena.high_water(), model.dry({rows, rows}).arena)
          << name << " " << to_string(dtype);
    }
}

// Packed matrices may be padded to the tiles of the GEMM, so the widths must not be tiny.
TEST(WanMemory, WeightsAreThePredictedBytes) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Model model("dit_wan_original_names", dtype);
    const auto predicted = static_cast<double>(
        test::dry_weights(*make_wan_model(model.config), {.dtype = dtype, .blocks = {}}));
    EXPECT_NEAR(static_cast<double>(model.wan.weights_bytes()), predicted, 0.05 * predicted);
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

class WanConfigFile : public test::ConfigFile<WanConfig> {
 protected:
  WanConfigFile() : ConfigFile("tests/golden/dit_wan_tiny/model/transformer/config.json") {}
};

TEST_F(WanConfigFile, DiffusersSpelling) {
  const WanConfig config = read();
  EXPECT_EQ(
      to_string(config),
      "Wan transformer: width 24 = 2 heads x 12, 2 layers, ffn 32, channels 16 -> 16, text 32, "
      "patch 1x2x2");
  EXPECT_EQ(config.rope_max_seq_len, 64);
}

TEST_F(WanConfigFile, OriginalSpelling) {
  json_ = {{"_class_name", "WanModel"}, {"dim", 1536},   {"eps", 1e-6},         {"ffn_dim", 8960},
           {"freq_dim", 256},           {"in_dim", 16},  {"model_type", "t2v"}, {"num_heads", 12},
           {"num_layers", 30},          {"out_dim", 16}, {"text_len", 512}};
  EXPECT_EQ(parameter_count(wan_tensors(read())), 1'418'996'800);
  json_["model_type"] = "s2v";
  EXPECT_NE(fault().find("model_type = \"s2v\""), std::string::npos);
}

TEST_F(WanConfigFile, EveryFaultAtOnce) {
  json_["surprise"] = 1;
  json_["_fine"] = 1;
  json_["pos_embed_seq_len"] = 514;
  json_["qk_norm"] = "none";
  json_.erase("ffn_dim");
  const std::string text = fault();
  for (const char* part : {"unknown: surprise (known: ", "missing: ffn_dim",
                           "pos_embed_seq_len = 514", "qk_norm = \"none\"", "rope_max_seq_len"})
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

// Formats whose tensors tell how they are scaled need no word in the configuration.
TEST_F(WanConfigFile, QuantizationIsReadFromTheTensorsOrRefused) {
  using nlohmann::json;
  for (const json& fine :
       {json(nullptr), json{{"quant_method", "fp8"}}, json{{"quant_method", "gguf"}},
        json{{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}}}) {
    json_["quantization_config"] = fine;
    read();
  }
  for (const auto& [wrong, part] :
       {std::pair{json{{"quant_method", "bitsandbytes"}},
                  "its quant_method is bitsandbytes; legal: fp8"},
        {json{{"quant_method", "compressed-tensors"}, {"format", "pack-quantized"}},
         "its quant_method is compressed-tensors; legal"},
        {json::object(), "its quant_method is none named"},
        {json{{"quant_method", 8}}, "quant_method"}})
    EXPECT_NE(fault("quantization_config", wrong).find(part), std::string::npos)
        << fault("quantization_config", wrong);
}

TEST_F(WanConfigFile, ImpossibleSizes) {
  EXPECT_NE(fault("attention_head_dim", 13).find("head size 13"), std::string::npos);
  EXPECT_NE(fault("num_layers", 0).find("num_layers"), std::string::npos);
  EXPECT_NE(fault("num_layers", "two").find("num_layers"), std::string::npos);
  EXPECT_NE(fault("patch_size", {2, 2}).find("patch_size"), std::string::npos);
  EXPECT_NE(fault("freq_dim", 255).find("freq_dim"), std::string::npos);
  EXPECT_NE(fault("in_channels", 15).find("in_channels 15"), std::string::npos);
}

TEST(WanGrid, PatchesMustFit) {
  const WanConfig config = published_wan(1, 1, 1, 16, 16);
  EXPECT_EQ(config.traits().grid(3, 4, 6), (std::array<int64_t, 3>{3, 2, 3}));
  for (const auto& [height, width] : {std::pair{5, 6}, {4, 7}, {0, 2}}) try {
      config.traits().grid(3, height, width);
      FAIL() << height << "x" << width;
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    }
}

// Holds dit_wan_tiny's tensors, so that tests can change them.
class WanFile : public testing::Test {
 protected:
  void SetUp() override {
    const std::string folder = "tests/golden/dit_wan_tiny/model/transformer";
    config_ = WanConfig::from_json_file(folder + "/config.json");
    const TensorFile file = TensorFile::open(folder);
    for (const std::string& name : file.names()) tensors_[name] = test::load_tensor(file, name);
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
    try {
      WanTransformer::load(stream, file, config_);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
      return error.what();
    }
    return "";
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
    EXPECT_NE(text.find(part), std::string::npos) << part << " in: " << text;
}

// Both spellings of the tensor names give the same model.
TEST_F(WanFile, EverySpelling) {
  Model expected("dit_wan_tiny");
  const Tensor velocity = expected.run(16);
  const std::map<std::string, Tensor> ours = std::move(tensors_);
  for (const bool original : {false, true}) {
    const WanNames names{.original = original};
    std::vector<std::pair<std::string, TensorView>> list;
    for (const auto& [name, tensor] : ours) list.emplace_back(names(name), tensor.view());
    write_safetensors(path_, list);
    const TensorFile file = TensorFile::open(path_);
    EXPECT_EQ(detect_wan_names(file).original, original);
    expected.wan = WanTransformer::load(expected.stream, file, config_);
    EXPECT_TRUE(bitwise_equal(expected.run(16), velocity)) << original;
  }
}

// Writers with four dimensions merge the first two of a kernel, and drop extents of one.
TEST_F(WanFile, TensorsOfFewerDimensionsGiveTheSameModel) {
  Model expected("dit_wan_tiny");
  const Tensor velocity = expected.run(16);
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
        expected.wan = WanTransformer::load(expected.stream, file, config_, {.dtype = dtype});
        EXPECT_TRUE(dtype != DType::kF32 || bitwise_equal(expected.run(16), velocity));
        // A rank that holds a part of the width reads the same boxes.
        expected.wan = WanTransformer::load(expected.stream, file, config_,
                                            {.dtype = dtype, .width = {{0, 1}, {0, 16}}});
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
  Model model("dit_wan_tiny");
  const std::vector<TimeSegment> times{{{0, 6}, model.time}, {{6, 18}, model.time}};
  Recorder deaf, hearing;
  const Tensor silent = model.run(16, &deaf, times);

  config_.audio_dim = kSound;
  EXPECT_NE(fault().find("4 missing: condition_embedder.audio_embedder.linear_1.weight [24, 10]"),
            std::string::npos)
      << fault();
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
  model.wan = WanTransformer::load(model.stream, written(), config_);
  model.sound = Tensor(DType::kF32, {2, kSound});
  for (int64_t i = 0; i < 2 * kSound; ++i)
    model.sound.as<float>()[i] = std::cos(0.9f * static_cast<float>(i));
  const Tensor heard = model.run(16, &hearing, times);
  EXPECT_FALSE(bitwise_equal(heard, silent));

  const auto s = to_f64(model.sound), before = to_f64(deaf.seen["temb"]),
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
  model.wan = WanTransformer::load(model.stream, written(), config_);
  EXPECT_TRUE(bitwise_equal(model.run(16, nullptr, times), silent));
}

TEST_F(WanFile, AnotherModelIsNamedAsSuch) {
  tensors_.clear();
  tensors_["double_blocks.0.img_attn.qkv.weight"] = Tensor(DType::kF32, {3});
  EXPECT_NE(fault().find("no tensor has a name of a Wan transformer"), std::string::npos);
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
  try {
    WanConfig::from_tensors(written());
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("Wan VACE is not supported yet"), std::string::npos);
  }
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
}  // namespace weft
