#include <gtest/gtest.h>

#include <cstdio>
#include <cstring>

#include "models/registry.h"
#include "models/wav2vec2/encoder.h"
#include "tests/models/config_testing.h"
#include "tests/models/encoder_slices.h"
#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

class Wav2Vec2Golden : public testing::TestWithParam<OpsRun> {};

TEST_P(Wav2Vec2Golden, HiddenStates) {
  for (const char* name : {"wav2vec2_tiny", "wav2vec2_bare_names"}) {
    const GoldenCase golden(name);
    const DType dtype = GetParam().dtype;
    Stream stream = Stream::cpu(1, Determinism::kFast, &GetParam().table());
    Arena arena(size_t{1} << 30);
    SerialSeams seams;
    const std::string folder = golden.folder + "/model/audio_encoder";
    const std::shared_ptr<const AudioEncoderModel> model =
        open_audio_encoder(folder + "/config.json");
    const TensorFile file = open_part_weights(PartKind::kAudioEncoder, folder);
    const size_t live = tensor_bytes_live();
    const std::unique_ptr<AudioEncoder> encoder = model->load(stream, file, {.dtype = dtype});
    const size_t held = tensor_bytes_live() - live;
    EXPECT_LE(encoder->bytes(), held);
    const Tensor samples = golden.input("waveform");
    const int64_t rows = model->traits().rows(samples.count());
    Context context = seams.context(stream, arena, {}, TokenRanges::all(rows));
    int64_t states = 0;
    encoder->encode(context, samples, [&](int64_t k, const TensorView& state) {
      EXPECT_EQ(k, states++);
      EXPECT_TRUE(golden.matches("hidden_states." + std::to_string(k), state, dtype));
    });
    EXPECT_EQ(states, model->traits().states);
    EXPECT_EQ(arena.used(), 0u);

    DryRun dry;
    std::unique_ptr<AudioEncoder> same;
    const Footprint loaded =
        dry.measure([&] { same = model->load(dry.stream(), file, {.dtype = dtype}); });
    if (GetParam().ops == std::string("cpu")) {
      EXPECT_EQ(loaded.held, held);
    }
    EXPECT_EQ(arena.high_water(), dry_arena(*model, file, {.dtype = dtype}, samples));
  }
}

INSTANTIATE_TEST_SUITE_P(Runs, Wav2Vec2Golden, testing::ValuesIn(kOpsRuns));

const char* const kWav2Vec2Config = "tests/golden/wav2vec2_tiny/model/audio_encoder/config.json";

// The counts of wav2vec2-large-xlsr-53 without the vector of masked rows.
TEST(Wav2Vec2, CountsOfThePublishedEncoder) {
  const auto config =
      config_with<Wav2Vec2Config>(kWav2Vec2Config, {{"hidden_size", 1024},
                                                    {"intermediate_size", 4096},
                                                    {"num_attention_heads", 16},
                                                    {"num_hidden_layers", 24},
                                                    {"conv_dim", std::vector<int>(7, 512)}});
  EXPECT_EQ(parameter_count(wav2vec2_tensors(config)), 315'437'696);
  EXPECT_EQ(wav2vec2_tensors(config).size(), 421u);
  EXPECT_EQ(config.hop(), 320);
  EXPECT_EQ(config.window(), 400);
}

// A small model of another shape than the golden cases: an odd kernel of positions, three groups,
// and convolutions without biases.
struct SmallWav2Vec2 : EncoderKind {
  static Wav2Vec2Config config() {
    Wav2Vec2Config config;
    config.blocks = Wav2Vec2Config::from_json_file(kWav2Vec2Config).blocks;
    config.blocks.width = 30;
    config.blocks.ffn = 37;
    config.blocks.heads = 5;
    config.blocks.layers = 2;
    config.convs = {{6, 4, 3}, {7, 2, 2}};
    config.conv_bias = false;
    config.position_kernel = 5;
    config.position_groups = 3;
    return config;
  }
  static auto model() { return make_wav2vec2_model(config()); }
  static Tensor sound(int64_t samples) {
    Tensor out(DType::kF32, {samples});
    for (int64_t i = 0; i < samples; ++i)
      out.as<float>()[i] = 0.1f + static_cast<float>((i * 37 + i * i % 101) % 211) / 300;
    return out;
  }
  static Tensor input() { return sound(601); }
  static TensorFile open(const std::string& path) {
    return open_part_weights(PartKind::kAudioEncoder, path);
  }
  static constexpr const char* kPrefix = "wav2vec2.";
  static std::vector<TensorSpec> others() {
    return {{"wav2vec2.masked_spec_embed", {30}}, {"lm_head.weight", {33, 30}}};
  }
};
INSTANTIATE_TYPED_TEST_SUITE_P(Wav2Vec2, EncoderSlices, SmallWav2Vec2);

