// Sounds are facts of a job: a movie has them, records state them by their bytes, and replay,
// batches and plans take them. The folder of speech to video is that of its authors.
#include <cmath>

#include "io/media/image.h"
#include "io/media/video.h"
#include "io/sound/audio.h"
#include "tests/apps/speech_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Outcome, test::run;

class SpeechJob : public test::SpeechCli {
 protected:
  std::string inputs() { return face() + "--audio " + path("talk.wav"); }
  Outcome drawn(const std::string& name, const std::string& more = "") {
    return run(
        "generate --json -q --threads 1 --progress none --overwrite --seed 5 -p talks "
        "--size 64x64 --steps 1 --guidance-scale 1 " +
        model() + inputs() + " -o " + path(name) + " " + more);
  }
};

// The sound of the movie is that of the file from the moment of the first picture on.
TEST_F(SpeechJob, TheMovieHasTheSound) {
  const Outcome outcome = drawn("a.mp4");
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out).at("frames"), 2 * 16 - 3);
  VideoReader reader(path("a.mp4"));
  EXPECT_EQ(reader.fps(), 16);
  int frames = 0;
  for (Frame frame; reader.next(frame);) ++frames;
  EXPECT_EQ(frames, 29);
  const Sound heard = read_all(*open_sound(path("a.mp4"), 16000));
  const Sound given = read_all(*open_sound(path("talk.wav"), 16000));
  EXPECT_NEAR(heard.seconds(), 29 / 16.0, 0.05);
  const auto energy_of_difference = [&](int shift) {
    double sum = 0;
    for (size_t i = 2000; i < 22000; ++i)
      sum += std::pow(heard.samples[i] - given.samples[i + static_cast<size_t>(shift)], 2);
    return sum;
  };
  int best = 0;
  for (int shift = 2000; shift < 4000; ++shift)
    if (best == 0 || energy_of_difference(shift) < energy_of_difference(best)) best = shift;
  EXPECT_NEAR(best, 3000, 16);  // three pictures, to a millisecond
  double energy = 0;
  for (size_t i = 2000; i < 22000; ++i) energy += std::pow(given.samples[i], 2);
  EXPECT_LT(energy_of_difference(best), 0.01 * energy);
}

TEST_F(SpeechJob, OtherFilesAreSilentAndSaySo) {
  const Outcome outcome =
      run("generate --threads 1 --progress none --seed 5 -p talks --size 64x64 "
          "--steps 1 --num-frames 5 --guidance-scale 1 " +
          model() + inputs() + " -o " + path("a.gif"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("a.gif has no sound; a name that ends in .mp4 gives it one"),
            std::string::npos)
      << outcome.err;
}

TEST_F(SpeechJob, TheRecordStatesTheBytesAndReplayTakesThem) {
  const Outcome first = drawn("a.mp4", "--num-frames 5");
  ASSERT_EQ(first.code, 0) << first.err;
  const json hash = json::parse(first.out).at("framehash");
  const json request = json::parse(std::ifstream(path("a.mp4.json"))).at("request");
  EXPECT_EQ(request.at("audio"), fs::path(path("talk.wav")).lexically_normal().string());
  EXPECT_EQ(request.at("audio_sha256").get<std::string>().size(), 64u);
  const Outcome again = run("replay -q --json " + path("a.mp4"));
  ASSERT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("framehash"), hash);
  fs::rename(path("talk.wav"), path("moved.wav"));
  EXPECT_EQ(run("replay -q " + path("a.mp4")).code, 8);
  const Outcome moved = run("replay -q --json " + path("a.mp4") + " --audio " + path("moved.wav"));
  ASSERT_EQ(moved.code, 0) << moved.err;
  EXPECT_EQ(json::parse(moved.out).at("framehash"), hash);
  test::write_wav(path("other.wav"), 16000, test::tone(1, 16000));
  const Outcome other = run("replay -q " + path("a.mp4") + " --audio " + path("other.wav"));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("whose bytes have the SHA-256"), std::string::npos) << other.err;
}

TEST_F(SpeechJob, AnotherSoundIsAnotherVideo) {
  const auto hash = [&](const std::string& name) {
    const Outcome outcome = drawn(name, "--num-frames 5");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out).at("framehash");
  };
  const json first = hash("a.mp4");
  test::write_wav(path("talk.wav"), 16000, std::vector<float>(32000));
  EXPECT_NE(hash("b.mp4"), first);
}

