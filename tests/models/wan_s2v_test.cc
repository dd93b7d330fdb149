// Wan 2.2 speech to video: rows of a reference and of the motion beside the tokens, and the sound.
#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>

#include "models/wan_s2v/transformer.h"
#include "tests/models/config_testing.h"
#include "tests/models/footprint_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

const char* const kMotionCase = "s2v_motion";

std::string s2v_config_of(const std::string& name) {
  return "tests/golden/" + name + "/model/transformer/config.json";
}

// A golden case of one forward.
struct SpeechCase {
  explicit SpeechCase(const std::string& name)
      : golden(name),
        file(TensorFile::open(golden.folder + "/model/transformer")),
        config(WanS2vConfig::from_json_file(s2v_config_of(name))),
        model(make_wan_s2v_model(config)),
        latent(golden.input("hidden_states")),
        text(golden.input("encoder_hidden_states")),
        reference(golden.input("reference_latents")),
        time(golden.input("timestep").as<float>()[0]) {
    if (golden.inputs.contains("motion_latents")) motion = golden.input("motion_latents");
    if (golden.inputs.contains("cond_states")) pose = golden.input("cond_states");
    const TensorView& x = latent.view();
    grid = config.traits().grid(x[1], x[2], x[3]);
    tokens = grid[0] * grid[1] * grid[2];
    signal = Tensor(DType::kF32, {grid[0], config.traits().signal_columns});
    model->signal_rows(golden.input("audio_features"), signal);
  }
  Conditions conditions() const {
    return {.text = text,
            .text_length = text.view()[0],
            .reference = reference,
            .motion = motion,
            .motion_scales = golden.spec.value("add_last_motion", 2),
            .pose = pose};
  }
  Tensor run(const Transformer& transformer, Context& context, BlockRange blocks,
             const TensorView& in, const Conditioning& conditioning) const {
    std::vector<TimeSegment> times;
    for (int64_t i = 0, n = tokens / grid[0]; i < grid[0]; ++i)
      times.push_back({{i * n, (i + 1) * n}, time});
    Tensor out = blocks.last()
                     ? Tensor(DType::kF32, latent.view().shape())
                     : Tensor(DType::kF32, {tokens + conditioning.joint_rows(), config.width()});
    forward(transformer, context, blocks, in, times, conditioning, rope_of(transformer, grid), out,
            signal);
    return out;
  }

  GoldenCase golden;
  TensorFile file;
  WanS2vConfig config;
  std::unique_ptr<TransformerModel> model;
  Tensor latent, text, reference, motion, pose, signal;
  float time;
  std::array<int64_t, 3> grid{};
  int64_t tokens = 0;
};

// Memory and seams of a run on one rank.
struct SerialRun {
  Stream stream = Stream::cpu(1, Determinism::kFixed);
  Arena arena{size_t{1} << 28};
  SerialSeams seams;
  Context context(const SpeechCase& c, Observer* observer = nullptr) {
    return seams.context(stream, arena, {}, TokenRanges::all(c.tokens), observer);
  }
};

class WanSpeechGolden : public testing::TestWithParam<std::tuple<const char*, DType>> {};

// Each rank reads nothing but its part of the width.
TEST_P(WanSpeechGolden, MatchesReferenceInPartsToo) {
  const auto& [name, dtype] = GetParam();
  const SpeechCase c(name);
  NamedTensors weights;
  const std::vector<TensorSpec> specs = wan_s2v_tensors(c.config);
  const auto spelled = [&](const std::string& tensor) {
    return c.model->spellings(tensor)[1].name;
  };
  for (const TensorSpec& spec : specs) weights[spec.name] = load_tensor(c.file, spelled(spec.name));
  for (const int parts : {1, 2})
    run_parts(parts, [&](int rank, Reducer& reducer) {
      const WidthSlice width = width_part(c.config.wan.heads, c.config.wan.ffn_dim, parts, rank);
      const std::string path = testing::TempDir() + name + std::to_string(rank) + ".safetensors";
      write_poisoned(path, specs, weights, [&](const TensorSpec& tensor, TensorPart* part) {
        *part = wan_s2v_part(c.config, tensor, width);
        return true;
      });
      SerialRun run;
      const auto transformer =
          c.model->load(run.stream, TensorFile::open(path), {.dtype = dtype, .width = width});
      std::remove(path.c_str());
      Recorder seen;
      Context context{run.stream,
                      run.arena,
                      run.seams.mixer,
                      reducer,
                      run.seams.halo,
                      {},
                      TokenRanges::all(c.tokens),
                      &seen};
      const auto conditioning = transformer->prepare(context, c.conditions(), c.grid);
      seen.seen["output"] = c.run(*transformer, context, BlockRange::all(c.config.wan.layers),
                                  c.latent, *conditioning);
      EXPECT_EQ(run.arena.used(), 0u);
      if (rank > 0) return;
      for (const std::string& tensor : c.golden.expected.names()) {
        ASSERT_TRUE(seen.seen.count(tensor)) << tensor;
        EXPECT_TRUE(c.golden.matches(tensor, seen.seen[tensor], dtype)) << parts;
      }
    });
}

