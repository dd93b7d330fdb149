// Words and names as people have them: bytes that are not UTF-8, encodings of files, endings.
#include <map>
#include <regex>
#include <set>

#include "io/text/utf8.h"
#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::kModel, test::Outcome, test::run;

class Bytes : public Cli {
 protected:
  // A job of milliseconds.
  static std::string job(const std::string& more, const std::string& model = kModel,
                         const std::string& settings = "--num-frames 5 --seed 5 ") {
    return "generate -q --model '" + model + "' --width 32 --height 16 --steps 1 --threads 1 " +
           settings + more;
  }
  std::string hash(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    static const std::regex kHash("[0-9a-f]{64}");
    std::smatch found;
    return std::regex_search(outcome.out, found, kHash) ? found.str() : "";
  }
  void refused(const std::string& arguments, const std::string& part) {
    const Outcome outcome = run(arguments);
    EXPECT_EQ(outcome.code, 2) << arguments << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(user_text(outcome.err, ""), outcome.err);
  }
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(path(name), std::ios::binary) << bytes;
  }
};

const std::string kOdd = "gr\xfcn\xe7";  // Latin-1

TEST_F(Bytes, TextThatIsNotUtf8IsRefusedAtOnce) {
  for (const std::string more : {"", "--dry-run "}) {
    refused(job(more + "-p 'gr\xfcn' -o " + path("a.mp4")), "-p line 1: byte 3 is 0xfc");
    refused(job(more + "-p x -n 'a\nb\xff' -o " + path("a.mp4")), "-n line 2: byte 2 is 0xff");
  }
  write("p.txt", "ball\ngr\xfcn");
  refused(job("-p @" + path("p.txt") + " -o " + path("a.mp4")), "p.txt line 2: byte 3 is 0xfc");
  refused(job("-p - -o " + path("a.mp4")) + " < " + path("p.txt"), "standard input line 2: byte 3");
  refused(job("-p x --solver '\xff' -o " + path("a.mp4")), "--solver line 1: byte 1 is 0xff");
  EXPECT_EQ(files(), (std::vector<std::string>{"p.txt"}));
}

TEST_F(Bytes, PathsOfAnyBytesWorkAndAreFoundAgain) {
  const std::string folder = path(kOdd), model = folder + "/m\xff";
  fs::create_directories(folder);
  fs::copy(kModel, model, fs::copy_options::recursive);
  const std::string clip = folder + "/a\\x41.mp4";
  const Outcome made = run(job("--json -p x --keep-latents -o '" + clip + "'", model));
  const std::string frames = hash(made);
  EXPECT_EQ(path_of_text(json::parse(made.out).at("output").get<std::string>()), clip);
  const json sidecar = json::parse(std::ifstream(clip + ".json"));
  EXPECT_EQ(path_of_text(sidecar.at("output").get<std::string>()), clip);
  EXPECT_EQ(sidecar.at("given").at("model").at("value"), path_text(model));
  for (const std::string& file : {clip, clip + ".json"}) {
    const Outcome again = run("replay --json -q '" + file + "'");
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(json::parse(again.out).at("framehash"), frames);
  }
  // The checkpoint states the model and the output.
  fs::remove(clip);
  fs::remove(clip + ".json");
  const std::string latents = clip + ".latents.safetensors";
  EXPECT_EQ(hash(run("generate -q --resume '" + latents + "'")), frames);
  EXPECT_TRUE(fs::exists(clip));
  // The working folder, a variable of the environment and a LoRA of any bytes.
  const fs::path before = fs::current_path();
  fs::current_path(folder);
  const std::string binary =
      fs::path(WEFT_BINARY).is_absolute() ? WEFT_BINARY : (before / WEFT_BINARY).string();
  EXPECT_EQ(hash(run(job("-p x -o b.mp4", "m\xff"), binary)), frames);
  EXPECT_EQ(hash(run("replay -q b.mp4", binary)), frames);
  fs::current_path(before);
  EXPECT_EQ(hash(run(job("-p x -o " + path("c.mp4"), "m\xff"),
                     "WEFT_MODEL_DIRS='" + folder + "' " + WEFT_BINARY)),
            frames);
}

TEST_F(Bytes, CommandsThatAreToldAreWordsOfAShell) {
  fs::create_directories(path(kOdd));
  const std::string latents = path(kOdd) + "/a.mp4.latents.safetensors";
  ASSERT_EQ(run(job("-p x --keep-latents -o '" + path(kOdd) + "/a.mp4'")).code, 0);
  ASSERT_TRUE(fs::exists(latents));
  fs::remove(path(kOdd) + "/a.mp4");
  fs::remove(path(kOdd) + "/a.mp4.json");
  fs::create_directory(path(kOdd) + "/.a.part.mp4");  // the job fails
  const Outcome failed = run(job("-p x -o '" + path(kOdd) + "/a.mp4'"));
  EXPECT_EQ(failed.code, 7) << failed.err;
  EXPECT_NE(failed.err.find("gr\\xfcn\\xe7/"), std::string::npos) << failed.err;
  EXPECT_EQ(user_text(failed.err, ""), failed.err);
}

