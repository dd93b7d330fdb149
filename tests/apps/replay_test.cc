// Every finished file can be made again from its metadata.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::kModel, test::Outcome, test::run;

class Replay : public Cli {
 protected:
  // Makes a result of 5 frames, or of 1 for .png; returns its frame hash.
  std::string made(const std::string& name, const std::string& more = "") {
    const std::string frames = name.ends_with(".png") ? "1" : "5";
    const bool folder = name.ends_with('/');
    const std::string output =
        folder ? path(name.substr(0, name.size() - 1)) + " --frames png" : path(name);
    const Outcome outcome = run(
        "generate --json --progress none -q --model " + kModel +
        " --size 32x16 --steps 2 --threads 1 --num-frames " + frames + " -p '@" + prompt() +
        "' --negative-prompt '-' --guidance-scale 3.5 -o " + output + " " + more + " </dev/null");
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out).at("framehash");
  }
  // The prompt has commas, quotes and parts that look like flags.
  std::string prompt() {
    std::ofstream(path("prompt.txt")) << "@a \"red\" ball, --steps 9, größer";
    return path("prompt.txt");
  }
  std::string sidecar(const std::string& name) {
    return path(name.ends_with('/') ? name.substr(0, name.size() - 1) + ".json" : name + ".json");
  }
};

TEST_F(Replay, EveryFormatGivesItsFrames) {
  for (const std::string name : {"a.mp4", "b.webm", "c.gif", "d.png", "e/"}) {
    const std::string hash = made(name);
    const Outcome outcome = run("replay -q --json " + path(name));
    ASSERT_EQ(outcome.code, 0) << name << ": " << outcome.err;
    const json report = json::parse(outcome.out);
    EXPECT_EQ(report.at("same"), true) << name;
    EXPECT_EQ(report.at("framehash"), hash) << name;
    EXPECT_EQ(report.at("expected"), hash) << name;
    EXPECT_EQ(report.at("compared"), "frames") << name;
    EXPECT_TRUE(report.at("differences").empty()) << name << outcome.out;

    // Without the sidecar the metadata inside the file is used, and decoded frames are compared.
    fs::rename(sidecar(name), path("kept.json"));
    const Outcome alone = run("replay -q --json --model " + kModel + " " + path(name));
    if (name.ends_with(".gif")) {
      EXPECT_EQ(alone.code, 8) << alone.err;
      EXPECT_NE(alone.err.find("c.gif.json does not either"), std::string::npos) << alone.err;
    } else {
      ASSERT_EQ(alone.code, 0) << name << ": " << alone.err;
      EXPECT_EQ(json::parse(alone.out).at("compared"), "decoded frames");
      EXPECT_EQ(run("replay -q " + path(name)).code, 2) << "the model's folder is not known";
    }
    // The sidecar alone is enough.
    EXPECT_EQ(run("replay -q " + path("kept.json")).code, 0) << name;
    fs::remove(path("kept.json"));
  }
}

