// The paths of results: a folder that ends in / receives one result per prompt, and --frames png
// makes folders of pictures.
#include <nlohmann/json.hpp>

#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::kJob, test::kModel, test::lines, test::Outcome, test::run;

class OutputRule : public Cli {
 protected:
  // The result paths of a job, relative to the folder.
  std::vector<std::string> results(const std::string& arguments) {
    const Outcome outcome = run("generate -q --json --model " + kModel + kJob + arguments);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    std::istringstream stream(outcome.out);
    std::vector<std::string> paths;
    for (std::string line; std::getline(stream, line);)
      paths.push_back(json::parse(line).at("output").get<std::string>().substr(folder_.size() + 1));
    return paths;
  }
  // The command fails with `code` and prints nothing but one line on standard error, which begins
  // so. No model folder exists, so that a message about the output shows that it was looked at
  // first.
  void refused(const std::string& command, int code, const std::string& begin) {
    const Outcome outcome = run(command + " --model /nowhere");
    EXPECT_EQ(outcome.code, code) << command << ": " << outcome.err;
    EXPECT_EQ(outcome.out, "") << command;
    EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
    EXPECT_EQ(outcome.err.substr(0, 6 + begin.size()), "weft: " + begin) << command;
  }
  std::string prompts() {
    std::ofstream(path("prompts.txt")) << "a red ball\nblue star\n";
    return "--prompt-file " + path("prompts.txt");
  }
};

TEST_F(OutputRule, AFolderReceivesAClipPerPrompt) {
  const std::vector<std::string> one = results("-p x -o " + path("clips/"));
  ASSERT_EQ(one.size(), 1u);
  EXPECT_TRUE(one[0].starts_with("clips/20") && one[0].ends_with("_5.mp4")) << one[0];  // the seed
  EXPECT_TRUE(fs::is_regular_file(path(one[0])));
  EXPECT_TRUE(fs::exists(path(one[0] + ".json")));
  EXPECT_EQ(results(prompts() + " -o " + path("more/clips/")),
            (std::vector<std::string>{"more/clips/00000.mp4", "more/clips/00001.mp4"}));
  EXPECT_EQ(results("-p x -o '" + path("by/{prompt}-{seed}.gif'")),
            (std::vector<std::string>{"by/x-5.gif"}));
}

TEST_F(OutputRule, FramesAsPicturesAreFolders) {
  EXPECT_EQ(results("-p x --frames png -o " + path("shot")), (std::vector<std::string>{"shot/"}));
  EXPECT_TRUE(fs::exists(path("shot/00008.png")));
  EXPECT_TRUE(fs::exists(path("shot.json")));
  EXPECT_EQ(results(prompts() + " --frames png -o " + path("shots/")),
            (std::vector<std::string>{"shots/00000/", "shots/00001/"}));
  EXPECT_TRUE(fs::exists(path("shots/00001/00008.png")));
  EXPECT_TRUE(fs::exists(path("shots/00001.json")));
  const std::vector<std::string> one = results("-p x --frames png -o " + path("one/"));
  EXPECT_TRUE(fs::exists(path(one.at(0) + "00000.png"))) << one[0];
}

TEST_F(OutputRule, ADryRunMakesNoFolder) {
  EXPECT_EQ(run("generate --dry-run --model " + kModel + kJob + "-p x -o " + path("new/")).code, 0);
  EXPECT_TRUE(files().empty());
}

TEST_F(OutputRule, GenerateLooksAtTheOutputFirst) {
  fs::create_directories(path("shot"));
  for (const char* name : {"a.mp4", "b.mp4.json", "file", "shot/notes"})
    std::ofstream(path(name)) << "x";
  const std::string job = "generate" + kJob + "-p x -o ", prompt_file = prompts();
  const std::vector<std::string> before = files();
  refused(job + path("a.mp4"), 7, "'" + path("a.mp4") + "' exists; choose another --output or");
  refused(job + path("b.mp4"), 7, path("b.mp4.json") + " exists; --overwrite replaces it");
  refused(job + path("file/in.mp4"), 7, "cannot write '" + path("file/in.mp4") + "': Not a dir");
  refused(job + "/proc/weft.mp4", 7, "cannot write '/proc/weft.mp4': ");
  refused(job + "/proc/weft/", 7, "cannot write '/proc/weft/");
  refused(job + "'" + path("file/{seed}.mp4'"), 7, "cannot write '" + path("file/"));
  refused(job + path("shot") + " --frames png", 7, "'" + path("shot") + "' exists; choose");
  refused(job + path("shot") + " --frames png --overwrite", 7,
          "'" + path("shot") + "' holds other");
  refused(job + path("file") + " --frames png", 7,
          "'" + path("file") + "' is a file, not a folder");
  refused(job + path("shot"), 2, "-o is '" + path("shot") + "', an existing folder");
  refused(job + path("a.avi"), 2, "-o is '" + path("a.avi") + "', legal: a name ending in .mp4");
  refused(job + path("a.png"), 2, "-o is '" + path("a.png") + "', one picture, but the job has 9");
  std::ofstream(path("prompts.txt")) << json{{"prompt", "x"}, {"output", "new.mp4"}} << "\n"
                                     << json{{"prompt", "y"}, {"output", "a.mp4"}} << "\n";
  refused("generate" + kJob + prompt_file + " -o " + path(""), 7, "'" + path("a.mp4") + "' exists");
  // The fault is another one where the output may be written.
  for (const std::string& fine :
       {std::string("a.mp4 --overwrite"), std::string("new/folder/a.mp4"), std::string("new/"),
        std::string("b.mp4 --no-metadata"), std::string(300, 'n') + ".mp4"})
    refused(job + path(fine), 3, "--model is '/nowhere', ");
  EXPECT_EQ(files(), before);
}

