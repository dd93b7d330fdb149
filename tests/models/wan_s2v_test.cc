// Wan 2.2 speech to video: rows of a reference and of the motion beside the tokens, and the sound.
#include <gtest/gtest.h>

#include <cstdio>

#include "models/wan_s2v/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_cases.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

const char* const kMotionCase = "s2v_motion";

std::string s2v_config_of(const std::string& name) {
  return "tests/golden/" + name + "/model/transformer/config.json";
}

// Latent frame f hears features 4f - 5 .. 4f + 3. Before the first one all are like it.
TEST(WanSpeech, FramesHearTheirFeatures) {
  const TransformerCase c("s2v_first_clip");
  const Tensor features = c.input("audio_features");
  const int64_t columns = features.view()[1], heard = kWanAudioLayers * columns;
  const auto value = [&](int64_t layer, int64_t column, int64_t i) {
    return features.as<float>()[(layer * columns + column) * features.view()[2] + i];
  };
  const float* rows = c.signal.as<float>();
  for (int64_t frame = 0; frame < c.grid[0]; ++frame)
    for (int64_t i = 0; i < kWanAudioHeard; ++i)
      ASSERT_EQ(rows[(frame * kWanAudioHeard + i) * heard + 3 * columns + 2],
                value(3, 2, std::max<int64_t>(0, 4 * frame - 5 + i)));
}

TEST(WanSpeech, MotionIsSpreadOverTheGrid) {
  EXPECT_EQ(wan_reference_positions({5, 2, 3}).back(), (WanPosition{30, 1, 2}));
  const std::vector<WanPosition> places = wan_motion_positions({5, 8, 12});
  ASSERT_EQ(places.size(), 8u * 12 + 4 * 6 + 4 * 2 * 3);
  EXPECT_EQ(places[13], (WanPosition{-1, 1, 1}));
  EXPECT_EQ(places[96], (WanPosition{-3, 0, 0}));
  EXPECT_EQ(places[96 + 7], (WanPosition{-3, 2, 2}));  // the distances are 7 / 3 and 11 / 5
  EXPECT_EQ(places[120].front(), -19);
  EXPECT_EQ(places[120 + 6].front(), -14);
  EXPECT_EQ(places.back(), (WanPosition{-4, 7, 11}));
}

// The sink of a stream: its tokens are those of the reference, and hear nothing.
TEST(WanSpeech, ReferenceTokensHearNothing) {
  TransformerCase c(kMotionCase);
  TransformerRun run(c, {}, cpu_ops());
  const auto velocity = [&](bool reference) {
    c.conditions.tokens_are_reference = reference;
    return to_f64(run.run());
  };
  const std::vector<double> clip = velocity(false), sink = velocity(true);
  EXPECT_GT(relative_l2(clip, sink), 1e-2);
  fill_zero(run.stream, c.signal);
  EXPECT_EQ(velocity(true), sink);
  EXPECT_GT(relative_l2(velocity(false), clip), 1e-3);
}

TEST(WanSpeech, ForeignInputsAreErrors) {
  const TransformerCase c(kMotionCase);
  TransformerRun run(c);
  Context context = run.context();
  const auto fault = [](const std::function<void()>& body) -> std::string {
    return error_of([&] { body(); }, ErrorKind::kModel);
  };
  Conditions wrong = c.conditions;
  wrong.reference = wrong.motion;
  EXPECT_TRUE(contains(fault([&] { run.transformer->prepare(context, wrong, c.grid); }),
                       "the reference is [16, 19, 16, 24] f32 (legal: [16, 1 to 1, 16, 24])"));
  const Tensor features = c.input("audio_features");
  const Tensor rows(DType::kF32, {3, c.traits.signal_columns});
  EXPECT_TRUE(contains(fault([&] { c.model->signal_rows(features, rows); }),
                       "their number is 8 (legal: 12)"));
}

