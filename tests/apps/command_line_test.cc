// The command line as a whole: errors are one line, before anything is loaded; results are JSON
// where that is asked for; the same job gives the same frames.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "apps/command_line/flags.h"
#include "tests/apps/cli_testing.h"
#include "tests/apps/sound_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::kJob, test::kModel, test::Outcome, test::run;

// The model folder does not exist: a message about the flag and not about the folder shows that
// nothing was loaded.
TEST_F(Cli, WrongValuesAreToldBeforeAnythingIsLoaded) {
  struct Case {
    const char* arguments;
    const char* text;
  };
  for (const Case& c : {
           Case{"--steps 0", "--steps is 0, legal: 1 ... 1000; nearest: 1"},
           Case{"--steps ten", "--steps is 'ten', legal: a whole number, 1 ... 1000"},
           Case{"--steps=", "--steps"},
           Case{"--fps nan", "--fps is 'nan', legal: a finite number, 0.1 ... 1000"},
           Case{"--cfg-scale 101", "--cfg-scale is 101, legal: 0 ... 100; nearest: 100"},
           Case{"-W 16385", "-W is 16385, legal: 1 ... 16384; nearest: 16384"},
           Case{"--size 832", "--size is '832', legal: WxH or W*H, as 832x480"},
           Case{"--size 832x480x3", "--size is '832x480x3', legal: WxH or W*H, as 832x480"},
           Case{"--size 832x480 --width 800", "--size 832x480 contradicts --width"},
           Case{"--seed -2", "--seed is '-2', legal: 0 ... 18446744073709551615, or -1 for random"},
           Case{"--seed 18446744073709551616",
                "--seed is '18446744073709551616', legal: 0 ... 18446744073709551615, or -1 for "
                "random"},
           Case{"--rng mt19937", "--rng is 'mt19937', legal: portable|torch-cpu"},
           Case{"--solver unipcx",
                "--solver is 'unipcx', legal: unipc|unipc-wan|dpm++|dpm++-wan|euler|distill-4; did "
                "you mean unipc?"},
           Case{"--dtype fp32", "--dtype is 'fp32', legal: auto|f32|bf16; did you mean f32?"},
           Case{"--progress bars",
                "--progress is 'bars', legal: auto|bar|plain|json|none; did you mean bar?"},
           Case{"--device tpu", "--device is 'tpu', legal: auto, cpu, cuda, cuda:N"},
           Case{"--vram-limit 20X",
                "--vram-limit is '20X', legal: a size above 0 in B, K, M, G, T or"},
           Case{"--host-memory-limit 1e30G",
                "--host-memory-limit is '1e30G', legal: a size above 0 in B, K, M, G, T or"},
           Case{"--sigmas 1,x",
                "--sigmas is '1,x', legal: falling numbers, at most 1 and above 0, separated by "
                "commas"},
           Case{"--sigmas 0.5,0.7",
                "--sigmas is '0.5,0.7', legal: falling numbers, at most 1 and above 0"},
           Case{"--sigmas 0.9,0.5 --sample-shift 3", "--sample-shift is given beside --sigmas"},
           Case{"--sigmas 0.9,0.5 --steps 3", "--steps is 3, but --sigmas has 2 values"},
           Case{"--seconds 1 --num-frames 9", "--seconds and --num-frames exclude each other"},
           Case{"--overwrite --no-clobber", "--overwrite and --no-clobber exclude each other"},
           Case{"--stepz 3", "unknown flag --stepz of weft generate; did you mean --steps?"},
           Case{"stray", "weft generate takes no operand 'stray'"},
           Case{"--steps", "--steps needs a value, legal: a whole number, 1 ... 1000"},
           Case{"--frames jpg", "--frames is 'jpg', legal: file|png"},
           Case{"--frames png", "-o is 'a.mp4', but --frames png writes a folder of pictures"},
       }) {
    const Outcome outcome =
        run("generate --model /nowhere -p x -o a.mp4 " + std::string(c.arguments));
    EXPECT_EQ(outcome.code, 2) << c.arguments << ": " << outcome.err;
    EXPECT_EQ(outcome.err.substr(0, 6 + std::string(c.text).size()), "weft: " + std::string(c.text))
        << c.arguments;
    EXPECT_EQ(test::lines(outcome.err), 1u) << outcome.err;
    EXPECT_TRUE(outcome.out.empty());
  }
  const Outcome command = run("generat --model /nowhere");
  EXPECT_EQ(command.code, 2);
  EXPECT_NE(command.err.find("did you mean generate?"), std::string::npos) << command.err;
}

