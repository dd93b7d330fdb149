// A video that follows a sound is stopped or killed in its second clip, and goes on.
#include "io/sound/audio.h"
#include "tests/apps/resume_testing.h"
#include "tests/support/speech_model.h"

namespace weft::test {
namespace {

class SpeechResume : public Resume {
 protected:
  void SetUp() override {
    Resume::SetUp();
    model_.emplace(folder_ + "/speech");
    test::write_face(folder_ + "/face.png", 64, 64);
    test::write_wav(folder_ + "/talk.wav", 16000, test::tone(6, 16000));
  }
  void TearDown() override {
    model_.reset();
    Resume::TearDown();
  }
  std::string speech(const std::string& name) const {
    return "generate --threads 1 --progress json --seed 5 -p talks --size 64x64 --steps 8 "
           "--guidance-scale 1 --json --model " +
           model_->path + " --image " + folder_ + "/face.png --audio " + folder_ + "/talk.wav -o " +
           path(name);
  }
  std::optional<test::SpeechModel> model_;
};

TEST_F(SpeechResume, AStoppedOrKilledJobGoesOnInItsSecondClip) {
  Child whole = start(speech("whole.mp4"));
  ASSERT_EQ(whole.wait(), 0) << whole.err();
  const auto wanted = nlohmann::json::parse(whole.out());
  EXPECT_EQ(wanted.at("frames"), 6 * 16 - 3);
  for (const int number : {SIGINT, SIGKILL}) {
    const std::string name = std::to_string(number) + ".mp4";
    Child child = start(speech(name) + " --checkpoint-every 0");
    ASSERT_TRUE(child.says("\"clips\":{\"done\":1,\"total\":2}")) << child.err();
    child.signal(number);
    EXPECT_EQ(child.wait(), number == SIGINT ? 130 : 128 + SIGKILL) << child.err();
    EXPECT_FALSE(fs::exists(path(name)));
    EXPECT_TRUE(fs::exists(path(name + ".checkpoint.safetensors")));
    Child again = start(speech(name));
    ASSERT_EQ(again.wait(), 0) << again.err();
    const size_t at = again.err().find("resuming after step ");
    ASSERT_NE(at, std::string::npos) << again.err();
    EXPECT_GE(std::stoi(again.err().substr(at + 20)), 8);
    EXPECT_EQ(nlohmann::json::parse(again.out()).at("framehash"), wanted.at("framehash"));
    EXPECT_NEAR(read_all(*open_sound(path(name), 16000)).seconds(), 93 / 16.0, 0.07);
    EXPECT_EQ(files(),
              (std::vector<std::string>{name, name + ".json", "whole.mp4", "whole.mp4.json"}));
    fs::remove(path(name));
    fs::remove(path(name + ".json"));
  }
}

}  // namespace
}  // namespace weft::test
