// Batches: the whole file is checked first, every job is drawn once however often the batch is
// killed, and results.jsonl, errors.jsonl and manifest.json account for all of them.
#include <fcntl.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <sstream>
#include <thread>

#include "apps/command_line/flags.h"
#include "apps/generate/request_flags.h"
#include "engine/job/job_spec.h"
#include "tests/apps/cli_testing.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::kModel, test::lines, test::Outcome, test::run;

// A picture that is drawn in milliseconds.
const std::string kFlags =
    " -q --model " + kModel + " --threads 1 --size 32x16 --num-frames 1 --steps 1 ";

class Batch : public Cli {
 protected:
  Outcome batch(const std::string& more = "") {
    return run("batch " + path("jobs.jsonl") + kFlags + "-o " + path("out/") + " " + more);
  }
  void jobs(const std::string& text) { std::ofstream(path("jobs.jsonl")) << text; }
  // The lines of a file of the results' folder, by job. Each job has one at most.
  std::map<std::string, json> log(const std::string& name) {
    std::map<std::string, json> all;
    std::ifstream file(path("out/" + name));
    for (std::string line; std::getline(file, line);) {
      const json object = json::parse(line);
      EXPECT_TRUE(all.emplace(object.at("custom_id"), object).second) << line;
    }
    return all;
  }
  json manifest() { return json::parse(std::ifstream(path("out/manifest.json"))); }
  // The files of the results' folder that begin with a dot, or that only a running job needs.
  std::vector<std::string> leftovers() {
    std::vector<std::string> names;
    for (const auto& entry : fs::recursive_directory_iterator(path("out"))) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with('.') || name.find(".safetensors") != std::string::npos)
        names.push_back(name);
    }
    return names;
  }
};

TEST_F(Batch, BareLinesEnvelopesAndTextsAreJobs) {
  jobs(
      "# a comment\n"
      "{\"custom_id\":\"a\",\"method\":\"POST\",\"url\":\"/v1/videos\",\"body\":{\"prompt\":\"x\","
      "\"size\":\"16x32\",\"seconds\":\"0.01\",\"seed\":7,\"model\":\"Model\","
      "\"user\":\"me\",\"num_inference_steps\":1}}\n"
      "{\"id\":\"b\",\"prompt\":\"y\",\"num_frames\":5,\"seed\":8,\"output\":\"act1/{id}.gif\"}\n"
      "\n"
      "a plain prompt\n");
  const Outcome outcome = batch();
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(lines(outcome.out), 3u);
  EXPECT_TRUE(outcome.out.starts_with(path("out/a.png ")));
  const auto results = log("results.jsonl");
  ASSERT_EQ(results.size(), 3u);
  const json body = results.at("a").at("response").at("body");
  EXPECT_EQ(body.at("size"), "16x32");
  EXPECT_EQ(body.at("seed"), 7);
  EXPECT_EQ(body.at("status"), "completed");
  EXPECT_EQ(results.at("b").at("response").at("body").at("output"), "act1/b.gif");
  EXPECT_TRUE(fs::exists(path("out/act1/b.gif")) && fs::exists(path("out/00002.png")));
  EXPECT_TRUE(log("errors.jsonl").empty());
  EXPECT_EQ(manifest().at("state"), "completed");
  EXPECT_EQ(manifest().at("request_counts"), (json{{"total", 3}, {"completed", 3}, {"failed", 0}}));
  EXPECT_TRUE(leftovers().empty());
  // The request is the one that weft generate draws.
  const Outcome same =
      run("generate -q --model " + kModel +
          " --threads 1 --size 16x32 --num-frames 1 --steps 1 --seed 7 -p x -o " + path("a.png"));
  EXPECT_NE(same.out.find(body.at("framehash").get<std::string>()), std::string::npos);
}

