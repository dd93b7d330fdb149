// Jobs that are killed or stopped and resumed give the same frames and leave no file behind; the
// printed command is the one that resumes them.
#include "engine/job/checkpoint.h"
#include "tests/apps/resume_testing.h"

namespace weft::test {
namespace {

TEST_F(Resume, KilledAtTwentyMomentsMakesTheSameFrames) {
  constexpr int kSteps = 150;  // most of a run is steps
  const std::string whole = hash_of(kSteps);
  kill_twenty([&](const std::string& name) { return job(kSteps, "-o " + path(name + ".mp4")); },
              whole);
}

TEST_F(Resume, StoppedJobsPrintTheCommandThatGoesOn) {
  constexpr int kSteps = 300;
  const std::string whole = hash_of(kSteps);
  const std::map<int, int> codes{{SIGINT, 130}, {SIGTERM, 143}, {SIGUSR1, 75}};
  for (const auto& [number, code] : codes) {
    const std::string name = std::to_string(number) + ".mp4";
    Child child = start(job(kSteps, "-o " + path(name)));
    ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":3,"));
    child.signal(number);
    EXPECT_EQ(child.wait(), code) << child.err();
    const std::string command = printed_command(child.err());
    ASSERT_FALSE(command.empty()) << child.err();
    EXPECT_EQ(files(),
              (std::vector<std::string>{std::to_string(number) + ".mp4.checkpoint.safetensors"}));
    Child again = start(command + " --json");
    EXPECT_EQ(again.wait(), 0) << again.err();
    EXPECT_EQ(nlohmann::json::parse(again.out()).at("framehash"), whole);
    EXPECT_TRUE(fs::exists(path(name)));
    for (const std::string& file : files()) fs::remove(path(file));
  }
}

// Several ranks, here threads, stop and resume together. The checkpoint holds the flags that choose
// ranks of a stage once.
TEST_F(Resume, RanksStopAndGoOn) {
  for (const char* stages : {"", "--decode-rank 1 ", "--text-ranks 1 --vae-ranks 2 "}) {
    const std::string more = "--ranks 3 --layout ring=3 " + std::string(stages) + "-o ";
    Child child = start(job(400, more + path("a.mp4")));
    ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":3,")) << child.err();
    child.signal(SIGINT);
    EXPECT_EQ(child.wait(), 130) << child.err();
    const std::string command = printed_command(child.err());
    ASSERT_FALSE(command.empty()) << child.err();
    Child again = start(command);
    EXPECT_EQ(again.wait(), 0) << again.err();
    EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4", "a.mp4.json"}));
    for (const std::string& file : files()) fs::remove(path(file));
  }
}

// A job that is killed while it decodes leaves whole segments and the part in work. The same
// command keeps them and makes the rest.
TEST_F(Resume, AKilledJobKeepsItsWholeSegments) {
  std::string arguments = job(2, "--method full --segment 1s --deterministic -o " + path("a.mp4"));
  arguments.replace(arguments.find("--num-frames 9"), 14, "--num-frames 481");
  Child whole = start(arguments);
  ASSERT_EQ(whole.wait(), 0) << whole.err();
  const std::vector<std::string> expected = files();
  ASSERT_EQ(expected.size(), 32u);  // 31 segments and the sidecar
  std::map<std::string, std::string> bytes;
  for (const std::string& file : expected) bytes[file] = text_of(path(file));
  for (const std::string& file : expected) fs::remove(path(file));

  Child killed = start(arguments);
  while (!fs::exists(path("a.002.mp4"))) killed.run_for(std::chrono::milliseconds(1));
  killed.signal(SIGKILL);
  killed.wait();
  int segments = 0;
  std::vector<std::string> others;
  for (const std::string& file : files()) {
    if (file.ends_with(".mp4") && !file.starts_with(".")) {
      EXPECT_EQ(text_of(path(file)), bytes[file]) << file;
      ++segments;
    } else if (!file.ends_with(".safetensors")) {
      others.push_back(file);
    }
  }
  ASSERT_GE(segments, 3);
  ASSERT_LT(segments, 31) << "the job ended before it was killed";
  const std::string part =
      ".a." + std::string(segments < 10 ? "00" : "0") + std::to_string(segments) + ".";
  for (const std::string& file : others) EXPECT_TRUE(file.starts_with(part)) << file;

  const auto kept = fs::last_write_time(path("a.001.mp4"));
  Child again = start(arguments);
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(files(), expected);
  EXPECT_EQ(fs::last_write_time(path("a.001.mp4")), kept);
  for (const std::string& file : expected)
    if (file.ends_with(".mp4")) {
      EXPECT_EQ(text_of(path(file)), bytes[file]) << file;
    }
  const auto hash = [](const std::string& sidecar) {
    return nlohmann::json::parse(sidecar).at("framehash");
  };
  EXPECT_EQ(hash(text_of(path("a.mp4.json"))), hash(bytes["a.mp4.json"]));
}