TEST_F(OutputRule, BatchLooksAtTheFolderFirst) {
  std::ofstream(path("file")) << "x";
  std::ofstream(path("jobs.jsonl")) << json{{"id", "a"}, {"prompt", "x"}} << "\n";
  const std::vector<std::string> before = files();
  const std::string batch = "batch " + path("jobs.jsonl") + " -o ";
  refused(batch + path("file"), 7, "cannot write '" + path("file/results.jsonl") + "': Not a dir");
  refused(batch + path("file/in/"), 7, "cannot ");
  refused(batch + "/proc/weft", 7, "cannot write '/proc/weft/results.jsonl': ");
  refused(batch + path("new/"), 3, "--model is '/nowhere', ");
  EXPECT_EQ(files(), before);
}

TEST_F(OutputRule, ReplayLooksAtTheOutputFirst) {
  ASSERT_EQ(results("-p x -o " + path("a.mp4")).size(), 1u);
  for (const char* name : {"b.mp4", "c.mp4.json", "file"}) std::ofstream(path(name)) << "x";
  const std::vector<std::string> before = files();
  const std::string replay = "replay " + path("a.mp4") + " -o ";
  refused(replay + path("a.mp4"), 7, path("a.mp4.json") + " exists; --overwrite replaces it");
  refused(replay + path("b.mp4"), 7, "'" + path("b.mp4") + "' exists; choose another");
  refused(replay + path("c.mp4"), 7, path("c.mp4.json") + " exists; --overwrite replaces it");
  refused(replay + path("file/in.mp4"), 7, "cannot write '" + path("file/in.mp4") + "': ");
  refused(replay + "/proc/weft/", 7, "cannot write '/proc/weft/");
  refused(replay + path("a.avi"), 2, "--output (" + path("a.mp4") + ") is '" + path("a.avi"));
  for (const std::string fine : {"b.mp4 --overwrite", "new/", "b.mp4 --dry-run"})
    refused(replay + path(fine), 3, "--model is '/nowhere', ");
  EXPECT_EQ(files(), before);
}

// The names depend on the model, whose headers are read; nothing else has happened.
TEST_F(OutputRule, NamesOfTheModelAreLookedAtBeforeAnythingIsPrinted) {
  std::ofstream(path("9-5.mp4")) << "x";
  const std::string job =
      "generate --model " + kModel + kJob + "-p x -o '" + path("{frames}-{seed}.mp4'");
  const Outcome outcome = run(job);
  EXPECT_EQ(outcome.code, 7);
  EXPECT_EQ(outcome.out, "");
  EXPECT_EQ(outcome.err, "weft: '" + path("9-5.mp4") +
                             "' exists; choose another --output or give --overwrite\n");
  EXPECT_EQ(run(job + " --dry-run").code, 0);
  EXPECT_EQ(files(), (std::vector<std::string>{"9-5.mp4"}));
}

TEST_F(OutputRule, ProcessesEndTogetherAndOneTellsWhy) {
  if (std::system("mpirun --version >/dev/null 2>&1") != 0) GTEST_SKIP() << "no mpirun";
  std::ofstream(path("a.mp4")) << "x";
  const std::string command = "timeout 60 mpirun --allow-run-as-root --oversubscribe -n 2 " +
                              std::string(WEFT_BINARY) + " generate --model /nowhere" + kJob +
                              "-p x -o " + path("a.mp4") + " >" + path("out") + " 2>" + path("err");
  const int status = std::system(command.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 7);
  std::ifstream out(path("out")), err(path("err"));
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(out), {}), "");
  std::vector<std::string> told;
  for (std::string line; std::getline(err, line);)
    if (line.starts_with("weft: ")) told.push_back(line);
  EXPECT_EQ(told, (std::vector<std::string>{"weft: '" + path("a.mp4") +
                                            "' exists; choose another "
                                            "--output or give --overwrite"}));
}

