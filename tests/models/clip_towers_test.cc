#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "kernels/ops.h"
#include "models/clip_towers/text.h"
#include "models/clip_towers/vision.h"
#include "models/footprint.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

class ClipGolden : public testing::TestWithParam<OpsRun> {
 protected:
  Stream stream_ = Stream::cpu(1, Determinism::kFast, &GetParam().table());
  Arena arena_{size_t{1} << 30};
  SerialSeams seams_;
};

TEST_P(ClipGolden, Text) {
  const GoldenCase golden("clip_text");
  const DType dtype = GetParam().dtype;
  const TensorFile file = TensorFile::open(golden.folder + "/model/text_encoder");
  const ClipTextConfig config =
      ClipTextConfig::from_json_file(golden.folder + "/model/text_encoder/config.json");
  const ClipText encoder = ClipText::load(file, config, stream_, {.dtype = dtype});
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
    const ClipText same = ClipText::load(file, config, dry.stream(), {.dtype = dtype});
    Context dry_context = seams_.context(dry.stream(), dry.arena(), {}, TokenRanges::all(n));
    EXPECT_EQ(arena_.high_water(), dry_encode(dry, same, dry_context, ids,
                                              dry.tensor(DType::kF32, {n, config.blocks.width}))
                                       .arena);
  }
}

TEST_P(ClipGolden, Vision) {
  const GoldenCase golden("clip_vision");
  const TensorFile file = TensorFile::open(golden.folder + "/model/image_encoder");
  const ClipVisionConfig config =
      ClipVisionConfig::from_json_file(golden.folder + "/model/image_encoder/config.json");
  const ClipVision encoder = ClipVision::load(file, config, stream_, {.dtype = GetParam().dtype});
  Context context = seams_.context(stream_, arena_, {}, TokenRanges::all(config.rows()));
  Tensor out(DType::kF32, {config.rows(), config.blocks.width});
  encoder.encode(context, golden.input("pixel_values"), out);
  EXPECT_TRUE(golden.matches("hidden_states.-2", out, GetParam().dtype));
  EXPECT_EQ(arena_.used(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Runs, ClipGolden, testing::ValuesIn(kOpsRuns));

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
  const ClipText encoder =
      ClipText::load(file, ClipTextConfig::from_json_file(folder + "/config.json"), stream);
  Arena arena(size_t{1} << 24);
  SerialSeams seams;
  const auto fault = [&](const std::vector<int32_t>& ids) -> std::string {
    const auto n = static_cast<int64_t>(ids.size());
    Context context = seams.context(stream, arena, {}, TokenRanges::all(n));
    Tensor out(DType::kF32, {n, 32});
    return error_of([&] { encoder.encode(context, ids, out); }, ErrorKind::kModel);
  };
  EXPECT_NE(fault({1, 300}).find("token id 300"), std::string::npos);
  EXPECT_NE(fault({-1}).find("token id -1"), std::string::npos);
  EXPECT_NE(fault(std::vector<int32_t>(78, 1)).find("78 ids (legal: at most 77"),
            std::string::npos);
  EXPECT_EQ(fault(std::vector<int32_t>(77, 1)), "");
}

// The extents of a tensor in a file. Rows that are added to those of every picture have a dimension
// for the pictures in Wan's repository.
std::vector<int64_t> shape_in(const ClipNames& names, const TensorSpec& spec) {
  std::vector<int64_t> shape = spec.shape;
  shape[0] *= names(spec.name).parts;
  if (names.original && (spec.name == kClipClass || spec.name == kClipPositions))
    while (shape.size() < 3) shape.insert(shape.begin(), 1);
  return shape;
}

// Writes the tensors of a vision tower with the names of Wan's repository, beside a text tower's.
void save_original_vision(const TensorFile& source, const ClipVisionConfig& config,
                          const std::string& path) {
  const ClipNames from = find_clip_vision_names(source).value(),
                  to{.prefix = "visual.", .original = true};
  NamedTensors tensors;
  Stream stream = Stream::cpu(1);
  for (const TensorSpec& spec : clip_vision_tensors(config)) {
    const TensorPlace place = to(spec.name);
    const Tensor values = load_tensor(source, from(spec.name).name);
    Tensor& out = tensors.try_emplace(place.name, DType::kF32, shape_in(to, spec)).first->second;
    const int64_t count = values.count();
    copy(stream, values.view().reshape({count}),
         out.view().reshape({out.count()}).slice(0, place.part * count, count));
  }
  tensors.try_emplace("visual.head", DType::kF32, std::vector<int64_t>{4, 3});
  tensors.try_emplace("textual.token_embedding.weight", DType::kF32, std::vector<int64_t>{5, 3});
  tensors.try_emplace("log_scale", DType::kF32, std::vector<int64_t>{1});
  write_file(path, tensors);
}

TEST(Clip, TheVisionTowerHasOriginalNames) {
  const GoldenCase golden("clip_vision");
  const std::string folder = golden.folder + "/model/image_encoder",
                    path = testing::TempDir() + "weft_clip_original.safetensors";
  const ClipVisionConfig config = ClipVisionConfig::from_json_file(folder + "/config.json");
  const TensorFile source = TensorFile::open(folder);
  save_original_vision(source, config, path);
  const TensorFile file = TensorFile::open(path);
  EXPECT_TRUE(file.contains("visual.transformer.0.attn.to_qkv.bias"));
  EXPECT_EQ(file.describe("visual.pos_embedding").rank, 3);
  EXPECT_TRUE(holds_clip_vision(file));
  Stream stream = Stream::cpu(1, Determinism::kFixed);
  Arena arena(size_t{1} << 30);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(config.rows()));
  std::vector<Tensor> rows;
  for (const TensorFile* each : {&source, &file}) {
    rows.emplace_back(DType::kF32, std::vector<int64_t>{config.rows(), config.blocks.width});
    ClipVision::load(*each, config, stream)
        .encode(context, golden.input("pixel_values"), rows.back());
  }
  EXPECT_TRUE(bitwise_equal(rows[0], rows[1]));
  std::remove(path.c_str());
}

