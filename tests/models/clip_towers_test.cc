#include <gtest/gtest.h>

#include <cstdio>

#include "kernels/ops.h"
#include "models/clip_towers/text.h"
#include "models/clip_towers/vision.h"
#include "models/footprint.h"
#include "tests/models/config_testing.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

struct Run {
  const char* ops;
  DType dtype;
};

const Ops& table(const std::string& name) {
  return name == "reference" ? reference_ops() : cpu_ops();
}

class ClipGolden : public testing::TestWithParam<Run> {
 protected:
  Stream stream_ = Stream::cpu(1, Determinism::kFast, &table(GetParam().ops));
  Arena arena_{size_t{1} << 30};
  SerialSeams seams_;
};

TEST_P(ClipGolden, Text) {
  const GoldenCase golden("clip_text");
  const DType dtype = GetParam().dtype;
  const TensorFile file = TensorFile::open(golden.folder + "/model/text_encoder");
  const ClipTextConfig config =
      ClipTextConfig::from_json_file(golden.folder + "/model/text_encoder/config.json");
  const ClipText encoder = ClipText::load(file, config, stream_, dtype);
  for (const std::string& input : golden.inputs.names()) {
    const Tensor given = golden.input(input);
    const std::span<const int32_t> ids(given.as<int32_t>(), static_cast<size_t>(given.count()));
    const int64_t n = given.count();
    Context context = seams_.context(stream_, arena_, {}, TokenRanges::all(n));
    Tensor out(DType::kF32, {n, config.blocks.width});
    arena_.reset_high_water();
    encoder.encode(context, ids, out);
    const std::string number = input.substr(input.find('.'));
    EXPECT_TRUE(golden.matches("last_hidden_state" + number, out, dtype));
    EXPECT_TRUE(golden.matches("pooled" + number,
                               out.view().select(0, clip_pooled_row(config, ids)), dtype));
    EXPECT_EQ(arena_.used(), 0u);
    DryRun dry;
    const ClipText same = ClipText::load(file, config, dry.stream(), dtype);
    Context dry_context = seams_.context(dry.stream(), dry.arena(), {}, TokenRanges::all(n));
    EXPECT_EQ(arena_.high_water(), dry_encode(dry, same, dry_context, n, out.view()[1]).arena);
  }
}