TEST_F(OutputRule, ResultLinesAreThePathTheHashAndTheSeconds) {
  const Outcome outcome = run("generate --model " + kModel + kJob + "-p x -o " + path("a.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  std::istringstream line(outcome.out);
  std::string name, hash, seconds, more;
  line >> name >> hash >> seconds;
  EXPECT_EQ(name, path("a.mp4"));
  EXPECT_EQ(hash.size(), 64u);
  EXPECT_EQ(hash.find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(seconds.find_first_not_of("0123456789."), std::string::npos);
  EXPECT_EQ(outcome.out, name + " " + hash + " " + seconds + "\n");
}

// The model's text encoder reads 64 tokens.
TEST_F(OutputRule, ScheduledPromptsThatAreTooLongAreCutWithAWarning) {
  std::string prompt;
  for (int i = 0; i < 80; ++i) prompt += "red ball ";
  std::ofstream(path("schedule.jsonl")) << json{{"at", "0.5s"}, {"prompt", "a blue square"}} << "\n"
                                        << json{{"at", "1.5s"}, {"prompt", prompt}} << "\n";
  const Outcome outcome =
      run("generate --json --model " + kModel +
          " --size 32x16 --num-frames 41 --steps 9 --threads 1 --progress none -p 'a red ball' "
          "--method queue:block=2,context=1 --prompt-schedule " +
          path("schedule.jsonl") + " -o " + path("a.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_FALSE(json::parse(outcome.out).contains("prompt_cut"));  // that is of the first prompt
  const std::string warning = "weft: warning: the prompt at 1.5 s has ";
  const size_t at = outcome.err.find(warning);
  ASSERT_NE(at, std::string::npos) << outcome.err;
  EXPECT_NE(outcome.err.find("reads 64; it ignores everything from '", at), std::string::npos);
  EXPECT_EQ(outcome.err.find("the prompt at 0.5 s"), std::string::npos) << outcome.err;
}

// The model's text encoder reads 64 tokens.
TEST_F(OutputRule, PromptsThatAreTooLongAreCutWithAWarning) {
  std::string prompt;
  for (int i = 0; i < 40; ++i) prompt += "red ball ";
  prompt += "then a very quiet green lake under the moon of autumn";
  const std::string job = "generate --json --model " + kModel + kJob + "-p '" + prompt + "' -o ";
  const Outcome outcome = run(job + path("a.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  const json cut = json::parse(outcome.out).at("prompt_cut");
  EXPECT_EQ(cut.at("read"), 64);
  EXPECT_GT(cut.at("tokens"), 64);
  const std::string lost = cut.at("lost"), warning = "weft: warning: the prompt has " +
                                                     cut.at("tokens").dump() +
                                                     " tokens, but this model's text encoder reads "
                                                     "64; it ignores everything from '";
  const size_t at = outcome.err.find(warning);
  ASSERT_NE(at, std::string::npos) << outcome.err;
  const std::string shown = outcome.err.substr(at + warning.size());
  EXPECT_EQ(shown.substr(0, 12), lost.substr(0, 12));
  EXPECT_TRUE(lost.ends_with("under the moon of autumn")) << lost;
  EXPECT_TRUE(lost.starts_with("red ") || lost.starts_with("ball ")) << lost;  // whole words
  EXPECT_EQ(json::parse(std::ifstream(path("a.mp4.json"))).at("prompt_cut"), cut);

  const Outcome hidden = run(job + path("b.mp4") + " --no-prompt-metadata");
  EXPECT_FALSE(json::parse(std::ifstream(path("b.mp4.json"))).at("prompt_cut").contains("lost"));
  const Outcome planned = run(job + path("c.mp4") + " --dry-run");
  EXPECT_NE(planned.err.find(warning), std::string::npos) << planned.err;
  const Outcome negative =
      run("generate --model " + kModel + kJob + "-p x --guidance-scale 3 --negative-prompt '" +
          prompt + "' -o " + path("d.mp4"));
  EXPECT_NE(negative.err.find("warning: the negative prompt has "), std::string::npos)
      << negative.err;
  const Outcome fits =
      run("generate --json --model " + kModel + kJob + "-p 'red ball' -o " + path("e.mp4"));
  EXPECT_EQ(fits.err.find("warning"), std::string::npos) << fits.err;
  EXPECT_FALSE(json::parse(fits.out).contains("prompt_cut"));
}

// The text encoder reads 64 tokens, the last of which ends the text: of the prompts that grow word
// by word, the first that is cut has 65 tokens.
TEST_F(OutputRule, ThePromptThatJustFitsIsNotCut) {
  std::string prompt;
  for (int words = 1; words < 80; ++words) {
    prompt += "a ";
    if (words < 25) continue;
    const Outcome outcome =
        run("generate --dry-run --model " + kModel + kJob + "-p '" + prompt + "'");
    if (outcome.err.find("warning") == std::string::npos) continue;
    EXPECT_NE(outcome.err.find("has 65 tokens"), std::string::npos) << outcome.err;
    return;
  }
  ADD_FAILURE() << "no prompt is too long";
}

}  // namespace
}  // namespace weft