INSTANTIATE_TEST_SUITE_P(Cases, WanSpeechGolden,
                         testing::Combine(testing::Values("s2v_first_clip", kMotionCase,
                                                          "s2v_pose_bf16_weights"),
                                          testing::Values(DType::kF32, DType::kBF16)));

// A pipeline that splits the blocks only moves data. Its later stages embed no rows.
TEST(WanSpeech, BlockRangesComposeBitwise) {
  const SpeechCase c(kMotionCase);
  SerialRun run;
  Context context = run.context(c);
  const auto run_blocks = [&](BlockRange blocks, const TensorView& in) {
    const auto transformer = c.model->load(run.stream, c.file, {.blocks = blocks});
    return c.run(*transformer, context, blocks, in,
                 *transformer->prepare(context, c.conditions(), c.grid));
  };
  const Tensor whole = run_blocks({0, 2, 2}, c.latent);
  const Tensor hidden = run_blocks({0, 1, 2}, c.latent);
  EXPECT_TRUE(bitwise_equal(run_blocks({1, 2, 2}, hidden), whole));
}

TEST(WanSpeech, MemoryIsThatOfTheDryRun) {
  const SpeechCase c(kMotionCase);
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const BlockRange& blocks : {BlockRange{0, 2, 2}, {0, 1, 2}, {1, 2, 2}}) {
      const TransformerLoad load{.dtype = dtype, .blocks = blocks};
      SerialRun run;
      const auto transformer = c.model->load(run.stream, c.file, load);
      EXPECT_EQ(transformer->weights_bytes(), dry_weights(*c.model, load));
      Context context = run.context(c);
      const size_t before = tensor_bytes_live();
      const auto conditioning = transformer->prepare(context, c.conditions(), c.grid);
      const Rope rope = rope_of(*transformer, c.grid);
      const size_t held = tensor_bytes_live() - before;
      const Tensor hidden(DType::kF32, {c.tokens + conditioning->joint_rows(), c.config.width()});
      c.run(*transformer, context, blocks, blocks.first() ? c.latent : hidden, *conditioning);
      const int64_t rows = c.text.view()[0];
      const Footprint dry =
          dry_forward(*c.model, load, c.grid, {rows, rows}, *silent_reducer(1, 0));
      EXPECT_EQ(run.arena.high_water(), dry.arena) << blocks.begin << " " << to_string(dtype);
      EXPECT_EQ(held, dry.held) << blocks.begin << " " << to_string(dtype);
    }
}

// Latent frame f hears features 4f - 5 .. 4f + 3. Before the first one all are like it.
TEST(WanSpeech, FramesHearTheirFeatures) {
  const SpeechCase c("s2v_first_clip");
  const int64_t columns = c.config.audio_dim, heard = kWanAudioLayers * columns;
  const Tensor features = c.golden.input("audio_features");
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
  SpeechCase c(kMotionCase);
  SerialRun run;
  const auto transformer = c.model->load(run.stream, c.file, {});
  Context context = run.context(c);
  const auto velocity = [&](bool reference) {
    Conditions conditions = c.conditions();
    conditions.tokens_are_reference = reference;
    const auto prepared = transformer->prepare(context, conditions, c.grid);
    return to_f64(c.run(*transformer, context, BlockRange::all(2), c.latent, *prepared));
  };
  const std::vector<double> clip = velocity(false), sink = velocity(true);
  EXPECT_GT(relative_l2(clip, sink), 1e-2);
  fill_zero(run.stream, c.signal);
  EXPECT_EQ(velocity(true), sink);
  EXPECT_GT(relative_l2(velocity(false), clip), 1e-3);
}

TEST(WanSpeech, ForeignInputsAreErrors) {
  const SpeechCase c(kMotionCase);
  SerialRun run;
  const auto transformer = c.model->load(run.stream, c.file, {});
  Context context = run.context(c);
  const auto fault = [](const std::function<void()>& body) -> std::string {
    try {
      body();
    } catch (const Error& error) {
      EXPECT_EQ(error.kind(), ErrorKind::kModel);
      return error.what();
    }
    return "";
  };
  Conditions wrong = c.conditions();
  wrong.reference = c.motion;
  EXPECT_NE(fault([&] {
              transformer->prepare(context, wrong, c.grid);
            }).find("the reference is [16, 19, 16, 24] f32 (legal: [16, 1 to 1, 16, 24])"),
            std::string::npos);
  const Tensor features = c.golden.input("audio_features");
  const Tensor rows(DType::kF32, {3, c.config.traits().signal_columns});
  EXPECT_NE(
      fault([&] { c.model->signal_rows(features, rows); }).find("their number is 8 (legal: 12)"),
      std::string::npos);
}