// A step of this job takes long enough to send a second signal during it.
TEST_F(Resume, ASecondSignalStopsAtOnceAndLeavesNoPart) {
  Child child = start(
      "generate --model models/pocket --num-frames 161 --threads 1 --steps 2 --method full "
      "--progress json -p 'a red ball' -o " +
      path("a.mp4"));
  ASSERT_TRUE(child.says("\"stage\":\"denoise\""));
  EXPECT_TRUE(fs::exists(path(".a.part.mp4")));
  child.run_for(std::chrono::milliseconds(50));
  child.signal(SIGINT);
  child.run_for(std::chrono::milliseconds(150));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130) << child.err();
  EXPECT_NE(child.err().find("stopped at once"), std::string::npos) << child.err();
  EXPECT_TRUE(files().empty());
}

// A job that is nearly decoded is finished: the clip is there, and the exit code is 0.
TEST_F(Resume, ASignalWhileTheLastFramesAreMadeFinishesTheFile) {
  Child child = start(job(2, "--num-frames=241 -o " + path("a.mp4")));
  ASSERT_EQ(child.wait(), 2);  // given twice: a usage error, no job
  std::string longer = job(2, "--method full -o " + path("a.mp4"));
  longer.replace(longer.find("--num-frames 9"), 14, "--num-frames 241");
  Child decoding = start(longer);
  ASSERT_TRUE(decoding.says("\"stage\":\"decode\",\"step\":3"));
  decoding.signal(SIGTERM);
  EXPECT_EQ(decoding.wait(), 0) << decoding.err();
  EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4", "a.mp4.json"}));
}

TEST_F(Resume, ADamagedCheckpointFallsBackAndThenRefuses) {
  const std::string arguments = job(300, "--checkpoint-every 0 -o " + path("a.mp4"));
  Child child = start(arguments);
  ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":5,"));
  child.signal(SIGINT);
  ASSERT_EQ(child.wait(), 130);
  const std::string newest = path("a.mp4.checkpoint.safetensors");
  const std::string older = path("a.mp4.checkpoint.old.safetensors");
  const int before = read_checkpoint(older).step;
  fs::resize_file(newest, fs::file_size(newest) - 1);
  Child again = start(arguments);
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_NE(again.err().find("resuming after step " + std::to_string(before) + " "),
            std::string::npos)
      << again.err();

  for (const std::string& file : {newest, older}) std::ofstream(file) << "not a checkpoint";
  fs::remove(path("a.mp4"));
  fs::remove(path("a.mp4.json"));
  Child refused = start(arguments);
  EXPECT_EQ(refused.wait(), 2) << refused.err();
  EXPECT_NE(refused.err().find("--resume never"), std::string::npos) << refused.err();
  Child named = start("generate --resume " + newest);
  EXPECT_EQ(named.wait(), 2) << named.err();
  Child fresh = start(arguments + " --resume never");
  EXPECT_EQ(fresh.wait(), 0) << fresh.err();
  EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4", "a.mp4.json"}));
}

TEST_F(Resume, AnotherJobsCheckpointIsRefusedByItsDifference) {
  Child child = start(job(300, "-o " + path("a.mp4")));
  ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":3,"));
  child.signal(SIGINT);
  ASSERT_EQ(child.wait(), 130);
  Child other = start(job(301, "-o " + path("a.mp4")));
  EXPECT_EQ(other.wait(), 2);
  EXPECT_NE(other.err().find("steps is '300' there and '301' here"), std::string::npos)
      << other.err();
  // Flags beside --resume FILE take precedence and are compared, too.
  Child named = start("generate --resume " + path("a.mp4") + " --seed 6");
  EXPECT_EQ(named.wait(), 2);
  EXPECT_NE(named.err().find("seed is '5' there and '6' here"), std::string::npos) << named.err();
  Child nothing = start("generate --resume " + path("b.mp4"));
  EXPECT_EQ(nothing.wait(), 2);
  EXPECT_EQ(files(), (std::vector<std::string>{"a.mp4.checkpoint.safetensors"}));
}