class Wav2Vec2Random : public testing::Test {
 protected:
  ~Wav2Vec2Random() override { std::remove(path_.c_str()); }

  void write(const std::string& prefix, bool parametrized) {
    NamedTensors spelled;
    for (auto& [name, tensor] : random_weights(wav2vec2_tensors(config_), 5)) {
      std::string as = name;
      for (const auto& [from, to] : {std::pair{"weight_g", "parametrizations.weight.original0"},
                                     {"weight_v", "parametrizations.weight.original1"}})
        if (parametrized && as.ends_with(from)) as.replace(as.find(from), std::strlen(from), to);
      spelled[prefix + as] = std::move(tensor);
    }
    spelled[prefix + "masked_spec_embed"] = Tensor(DType::kF32, {30});
    if (!prefix.empty()) spelled["lm_head.weight"] = Tensor(DType::kF32, {33, 30});
    write_file(path_, spelled);
  }
  Wav2Vec2 load() { return Wav2Vec2::load(SmallWav2Vec2::open(path_), config_, stream_); }
  // All hidden states.
  std::vector<double> run(const Tensor& samples) {
    Arena arena(size_t{1} << 26);
    SerialSeams seams;
    Context context = seams.context(stream_, arena, {}, TokenRanges::all(1));
    return encoded(load(), make_wav2vec2_model(config_)->traits(), context, samples);
  }

  Wav2Vec2Config config_ = SmallWav2Vec2::config();
  Stream stream_ = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  std::string path_ = testing::TempDir() + "weft_wav2vec2_" +
                      testing::UnitTest::GetInstance()->current_test_info()->name() +
                      ".safetensors";
};

TEST_F(Wav2Vec2Random, BothSpellingsAreTheSameNetwork) {
  const Tensor samples = SmallWav2Vec2::sound(601);
  write("wav2vec2.", false);
  const std::vector<double> one = run(samples);
  EXPECT_EQ(one.size(), 3u * 100 * 30);
  for (const char* prefix : {"", "audio_encoder.", "model.", "module._orig_mod.wav2vec2.",
                             "wav2vec2._orig_mod.", "audio_encoder.model.wav2vec2."}) {
    write(prefix, true);
    EXPECT_EQ(run(samples), one) << prefix;
  }
}