TEST_F(SpeechJob, PlansNeedNoFiles) {
  const Outcome plan =
      run("plan --json --size 64x64 --steps 2 --ranks 2 --layout ring=2" + model());
  ASSERT_EQ(plan.code, 0) << plan.err;
  const json stages = json::parse(plan.out).at("stages");
  EXPECT_GT(stages.at("encode_image"), 0);
  EXPECT_GT(stages.at("denoise"), 0);
  const Outcome memory = run("inspect --json --memory 80x64x64 " + model_->path);
  ASSERT_EQ(memory.code, 0) << memory.err;
  EXPECT_TRUE(json::parse(memory.out).at("stages").contains("encode_audio"));
  const Outcome dry = run("generate --dry-run --json -q -p x --size 64x64" + model() + inputs());
  ASSERT_EQ(dry.code, 0) << dry.err;
  EXPECT_GT(json::parse(dry.out).at("encode_audio_bytes"), 0);
}

TEST_F(SpeechJob, WrongOnesAreRefusedByName) {
  std::ofstream(path("text.wav")) << "no sound";
  const std::string begin =
      "generate -q --threads 1 -p x --size 64x64 --steps 9 -o " + path("a.mp4");
  const std::string image = " --image " + path("face.png");
  for (const auto& [more, code, part] :
       {std::tuple{model() + image, 2, "makes a video that follows a sound; legal: audio"},
        {model() + image + " --audio " + path("none.wav"), 8, "none.wav"},
        {model() + image + " --audio " + path("text.wav"), 8, "text.wav"},
        {model() + inputs() + " --num-frames 30", 2, "legal: 1 ... 29"},
        {model() + inputs() + " --method queue", 2, "legal with pictures: full"},
        {model() + inputs() + " --keep-latents", 2, "decoded clip by clip"}}) {
    const Outcome outcome = run(begin + more);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
  const Outcome deaf = run("generate -q -p x --size 32x16 --num-frames 5 --model " + test::kModel +
                           " --audio " + path("talk.wav") + " -o " + path("a.mp4"));
  EXPECT_EQ(deaf.code, 2);
  EXPECT_NE(deaf.err.find("follow no sound; legal: no sound"), std::string::npos) << deaf.err;
}

// A part that is missing is named with what can stand in for it.
TEST_F(SpeechJob, TheFolderSaysWhatItLacks) {
  const std::string copy = path("model");
  const auto refusal = [&](const std::string& more = "") {
    const Outcome outcome = run("plan --size 64x64 --model " + copy + more);
    EXPECT_NE(outcome.code, 0);
    return outcome.err;
  };
  fs::copy(model_->path, copy, fs::copy_options::recursive);
  fs::rename(copy + "/small_vae.safetensors", path("vae.safetensors"));
  EXPECT_NE(refusal().find("the folder has no VAE"), std::string::npos) << refusal();
  std::ofstream(copy + "/Wan2.1_VAE.pth") << "PK";
  const std::string pickle = refusal();
  EXPECT_NE(pickle.find("Wan2.1_VAE.pth is not read, because loading a pickle runs code; legal: "
                        "the VAE as safetensors beside it"),
            std::string::npos)
      << pickle;
  EXPECT_EQ(run("plan --size 64x64 --model " + copy + " --vae " + path("vae.safetensors")).code, 0);
  fs::copy(path("vae.safetensors"), copy + "/a_vae.safetensors");
  fs::copy(path("vae.safetensors"), copy + "/b_vae.safetensors");
  EXPECT_NE(refusal().find("both look like the VAE"), std::string::npos) << refusal();
  fs::remove(copy + "/b_vae.safetensors");
  fs::rename(copy + "/google", copy + "/other");
  EXPECT_NE(refusal().find("--tokenizer FILE"), std::string::npos) << refusal();
  fs::rename(copy + "/other", copy + "/google");
  fs::rename(copy + "/wav2vec2-large-xlsr-53-english", copy + "/hears");
  EXPECT_NE(refusal().find("the audio encoder; legal"), std::string::npos) << refusal();
}

}  // namespace
}  // namespace weft