// Every command but completion takes --json and then prints JSON alone, one object per line.
TEST_F(Cli, ResultsAreJsonWhereAsked) {
  ASSERT_EQ(run("generate -q --model " + kModel + kJob + "-p x -o " + path("a.mp4")).code, 0);
  test::write_tone(path("tone.wav"), 0.5);
  std::ofstream(path("jobs.jsonl")) << "{\"id\": \"a\", \"prompt\": \"x\"}\n";
  const std::string job = "--model " + kModel + " --width 32 --height 16 --num-frames 9 --steps 2 ";
  const std::vector<std::string> commands{
      "generate " + job + "-p x --progress none -q -o " + path("b.mp4"),
      "generate " + job + "-p x --dry-run",
      "batch " + path("jobs.jsonl") + " " + job + "-q -o " + path("batch/"),
      "generate " + job + "-p x --print-config",
      "verify tests/golden/scheduler_euler_n4_s3_0",
      "plan " + job + "--device-gflops 1 --device-gbs 1",
      "complete --model models/pocket/language -q --max-tokens 4 ball",
      "inspect " + path("a.mp4") + " " + kModel + " " + kModel + "/vae/config.json",
      "bench ops --repeat 1 --dtype f32",
      "compare " + path("a.mp4") + " " + path("a.mp4"),
      "replay -q " + path("a.mp4"),
      "stream --model models/pocket_avatar -q --render " + path("tone.wav") + " -o " +
          path("s.mp4"),
      "stream --model models/pocket_avatar --dry-run --render " + path("tone.wav"),
      "serve --model " + kModel + " --print-config",
      "worker --model " + kModel + " --join 127.0.0.1:1 --print-config",
      "doctor"};
  std::set<std::string> seen{"completion"};
  for (const std::string& command : commands) {
    seen.insert(command.substr(0, command.find(' ')));
    const Outcome outcome = run(command + " --json");
    EXPECT_EQ(outcome.code, 0) << command << ": " << outcome.err;
    EXPECT_FALSE(outcome.out.empty()) << command;
    std::istringstream lines(outcome.out);
    for (std::string line; std::getline(lines, line);) {
      const json object = json::parse(line, nullptr, false);
      EXPECT_TRUE(object.is_object()) << command << ": " << line;
    }
  }
  for (const CommandSpec& command : command_table())
    EXPECT_TRUE(seen.contains(command.name)) << command.name << " has no case here";
}

