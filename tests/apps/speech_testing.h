#pragma once
// Shared by the tests of commands that draw with speech to video: a model, a picture and a sound.
#include "tests/apps/cli_testing.h"
#include "tests/support/speech_model.h"

namespace weft::test {

// The tests of a suite share the model's folder.
class SpeechCli : public Cli {
 protected:
  static void SetUpTestSuite() {
    model_ = std::make_unique<SpeechModel>(testing::TempDir() + "weft_speech_cli");
  }
  static void TearDownTestSuite() { model_.reset(); }
  void SetUp() override {
    Cli::SetUp();
    write_face(path("face.png"), 96, 64);
    write_wav(path("talk.wav"), 16000, tone(2, 16000));
  }
  static std::string model() { return " --model " + model_->path + " "; }
  std::string face() const { return " --image " + path("face.png") + " "; }

  static inline std::unique_ptr<SpeechModel> model_;
};

}  // namespace weft::test
