// weft generate --expand-prompt: the caption is drawn, both texts are recorded, and replay needs no
// language model.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::lines, test::Outcome, test::run;

class Expand : public Cli {
 protected:
  std::string job(const std::string& more) const {
    return "generate --model models/pocket --size 64x64 --num-frames 1 --steps 2 --seed 5 "
           "--threads 1 "
           "--dtype f32 " +
           more;
  }
  json made(const std::string& more) {
    const Outcome outcome = run(job("--json -q " + more));
    EXPECT_EQ(outcome.code, 0) << more << ": " << outcome.err;
    return json::parse(outcome.out);
  }
};

TEST_F(Expand, TheCaptionIsDrawnAndBothAreRecorded) {
  const Outcome shown = run(job("-p ' orange ring' --expand-prompt auto -o " + path("a.png")));
  ASSERT_EQ(shown.code, 0) << shown.err;
  const json sidecar = json::parse(std::ifstream(path("a.png.json")));
  const std::string caption = sidecar.at("request").at("prompt");
  EXPECT_NE(caption.find("orange ring "), std::string::npos) << caption;
  EXPECT_NE(caption.find(" background"), std::string::npos) << caption;
  EXPECT_EQ(sidecar.at("request").at("expanded_from"), " orange ring");
  EXPECT_NE(shown.err.find("prompt   orange ring -> " + caption), std::string::npos) << shown.err;
  const json inside = json::parse(run("inspect --json " + path("a.png")).out);
  EXPECT_EQ(inside.at("metadata").at("weft").at("request"), sidecar.at("request"));

  const json plain = made("-p '" + caption + "' -o " + path("b.png"));
  EXPECT_EQ(plain.at("framehash"), sidecar.at("framehash"));
  EXPECT_FALSE(plain.contains("expanded_from"));
  const json told =
      made("-p ' orange ring' --expand-prompt models/pocket/language -o " + path("c.png"));
  EXPECT_EQ(told.at("prompt"), caption);
  EXPECT_EQ(told.at("expanded_from"), " orange ring");
  EXPECT_EQ(told.at("framehash"), sidecar.at("framehash"));
}

TEST_F(Expand, ReplayNeedsNoLanguageModel) {
  fs::copy("models/pocket", path("model"), fs::copy_options::recursive);
  const std::string moved = " --model " + path("model");
  ASSERT_EQ(
      run("generate" + moved +
          " --size 64x64 --num-frames 1 --steps 2 --seed 5 -q -p 'blue star' --expand-prompt auto "
          "-o " +
          path("a.png"))
          .code,
      0);
  fs::remove_all(path("model/language"));
  for (const char* how : {"", "b.png"}) {
    const Outcome replayed = run("replay -q " + path("a.png") + (*how ? " -o " + path(how) : ""));
    EXPECT_EQ(replayed.code, 0) << replayed.err;
    EXPECT_EQ(replayed.out.substr(0, 5), "SAME ");
  }
  EXPECT_EQ(json::parse(std::ifstream(path("b.png.json"))).at("request"),
            json::parse(std::ifstream(path("a.png.json"))).at("request"));
}