TEST_F(Cli, ProgressIsOnStandardErrorAndEndsAt100) {
  const Outcome outcome =
      run("generate --log-level error --progress json --model " + kModel +
          " --width 32 --height 16 --num-frames 9 --steps 2 -p x -o " + path("a.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(test::lines(outcome.out), 1u);
  std::istringstream lines(outcome.err);
  double percent = -1;
  std::set<std::string> stages;
  for (std::string line; std::getline(lines, line);) {
    const json event = json::parse(line);
    EXPECT_LT(percent, 100);  // nothing after the end
    EXPECT_GE(event.at("percent"), percent);
    percent = event.at("percent");
    stages.insert(event.at("stage"));
  }
  EXPECT_EQ(percent, 100);
  for (const char* stage :
       {"load", "encode_text", "denoise", "decode", "encode_video", "write", "completed"})
    EXPECT_TRUE(stages.contains(stage)) << stage;
}

// Hostile prompts as parts of names never lead out of the output folder.
TEST_F(Cli, PromptsNeverLeaveTheOutputFolder) {
  fs::create_directories(path("out"));
  fs::create_directories(path("elsewhere"));
  fs::create_symlink(path("elsewhere"), path("out/link"));
  std::ofstream(path("long.txt")) << std::string(4096, 'y');
  std::ofstream(path("nul.txt")) << std::string("a\0/../b", 8);
  const std::string job = "generate -q --model " + kModel +
                          " --width 32 --height 16 --num-frames 1 --steps 1 --seed 5 --threads 1 ";
  for (const std::string& prompt :
       {std::string("../../up"), std::string("/etc/weft"), std::string(".."),
        "@" + path("long.txt"), std::string("%2e%2e%2fup"), std::string("CON")}) {
    const Outcome outcome =
        run(job + "-p '" + prompt + "' -o '" + path("out/{prompt}/{prompt}.png") + "'");
    EXPECT_EQ(outcome.code, 0) << prompt << ": " << outcome.err;
  }
  const Outcome nul =
      run(job + "-p @" + path("nul.txt") + " -o '" + path("out/{prompt}.png") + "'");
  EXPECT_EQ(nul.code, 2) << nul.err;
  EXPECT_NE(nul.err.find("nul.txt line 1: byte 2 is NUL"), std::string::npos) << nul.err;
  const Outcome link = run(job + "-p link -o '" + path("out/{prompt}/a.png") + "'");
  EXPECT_EQ(link.code, 7) << link.err;
  // A link at the path of the result is not followed.
  std::ofstream(path("victim.png")) << "mine";
  fs::create_symlink(path("victim.png"), path("out/a.png"));
  fs::create_symlink(path("nobody.png"), path("out/b.png"));
  EXPECT_EQ(run(job + "-p x -o " + path("out/a.png")).code, 7);
  EXPECT_EQ(run(job + "-p x -o " + path("out/b.png")).code, 7);
  EXPECT_EQ(run(job + "-p x --overwrite -o " + path("out/a.png")).code, 0);
  std::string kept;
  std::ifstream(path("victim.png")) >> kept;
  EXPECT_EQ(kept, "mine");
  EXPECT_EQ(run(job + "-p x -o " + path("out/" + std::string(300, 'n') + ".png")).code, 0);
  for (const std::string& name : files())
    if (!name.starts_with("out")) {
      EXPECT_TRUE(name == "elsewhere" || name == "victim.png" || name.ends_with(".txt")) << name;
    }
}

TEST_F(Cli, EncodersThreadsAndFormatsGiveOneFrameHash) {
  std::set<std::string> hashes;
  int runs = 0;
  for (const char* format : {".mp4", ".webm", ".gif"})
    for (const char* threads : {"1", "2"}) {
      const Outcome outcome =
          run("generate -q --json --deterministic --model " + kModel +
              " --width 32 --height 16 --num-frames 9 --steps 2 --seed 5 -p 'a red ball' "
              "--threads " +
              threads + " -o " + path(std::to_string(runs++) + format));
      ASSERT_EQ(outcome.code, 0) << outcome.err;
      hashes.insert(json::parse(outcome.out).at("framehash"));
    }
  EXPECT_EQ(hashes.size(), 1u);
  // The files are equal, too, for every number of encoder threads.
  for (const char* pair : {"0.mp4 1.mp4", "2.webm 3.webm", "4.gif 5.gif"}) {
    const std::string a = std::string(pair).substr(0, std::string(pair).find(' '));
    const std::string b = std::string(pair).substr(a.size() + 1);
    const Outcome outcome = run("compare --json " + path(a) + " " + path(b));
    std::istringstream lines(outcome.out);
    std::string line, last;
    while (std::getline(lines, line)) last = line;
    EXPECT_EQ(json::parse(last).at("identical"), true) << pair;
  }
}

}  // namespace
}  // namespace weft