TEST_P(ClipGolden, Vision) {
  const GoldenCase golden("clip_vision");
  const TensorFile file = TensorFile::open(golden.folder + "/model/image_encoder");
  const ClipVisionConfig config =
      ClipVisionConfig::from_json_file(golden.folder + "/model/image_encoder/config.json");
  const ClipVision encoder = ClipVision::load(file, config, stream_, GetParam().dtype);
  Context context = seams_.context(stream_, arena_, {}, TokenRanges::all(config.rows()));
  Tensor out(DType::kF32, {config.rows(), config.blocks.width});
  encoder.encode(context, golden.input("pixel_values"), out);
  EXPECT_TRUE(golden.matches("hidden_states.-2", out, GetParam().dtype));
  EXPECT_EQ(arena_.used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Runs, ClipGolden,
                         testing::Values(Run{"reference", DType::kF32},
                                         Run{"reference", DType::kBF16}, Run{"cpu", DType::kF32},
                                         Run{"cpu", DType::kBF16}));

ClipTextConfig large_text() {
  return {
      .blocks = {.width = 768, .ffn = 3072, .heads = 12, .layers = 12, .names = kClipBlockNames},
      .vocab_size = 49408};
}

// CLIP-L's text tower and the vision tower of ViT-H/14.
TEST(Clip, CountsOfPublishedTowers) {
  const std::vector<TensorSpec> text = clip_text_tensors(large_text());
  EXPECT_EQ(parameter_count(text), 123'060'480);
  EXPECT_EQ(text.size(), 196u);
  const ClipVisionConfig config{
      .blocks = {.width = 1280, .ffn = 5120, .heads = 16, .layers = 32, .names = kClipBlockNames}};
  EXPECT_EQ(config.rows(), 257);
  const std::vector<TensorSpec> vision = clip_vision_tensors(config);
  EXPECT_EQ(parameter_count(vision), 630'766'080);
  EXPECT_EQ(vision.size(), 519u);
}

TEST(Clip, PooledRow) {
  ClipTextConfig config = large_text();
  const int32_t ids[] = {49406, 320, 49407, 49407, 0};
  EXPECT_EQ(clip_pooled_row(config, ids), 2);
  EXPECT_EQ(clip_pooled_row(config, {ids, 2}), 0);  // no end of text
  config.end_id = 2;                                // as in published files
  EXPECT_EQ(clip_pooled_row(config, ids), 2);
}

TEST(Clip, ForeignIdsAndLongPromptsAreErrors) {
  const std::string folder = "tests/golden/clip_text/model/text_encoder";
  Stream stream = Stream::cpu(1);
  const TensorFile file = TensorFile::open(folder);
  const ClipText encoder = ClipText::load(
      file, ClipTextConfig::from_json_file(folder + "/config.json"), stream, DType::kF32);
  Arena arena(size_t{1} << 24);
  SerialSeams seams;
  const auto fault = [&](const std::vector<int32_t>& ids) -> std::string {
    const auto n = static_cast<int64_t>(ids.size());
    Context context = seams.context(stream, arena, {}, TokenRanges::all(n));
    Tensor out(DType::kF32, {n, 32});
    try {
      encoder.encode(context, ids, out);
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
      return error.what();
    }
    return "";
  };
  EXPECT_NE(fault({1, 300}).find("token id 300"), std::string::npos);
  EXPECT_NE(fault({-1}).find("token id -1"), std::string::npos);
  EXPECT_NE(fault(std::vector<int32_t>(78, 1)).find("78 ids (legal: at most 77"),
            std::string::npos);
  EXPECT_EQ(fault(std::vector<int32_t>(77, 1)), "");
}

class ClipTextFile : public ConfigFile<ClipTextConfig> {
 protected:
  ClipTextFile() : ConfigFile("tests/golden/clip_text/model/text_encoder/config.json") {}
};

TEST_F(ClipTextFile, FaultsAreNamed) {
  EXPECT_EQ(fault(), "");
  EXPECT_NE(fault("hidden_act", "relu").find("hidden_act is \"relu\""), std::string::npos);
  EXPECT_NE(fault("num_attention_heads", 5).find("num_attention_heads is 5"), std::string::npos);
  EXPECT_NE(fault("layer_norm_eps", 0).find("layer_norm_eps"), std::string::npos);
  EXPECT_NE(fault("vocab_size", 0).find("vocab_size"), std::string::npos);
}

class ClipVisionFile : public ConfigFile<ClipVisionConfig> {
 protected:
  ClipVisionFile() : ConfigFile("tests/golden/clip_vision/model/image_encoder/config.json") {}
};

TEST_F(ClipVisionFile, FaultsAreNamed) {
  EXPECT_EQ(fault(), "");
  EXPECT_NE(fault("patch_size", 13).find("patch_size is 13"), std::string::npos);
  EXPECT_NE(fault("num_channels", 4).find("num_channels is 4"), std::string::npos);
}

// The width of a tower is split. The parts together equal the whole, also of a file whose names
// have the prefix of older files, which hold more tensors than the tower.
class ClipSlices : public testing::Test {
 protected:
  ~ClipSlices() override { std::remove(path_.c_str()); }
  static constexpr EncoderBlocksConfig kBlocks{.width = 30,
                                               .ffn = 37,
                                               .heads = 5,
                                               .layers = 3,
                                               .activation = EncoderActivation::kQuickGelu,
                                               .names = kClipBlockNames};

  void write(const std::vector<TensorSpec>& tensors, const std::string& prefix) {
    NamedTensors spelled;
    for (auto& [name, tensor] : random_weights(tensors, 5))
      spelled[prefix + name] = f32_copy(tensor);
    spelled[prefix + "embeddings.position_ids"] = Tensor(DType::kF32, {1, 7});
    spelled["visual_projection.weight"] = Tensor(DType::kF32, {2, 30});
    write_file(path_, spelled);
  }
  // Runs `encode` as each of `parts` ranks and returns the first one's rows.
  template <class Encode>
  Tensor run(int parts, int64_t rows, const Encode& encode) {
    std::vector<Tensor> out(static_cast<size_t>(parts));
    run_parts(parts, [&](int rank, Reducer& reducer) {
      Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
      const TensorFile file = TensorFile::open(path_);
      Arena arena(size_t{1} << 26);
      SerialSeams seams;
      Context context{stream, arena, seams.mixer, reducer, seams.halo, {}, TokenRanges::all(rows)};
      out[rank] = Tensor(DType::kF32, {rows, kBlocks.width});
      encode(context, file, width_part(kBlocks.heads, kBlocks.ffn, parts, rank), out[rank]);
    });
    for (const Tensor& other : out) EXPECT_TRUE(bitwise_equal(other, out[0]));
    return std::move(out[0]);
  }
  static Tensor f32_copy(const Tensor& from) {
    Tensor out(DType::kF32, from.view().shape());
    std::copy_n(from.as<float>(), from.count(), out.as<float>());
    return out;
  }

  std::string path_ = testing::TempDir() + "weft_clip_slices_" +
                      testing::UnitTest::GetInstance()->current_test_info()->name() +
                      ".safetensors";
};

TEST_F(ClipSlices, OfTextAreTheWhole) {
  const ClipTextConfig config{.blocks = kBlocks, .vocab_size = 50};
  write(clip_text_tensors(config), "text_model.");
  const auto encode = [&](Context& context, const TensorFile& file, const WidthSlice& width,
                          const TensorView& out) {
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 19; ++i) ids.push_back(i * 7 % 50);
    ClipText::load(file, config, context.stream, DType::kF32, width).encode(context, ids, out);
  };
  const std::vector<double> whole = to_f64(run(1, 19, encode));
  for (int parts = 2; parts <= 5; ++parts)
    EXPECT_LT(relative_l2(to_f64(run(parts, 19, encode)), whole), kParallelL2) << parts;
}

TEST_F(ClipSlices, OfVisionAreTheWhole) {
  const ClipVisionConfig config{.blocks = kBlocks, .image_size = 12, .patch_size = 4};
  write(clip_vision_tensors(config), "vision_model.");
  Tensor pixels(DType::kF32, {3, 12, 12});
  for (int64_t i = 0; i < pixels.count(); ++i)
    pixels.as<float>()[i] = static_cast<float>(i % 17) / 8 - 1;
  const auto encode = [&](Context& context, const TensorFile& file, const WidthSlice& width,
                          const TensorView& out) {
    ClipVision::load(file, config, context.stream, DType::kF32, width).encode(context, pixels, out);
  };
  const std::vector<double> whole = to_f64(run(1, config.rows(), encode));
  for (int parts = 2; parts <= 5; ++parts)
    EXPECT_LT(relative_l2(to_f64(run(parts, config.rows(), encode)), whole), kParallelL2) << parts;
}

}  // namespace
}  // namespace weft::test