TEST_F(Batch, EveryFaultyLineIsToldAndNothingIsDrawn) {
  jobs(
      "{\"id\":\"a\",\"prompt\":\"x\"}\n"
      "{\"id\":\"b\",\"prompt\":\"x\",\"stepz\":3}\n"
      "{\"id\":\"a\",\"prompt\":\"y\"}\n"
      "{\"id\":\"c\",\"prompt\":\"x\",\"width\":40}\n"
      "{\"prompt\":\"x\"}\n"
      "{\"id\":\"d\"}\n"
      "{\"id\":\"e\",\n"
      "{\"id\":\"f\",\"prompt\":\"x\",\"output\":\"a.png\"}\n"
      "{\"id\":\"g\",\"prompt\":\"x\",\"model\":\"sora-2\"}\n"
      "{\"custom_id\":\"h\",\"url\":\"/v1/chat\",\"body\":{\"prompt\":\"x\"}}\n"
      "{\"custom_id\":\"i\",\"body\":{\"prompt\":\"x\",\"sparkle\":1}}\n");
  const Outcome outcome = batch();
  EXPECT_EQ(outcome.code, 2);
  const std::string file = "weft: " + path("jobs.jsonl") + " line ";
  for (const std::string message :
       {"2: stepz is no field of a job; did you mean steps?",
        "3: its id 'a' is that of line 1, too", "4: width is 40, legal: multiples of 16",
        "5: has no id", "6: has no prompt", "7: ", "8: its output ",
        "9: model is 'sora-2', legal: model", "10: url is \"/v1/chat\", legal: \"/v1/videos\"",
        "11: sparkle is no parameter"})
    EXPECT_NE(outcome.err.find(file + message), std::string::npos) << message << "\n"
                                                                   << outcome.err;
  EXPECT_NE(outcome.err.find("10 of 11 jobs"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(path("out")));
  const Outcome rest = batch("--skip-invalid");
  EXPECT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(log("results.jsonl").size(), 1u);
}

TEST_F(Batch, ARerunSkipsWhatIsVerifiedAndDrawsAgainWhatIsNot) {
  jobs(
      "{\"id\":\"a\",\"prompt\":\"x\"}\n{\"id\":\"b\",\"prompt\":\"y\"}\n"
      "{\"id\":\"c\",\"prompt\":\"z\",\"output\":\"taken/c.png\"}\n");
  fs::create_directories(path("out"));
  std::ofstream(path("out/taken")) << "no folder";
  EXPECT_EQ(batch().code, 1);
  EXPECT_EQ(log("errors.jsonl").at("c").at("error").at("code"), "output");
  EXPECT_EQ(manifest().at("request_counts"), (json{{"total", 3}, {"completed", 2}, {"failed", 1}}));
  const auto before = log("results.jsonl");

  const Outcome again = batch();
  EXPECT_EQ(again.code, 1);
  EXPECT_EQ(again.out, "");
  EXPECT_EQ(log("errors.jsonl").size(), 1u);
  EXPECT_EQ(log("results.jsonl"), before);

  std::ofstream(path("out/a.png"), std::ios::app) << "damage";
  fs::remove(path("out/taken"));
  const Outcome mended = batch();
  EXPECT_EQ(mended.code, 0) << mended.err;
  EXPECT_EQ(lines(mended.out), 2u);
  EXPECT_TRUE(log("errors.jsonl").empty());
  const auto hash = [](const json& line) { return line.at("response").at("body").at("framehash"); };
  EXPECT_EQ(hash(log("results.jsonl").at("a")), hash(before.at("a")));
  EXPECT_EQ(log("results.jsonl").at("b"), before.at("b"));

  // The same id with another request is an error before anything is drawn.
  jobs("{\"id\":\"a\",\"prompt\":\"other\"}\n{\"id\":\"d\",\"prompt\":\"new\"}\n");
  const Outcome other = batch();
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("line 1: its id 'a' has a result of another request"), std::string::npos)
      << other.err;
  EXPECT_FALSE(fs::exists(path("out/d.png")));
  const Outcome replaced = batch("--overwrite");
  EXPECT_EQ(replaced.code, 0) << replaced.err;
  EXPECT_NE(hash(log("results.jsonl").at("a")), hash(before.at("a")));
}

TEST_F(Batch, ShardsHaveFilesOfTheirOwn) {
  std::string text;
  for (int i = 0; i < 7; ++i)
    text += "{\"id\":\"job" + std::to_string(i) + "\",\"prompt\":\"x\"}\n";
  jobs(text);
  EXPECT_EQ(batch("--shard 3/3").code, 2);
  EXPECT_EQ(batch("--shard 1").code, 2);
  EXPECT_EQ(batch("--shard 2/3").code, 0);
  EXPECT_EQ(log("results-2-of-3.jsonl").size(), 2u);
  EXPECT_EQ(manifest().at("state"), "in_progress");
  EXPECT_EQ(batch("--shard 0/3").code, 0);
  EXPECT_EQ(batch("--shard 1/3").code, 0);
  EXPECT_EQ(log("results-0-of-3.jsonl").size(), 3u);
  EXPECT_TRUE(log("results-0-of-3.jsonl").contains("job3"));
  EXPECT_EQ(manifest().at("state"), "completed");
  ASSERT_EQ(manifest().at("shards").size(), 3u);
  for (const json& shard : manifest().at("shards")) {
    EXPECT_TRUE(fs::exists(path("out/" + shard.at("results").get<std::string>())));
    EXPECT_TRUE(fs::exists(path("out/" + shard.at("errors").get<std::string>())));
  }
  // Another partition draws none of them again.
  const Outcome whole = batch();
  EXPECT_EQ(whole.code, 0) << whole.err;
  EXPECT_EQ(whole.out, "");
  EXPECT_TRUE(leftovers().empty());
}

