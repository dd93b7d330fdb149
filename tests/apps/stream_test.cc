// weft stream as a user runs it: files, live movies, what it refuses, and the counters of a minute.
#include <cmath>
#include <fstream>
#include <set>

#include "io/media/video.h"
#include "io/sound/audio.h"
#include "tests/apps/cli_testing.h"
#include "tests/apps/sound_testing.h"

namespace weft::test {
namespace {

const std::string kAvatar = "stream --model models/pocket_avatar --threads 1 --seed 3 ";

class StreamCommand : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    write_tone(path("tone.wav"), 2);
  }
  std::string render(const std::string& more, const std::string& name = "out.mp4") const {
    return kAvatar + "--render " + path("tone.wav") + " -o " + path(name) + " " + more;
  }
};

int64_t pictures_of(const std::string& path) {
  VideoReader reader(path);
  Frame frame;
  int64_t count = 0;
  while (reader.next(frame)) ++count;
  return count;
}

TEST_F(StreamCommand, RendersASoundWithItsPictures) {
  const Outcome outcome = run(render(""));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream line(outcome.out);
  std::string file, hash, seconds, rest;
  line >> file >> hash >> seconds;
  EXPECT_EQ(file, path("out.mp4"));
  EXPECT_EQ(hash.size(), 64u);
  EXPECT_FALSE(line >> rest);
  // The first block has 9 pictures, all others 12: 9 + 4 x 12 are the first that hold 2 s.
  EXPECT_EQ(pictures_of(path("out.mp4")), 57);
  const Sound sound = read_all(*open_sound(path("out.mp4"), 16000));
  EXPECT_NEAR(sound.seconds(), 57 / 25.0, 0.07);
  double loudest = 0;
  for (const float value : sound.samples) loudest = std::max<double>(loudest, std::abs(value));
  EXPECT_GT(loudest, 0.3);
  EXPECT_EQ(files(), (std::vector<std::string>{"out.mp4", "tone.wav"}));
  EXPECT_EQ(run(render("")).code, 7) << "an existing file is not replaced";
}

TEST_F(StreamCommand, PicturesAreTheSameUnderEverySplit) {
  std::string wanted;
  for (const std::string layout :
       {"", "--step 2", "--step 4 --decode-rank 4", "--pp 2", "--layout step=2,layers=2",
        "--decode-rank 1", "--layout step=3,decode_rank=3"}) {
    const auto lines = json_lines_of(render("--dtype f32 --overwrite --json " + layout));
    ASSERT_EQ(lines.size(), 1u) << layout;
    if (wanted.empty()) wanted = lines[0]["framehash"];
    EXPECT_EQ(lines[0]["framehash"], wanted) << layout;
    EXPECT_EQ(lines[0]["frames"], 57) << layout;
  }
  const auto shared = json_lines_of(render("--overwrite --json --ulysses 2 --step 2"));
  EXPECT_EQ(shared.at(0)["frames"], 57);
  std::set<std::string> hashes{wanted};
  for (const std::string kept : {"fp8", "int8"})
    hashes.insert(
        json_lines_of(render("--dtype f32 --overwrite --json --kv-dtype " + kept))[0]["framehash"]);
  EXPECT_EQ(hashes.size(), 3u);
}