// The checkpoint's record says what is drawn: the file that the prompt came from may be gone.
TEST_F(Resume, TheJobIsTheRecordOfTheCheckpoint) {
  const std::string prompt = folder_ + "/prompt";
  std::ofstream(prompt) << "a caption";
  std::string arguments = job(300, "--flow-shift 2.5 --json -o " + folder_ + "/whole.mp4");
  arguments.replace(arguments.find("-p x"), 4, "-p @" + prompt);
  Child uninterrupted = start(arguments);
  ASSERT_EQ(uninterrupted.wait(), 0) << uninterrupted.err();
  const auto whole = nlohmann::json::parse(uninterrupted.out()).at("framehash");

  arguments.replace(arguments.find(folder_ + "/whole"), folder_.size() + 6, path("a"));
  Child child = start(arguments);
  ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":3,"));
  child.signal(SIGINT);
  ASSERT_EQ(child.wait(), 130) << child.err();
  const std::string file = path("a.mp4.checkpoint.safetensors");
  fs::remove(prompt);
  Child again = start("generate --json --resume " + file);
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(nlohmann::json::parse(again.out()).at("framehash"), whole);
  EXPECT_NE(again.err().find("resuming after step"), std::string::npos) << again.err();
}

// A job of several prompts continues with the one that was interrupted, and keeps the complete
// ones.
TEST_F(Resume, APromptFileGoesOnWhereItWas) {
  std::ofstream(folder_ + "/prompts") << "one\ntwo\nthree\n";
  std::string arguments = job(200, "-o " + folder_ + "/clips/{idx}.mp4");
  arguments.replace(arguments.find("-p x"), 4, "--prompt-file " + folder_ + "/prompts");
  Child child = start(arguments);
  ASSERT_TRUE(child.says("\"job\":\"1.mp4\",\"mem_bytes\""));
  ASSERT_TRUE(fs::exists(path("0.mp4.json")));
  child.signal(SIGINT);
  ASSERT_EQ(child.wait(), 130) << child.err();
  const auto made = fs::last_write_time(path("0.mp4"));
  Child again = start(arguments);
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_NE(again.err().find("0.mp4 is complete"), std::string::npos) << again.err();
  EXPECT_EQ(fs::last_write_time(path("0.mp4")), made);
  EXPECT_EQ(files().size(), 6u);
}

// A checkpoint holds all jobs of its command: the file of prompts may be gone, and the resume may
// begin in another folder. The kill interrupts the second of three jobs.
class KilledPromptFile : public Resume {
 protected:
  std::string prompts() const { return folder_ + "/prompts"; }
  std::string drawn(const std::string& lines, const std::string& folder) const {
    std::ofstream(prompts()) << lines;
    std::string arguments = job(200, "--checkpoint-every 0 -o " + folder + "/");
    return arguments.replace(arguments.find("-p x"), 4, "--prompt-file " + prompts());
  }
  void kill_in_second(const std::string& lines) {
    Child child = start(drawn(lines, fs::relative(folder_ + "/clips")));
    while (!fs::exists(left())) child.run_for(std::chrono::milliseconds(1));
    child.signal(SIGKILL);
    ASSERT_EQ(child.wait(), 128 + SIGKILL) << "the job ended before it was killed";
    ASSERT_FALSE(fs::exists(path("00001.mp4.json"))) << "the job ended before it was killed";
    fs::remove(prompts());
  }
  std::string left() const {
    const std::string picture = path("00001.png.checkpoint.safetensors");
    return fs::exists(picture) ? picture : path("00001.mp4.checkpoint.safetensors");
  }
  Child resume_elsewhere(const std::string& more) const {
    const fs::path here = fs::current_path();
    fs::current_path("/");
    Child child = start("generate --progress json --resume " + left() + more);
    fs::current_path(here);
    return child;
  }
  // The frame hashes of a folder, by sidecar.
  static std::map<std::string, std::string> hashes(const std::string& folder) {
    std::map<std::string, std::string> found;
    for (const auto& entry : fs::directory_iterator(folder))
      if (entry.path().extension() == ".json")
        found[entry.path().filename()] =
            nlohmann::json::parse(text_of(entry.path())).at("framehash");
    return found;
  }
  void expect_resumed(const std::string& lines, const std::vector<std::string>& outputs) {
    Child whole = start(drawn(lines, folder_ + "/whole"));
    ASSERT_EQ(whole.wait(), 0) << whole.err();
    kill_in_second(lines);
    const auto made = fs::last_write_time(path(outputs[0]));
    Child again = resume_elsewhere("");
    EXPECT_EQ(again.wait(), 0) << again.err();
    EXPECT_NE(again.err().find(outputs[0] + " is complete"), std::string::npos) << again.err();
    EXPECT_NE(again.err().find("resuming after step"), std::string::npos) << again.err();
    EXPECT_EQ(fs::last_write_time(path(outputs[0])), made);
    EXPECT_EQ(hashes(folder_ + "/clips"), hashes(folder_ + "/whole"));
    std::vector<std::string> expected = outputs;
    for (const std::string& output : outputs) expected.push_back(output + ".json");
    std::ranges::sort(expected);
    EXPECT_EQ(files(), expected);
  }
};