WanS2vConfig published_config() {
  return config_with<WanS2vConfig>(
      s2v_config_of(kMotionCase),
      {{"dim", 5120},
       {"num_heads", 40},
       {"num_layers", 40},
       {"ffn_dim", 13824},
       {"audio_dim", 1024},
       {"text_len", 512},
       {"audio_inject_layers", {0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39}}});
}

TEST(WanSpeechConfig, PublishedModelHasItsTensors) {
  const std::vector<TensorSpec> tensors = wan_s2v_tensors(published_config());
  EXPECT_EQ(tensors.size(), 1260u);
  EXPECT_EQ(parameter_count(tensors), 16'295'755'609);
}

// The sound's convolutions have quarters and halves of the width, rounded down.
TEST(WanSpeechConfig, WidthsOfAnySizeAreSplitByHeads) {
  const auto config =
      config_with<WanS2vConfig>(s2v_config_of(kMotionCase), {{"dim", 42}, {"num_heads", 3}});
  const std::vector<TensorSpec> specs = wan_s2v_tensors(config);
  const std::string path = testing::TempDir() + "weft_wan_s2v_widths.safetensors";
  write_file(path, random_weights(specs, 5));
  const TensorFile file = TensorFile::open(path);
  std::remove(path.c_str());
  const auto model = make_wan_s2v_model(config);
  // A latent of 6 x 10 has one patch of 4 x 8 in a row, and none of the largest below it.
  const std::array<int64_t, 3> grid{2, 3, 5};
  const Tensor latent = waves({16, 2, 6, 10}, 0.7), text = waves({4, config.wan.text_dim}, 0.7),
               reference = waves({16, 1, 6, 10}, 0.7), motion = waves({16, 19, 6, 10}, 0.7),
               signal = waves({2, config.traits().signal_columns}, 0.7);
  EXPECT_EQ(model->motion_rows(grid), 3 * 5 + 1 * 2);
  std::vector<double> whole;
  for (const int parts : {1, 3})
    run_parts(parts, [&](int rank, Reducer& reducer) {
      Stream stream = Stream::cpu(1, Determinism::kFixed);
      Arena arena(size_t{1} << 28);
      SerialSeams seams;
      const auto transformer =
          model->load(stream, file, {.width = width_part(3, config.wan.ffn_dim, parts, rank)});
      Context context{stream, arena, seams.mixer, reducer, seams.halo, {}, TokenRanges::all(30)};
      const auto conditioning = transformer->prepare(
          context, {.text = text, .text_length = 6, .reference = reference, .motion = motion},
          grid);
      EXPECT_EQ(conditioning->joint_rows(), 3 * 5 + model->motion_rows(grid));
      const TimeSegment times[] = {{{0, 15}, 400}, {{15, 30}, 400}};
      Tensor out(DType::kF32, latent.view().shape());
      forward(*transformer, context, BlockRange::all(2), latent, times, *conditioning,
              rope_of(*transformer, grid), out, signal);
      if (parts == 1) whole = to_f64(out);
      EXPECT_LT(relative_l2(to_f64(out), whole), kParallelL2) << rank;
    });
}

// The config of a single-file checkpoint follows from its tensors.
TEST(WanSpeechConfig, PublishedModelIsKnownByItsTensors) {
  const WanS2vConfig published = published_config();
  const TensorFile file = without_values(wan_s2v_tensors(published));
  EXPECT_TRUE(holds_wan_s2v(file));
  EXPECT_EQ(to_string(WanS2vConfig::from_tensors(file)), to_string(published));
  EXPECT_EQ(WanS2vConfig::from_tensors(file).audio_tokens, published.audio_tokens);
  EXPECT_EQ(WanS2vConfig::from_tensors(file).injects, published.injects);
  WanS2vConfig other = published;
  other.injects.pop_back();
  expect_error(ErrorKind::kModel, "11 injectors of 40 blocks (legal without one: 12 ",
               [&] { WanS2vConfig::from_tensors(without_values(wan_s2v_tensors(other))); });
}

}  // namespace
}  // namespace weft::test