class WanSpeechConfig : public ConfigFile<WanS2vConfig> {
 protected:
  // Weights that lie beside a config would give it sizes.
  WanSpeechConfig() : ConfigFile(s2v_config_of(kMotionCase)) {
    const std::filesystem::path folder = testing::TempDir() + "weft_wan_s2v_config";
    std::filesystem::create_directories(folder);
    path_ = folder / std::filesystem::path(path_).filename();
  }
  WanS2vConfig published_config() {
    for (const auto& [key, value] : {std::pair{"dim", 5120},
                                     {"num_heads", 40},
                                     {"num_layers", 40},
                                     {"ffn_dim", 13824},
                                     {"audio_dim", 1024},
                                     {"text_len", 512}})
      json_[key] = value;
    json_["audio_inject_layers"] = {0, 4, 8, 12, 16, 20, 24, 27, 30, 33, 36, 39};
    return read();
  }
};

TEST_F(WanSpeechConfig, PublishedModelHasItsTensors) {
  const std::vector<TensorSpec> tensors = wan_s2v_tensors(published_config());
  EXPECT_EQ(tensors.size(), 1260u);
  EXPECT_EQ(parameter_count(tensors), 16'295'755'609);
}

// The sound's convolutions have quarters and halves of the width, rounded down.
TEST_F(WanSpeechConfig, WidthsOfAnySizeAreSplitByHeads) {
  json_["dim"] = 42;
  json_["num_heads"] = 3;
  const WanS2vConfig config = read();
  const std::vector<TensorSpec> specs = wan_s2v_tensors(config);
  const std::string path = path_ + ".safetensors";
  write_file(path, random_weights(specs, 5));
  const TensorFile file = TensorFile::open(path);
  std::remove(path.c_str());
  const auto model = make_wan_s2v_model(config);
  const auto values = [&](std::initializer_list<int64_t> shape) {
    Tensor out(DType::kF32, shape);
    for (int64_t i = 0; i < out.count(); ++i)
      out.as<float>()[i] = static_cast<float>(std::sin(0.7 * static_cast<double>(i)));
    return out;
  };
  // A latent of 6 x 10 has one patch of 4 x 8 in a row, and none of the largest below it.
  const std::array<int64_t, 3> grid{2, 3, 5};
  const Tensor latent = values({16, 2, 6, 10}), text = values({4, config.wan.text_dim}),
               reference = values({16, 1, 6, 10}), motion = values({16, 19, 6, 10}),
               signal = values({2, config.traits().signal_columns});
  EXPECT_EQ(model->motion_rows(grid), 3 * 5 + 1 * 2);
  std::vector<double> whole;
  for (const int parts : {1, 3})
    run_parts(parts, [&](int rank, Reducer& reducer) {
      SerialRun run;
      const auto transformer =
          model->load(run.stream, file, {.width = width_part(3, config.wan.ffn_dim, parts, rank)});
      Context context{run.stream,     run.arena, run.seams.mixer,     reducer,
                      run.seams.halo, {},        TokenRanges::all(30)};
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
TEST_F(WanSpeechConfig, PublishedModelIsKnownByItsTensors) {
  const WanS2vConfig published = published_config();
  const TensorFile file = without_values(wan_s2v_tensors(published));
  EXPECT_TRUE(holds_wan_s2v(file));
  EXPECT_EQ(to_string(WanS2vConfig::from_tensors(file)), to_string(published));
  EXPECT_EQ(WanS2vConfig::from_tensors(file).audio_tokens, published.audio_tokens);
  EXPECT_EQ(WanS2vConfig::from_tensors(file).injects, published.injects);
  WanS2vConfig other = published;
  other.injects.pop_back();
  try {
    WanS2vConfig::from_tensors(without_values(wan_s2v_tensors(other)));
    FAIL();
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("11 injectors of 40 blocks (legal without one: 12 "),
              std::string::npos)
        << error.what();
  }
}

TEST_F(WanSpeechConfig, FaultsNameTheField) {
  EXPECT_EQ(fault(), "");
  EXPECT_NE(fault("zero_timestep", false).find("zero_timestep"), std::string::npos);
  EXPECT_NE(fault("adain_mode", "x").find("only \"attn_norm\" is supported"), std::string::npos);
  EXPECT_NE(fault("audio_inject_layers", {0, 2}).find("audio_inject_layers"), std::string::npos);
  EXPECT_NE(fault("audio_inject_layers", {1, 1}).find("each once"), std::string::npos);
  EXPECT_NE(fault("out_dim", 15).find("legal: out_dim, 15"), std::string::npos);
  EXPECT_NE(fault("surprise", 1).find("surprise"), std::string::npos);
}

}  // namespace
}  // namespace weft::test
