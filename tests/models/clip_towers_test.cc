#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "models/clip_towers/text.h"
#include "models/clip_towers/vision.h"
#include "tests/models/encoder_slices.h"
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
    EXPECT_EQ(arena_.high_water(),
              dry_arena(*make_clip_text_model(config), file, {.dtype = dtype}, ids));
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
  EXPECT_TRUE(contains(fault({1, 300}), "token id 300"));
  EXPECT_TRUE(contains(fault({-1}), "token id -1"));
  EXPECT_TRUE(contains(fault(std::vector<int32_t>(78, 1)), "78 ids (legal: at most 77"));
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
  EXPECT_TRUE(contains(fault(clip_vision_tensors(vision), false), "multiples of 80"));
  vision.blocks.width = 160;
  std::vector<TensorSpec> tensors = clip_vision_tensors(vision);
  tensors[0].shape[0] += 1;
  EXPECT_TRUE(contains(fault(tensors, false), "257 patches"));
  ClipTextConfig text = large_text();
  text.blocks.width = 24;
  EXPECT_TRUE(contains(fault(clip_text_tensors(text), true), "multiples of 64"));
  EXPECT_TRUE(
      contains(fault({{kClipTokens, {4, 64}}, {kClipFirstLayer, {8, 64}}}, true), kClipPositions));
}

// The names in a file have the prefix of older files, which hold more tensors than the tower.
struct SmallTower : EncoderKind {
  static constexpr EncoderBlocksConfig kBlocks{.width = 30,
                                               .ffn = 37,
                                               .heads = 5,
                                               .layers = 3,
                                               .activation = EncoderActivation::kQuickGelu,
                                               .names = kClipBlockNames};
  static std::vector<TensorSpec> others_of(const std::string& prefix) {
    return {{prefix + "embeddings.position_ids", {1, 7}}, {"visual_projection.weight", {2, 30}}};
  }
};
struct SmallText : SmallTower {
  static constexpr const char* kPrefix = "text_model.";
  static std::vector<TensorSpec> others() { return others_of(kPrefix); }
  static auto model() { return make_clip_text_model({.blocks = kBlocks, .vocab_size = 50}); }
  static std::vector<int32_t> input() { return small_prompt(); }
};
struct SmallVision : SmallTower {
  static constexpr const char* kPrefix = "vision_model.";
  static std::vector<TensorSpec> others() { return others_of(kPrefix); }
  static auto model() {
    return make_clip_vision_model({.blocks = kBlocks, .image_size = 12, .patch_size = 4});
  }
  static Tensor input() {
    Tensor pixels(DType::kF32, {3, 12, 12});
    for (int64_t i = 0; i < pixels.count(); ++i)
      pixels.as<float>()[i] = static_cast<float>(i % 17) / 8 - 1;
    return pixels;
  }
};
using SmallTowers = testing::Types<SmallText, SmallVision>;
INSTANTIATE_TYPED_TEST_SUITE_P(Clip, EncoderSlices, SmallTowers);

}  // namespace
}  // namespace weft::test