TEST(Clip, PublishedTowersFollowFromTensors) {
  const ClipVisionConfig vision{
      .blocks = {.width = 1280, .ffn = 5120, .heads = 16, .layers = 32, .names = kClipBlockNames}};
  for (const ClipNames& names : {ClipNames{.prefix = "vision_model."}, ClipNames{},
                                 ClipNames{.prefix = "visual.", .original = true},
                                 ClipNames{.prefix = "", .original = true}}) {
    std::map<std::string, TensorSpec> tensors;
    for (const TensorSpec& spec : clip_vision_tensors(vision))
      tensors[names(spec.name).name] = {names(spec.name).name, shape_in(names, spec)};
    std::vector<TensorSpec> list;
    for (const auto& [name, spec] : tensors) list.push_back(spec);
    const TensorFile file = without_values(list);
    ASSERT_TRUE(holds_clip_vision(file)) << names.prefix;
    EXPECT_FALSE(holds_clip_text(file));
    const ClipVisionConfig read = ClipVisionConfig::from_tensors(file);
    EXPECT_EQ(to_string(read), to_string(vision));
    EXPECT_EQ(read.blocks.heads, 16);
    EXPECT_EQ(read.blocks.ffn, 5120);
    DryRun run;
    ClipVision::load(file, read, run.stream(), {.dtype = DType::kBF16});
  }
  for (const std::string prefix : {"text_model.", ""}) {
    std::vector<TensorSpec> list = clip_text_tensors(large_text());
    for (TensorSpec& spec : list) spec.name = prefix + spec.name;
    list.push_back({"logit_scale", {1}});
    const TensorFile file = without_values(list);
    ASSERT_TRUE(holds_clip_text(file));
    EXPECT_FALSE(holds_clip_vision(file));
    const ClipTextConfig read = ClipTextConfig::from_tensors(file);
    EXPECT_EQ(to_string(read), to_string(large_text()));
    EXPECT_EQ(read.blocks.heads, 12);
    EXPECT_EQ(read.blocks.activation, EncoderActivation::kQuickGelu);
    EXPECT_EQ(read.end_id, 49407);
    DryRun run;
    ClipText::load(file, read, run.stream(), {.dtype = DType::kBF16});
  }
}