TEST_F(Bytes, FilesAreUtf8WithAMarkOrWithout) {
  const std::string mark = "\xef\xbb\xbf", line = R"({"prompt":"größer","seed":3,"id":"one"})";
  const std::string batch =
      "batch --model " + kModel + " -q --size 32x16 --num-frames 1 --steps 1 --threads 1 -o ";
  std::set<std::string> hashes;
  int number = 0;
  for (const std::string& text : {line + "\n", mark + line + "\n", mark + line + "\r\n",
                                  "\r\n" + mark + "  " + line + "\r\n", mark + "# c\r\n" + line}) {
    write("jobs.jsonl", text);
    const std::string out = path("out" + std::to_string(++number)) + "/";
    hashes.insert(hash(run(batch + out + " " + path("jobs.jsonl"))));
    EXPECT_TRUE(fs::exists(out + "one.png")) << text;
    hashes.insert(hash(run(job("--prompt-file " + path("jobs.jsonl") + " -o " + out + "again/",
                               kModel, "--num-frames 1 "))));
  }
  EXPECT_EQ(hashes.size(), 1u);
  for (const auto& [text, part] :
       {std::pair{"{\"prompt\":\"a\",\"id\":\"a\"}\n{\"prompt\":\"gr\xfcn\",\"id\":\"b\"}",
                  "jobs.jsonl line 2: byte 14 is 0xfc"},
        {"\xff\xfe{", "jobs.jsonl is in UTF-16"},
        {"a ball\n\xba\xec\xc7\xf2\n", "jobs.jsonl line 2: byte 1 is 0xba"}}) {
    write("jobs.jsonl", text);
    refused(batch + path("no/") + " " + path("jobs.jsonl"), part);
    refused(job("--prompt-file " + path("jobs.jsonl") + " -o " + path("no/")), part);
    refused(job("-p x --method queue --prompt-schedule " + path("jobs.jsonl") + " -o " +
                path("no.mp4")),
            part);
    refused(job("-p x --config " + path("jobs.jsonl") + " -o " + path("no.mp4")), part);
  }
  write("flags.json", mark + "{\"seed\": 7,\r\n \"steps\": 1}\r\n");
  EXPECT_EQ(hash(run(job("-p größer -o " + path("a.mp4"), kModel, "--num-frames 5 --seed 7 "))),
            hash(run("generate -q --model " + kModel + " --size 32x16 --num-frames 5 --threads 1 " +
                     "-p größer --config " + path("flags.json") + " -o " + path("b.mp4"))));
}

TEST_F(Bytes, EveryEndingHasItsRecord) {
  std::map<std::string, std::string> made;
  for (const std::string name : {"f.webm", "f.gif", "f.MP4", "f.mp4"}) {
    const std::string words = job("-p '" + name + "' -o " + path(name));
    EXPECT_EQ(run(words + " --dry-run").code, 0);
    made[name] = hash(run(words));
    EXPECT_EQ(run(words).code, 7) << "it is there";
  }
  EXPECT_EQ(run(job("-p x -o " + path("f.Png"), kModel, "--num-frames 1 ")).code, 0);
  EXPECT_EQ(files().size(), 10u);
  for (const auto& [name, frames] : made) EXPECT_EQ(hash(run("replay -q " + path(name))), frames);
  const std::string longest = path(std::string(300, 'n') + ".mp4");
  EXPECT_EQ(run(job("-p x --dry-run -o " + longest)).code, 0);
  EXPECT_EQ(run(job("-p x -o " + longest)).code, 0);
  EXPECT_TRUE(fs::exists(path(std::string(222, 'n') + ".mp4.json")));
  EXPECT_EQ(run("replay -q " + path(std::string(222, 'n') + ".mp4")).code, 0);
  const Outcome named = run(job("-p 红色的球 -o '" + path("{prompt}.mp4'")));
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_TRUE(fs::exists(path("红色的球.mp4.json"))) << named.out;
}

// Results and leftovers that an earlier version has named without the ending.
TEST_F(Bytes, OlderNamesAreStillFound) {
  const std::string clip = path("f.mp4");
  const std::string frames = hash(run(job("-p x --keep-latents -o " + clip)));
  fs::copy(clip + ".latents.safetensors", path("g.latents.safetensors"));
  const auto rename_old = [&](const char* end) { fs::rename(clip + end, path("f") + end); };
  rename_old(".json");
  rename_old(".latents.safetensors");
  EXPECT_EQ(hash(run("replay -q " + clip)), frames);
  const Outcome there = run(job("-p x -o " + clip));
  EXPECT_EQ(there.code, 7);
  EXPECT_NE(there.err.find("f.json exists"), std::string::npos) << there.err;
  // Another ending is another result.
  EXPECT_EQ(run(job("-p y -o " + path("f.gif"))).code, 0);
  EXPECT_TRUE(fs::exists(path("f.json")) && fs::exists(path("f.gif.json")));
  for (const std::string& resume :
       {clip + ".latents.safetensors", path("f.latents.safetensors"), clip}) {
    SCOPED_TRACE(resume);
    for (const std::string& old : {clip, path("f.json"), clip + ".json",
                                   clip + ".latents.safetensors", path("f.latents.safetensors")})
      fs::remove(old);
    const bool today = resume.find(".mp4.latents") != std::string::npos;
    fs::copy(path("g.latents.safetensors"), today ? resume : path("f.latents.safetensors"));
    const Outcome resumed = run("generate --resume " + resume + " --progress none");
    EXPECT_EQ(hash(resumed), frames);
    EXPECT_NE(resumed.err.find("resuming after step 1 of 1"), std::string::npos) << resumed.err;
    EXPECT_TRUE(fs::exists(clip + ".json"));
  }
}

}  // namespace
}  // namespace weft
