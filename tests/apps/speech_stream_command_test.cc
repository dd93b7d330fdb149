// weft stream of speech to video: the picture it shows, its files and LoRAs, and what it refuses.
#include <sstream>

#include "io/media/image.h"
#include "io/media/video.h"
#include "io/sound/audio.h"
#include "kernels/linear.h"
#include "tests/apps/resume_testing.h"
#include "tests/apps/speech_testing.h"
#include "tests/models/slices_testing.h"

namespace weft {
namespace {

using test::Outcome, test::json_lines_of, test::run;

class SpeechStreamCommand : public test::SpeechCli {
 protected:
  std::string render(const std::string& more) {
    return "stream --threads 1 --seed 3 --steps 2 --caption talks --overwrite --model " +
           model_->path + " --render " + path("talk.wav") + " -o " + path("a.mp4") + " " + more;
  }
  std::string hash_of(const std::string& more) {
    const auto lines = json_lines_of(render(face() + "--size 64x64 --json " + more));
    return lines.size() == 1 ? lines[0]["framehash"].get<std::string>() : "";
  }
};

// The size has the picture's shape; the first block of 12 pictures shows 9.
TEST_F(SpeechStreamCommand, RendersASoundWithThePicture) {
  const Outcome outcome = run(render(face()));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("draws streams with the LoRA of Live Avatar"), std::string::npos)
      << outcome.err;
  EXPECT_NE(outcome.err.find("face.png\ncaption talks"), std::string::npos) << outcome.err;
  VideoReader reader(path("a.mp4"));
  EXPECT_EQ(reader.fps(), 25);
  Frame frame;
  int count = 0;
  while (reader.next(frame)) ++count;
  EXPECT_EQ(count, 9 + 4 * 12);
  EXPECT_EQ(frame.width, 128);
  EXPECT_EQ(frame.height, 64);
  EXPECT_NEAR(read_all(*open_sound(path("a.mp4"), 16000)).seconds(), count / 25.0, 0.07);
}

TEST_F(SpeechStreamCommand, LorasAndFilesArePartsOfTheModel) {
  const std::string plain = hash_of("");
  EXPECT_EQ(plain.size(), 64u);
  EXPECT_EQ(hash_of("--layout step=2 --decode-rank 2"), plain);
  const auto width = open_transformer(model_->path + "/config.json")->traits().width;
  Tensor down(DType::kF32, {2, width}), up(DType::kF32, {width, 2});
  for (int64_t i = 0; i < 2 * width; ++i)
    down.as<float>()[i] = up.as<float>()[i] = 0.2f * std::sin(static_cast<float>(i));
  test::NamedTensors lora;
  lora["diffusion_model.blocks.0.self_attn.q.lora_A.weight"] = std::move(down);
  lora["diffusion_model.blocks.0.self_attn.q.lora_B.weight"] = std::move(up);
  test::write_file(path("lora.safetensors"), lora);
  const std::string merged = hash_of("--lora " + path("lora.safetensors"));
  EXPECT_EQ(merged.size(), 64u);
  EXPECT_NE(merged, plain);
  EXPECT_NE(hash_of("--lora " + path("lora.safetensors") + ":0.5"), merged);
  EXPECT_EQ(hash_of("--lora " + path("lora.safetensors") + ":0"), plain);
  if (cpu_has_int8()) {
    EXPECT_NE(hash_of("--weights int8"), plain);
  }
  EXPECT_EQ(hash_of("--transformer " + model_->path + "/diffusion_pytorch_model.safetensors"),
            plain);
}

// A server draws the loops that faces begin with, and what is said, with the picture.
TEST_F(SpeechStreamCommand, ListensForClients) {
  Child server(folder_, "stream --threads 1 --seed 3 --steps 1 --size 64x64 --caption talks " +
                            face() + "--listen 127.0.0.1:0 --model " + model_->path);
  EXPECT_TRUE(server.says("Clients can connect.")) << server.err();
  server.signal(SIGTERM);
  EXPECT_EQ(server.wait(), 0) << server.err();
}

TEST_F(SpeechStreamCommand, WrongOnesAreRefusedByName) {
  for (const auto& [more, words] : std::vector<std::pair<std::string, std::string>>{
           {"", "shows a picture; legal: --image FILE"},
           {"--image none.png", "none.png"},
           {face() + "--size 96x64", "multiples of 64"},
           {face() + "--mood calm", "it has no moods"},
           {face() + "--layout step=3", "there are 2 steps"},
           {face() + "--lora none.safetensors", "none.safetensors"}}) {
    const Outcome outcome = run(render("-q " + more));
    EXPECT_NE(outcome.code, 0) << more;
    EXPECT_EQ(outcome.out, "") << more;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << more << ": " << outcome.err;
  }
  EXPECT_EQ(files(), (std::vector<std::string>{"face.png", "talk.wav"}));
}

}  // namespace
}  // namespace weft