// 200 jobs, of which 10 fail while they run, killed three times.
TEST_F(Batch, KilledBatchesDrawEveryJobOnce) {
  constexpr int kJobs = 200;
  std::string text;
  for (int i = 0; i < kJobs; ++i) {
    json job{{"id", "job-" + std::to_string(i)}, {"prompt", "ball " + std::to_string(i)}};
    if (i % 40 == 7) job["size"] = "1024x1024";  // needs more memory than is allowed
    if (i % 40 == 23) job["output"] = "taken/{id}.png";
    text += job.dump() + "\n";
  }
  jobs(text);
  fs::create_directories(path("out"));
  std::ofstream(path("out/taken")) << "no folder";
  const std::string command = "exec " + std::string(WEFT_BINARY) + " batch " + path("jobs.jsonl") +
                              kFlags + "--memory-limit 64M -o " + path("out/") + " >/dev/null 2>" +
                              path("stderr");
  const auto count = [&] {
    std::ifstream file(path("out/results.jsonl"));
    return std::count(std::istreambuf_iterator<char>(file), {}, '\n');
  };
  for (const int after : {30, 80, 140}) {
    const pid_t child = fork();
    if (child == 0) {
      execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
      _exit(127);
    }
    int status = 0;
    while (count() < after && waitpid(child, &status, WNOHANG) == 0)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << std::ifstream(path("stderr")).rdbuf();
  }
  const Outcome last = batch("--memory-limit 64M");
  EXPECT_EQ(last.code, 1) << last.err;
  const auto results = log("results.jsonl"), errors = log("errors.jsonl");
  EXPECT_EQ(results.size(), 190u);
  EXPECT_EQ(errors.size(), 10u);
  for (int i = 0; i < kJobs; ++i) {
    const std::string id = "job-" + std::to_string(i);
    const bool fails = i % 40 == 7 || i % 40 == 23;
    EXPECT_EQ(results.contains(id), !fails) << id;
    EXPECT_EQ(errors.contains(id), fails) << id;
    EXPECT_EQ(fs::exists(path("out/" + id + ".png")), !fails) << id;
    EXPECT_EQ(fs::exists(path("out/" + id + ".png.json")), !fails) << id;
  }
  EXPECT_EQ(errors.at("job-7").at("error").at("code"), "memory");
  EXPECT_EQ(errors.at("job-23").at("error").at("code"), "output");
  EXPECT_EQ(manifest().at("request_counts"),
            (json{{"total", 200}, {"completed", 190}, {"failed", 10}}));
  EXPECT_TRUE(leftovers().empty()) << leftovers().front();
}

// Ranks that are threads go on after a job that fails, too.
TEST_F(Batch, RanksGoOnAfterAFailure) {
  jobs(
      "{\"id\":\"a\",\"prompt\":\"x\"}\n{\"id\":\"b\",\"prompt\":\"y\",\"output\":\"taken/"
      "b.png\"}\n"
      "{\"id\":\"c\",\"prompt\":\"z\"}\n");
  fs::create_directories(path("out"));
  std::ofstream(path("out/taken")) << "no folder";
  EXPECT_EQ(batch("--ranks 2 --layout ring=2").code, 1);
  EXPECT_EQ(log("results.jsonl").size(), 2u);
  EXPECT_EQ(log("errors.jsonl").size(), 1u);
  EXPECT_TRUE(log("results.jsonl").contains("c"));
}

// `before` comes before the program on every rank.
std::string mpi_batch(const std::string& jobs, const std::string& out, const std::string& more,
                      const std::string& before = "") {
  return "mpirun --allow-run-as-root --oversubscribe -n 2 " + before + WEFT_BINARY + " batch " +
         jobs + kFlags + more + " -o " + out + " >/dev/null 2>&1";
}