TEST(Clip, SizesThatFollowFromNoTensorAreNamed) {
  const auto fault = [](const std::vector<TensorSpec>& tensors, bool text) -> std::string {
    return error_of(
        [&] {
          const TensorFile file = without_values(tensors);
          text ? (void)ClipTextConfig::from_tensors(file)
               : (void)ClipVisionConfig::from_tensors(file);
        },
        ErrorKind::kModel);
  };
  ClipVisionConfig vision{
      .blocks = {.width = 96, .ffn = 64, .heads = 2, .layers = 1, .names = kClipBlockNames}};
  EXPECT_NE(fault(clip_vision_tensors(vision), false).find("multiples of 80"), std::string::npos);
  vision.blocks.width = 160;
  std::vector<TensorSpec> tensors = clip_vision_tensors(vision);
  tensors[0].shape[0] += 1;
  EXPECT_NE(fault(tensors, false).find("257 patches"), std::string::npos);
  ClipTextConfig text = large_text();
  text.blocks.width = 24;
  EXPECT_NE(fault(clip_text_tensors(text), true).find("multiples of 64"), std::string::npos);
  EXPECT_NE(fault({{kClipTokens, {4, 64}}, {kClipFirstLayer, {8, 64}}}, true).find(kClipPositions),
            std::string::npos);
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
      spelled[prefix + name] = std::move(tensor);
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
    ClipText::load(file, config, context.stream, {.width = width}).encode(context, ids, out);
  };
  const std::vector<double> whole = to_f64(run(1, 19, encode));
  for (int parts = 2; parts <= 5; ++parts)
    EXPECT_LT(relative_l2(to_f64(run(parts, 19, encode)), whole), kParallelL2) << parts;
}

// The matrices of the blocks are packed in the format that is asked for.
TEST_F(ClipSlices, EightBitWeightsAreNear) {
  const ClipTextConfig config{.blocks = kBlocks, .vocab_size = 50};
  write(clip_text_tensors(config), "text_model.");
  const auto encode = [&](WeightFormat weights) {
    return to_f64(run(
        1, 3,
        [&](Context& context, const TensorFile& file, const WidthSlice&, const TensorView& out) {
          ClipText::load(file, config, context.stream, {.weights = weights})
              .encode(context, std::vector<int32_t>{4, 9, 2}, out);
        }));
  };
  const double error = relative_l2(encode(WeightFormat::kInt8), encode(WeightFormat::kCompute));
  EXPECT_GT(error, 1e-4);
  EXPECT_LT(error, 0.05);
}

TEST_F(ClipSlices, OfVisionAreTheWhole) {
  const ClipVisionConfig config{.blocks = kBlocks, .image_size = 12, .patch_size = 4};
  write(clip_vision_tensors(config), "vision_model.");
  Tensor pixels(DType::kF32, {3, 12, 12});
  for (int64_t i = 0; i < pixels.count(); ++i)
    pixels.as<float>()[i] = static_cast<float>(i % 17) / 8 - 1;
  const auto encode = [&](Context& context, const TensorFile& file, const WidthSlice& width,
                          const TensorView& out) {
    ClipVision::load(file, config, context.stream, {.width = width}).encode(context, pixels, out);
  };
  const std::vector<double> whole = to_f64(run(1, config.rows(), encode));
  for (int parts = 2; parts <= 5; ++parts)
    EXPECT_LT(relative_l2(to_f64(run(parts, config.rows(), encode)), whole), kParallelL2) << parts;
}

}  // namespace
}  // namespace weft::test