TEST_F(Expand, ResumingNeedsNoLanguageModel) {
  fs::copy("models/pocket", path("model"), fs::copy_options::recursive);
  ASSERT_EQ(run("generate --model " + path("model") +
                " --size 64x64 --num-frames 1 --steps 2 -q -p 'blue star' --expand-prompt auto "
                "--keep-latents -o " +
                path("a.png"))
                .code,
            0);
  const json before = json::parse(std::ifstream(path("a.png.json")));
  for (const char* name : {"a.png", "a.png.json", "model/language"}) fs::remove_all(path(name));
  const Outcome resumed = run("generate -q --resume " + path("a.png"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  const json after = json::parse(std::ifstream(path("a.png.json")));
  EXPECT_EQ(after.at("request"), before.at("request"));
  EXPECT_EQ(after.at("framehash"), before.at("framehash"));
}

TEST_F(Expand, SeveralPromptsAndRanksGiveTheSameCaptions) {
  std::ofstream(path("two.txt")) << "green square\nring, going left, tiny\n";
  const auto captions = [&](const std::string& folder, const std::string& more) {
    const Outcome outcome = run(job("--json -q --expand-prompt auto --prompt-file " +
                                    path("two.txt") + " -o " + path(folder) + "/ " + more));
    EXPECT_EQ(outcome.code, 0) << more << ": " << outcome.err;
    std::istringstream stream(outcome.out);
    std::vector<std::string> found;
    for (std::string line; std::getline(stream, line);)
      found.push_back(json::parse(line).at("prompt"));
    std::sort(found.begin(), found.end());
    return found;
  };
  const std::vector<std::string> want = captions("one", "");
  ASSERT_EQ(want.size(), 2u);
  EXPECT_NE(want[0], want[1]);
  EXPECT_EQ(captions("two", "--ranks 2 --layout ulysses=2"), want);
  EXPECT_EQ(captions("data", "--ranks 2 --layout data=2"), want);
  if (std::system("command -v mpirun > /dev/null") != 0) return;
  const std::string command =
      "mpirun --allow-run-as-root --oversubscribe -n 2 " WEFT_BINARY " " +
      job("--json -q --expand-prompt auto --prompt-file " + path("two.txt") +
          " --layout cfg=2 -o " + path("mpi") + "/ > " + path("out"));
  ASSERT_EQ(std::system(command.c_str()), 0);
  std::ifstream out(path("out"));
  std::vector<std::string> found;
  for (std::string line; std::getline(out, line);) found.push_back(json::parse(line).at("prompt"));
  std::sort(found.begin(), found.end());
  EXPECT_EQ(found, want);
}

TEST_F(Expand, DrawnCaptionsBelongToTheSeed) {
  const auto captions = [&](const std::string& name, int seed) {
    const Outcome outcome =
        run("generate --model models/pocket --size 64x64 --num-frames 1 --steps 1 -q --json -p "
            "'a shape' --expand-prompt auto --expand-temperature 1 -o " +
            path(name) + " --seed " + std::to_string(seed));
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return json::parse(outcome.out).at("prompt").get<std::string>();
  };
  const std::string one = captions("a.png", 1);
  EXPECT_EQ(captions("b.png", 1), one);
  EXPECT_NE(captions("c.png", 2) + captions("d.png", 3), one + one);
}

TEST_F(Expand, RefusesByName) {
  const auto refused = [&](const std::string& more, int code, const std::string& text) {
    const Outcome outcome = run(job("-q -p ball -o " + path("a.png") + " " + more));
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
    EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
    EXPECT_TRUE(!fs::exists(path("a.png")));
  };
  refused("--expand-temperature 1", 2, "--expand-temperature needs --expand-prompt");
  refused("--expand-prompt " + path("none"), 3, "no such language model folder");
  refused("--expand-prompt models/pocket", 3, "is a video model's folder");
  const Outcome none =
      run("generate --model " + test::kModel + " -p x --expand-prompt auto -o " + path("a.mp4"));
  EXPECT_EQ(none.code, 2);
  EXPECT_NE(none.err.find("--expand-prompt is 'auto', but there is no folder"), std::string::npos);

  // Refuses a model that never ends a caption, and one that writes an empty one.
  fs::copy("tests/golden/llm_qwen3_tied/model", path("model"));
  fs::copy_file("tests/golden/tokenizer_bpe_qwen/model/tokenizer/tokenizer.json",
                path("model/tokenizer.json"));
  refused("--expand-prompt " + path("model"), 3, "the caption for 'ball' does not end within 512");
  json config = json::parse(std::ifstream(path("model/generation_config.json")));
  for (int id = 0; id < 512; ++id) config["eos_token_id"].push_back(id);
  std::ofstream(path("model/generation_config.json")) << config.dump();
  refused("--expand-prompt " + path("model"), 3, "the caption for 'ball' is empty");
  refused("--memory-limit 10K --expand-prompt auto", 4, "expanding prompts needs");
}

}  // namespace
}  // namespace weft
