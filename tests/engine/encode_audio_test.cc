// The stage that turns a sound into the features of a job's frames, in a model folder.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/memory/estimate.h"
#include "engine/parts/audio_features.h"
#include "io/sound/audio.h"
#include "parallel/transport/local.h"
#include "tests/engine/poisoned_model.h"
#include "tests/engine/small_job.h"
#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

// A copy of a small model folder with the audio encoder of a golden case.
class HearingModel : public testing::Test {
 protected:
  HearingModel() { fs::remove_all(path_); }
  ~HearingModel() override { fs::remove_all(path_); }

  std::shared_ptr<const OpenModel> with_encoder_of(const std::string& encoder) {
    fs::remove_all(path_);
    fs::copy(kModel, path_, fs::copy_options::recursive);
    fs::copy(encoder, path_ / "audio_encoder", fs::copy_options::recursive);
    nlohmann::json index = read_json_file(path_ / "model_index.json");
    index["audio_encoder"] = {"transformers", "Wav2Vec2Model"};
    std::ofstream(path_ / "model_index.json") << index.dump();
    return std::make_shared<const OpenModel>(path_);
  }
  std::shared_ptr<const OpenModel> of_case(const std::string& name) {
    return with_encoder_of("tests/golden/" + name + "/model/audio_encoder");
  }

  const fs::path path_ = fs::path(testing::TempDir()) /
                         (std::string("weft_hearing_") +
                          testing::UnitTest::GetInstance()->current_test_info()->name());
};

// If there are more ranks than heads, some hold no part of the encoder.
TEST_F(HearingModel, EveryRankHasTheGoldenFeatures) {
  for (const char* name : {"wav2vec2_tiny", "wav2vec2_bare_names"}) {
    const GoldenCase golden(name);
    const std::shared_ptr<const OpenModel> model = of_case(name);
    const Tensor samples = golden.input("waveform");
    for (const int ranks : {1, 2, 3, 5})
      for (const DType dtype : {DType::kF32, DType::kBF16})
        for (const auto& [fps, frames] : golden.spec.at("infer_frames").items()) {
          const HeardSound sound{samples, std::stod(fps), frames.get<int64_t>()};
          const std::string expected = "bucket." + fps;
          run_ranks(ranks, [&](Communicator& world) {
            RankPlacement placement =
                RankPlacement::of(world, parse_layout("ring=" + std::to_string(ranks), ranks, {}));
            const JobScope job(placement);
            Stream stream = Stream::cpu(1);
            Arena arena;
            Components parts(model, {.dtype = dtype}, DType::kF32, placement);
            const Tensor features = encode_audio({stream, arena, parts}, sound);
            EXPECT_TRUE(golden.matches(expected, features, dtype))
                << ranks << " ranks, rank " << world.rank();
            EXPECT_EQ(arena.used(), 0u);
          });
        }
  }
}

TEST_F(HearingModel, ItsMemoryIsPlanned) {
  const std::shared_ptr<const OpenModel> model = of_case("wav2vec2_tiny");
  Request request = test::job();
  const Generator generator(model, options_of(DType::kF32));
  request = generator.resolve(request);
  const JobFacts silent = generator.facts(request);
  RankPlacement alone;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t seconds : {1, 30}) {
      Components parts(model, {.dtype = dtype}, DType::kF32, alone);
      const SoundLength length{seconds * 16000, 16, 80};
      JobFacts facts = silent;
      facts.sound = length;
      const ComponentBytes bytes = predict_bytes(parts, alone, {facts});
      const MemoryPlan plan = memory_under(Residency::kSequential, bytes, UINT64_MAX);
      EXPECT_EQ(memory_under(Residency::kAll, bytes, UINT64_MAX).encode_audio,
                plan.encode_audio + bytes.text_encoder + bytes.experts[0] + bytes.vae);
      EXPECT_TRUE(contains(plan.to_string(), "| encode_audio "));

      const size_t before = tensor_bytes_live();
      reset_tensor_bytes_peak();
      Stream stream = Stream::cpu(1);
      Arena arena;
      Tensor samples(DType::kF32, {length.samples});
      for (int64_t i = 0; i < length.samples; ++i)
        samples.as<float>()[i] = static_cast<float>(i * 7919 % 1000) / 1000;
      parts.set_residency(Residency::kSequential);
      const Tensor features =
          encode_audio({stream, arena, parts}, {samples, length.fps, length.chunk_frames});
      const auto measured = static_cast<double>(tensor_bytes_peak() - before + arena.high_water());
      EXPECT_NEAR(static_cast<double>(plan.encode_audio) / measured, 1.0, 0.05) << plan.to_string();
      // The encoder is gone, the features stay until the job ends.
      EXPECT_NEAR(static_cast<double>(tensor_bytes_live() - before),
                  static_cast<double>(samples.view().bytes() + features.view().bytes()), 256);
      const ComponentBytes deaf = predict_bytes(parts, alone, {silent});
      EXPECT_EQ(deaf.encode_audio, 0u);
      EXPECT_EQ(bytes.denoise - deaf.denoise, features.view().bytes());
      EXPECT_EQ(bytes.decode - deaf.decode, features.view().bytes());
    }
}

