// Jobs of the block queue that are killed or stopped go on, whatever their output is, and do not
// write frames again; endless ones end with a whole file.
#include "engine/job/checkpoint.h"
#include "io/media/video.h"
#include "tests/apps/resume_testing.h"

namespace weft::test {
namespace {

class QueueResume : public Resume {
 protected:
  // 121 frames are 31 latent frames: blocks of 3 and fourteen times 2, in 24 turns. Pipeline stages
  // change no bit in f32; in bf16, the default of some machines, they round the hidden rows.
  std::string queue(const std::string& more) const {
    return "generate --model tests/golden/pipeline_t2v/model --width 32 --height 16 --seed 5 "
           "--threads 1 --progress json -p x --steps 9 --method queue:block=2,context=1 "
           "--deterministic --dtype f32 " +
           more;
  }
  std::string video(const std::string& more) const { return queue("--num-frames 121 " + more); }

  std::string hash_of_video() {
    Child child = start(video("--json -o " + folder_ + "/whole.mp4 --overwrite"));
    EXPECT_EQ(child.wait(), 0) << child.err();
    return nlohmann::json::parse(child.out()).at("framehash");
  }
  void expect_frames(const std::string& clip, size_t frames) const {
    EXPECT_EQ(read_video(clip).size(), frames) << clip;
  }
};

TEST_F(QueueResume, KilledAtTwentyMomentsMakesTheSameFrames) {
  const std::string whole = hash_of_video();
  kill_twenty([&](const std::string& name) { return video("-o " + path(name + ".mp4")); }, whole);
  for (const std::string& name : files())
    if (name.ends_with(".mp4") && !name.starts_with("timed")) expect_frames(path(name), 121);
}

TEST_F(QueueResume, KilledInSegmentsAndFoldersMakesTheSameFrames) {
  const std::string whole = hash_of_video();
  kill_twenty(
      [&](const std::string& name) {
        return name == "timed" || std::stoi(name) % 2
                   ? video("--segment 2s -o " + path(name + ".mp4"))
                   : video("--frames png -o " + path(name));
      },
      whole);
  for (const std::string& name : files())
    if (name.ends_with(".003.mp4")) expect_frames(path(name), 121 - 3 * 32);
}

TEST_F(QueueResume, StoppedJobsHaveTheBytesOfUninterruptedOnes) {
  const std::string whole = hash_of_video();
  for (const char* extension : {".mp4", ".webm", ".gif"}) {
    const std::string clip = std::string("a") + extension;
    Child uninterrupted = start(video("-o " + path(clip)));
    ASSERT_EQ(uninterrupted.wait(), 0) << uninterrupted.err();
    const std::string bytes = text_of(path(clip));
    for (const std::string& file : files()) fs::remove(path(file));
    Child child = start(video("-o " + path(clip)));
    ASSERT_TRUE(child.says("\"turn\":12}")) << child.err();
    child.signal(SIGINT);
    EXPECT_EQ(child.wait(), 130) << child.err();
    const std::string command = printed_command(child.err());
    ASSERT_FALSE(command.empty()) << child.err();
    Child again = start(command + " --json --progress json");
    EXPECT_EQ(again.wait(), 0) << again.err();
    const auto result = nlohmann::json::parse(again.out());
    EXPECT_EQ(result.at("framehash"), whole);
    EXPECT_EQ(result.at("frames"), 121);
    EXPECT_TRUE(text_of(path(clip)) == bytes) << clip;
    std::vector<std::string> left{clip, clip + ".json"};
    std::ranges::sort(left);
    EXPECT_EQ(files(), left);
    for (const std::string& file : files()) fs::remove_all(path(file));
  }
}

TEST_F(QueueResume, RanksStopAndGoOnAsOtherRanks) {
  const std::string whole = hash_of_video();
  Child child = start(video("--ranks 2 -o " + path("a.mp4")));
  ASSERT_TRUE(child.says("\"turn\":13}")) << child.err();
  child.signal(SIGTERM);
  EXPECT_EQ(child.wait(), 143) << child.err();
  Child again =
      start(video("--ranks 2 --layout layers=2,decode_rank=1 --json -o " + path("a.mp4")));
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_NE(again.err().find("resuming after step"), std::string::npos) << again.err();
  EXPECT_EQ(nlohmann::json::parse(again.out()).at("framehash"), whole);
  expect_frames(path("a.mp4"), 121);
}

TEST_F(QueueResume, FramesThatAreGoneAreAnError) {
  Child child = start(video("-o " + path("a.mp4")));
  ASSERT_TRUE(child.says("\"turn\":13}")) << child.err();
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130) << child.err();
  EXPECT_EQ(files(), (std::vector<std::string>{".a.part.mp4", "a.mp4.checkpoint.safetensors"}));
  fs::remove(path(".a.part.mp4"));
  Child again = start(video("-o " + path("a.mp4")));
  EXPECT_EQ(again.wait(), 7) << again.err();
  EXPECT_NE(again.err().find("holds 0 frames, but an earlier run has kept"), std::string::npos)
      << again.err();
  Child anew = start(video("--resume never --overwrite -o " + path("a.mp4")));
  EXPECT_EQ(anew.wait(), 0) << anew.err();
  expect_frames(path("a.mp4"), 121);
}

TEST_F(QueueResume, AnEndlessVideoEndsWithAWholeFile) {
  const std::pair<const char*, const char*> kinds[] = {
      {"", "a.mp4"}, {"--segment 1s ", "a.000.mp4"}, {"--ranks 2 --decode-rank 1 ", "a.mp4"}};
  for (const auto& [flags, first] : kinds) {
    Child child = start(queue("--endless --json " + std::string(flags) + "-o " + path("a.mp4")));
    ASSERT_TRUE(child.says("\"turn\":20}")) << child.err();
    child.signal(SIGINT);
    EXPECT_EQ(child.wait(), 0) << child.err();
    const auto result = nlohmann::json::parse(child.out());
    EXPECT_GE(result.at("frames"), 9 + 10 * 8);
    size_t frames = 0;
    for (const std::string& file : files()) {
      if (file.ends_with(".mp4")) frames += read_video(path(file)).size();
      EXPECT_FALSE(file.starts_with('.') || file.ends_with(".safetensors")) << file;
    }
    EXPECT_EQ(frames, result.at("frames"));
    EXPECT_TRUE(fs::exists(path(first)));
    for (const std::string& file : files()) fs::remove(path(file));
  }
}

// A killed one goes on; one that is stopped before its first frame can.
TEST_F(QueueResume, AnEndlessVideoGoesOn) {
  const std::string arguments = queue("--endless --checkpoint-every 0 --json -o " + path("a.mp4"));
  {
    Child child = start(arguments);
    ASSERT_TRUE(child.says("\"turn\":12}")) << child.err();
    child.signal(SIGKILL);
    child.wait();
  }
  Child again = start(arguments);
  ASSERT_TRUE(again.says("\"turn\":16}")) << again.err();
  again.signal(SIGINT);
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_NE(again.err().find("resuming after step"), std::string::npos) << again.err();
  const auto result = nlohmann::json::parse(again.out());
  const auto frames = result.at("frames").get<size_t>();
  expect_frames(path("a.mp4"), frames);
  EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4", "a.mp4.json"}));
}

TEST_F(QueueResume, AnEndlessVideoIsRefusedWithWhatContradictsIt) {
  const std::pair<std::string, std::string> refused[] = {
      {queue("--endless --num-frames 9 -o " + path("a.mp4")), "--endless and --num-frames exclude"},
      {queue("--endless --seconds 9 -o " + path("a.mp4")), "--endless and --seconds exclude"},
      {"generate --model tests/golden/pipeline_t2v/model -p x --endless --method full -o " +
           path("a.mp4"),
       "legal with it: queue"}};
  for (const auto& [arguments, text] : refused) {
    Child child = start(arguments);
    EXPECT_EQ(child.wait(), 2);
    EXPECT_NE(child.err().find(text), std::string::npos) << child.err();
  }
}

}  // namespace
}  // namespace weft::test