TEST_F(KilledPromptFile, OfTextGoesOnByItsCheckpointAlone) {
  expect_resumed("one\n# no prompt\ntwo\nthree\n", {"00000.mp4", "00001.mp4", "00002.mp4"});
}

TEST_F(KilledPromptFile, OfJobsGoesOnByItsCheckpointAlone) {
  expect_resumed(R"({"prompt": "one", "output": "first.mp4", "steps": 2, "seconds": 0.3})"
                 "\n"
                 R"({"prompt": "two", "num_frames": 1, "steps": 300, "seed": 6})"
                 "\n"
                 R"({"prompt": "three", "id": "c", "size": "16x32", "steps": 2, "solver": "euler"})"
                 "\n",
                 {"first.mp4", "00001.png", "00002.mp4"});
}

TEST_F(KilledPromptFile, RefusesFlagsThatItsJobsContradict) {
  kill_in_second("one\ntwo\n");
  const auto refused = [&](const std::string& more, const std::string& message) {
    Child child = resume_elsewhere(more);
    EXPECT_EQ(child.wait(), 2) << child.err();
    EXPECT_NE(child.err().find(message), std::string::npos) << child.err();
  };
  refused(" --prompt-file " + prompts(), "states the jobs; legal: one of the two");
  refused(" --frames png", "states the output ");
}

TEST_F(Resume, FoldersOfFramesGoOn) {
  constexpr int kSteps = 300;
  const std::string whole = hash_of(kSteps);
  Child child = start(job(kSteps, "--frames png -o " + path("shot")));
  ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":3,"));
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130) << child.err();
  Child again = start("generate --json --resume " + path("shot.checkpoint.safetensors"));
  ASSERT_EQ(again.wait(), 0) << again.err();
  const nlohmann::json result = nlohmann::json::parse(again.out());
  EXPECT_EQ(result.at("framehash"), whole);
  EXPECT_EQ(result.at("output"), path("shot") + "/");
  EXPECT_NE(again.err().find("resuming after step"), std::string::npos) << again.err();
  EXPECT_TRUE(fs::exists(path("shot/00008.png")));
}

// A job whose result is missing but whose latents were kept only decodes them.
// Frames of the step before are in no checkpoint, so that a resumed job would make other frames.
TEST_F(Resume, StaleClipsBeginAnew) {
  const std::string stale = job(300, "--method clips:window=1,global=1,stale=1 --layout clip=2 ");
  Child whole = start(stale + "--json -o " + folder_ + "/whole.mp4");
  ASSERT_EQ(whole.wait(), 0) << whole.err();
  Child child = start(stale + "-o " + path("a.mp4"));
  ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":20,")) << child.err();
  child.signal(SIGINT);
  EXPECT_EQ(child.wait(), 130);
  EXPECT_NE(child.err().find("begins anew: the method has stale=1"), std::string::npos);
  EXPECT_EQ(files(), std::vector<std::string>{});
  Child again = start(stale + "--json -o " + path("a.mp4"));
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(nlohmann::json::parse(again.out()).at("framehash"),
            nlohmann::json::parse(whole.out()).at("framehash"));
}

TEST_F(Resume, LatentsAreDecodedAgain) {
  const std::string whole = hash_of(2);
  Child child("" + folder_, job(2, "--keep-latents -o " + path("a.mp4")));
  ASSERT_EQ(child.wait(), 0);
  fs::remove(path("a.mp4"));
  fs::remove(path("a.mp4.json"));
  Child again = start("generate --json --progress json --resume " + path("a.mp4"));
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(again.err().find("\"stage\":\"encode_text\""), std::string::npos);
  EXPECT_EQ(nlohmann::json::parse(again.out()).at("framehash"), whole);
}

}  // namespace
}  // namespace weft::test