// The encoder is resident alone, unless everything is resident.
TEST_F(HearingModel, ReleasesTheOtherPartsFirst) {
  const std::shared_ptr<const OpenModel> model = of_case("wav2vec2_tiny");
  RankPlacement alone;
  Stream stream = Stream::cpu(1);
  Components parts(model, {.dtype = DType::kF32}, DType::kF32, alone);
  std::vector<std::string> loads;
  parts.on_load = [&](const std::string& name, const std::function<void()>& load) {
    loads.push_back(name);
    load();
  };
  for (const Residency residency : {Residency::kAll, Residency::kStaged}) {
    parts.set_residency(residency);
    parts.expert(stream, 0);
    loads.clear();
    parts.audio_encoder(stream);
    parts.expert(stream, 0);
    EXPECT_EQ(loads, residency == Residency::kAll
                         ? std::vector<std::string>{"audio_encoder"}
                         : (std::vector<std::string>{"audio_encoder", "transformer"}));
  }
}

TEST_F(HearingModel, FaultsAreErrors) {
  const auto fault = [](const std::shared_ptr<const OpenModel>& model, ErrorKind kind) {
    RankPlacement alone;
    Stream stream = Stream::cpu(1);
    Arena arena;
    Components parts(model, {.dtype = DType::kF32}, DType::kF32, alone);
    const Tensor samples(DType::kF32, {16000});
    return error_of([&] { encode_audio({stream, arena, parts}, {samples, 16, 80}); }, kind);
  };
  EXPECT_TRUE(contains(fault(std::make_shared<const OpenModel>(kModel), ErrorKind::kModel),
                       "has no audio_encoder"));
  of_case("wav2vec2_bare_names");
  const std::string broken =
      poisoned(path_, "audio_encoder", "encoder.layer_norm.weight", testing::TempDir());
  const auto model = std::make_shared<const OpenModel>(broken);
  EXPECT_TRUE(contains(fault(model, ErrorKind::kNonFinite), "encode_audio, hidden state 2"));
  fs::remove_all(broken);
  // The parts' configurations are read when the folder is opened.
  std::ofstream(path_ / "audio_encoder" / "config.json") << R"({"model_type": "hubert"})";
  expect_error(ErrorKind::kModel, "hubert is not supported (legal: Wav2Vec2Model)",
               [&] { const OpenModel opened(path_); });
}

// Common formats of sound, whatever their rates and channels are, as the encoder wants them.
TEST(ReadSound, GivesOneChannelAtTheRateOfTheEncoder) {
  for (const char* name : {"a.wav", "b.wav", "c.flac", "d.mp3", "e.ogg", "f.webm", "g.m4a"}) {
    const std::string path = std::string("tests/fuzz/corpus/sound/") + name;
    const Tensor sound = read_sound(path, 16000);
    const Sound whole = read_all(*open_sound(path, 16000));
    ASSERT_EQ(sound.count(), std::ssize(whole.samples)) << name;
    EXPECT_GT(sound.count(), 500) << name;
    EXPECT_TRUE(std::equal(whole.samples.begin(), whole.samples.end(), sound.as<float>())) << name;
  }
  EXPECT_THROW(read_sound("tests/golden/wav2vec2_tiny/case.json", 16000), Error);
}

}  // namespace
}  // namespace weft::test