// Standard input can be read once only, and the caption also names the file.
TEST_F(StreamCommand, ACaptionFromStandardInputIsDrawnAndNamesTheFile) {
  const std::string caption = "a happy face with tan skin and red hair on a navy background";
  std::ofstream(path("caption")) << caption << "\n";
  const auto lines =
      json_lines_of(render("--json --caption - < " + path("caption"), "'{prompt:12}.mp4'"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["caption"], caption);
  EXPECT_TRUE(fs::exists(path("a_happy_face.mp4")));
}

TEST_F(StreamCommand, AShorterFirstBlockIsSeenEarlier) {
  const auto lines = json_lines_of(render("--json --first-block 1"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0]["frames"], 1 + 5 * 12);  // the first latent frame is one picture
}

// 60 s of sound: every index once, and sound and pictures in step. Nothing is timed.
TEST_F(StreamCommand, CountsOfAMinute) {
  write_tone(path("tone.wav"), 60);
  const auto lines = json_lines_of(render("--json"));
  ASSERT_EQ(lines.size(), 1u);
  const nlohmann::json& result = lines[0];
  EXPECT_EQ(result["frames"], 9 + 125 * 12);
  EXPECT_EQ(result["samples"], (9 + 125 * 12) * 640);
  EXPECT_EQ(result["out_of_order"], 0);
  EXPECT_EQ(result["missing"], 0);
  EXPECT_EQ(result["doubled"], 0);
  EXPECT_EQ(result["frozen"], 0);
  EXPECT_LE(result["max_skew_seconds"], 0.040);
  EXPECT_EQ(pictures_of(path("out.mp4")), 9 + 125 * 12);
}

TEST_F(StreamCommand, LiveMoviesArePacedFragments) {
  const Outcome file = run(kAvatar + "--live --render " + path("tone.wav") + " > " + path("a.mp4"));
  ASSERT_EQ(file.code, 0) << file.err;
  EXPECT_GE(pictures_of(path("a.mp4")), 57);
  EXPECT_NE(file.err.find("pictures/s"), std::string::npos) << file.err;
  // The same sound as PCM samples, without the 44 bytes of the header, and with a part of one.
  ASSERT_EQ(std::system(("tail -c +45 " + path("tone.wav") + " > " + path("tone.pcm")).c_str()), 0);
  const Outcome pcm = run(kAvatar + "--live -q < " + path("tone.pcm") + " > " + path("b.mp4"));
  EXPECT_EQ(pcm.code, 0) << pcm.err;
  EXPECT_GE(pictures_of(path("b.mp4")), 57);
  std::ofstream(path("tone.pcm"), std::ios::app) << 'x';
  const Outcome odd = run(kAvatar + "--live -q < " + path("tone.pcm") + " > " + path("c.mp4"));
  EXPECT_EQ(odd.code, 8) << odd.err;
  EXPECT_NE(odd.err.find("ends within sample 32000"), std::string::npos) << odd.err;
}

// A viewer that goes away ends the stream with an error about the output.
TEST_F(StreamCommand, ALiveMovieWithoutAReaderEnds) {
  run(kAvatar + "-q --live --render " + path("tone.wav") + " 2>" + path("err") +
      " | head -c 100 >/dev/null");
  std::ifstream file(path("err"));
  const std::string err{std::istreambuf_iterator<char>(file), {}};
  EXPECT_NE(err.find("weft: cannot write 'standard output'"), std::string::npos) << err;
}

TEST_F(StreamCommand, SaysATextWhereEspeakIsInstalled) {
  if (std::system("command -v espeak-ng >/dev/null") != 0) GTEST_SKIP() << "no espeak-ng";
  const auto lines =
      json_lines_of(kAvatar + "--say 'one two three' --json --mood happy -o " + path("said.mp4"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_GE(lines[0]["frames"], 9 + 12);
  EXPECT_EQ(lines[0]["caption"], "a happy face with tan skin and black hair on a blue background");
  EXPECT_EQ(run(kAvatar + "--say hi --voice none -o " + path("b.mp4")).code, 2);
  EXPECT_EQ(run(kAvatar + "--say ' ' -o " + path("b.mp4")).code, 2);
}

TEST_F(StreamCommand, AMissingEspeakIsNamed) {
  const std::string before = getenv("PATH");
  setenv("PATH", folder_.c_str(), 1);
  const Outcome outcome = run(kAvatar + "--say hello -o " + path("a.mp4"));
  setenv("PATH", before.c_str(), 1);
  EXPECT_EQ(outcome.code, 2);
  EXPECT_NE(outcome.err.find("espeak-ng, which is not installed"), std::string::npos)
      << outcome.err;
}

TEST_F(StreamCommand, WrongValuesAreToldBeforeAnythingIsDrawn) {
  const std::string sound = "--render " + path("tone.wav") + " ";
  for (const auto& [arguments, words] : std::vector<std::pair<std::string, std::string>>{
           {kAvatar, "no sound is given"},
           {kAvatar + "--render nothing.wav", "nothing.wav"},
           {kAvatar + sound + "--say hello", "--say are both given"},
           {kAvatar + sound + "--mood angry", "calm, happy, stern"},
           {kAvatar + sound + "--caption 'a face' --mood calm", "a caption with {mood}"},
           {kAvatar + sound + "--image face.png", "draws its streams from text alone"},
           {kAvatar + sound + "--layout tensor=2", "tensor=2"},
           {kAvatar + sound + "--step 5", "there are 4 steps"},
           {kAvatar + sound + "--ulysses 5", "4 heads"},
           {kAvatar + sound + "--ulysses 2 --pp 2", "legal: one of them"},
           {kAvatar + sound + "--step 2 --decode-rank 3", "a rank that only decodes"},
           {kAvatar + sound + "--size 100x96", "multiples of 16"},
           {kAvatar + sound + "--first-block 4", "1 ... 3"},
           {kAvatar + sound + "--size 16384x16384", "are available. Try a smaller --size"},
           {kAvatar + sound + "--pcm-rate 8000", "--pcm-rate"},
           {kAvatar + sound + "--voice en", "--say"},
           {kAvatar + sound + "-o a.webm", ".mp4"},
           {kAvatar + sound + "--live -o a.mp4", "standard output"},
           {kAvatar + sound + "--live --json", "--json"},
           {"stream --model models/pocket " + sound, "draws no streams"},
           {"stream " + sound, "--model"}}) {
    const Outcome outcome = run(arguments + " </dev/null");
    EXPECT_TRUE(outcome.code == 2 || outcome.code == 3 || outcome.code == 4 || outcome.code == 8)
        << arguments << ": " << outcome.code;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_NE(outcome.err.find(words), std::string::npos) << arguments << ": " << outcome.err;
    EXPECT_EQ(lines(outcome.err), 1u) << arguments << ": " << outcome.err;
  }
  EXPECT_EQ(files(), std::vector<std::string>{"tone.wav"});
}

TEST_F(StreamCommand, ALiveStreamThatCannotKeepUpIsRefused) {
  const Outcome outcome =
      run(kAvatar + "--live --size 320x320 --dtype f32 --render " + path("tone.wav"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.err.find("cannot keep up"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("--size "), std::string::npos) << outcome.err;
}

TEST_F(StreamCommand, ADryRunTellsTheSpeed) {
  const Outcome outcome = run(render("--dry-run --ranks 2"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.out.find("pictures/s"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("memory  "), std::string::npos) << outcome.out;
  const auto lines = json_lines_of(render("--dry-run --json"));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_GT(lines[0]["fps"], 0);
  EXPECT_EQ(lines[0]["devices"], 1);
  EXPECT_EQ(files(), std::vector<std::string>{"tone.wav"});
}

TEST_F(StreamCommand, APlanTellsMemoryAndSpeedWithoutDrawing) {
  const std::string plan =
      "plan --model models/pocket_avatar --json --device-gflops 100 "
      "--device-gbs 20 --link-ms 0.01 ";
  const auto one = json_lines_of(plan), two = json_lines_of(plan + "--ranks 2 --size 192x192");
  ASSERT_EQ(one.size(), 1u);
  ASSERT_EQ(two.size(), 1u);
  EXPECT_GT(one[0]["fps"], 25);
  EXPECT_EQ(one[0]["devices"], 1);
  EXPECT_EQ(two[0]["devices"], 2) << two[0].dump();
  const auto drawn = json_lines_of(render("--dry-run --json"));
  EXPECT_EQ(one[0]["memory"][0]["high_water_bytes"], drawn[0]["memory"][0]["high_water_bytes"]);
  for (const std::string& command : {plan, render("--dry-run")}) {
    const Outcome outcome = run(command + " --memory-limit 10M");
    EXPECT_EQ(outcome.code, 4);
    EXPECT_NE(outcome.err.find("10.00 MiB are available. Try a smaller --size"), std::string::npos)
        << outcome.err;
  }
  for (const std::string flag : {"--num-frames 9", "--check", "--svg a.svg", "--layout all"}) {
    const Outcome outcome = run(plan + flag);
    EXPECT_EQ(outcome.code, 2);
    EXPECT_NE(outcome.err.find(flag.substr(0, flag.find(' '))), std::string::npos) << outcome.err;
    EXPECT_NE(outcome.err.find("legal"), std::string::npos) << outcome.err;
  }
}

}  // namespace
}  // namespace weft::test