// The sound takes several pieces of rows, the last one of which is short.
TEST_F(Wav2Vec2Random, PiecesOfALongSoundEqualTheDefinition) {
  config_.blocks.layers = 1;
  write("", false);
  const int64_t rows = 700;
  const Tensor samples = SmallWav2Vec2::sound((rows - 1) * config_.hop() + config_.window());
  const std::vector<double> states = run(samples);
  ASSERT_EQ(states.size(), 2u * rows * 30);
  // The definition, in f64, of state 0: normalisation, convolutions, projection and positions.
  const NamedTensors weights = random_weights(wav2vec2_tensors(config_), 5);
  const auto value = [&](const std::string& name) { return to_f64(weights.at(name)); };
  std::vector<double> x = to_f64(samples);
  double mean = 0, variance = 0;
  for (double v : x) mean += v / static_cast<double>(x.size());
  for (double v : x) variance += (v - mean) * (v - mean) / static_cast<double>(x.size());
  for (double& v : x) v = (v - mean) / std::sqrt(variance + 1e-7);
  const auto gelu = [](double v) { return v * (1 + std::erf(v / std::sqrt(2.0))) / 2; };
  const auto normalize = [&](std::vector<double>& y, int64_t c, const std::string& name) {
    const std::vector<double> w = value(name + ".weight"), b = value(name + ".bias");
    for (size_t row = 0; row < y.size(); row += c) {
      double m = 0, s = 0;
      for (int64_t i = 0; i < c; ++i) m += y[row + i] / c;
      for (int64_t i = 0; i < c; ++i) s += (y[row + i] - m) * (y[row + i] - m) / c;
      for (int64_t i = 0; i < c; ++i)
        y[row + i] = (y[row + i] - m) / std::sqrt(s + 1e-5) * w[i] + b[i];
    }
  };
  int64_t in = 1;
  for (size_t layer = 0; layer < config_.convs.size(); ++layer) {
    const auto [c, kernel, stride] = config_.convs[layer];
    const std::string name = "feature_extractor.conv_layers." + std::to_string(layer);
    const std::vector<double> w = value(name + ".conv.weight");
    const int64_t length = static_cast<int64_t>(x.size()) / in;
    std::vector<double> y;
    for (int64_t at = 0; at + kernel <= length; at += stride)
      for (int64_t o = 0; o < c; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < in; ++i)
          for (int64_t k = 0; k < kernel; ++k)
            sum += w[(o * in + i) * kernel + k] * x[(at + k) * in + i];
        y.push_back(sum);
      }
    normalize(y, c, name + ".layer_norm");
    for (double& v : y) v = gelu(v);
    x = y;
    in = c;
  }
  normalize(x, in, "feature_projection.layer_norm");
  const std::vector<double> w = value("feature_projection.projection.weight"),
                            b = value("feature_projection.projection.bias");
  std::vector<double> h(rows * 30);
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t o = 0; o < 30; ++o) {
      h[row * 30 + o] = b[o];
      for (int64_t i = 0; i < in; ++i) h[row * 30 + o] += w[o * in + i] * x[row * in + i];
    }
  const std::vector<double> g = value("encoder.pos_conv_embed.conv.weight_g"),
                            v = value("encoder.pos_conv_embed.conv.weight_v"),
                            bias = value("encoder.pos_conv_embed.conv.bias");
  std::vector<double> length(5);
  for (size_t i = 0; i < v.size(); ++i) length[i % 5] += v[i] * v[i];
  std::vector<double> expected = h;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t o = 0; o < 30; ++o) {
      double sum = bias[o];
      for (int64_t i = 0; i < 10; ++i)
        for (int64_t k = 0; k < 5; ++k) {
          const int64_t at = row + k - 2;
          if (at < 0 || at >= rows) continue;
          sum +=
              g[k] * v[(o * 10 + i) * 5 + k] / std::sqrt(length[k]) * h[at * 30 + o / 10 * 10 + i];
        }
      expected[row * 30 + o] += gelu(sum);
    }
  EXPECT_LT(relative_l2({states.begin(), states.begin() + rows * 30}, expected), 1e-6);
}

TEST_F(Wav2Vec2Random, SoundsOfIllegalLengthAreErrors) {
  write("", false);
  const Wav2Vec2 encoder = load();
  Arena arena(size_t{1} << 26);
  SerialSeams seams;
  Context context = seams.context(stream_, arena, {}, TokenRanges::all(1));
  const auto fault = [&](const TensorView& samples) -> std::string {
    return error_of([&] { encoder.encode(context, samples, [](int64_t, const TensorView&) {}); },
                    ErrorKind::kMedia);
  };
  const Tensor shortest = SmallWav2Vec2::sound(config_.window());
  EXPECT_EQ(fault(shortest), "");
  EXPECT_TRUE(contains(fault(shortest.view().slice(0, 0, config_.window() - 1)),
                       "6 samples at 16 kHz (legal: 7 to 57600000)"));
  // Nothing is read before the length is checked.
  float one = 0;
  EXPECT_TRUE(contains(fault(TensorView(&one, DType::kF32, {57'600'001})), "57600001 samples"));
}

TEST_F(Wav2Vec2Random, ForeignTensorsAreNamed) {
  write("", false);
  config_.blocks.layers = 3;
  expect_error(ErrorKind::kModel, "encoder.layers.2.attention.q_proj.weight", [&] { load(); });
  config_.blocks.layers = 1;
  EXPECT_THROW(load(), Error);
}

}  // namespace
}  // namespace weft::test