// The first process has the lines of all, and no job is drawn twice.
TEST_F(Batch, ProcessesGoOnAfterAFailure) {
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  std::string text;
  for (int i = 0; i < 12; ++i) {
    json job{{"id", std::to_string(i)}, {"prompt", "ball " + std::to_string(i)}};
    if (i % 5 == 1) job["output"] = "taken/{id}.png";
    text += job.dump() + "\n";
  }
  jobs(text);
  for (const char* layout : {"--layout data=2", "--layout ring=2"}) {
    fs::remove_all(path("out"));
    fs::create_directories(path("out"));
    std::ofstream(path("out/taken")) << "no folder";
    EXPECT_NE(std::system(mpi_batch(path("jobs.jsonl"), path("out/"), layout).c_str()), 0);
    EXPECT_EQ(log("results.jsonl").size(), 9u) << layout;
    EXPECT_EQ(log("errors.jsonl").size(), 3u) << layout;
    EXPECT_EQ(log("errors.jsonl").at("11").at("error").at("code"), "output");
    EXPECT_EQ(manifest().at("request_counts"),
              (json{{"total", 12}, {"completed", 9}, {"failed", 3}}));
    EXPECT_TRUE(leftovers().empty());
  }
  // A replica that is a process of its own draws on where a job fails within its drawing, too.
  jobs(
      "{\"id\":\"a\",\"prompt\":\"x\",\"size\":\"512x512\"}\n{\"id\":\"b\",\"prompt\":\"y\"}\n"
      "{\"id\":\"c\",\"prompt\":\"z\"}\n");
  fs::remove_all(path("out"));
  EXPECT_NE(
      std::system(mpi_batch(path("jobs.jsonl"), path("out/"), "--layout data=2 --memory-limit 12M")
                      .c_str()),
      0);
  EXPECT_EQ(log("results.jsonl").size(), 2u);
  EXPECT_EQ(log("errors.jsonl").at("a").at("error").at("code"), "memory");
}

// A rank knows before it draws a job that the job does not fit.
TEST_F(Batch, RanksGoOnAfterAJobThatDoesNotFit) {
  jobs(
      "{\"id\":\"a\",\"prompt\":\"x\",\"size\":\"512x512\"}\n"
      "{\"id\":\"b\",\"prompt\":\"y\",\"size\":\"256x256\"}\n"
      "{\"id\":\"c\",\"prompt\":\"z\"}\n");
  const bool mpi = std::system("mpirun --version >/dev/null 2>&1") == 0;
  for (const bool processes : {false, true}) {
    if (processes && !mpi) continue;
    fs::remove_all(path("out"));
    const auto draw = [&](const std::string& limit) {
      const std::string more = "--layout ring=2 --memory-limit " + limit;
      if (processes)
        EXPECT_NE(std::system(mpi_batch(path("jobs.jsonl"), path("out/"), more).c_str()), 0);
      else
        EXPECT_EQ(batch("--ranks 2 " + more).code, 1);
    };
    draw("12M");
    EXPECT_EQ(log("errors.jsonl").size(), 2u) << processes;
    for (const char* id : {"a", "b"})
      EXPECT_EQ(log("errors.jsonl").at(id).at("error").at("code"), "memory");
    EXPECT_TRUE(log("results.jsonl").contains("c"));
    EXPECT_EQ(manifest().at("state"), "completed");
    draw("24M");
    EXPECT_TRUE(log("results.jsonl").contains("b"));
    EXPECT_EQ(manifest().at("request_counts"),
              (json{{"total", 3}, {"completed", 2}, {"failed", 1}}));
    EXPECT_TRUE(leftovers().empty());
  }
}