TEST_F(Replay, LayoutPrecisionAndSolverComeAlong) {
  const std::string hash =
      made("a.mp4",
           "--ranks 2 --layout cfg=2 --dtype f32 --solver dpm++ --seed 18446744073709551615 "
           "--flow-shift 2.5 --rng torch-cpu --deterministic --fps 12.5");
  const Outcome outcome = run("replay -q --json " + path("a.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(json::parse(outcome.out).at("framehash"), hash);
  made("s.mp4", "--sigmas 0.9,0.25");
  EXPECT_EQ(run("replay -q " + path("s.mp4")).code, 0);
}

TEST_F(Replay, WhatDiffersIsSaidBeforehand) {
  made("a.mp4");
  json record = json::parse(std::ifstream(sidecar("a.mp4")));
  record["engine"]["isa"] = "abacus";
  record["engine"]["version"] = "weft 0.0.1";
  std::ofstream(path("b.json")) << record.dump();
  const Outcome outcome = run("replay --dry-run " + path("b.json"));
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_NE(outcome.err.find("differs isa: abacus in the file"), std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("differs version: weft 0.0.1"), std::string::npos) << outcome.err;
  const json report = json::parse(run("replay --dry-run --json " + path("b.json")).out);
  EXPECT_EQ(report.at("differences").at("isa").at("file"), "abacus");

  record["framehash"] = std::string(64, '0');
  std::ofstream(path("c.json")) << record.dump();
  const Outcome other = run("replay -q " + path("c.json"));
  EXPECT_EQ(other.code, 1);
  EXPECT_EQ(other.out.substr(0, 9), "DIFFERENT");
}

TEST_F(Replay, OtherWeightsAreRefusedUnlessAllowed) {
  made("a.mp4");
  json record = json::parse(std::ifstream(sidecar("a.mp4")));
  record["engine"]["weights_sha256"] = std::string(64, 'a');
  std::ofstream(path("b.json")) << record.dump();
  const Outcome refused = run("replay -q " + path("b.json"));
  EXPECT_EQ(refused.code, 3);
  EXPECT_NE(refused.err.find("--allow-other-weights"), std::string::npos) << refused.err;
  EXPECT_EQ(run("replay -q --allow-other-weights " + path("b.json")).code, 0);
}

TEST_F(Replay, MetadataIsDataOnly) {
  made("a.mp4");
  const json good = json::parse(std::ifstream(sidecar("a.mp4")));
  const auto refused = [&](const json& record, int code, const std::string& text) {
    std::ofstream(path("b.json")) << record.dump();
    const Outcome outcome = run("replay -q " + path("b.json"));
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  json record = good;
  record["request"]["steps"] = "2 --output=/tmp/x";
  refused(record, 2, "b.json: steps is '2 --output=/tmp/x'");
  record = good;
  record["request"]["width"] = 1e9;
  refused(record, 2, "b.json: width is");
  record = good;
  record["request"]["solver"] = "@/etc/passwd";
  refused(record, 2, "b.json: solver is");
  record = good;
  record["request"]["promtp"] = "x";
  refused(record, 2, "b.json: promtp is no field of a job; did you mean prompt?");
  refused(json{{"schema", "weft.params/v1"}}, 8, "holds no metadata");
  // Flags that contradict the file would make another job.
  EXPECT_EQ(run("replay -q -p other " + path("a.mp4")).code, 2);
  EXPECT_EQ(run("replay -q " + path("none.mp4")).code, 2);
}

TEST_F(Replay, HiddenPromptsAreAskedFor) {
  made("a.mp4", "--no-prompt-metadata");
  EXPECT_EQ(run("replay -q " + path("a.mp4")).code, 2);
  EXPECT_EQ(run("replay -q -p '@" + prompt() + "' --negative-prompt '' " + path("a.mp4")).code, 0);
}

TEST_F(Replay, OutputIsKeptWhereAsked) {
  const std::string hash = made("a.mp4");
  EXPECT_EQ(run("replay -q -o " + path("b.mp4") + " " + path("a.mp4")).code, 0);
  EXPECT_EQ(json::parse(std::ifstream(path("b.mp4.json"))).at("framehash"), hash);
  // A folder receives the result under a name of its own.
  const Outcome inside = run("replay -q --json -o " + path("c/") + " " + path("a.mp4"));
  ASSERT_EQ(inside.code, 0) << inside.err;
  EXPECT_TRUE(fs::exists(json::parse(inside.out).at("output").get<std::string>())) << inside.out;
  // Frames go into the folder that is named.
  const std::string frames = made("d/");
  EXPECT_EQ(run("replay -q -o " + path("e") + " " + path("d/")).code, 0);
  EXPECT_EQ(json::parse(std::ifstream(path("e.json"))).at("framehash"), frames);
  EXPECT_TRUE(fs::exists(path("e/00004.png")));
}

}  // namespace
}  // namespace weft