// A failure in the middle of a drawing ends the processes that share it. Every run draws first what
// has not failed, and then what failed the longest time ago, so that the next runs come to every
// job; the manifest is there.
TEST_F(Batch, ProcessesEndAtAFailureOfADrawingAndTheNextRunsGoOn) {
  const std::string library = WEFT_INJECT_LIBRARY;
  if (library.empty() || std::system("mpirun --version >/dev/null 2>&1") != 0)
    GTEST_SKIP() << "no mpirun, or no faults in this build";
  jobs(
      "{\"id\":\"a\",\"prompt\":\"x\"}\n{\"id\":\"b\",\"prompt\":\"y\"}\n"
      "{\"id\":\"c\",\"prompt\":\"z\"}\n");
  const auto run_with_full_disk_at = [&](const std::string& id) {
    const std::string fault =
        "env LD_PRELOAD=" + library + " INJECT_FAULT=write:." + id + ".part:1:ENOSPC ";
    const std::string command =
        mpi_batch(path("jobs.jsonl"), path("out/"), "--layout ring=2", fault);
    EXPECT_NE(std::system(command.c_str()), 0);
  };
  run_with_full_disk_at("a");
  EXPECT_TRUE(log("results.jsonl").empty());
  EXPECT_EQ(log("errors.jsonl").size(), 1u);
  EXPECT_EQ(manifest().at("state"), "in_progress");
  run_with_full_disk_at("b");
  EXPECT_EQ(log("errors.jsonl").size(), 2u);
  run_with_full_disk_at("a");  // c is drawn, a fails again
  EXPECT_EQ(log("errors.jsonl").size(), 2u);
  EXPECT_TRUE(log("results.jsonl").contains("c"));
  EXPECT_EQ(manifest().at("state"), "completed");
  run_with_full_disk_at("a");  // b is drawn although a, before it, fails still
  EXPECT_TRUE(log("results.jsonl").contains("b"));
  EXPECT_EQ(log("errors.jsonl").at("a").at("error").at("code"), "output");
  EXPECT_EQ(manifest().at("request_counts"), (json{{"total", 3}, {"completed", 2}, {"failed", 1}}));
  // Its latents need not be computed again.
  EXPECT_EQ(leftovers(), std::vector<std::string>{"a.png.latents.safetensors"});
}

// A stopped batch ends with the signal's code, and the same command goes on.
TEST_F(Batch, AStoppedBatchGoesOn) {
  jobs("{\"id\":\"a\",\"prompt\":\"x\"}\n{\"id\":\"b\",\"prompt\":\"y\",\"steps\":1000}\n");
  const std::string command = "exec " + std::string(WEFT_BINARY) + " batch " + path("jobs.jsonl") +
                              kFlags + "--checkpoint-every 0 -o " + path("out/") + " 2>" +
                              path("stderr");
  const pid_t child = fork();
  if (child == 0) {
    execl("/bin/sh", "sh", "-c", command.c_str(), nullptr);
    _exit(127);
  }
  int status = 0;
  while (!fs::exists(path("out/b.png.checkpoint.old.safetensors")) &&
         waitpid(child, &status, WNOHANG) == 0)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  kill(child, SIGUSR1);
  waitpid(child, &status, 0);
  EXPECT_EQ(WEXITSTATUS(status), 75);
  EXPECT_EQ(log("results.jsonl").size(), 1u);
  EXPECT_TRUE(log("errors.jsonl").empty());
  EXPECT_EQ(batch().code, 0);
  EXPECT_EQ(log("results.jsonl").size(), 2u);
  EXPECT_GT(json::parse(std::ifstream(path("out/b.png.json"))).at("resumed_after_step"), 0);
  EXPECT_TRUE(leftovers().empty());
}

// The form that is published is the one that is read, and flags have the same legal values.
TEST(JobForm, TheSchemaAndTheFlagsAgreeWithTheFields) {
  const json properties =
      json::parse(std::ifstream("apps/job.schema.json")).at("$defs").at("job").at("properties");
  EXPECT_EQ(properties.size(), job_fields().size() + 3);  // schema, model and expand_prompt
  for (const JobField& field : job_fields()) {
    ASSERT_TRUE(properties.contains(field.name)) << field.name;
    std::string name = field.name;
    std::replace(name.begin(), name.end(), '_', '-');
    const FlagSpec* flag = find_flag(kGenerate, name);
    if (!flag || !field.legal || flag->type == FlagType::kSwitch || name == "solver") continue;
    EXPECT_STREQ(flag->legal, field.legal) << field.name;
    if (flag->type == FlagType::kText) continue;
    const json& number = properties[field.name].at("anyOf").at(0);
    const std::string legal = field.legal;
    EXPECT_EQ(number.at("minimum").get<double>(), std::stod(legal)) << field.name;
    EXPECT_EQ(number.at("maximum").get<double>(), std::stod(legal.substr(legal.rfind(' '))));
  }
}

// True where the schema takes the value. It knows the words that apps/job.schema.json uses for
// fields.
bool takes(const json& schema, const json& value) {
  if (schema.contains("anyOf"))
    return std::ranges::any_of(schema["anyOf"],
                               [&](const json& each) { return takes(each, value); });
  if (schema.contains("const")) return value == schema["const"];
  if (schema.contains("enum")) return std::ranges::count(schema["enum"], value) > 0;
  const std::string type = schema.at("type");
  const bool whole = value.is_number() && value.get<double>() == std::floor(value.get<double>());
  if (type == "string")
    return value.is_string() && value.get<std::string>().size() >= schema.value("minLength", 0u) &&
           value.get<std::string>().size() <= schema.value("maxLength", SIZE_MAX) &&
           std::regex_search(value.get<std::string>(), std::regex(schema.value("pattern", "")));
  if (type == "array")
    return value.is_array() && value.size() >= schema.value("minItems", 0u) &&
           std::ranges::all_of(value,
                               [&](const json& each) { return takes(schema.at("items"), each); });
  if (type == "object")
    return value.is_object() &&
           std::ranges::all_of(schema.at("required"),
                               [&](const json& name) { return value.contains(name); }) &&
           std::ranges::all_of(value.items(), [&](const auto& field) {
             return schema.at("properties").contains(field.key()) &&
                    takes(schema.at("properties").at(field.key()), field.value());
           });
  return (type == "integer" ? whole : value.is_number()) &&
         value.get<double>() >= schema.value("minimum", -1e300) &&
         value.get<double>() <= schema.value("maximum", 1e300) &&
         value.get<double>() > schema.value("exclusiveMinimum", -1e300);
}

// The JSON types of the values that the schema takes.
std::set<std::string> types_of(const json& schema) {
  std::set<std::string> types;
  for (const json& each : schema.value("anyOf", json::array())) types.merge(types_of(each));
  for (const json& each : schema.value("enum", json::array())) types.insert(each.type_name());
  if (schema.contains("const")) types.insert(schema["const"].type_name());
  const std::string type = schema.value("type", "");
  if (!type.empty()) types.insert(type == "integer" ? "number" : type);
  return types;
}

// Every field refuses what the schema refuses: values of every type, and those of other fields.
TEST(JobForm, EveryValueThatTheSchemaRefusesIsRefused) {
  const json schema = json::parse(std::ifstream("apps/job.schema.json"));
  const json& properties = schema.at("$defs").at("job").at("properties");
  const Flags flags = Flags::parse(kGenerate, {});
  const auto refusal = [&](const json& job) -> std::string {
    return test::error_of(
        [&] {
          (void)job_of(flags, {1, job.dump()}, "line 1");
        },
        ErrorKind::kUsage);
  };
  json values = json::parse(R"([null, true, false, 0, 1, 5, -1, -2, 1.5, 0.5, 1e300, "", "1",
      "0x10", " 5", "5 ", "true", "0", "on", "nan", "inf", "1/2", "text", "832x480", "832 x480", [],
      {}, [1], ["a"], [true], [null], [0.5, "0.25"], [0.5, null], [[1]], {"a": 1}, [{"at": 1}],
      [{"at": true, "prompt": "x"}], [{"at": " 1", "prompt": "x"}], [{"at": 1, "prompt": 5}]])");
  values.push_back(std::string(65, 'a'));  // longer than a job's name
  for (const auto& [name, form] : properties.items()) {
    const std::set<std::string> types = types_of(form);
    int of_other_types = 0, outside = 0;
    for (const json& value : values) {
      json job{{"prompt", "x"}};
      job[name] = value;
      if (takes(form, value)) continue;
      const std::string words = refusal(job);
      EXPECT_NE(words.find("line 1: " + name), std::string::npos) << job << ": " << words;
      ++(types.contains(value.type_name()) ? outside : of_other_types);
    }
    const bool any_text = form.value("type", "") == "string" && !form.contains("minLength") &&
                          !form.contains("pattern");
    EXPECT_GT(of_other_types, 5) << name;
    EXPECT_EQ(outside == 0, any_text) << name;
  }
  EXPECT_EQ(refusal({{"prompt", "x"}, {"steps", 5}, {"seed", "7"}, {"fps", "30000/1001"}}), "");
  for (const json& envelope :
       {json{{"body", {{"prompt", "x"}}}}, json{{"custom_id", 5}, {"body", {{"prompt", "x"}}}},
        json{{"custom_id", "a"}, {"body", {{"prompt", 5}}}}, json{{"custom_id", "a"}, {"body", 1}},
        json{{"custom_id", "a"}, {"body", {{"prompt", "x"}}}, {"method", 5}}})
    EXPECT_FALSE(refusal(envelope).empty()) << envelope;
}

}  // namespace
}  // namespace weft
