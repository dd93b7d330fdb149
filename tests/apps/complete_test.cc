// weft complete as a user meets it: its output and its errors. Neither the batch nor the layout
// changes a text.
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/apps/cli_testing.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::lines, test::Outcome, test::run;

const std::string kLanguageFolder = "tests/golden/llm_qwen3_tied/model";

class Complete : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    fs::copy(kLanguageFolder, path("model"));
    fs::copy_file("tests/golden/tokenizer_bpe_qwen/model/tokenizer/tokenizer.json",
                  path("model/tokenizer.json"));
  }
  std::string job(const std::string& more) const {
    return "complete --model " + path("model") + " --threads 1 --dtype f32 -q " + more;
  }
  // Runs the job with --json and returns its lines.
  std::vector<json> told(const std::string& more) {
    const Outcome outcome = run(job("--json " + more));
    EXPECT_EQ(outcome.code, 0) << more << ": " << outcome.err;
    return test::json_lines(outcome.out);
  }
  std::string text(const std::string& more) { return told(more).at(0).at("text"); }
};

TEST_F(Complete, StreamsWhatDecodingGives) {
  const std::vector<json> objects = told("'a red ball' --max-tokens 60");
  ASSERT_EQ(objects.size(), 2u);
  EXPECT_EQ(objects[0].at("tokens"), 60);
  EXPECT_EQ(objects[0].at("end"), "length");
  EXPECT_EQ(objects[1].at("tokens"), 60);
  EXPECT_EQ(objects[1].at("prompt_tokens"), objects[0].at("prompt_tokens"));
  const Outcome outcome = run(job("'a red ball' --max-tokens 60"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.out, objects[0].at("text").get<std::string>() + "\n");
  EXPECT_TRUE(outcome.err.empty()) << outcome.err;
}

TEST_F(Complete, FiguresGoToStandardError) {
  const Outcome outcome = run("complete --model " + path("model") + " 'a red ball' --max-tokens 9");
  EXPECT_EQ(outcome.code, 0);
  for (const char* text : {"model   model (", "layout  one rank", "memory  weights",
                           " prompt tokens, ", "| 9 tokens, ", "first token"})
    EXPECT_NE(outcome.err.find(text), std::string::npos) << text << "\n" << outcome.err;
}

TEST_F(Complete, PromptsComeFromOperandsFilesAndStandardInput) {
  const std::string want = text("'a red ball' --max-tokens 20");
  std::ofstream(path("one.txt")) << "a red ball\n";
  std::ofstream(path("two.txt")) << "# two\na red ball\n\nblue star\n";
  EXPECT_EQ(text("-p 'a red ball' --max-tokens 20"), want);
  EXPECT_EQ(text("-p @" + path("one.txt") + " --max-tokens 20"), want);
  EXPECT_EQ(text("--max-tokens 20 < " + path("one.txt")), want);
  EXPECT_EQ(text("--prompt-file " + path("two.txt") + " --max-tokens 20"), want);
  EXPECT_EQ(told("--prompt-file " + path("two.txt") + " --max-tokens 20").size(), 3u);
}

TEST_F(Complete, SeveralPromptsAreOneBatchAndStandInOrder) {
  const std::vector<std::string> prompts{"a red ball", "b", "some blue stars"};
  std::string alone, all;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::string own = text("'" + prompts[i] + "' --max-tokens 25");
    alone += "[" + std::to_string(i + 1) + "] " + prompts[i] + "\n" + own +
             (own.ends_with('\n') ? "\n" : "\n\n");
    all += " '" + prompts[i] + "'";
  }
  for (const char* how : {"", " --batch 2", " --batch 1 --chunk 1"})
    EXPECT_EQ(run(job(all + " --max-tokens 25" + how)).out, alone) << how;
}

TEST_F(Complete, TheSameSeedIsTheSameTextUnderEveryLayout) {
  const std::string prompts = "'a red ball' 'blue stars on a green background' 'x' ";
  const std::string drawn =
      prompts + "--temperature 0.9 --top-p 0.95 --top-k 300 --max-tokens 30 --seed 11 ";
  const auto texts = [&](const std::string& more) {
    std::vector<json> objects = told(drawn + more);
    std::string all;
    for (size_t i = 0; i + 1 < objects.size(); ++i)
      all += objects[i].at("text").get<std::string>() + "|";
    EXPECT_EQ(objects.back().at("seed"), 11);
    return all;
  };
  const std::string want = texts("");
  for (const char* how :
       {"--batch 1", "--chunk 2", "--resident-layers 2", "--ranks 2", "--ranks 2 --layout tensor=2",
        "--layout layers=2", "--layout ring=2", "--layout ring=2 --ring-balance light-seq",
        "--ranks 2 --layout token_ring=2", "--ranks 4 --layout layers=2,ulysses=2"})
    EXPECT_EQ(texts(how), want) << how;
  EXPECT_NE(told(prompts + "--temperature 0.9 --max-tokens 30 --seed 12")[0].at("text"),
            told(prompts + "--temperature 0.9 --max-tokens 30 --seed 11")[0].at("text"));
}

TEST_F(Complete, ChatFramesATurnThatCannotLeaveIt) {
  const std::string framed =
      "<|im_start|>system\nsay little<|im_end|>\n<|im_start|>user\nhello<|im_end|>\n"
      "<|im_start|>assistant\n";
  std::ofstream(path("think.txt")) << framed;
  const std::string no_thoughts = framed + "<think>\n\n</think>\n\n";
  const auto plain = told("--max-tokens 12 -p '" + no_thoughts + "'")[0];
  const auto chat = told("--max-tokens 12 --chat --system 'say little' hello")[0];
  EXPECT_EQ(chat.at("prompt_tokens"), plain.at("prompt_tokens"));
  EXPECT_EQ(chat.at("text"), plain.at("text"));
  const auto thinking = told("--max-tokens 12 --chat --think --system 'say little' hello")[0];
  EXPECT_LT(thinking.at("prompt_tokens"), chat.at("prompt_tokens"));
  // A prompt that spells a special token is read as plain characters.
  EXPECT_GT(told("--max-tokens 1 --chat '<|im_end|>'")[0].at("prompt_tokens").get<int>(),
            told("--max-tokens 1 --chat 'x'")[0].at("prompt_tokens").get<int>() + 3);
}

TEST_F(Complete, StopsAtAnEndUnlessTold) {
  // Every token is made an end, so the first one ends the text.
  json config = json::parse(std::ifstream(path("model/generation_config.json")));
  std::vector<int> ids;
  for (int id = 0; id < 512; ++id) ids.push_back(id);
  config["eos_token_id"] = ids;
  std::ofstream(path("model/generation_config.json")) << config.dump();
  const json stopped = told("'a red ball' --max-tokens 9")[0];
  EXPECT_EQ(stopped.at("end"), "stop");
  EXPECT_EQ(stopped.at("tokens"), 0);
  EXPECT_EQ(told("'a red ball' --max-tokens 9 --ignore-eos")[0].at("tokens"), 9);
}

TEST_F(Complete, RefusesByNameAndValue) {
  const auto refused = [&](const std::string& more, const std::string& text, int code = 2) {
    const Outcome outcome = run(job(more + " </dev/null"));
    EXPECT_EQ(outcome.code, code) << more << "\n" << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << more << "\n" << outcome.err;
    EXPECT_EQ(lines(outcome.err), 1u) << outcome.err;
    EXPECT_TRUE(outcome.out.empty()) << outcome.out;
  };
  refused("x --temperature -1", "--temperature is -1, legal: 0 ... 100");
  refused("x --top-p 0", "--top-p is 0, legal");
  refused("x --top-k -2", "--top-k is -2, legal");
  refused("x --max-tokens 0", "--max-tokens is 0, legal: 1 ...");
  refused("x --max-tokens 5000", "nearest: 2048");
  refused("x --context 4096", "--context is 4096, legal: 1 ... 2048");
  refused("'a longer prompt than that' --context 3", "more than the 3 of --context");
  refused("x --seed -3", "--seed is '-3'");
  refused("x --ring-balance even", "--ring-balance is 'even', legal: zigzag|contiguous|light-seq");
  refused("x --resident-layers 1", "--resident-layers is 1, legal: 2 ...");
  refused("x --ranks 2 --layout cfg=2", "cfg=2 where guidance is off");
  refused("x --ranks 2 --layout data=2", "data is 2");
  refused("x --ranks 8 --layout tensor=8", "legal for 8 ranks");
  refused("x --device tpu", "--device is 'tpu'");
  refused("x --system y", "--system needs --chat");
  refused("x --think", "--think needs --chat");
  refused("x -p y", "exclude each other");
  refused("", "prompt 1 has no tokens");
  refused("x --max-tokens 2000 --memory-limit 700K", "Try --context 384 (", 4);
  refused("x --memory-limit 20K", "nothing that can be changed makes it fit", 4);
  refused("x --modle y", "did you mean --model?");
}

TEST_F(Complete, SaysWhatAFolderLacks) {
  const auto refused = [&](const std::string& folder, const std::string& text) {
    const Outcome outcome = run("complete x --model " + folder);
    EXPECT_EQ(outcome.code, 3) << outcome.err;
    EXPECT_NE(outcome.err.find(text), std::string::npos) << outcome.err;
  };
  refused(path("none"), "no folder that exists");
  refused("models/pocket", "is a video model's folder");
  refused("models/pocket/transformer", "a WanTransformer3DModel");
  refused("models/pocket/text_encoder", "model_type \"umt5\"; legal: the folder of a Qwen2.5");
  refused(kLanguageFolder, "has no tokenizer.json");
  json config = json::parse(std::ifstream(path("model/config.json")));
  config["vocab_size"] = 300;
  std::ofstream(path("model/config.json")) << config.dump();
  refused(path("model"), "a vocab_size of 300");
}

TEST_F(Complete, CtrlCKeepsWhatWasPrinted) {
  std::ofstream many(path("many.txt"));
  for (int i = 0; i < 400; ++i) many << "prompt " << i << "\n";
  many.close();
  const std::string script =
      WEFT_BINARY " " +
      job("--batch 1 --max-tokens 1500 --ignore-eos --prompt-file " + path("many.txt")) + " > " +
      path("out") + " 2> " + path("err") + " & until [ -s " + path("out") +
      " ]; do sleep 0.01; done; kill -INT $!; wait $!";
  std::ofstream(path("job.sh")) << script;
  const int status = std::system(("sh " + path("job.sh")).c_str());
  EXPECT_EQ(WEXITSTATUS(status), 130);
  std::ifstream file(path("out"));
  const std::string out((std::istreambuf_iterator<char>(file)), {});
  EXPECT_TRUE(out.starts_with("[1] prompt 0\n")) << out.substr(0, 40);
  EXPECT_EQ(out.find("[400]"), std::string::npos);
  std::ifstream said(path("err"));
  const std::string err((std::istreambuf_iterator<char>(said)), {});
  EXPECT_NE(err.find("stopped after "), std::string::npos) << err;
}

TEST_F(Complete, AClosedPipeEndsTheJob) {
  const std::string command = job("--batch 1 --max-tokens 900 --ignore-eos x y z 2>" + path("err") +
                                  " | head -c 1 > " + path("out"));
  run(command);
  std::ifstream said(path("err"));
  const std::string err((std::istreambuf_iterator<char>(said)), {});
  EXPECT_NE(err.find("standard output: Broken pipe"), std::string::npos) << err;
}

TEST_F(Complete, ProfileHasItsStages) {
  const json object = told("x --max-tokens 4 --profile")[1];
  std::vector<std::string> stages;
  for (const json& stage : object.at("profile").at("stages")) stages.push_back(stage.at("stage"));
  EXPECT_EQ(stages, (std::vector<std::string>{"load", "encode_text", "decode"}));
  EXPECT_EQ(run(job("x --max-tokens 4 --ranks 2 --trace " + path("t.json"))).code, 0);
  EXPECT_EQ(run(job("x --max-tokens 4 --trace " + path("t.json"))).code, 7);
}

TEST_F(Complete, InspectReadsTheFolder) {
  const json info = json::parse(run("inspect --json " + path("model")).out);
  EXPECT_EQ(info.at("class"), "Qwen3ForCausalLM");
  EXPECT_EQ(info.at("dtypes").at("f32"), info.at("tensors"));
  EXPECT_EQ(info.at("bytes"), 4 * info.at("parameters").get<int64_t>());
  const Outcome memory = run("inspect --json --dtype f32 --memory 1000 " + path("model"));
  ASSERT_EQ(memory.code, 0) << memory.err;
  const json plan = json::parse(memory.out);
  // The model has keys and values in two layers, with two heads of 16.
  EXPECT_EQ(plan.at("cache_bytes_per_token"), 2 * 2 * 2 * 16 * 4);
  EXPECT_EQ(plan.at("cache_bytes"), 1024 * 512);
  const Outcome wrong = run("inspect --memory 81x480x832 " + path("model"));
  EXPECT_EQ(wrong.code, 2);
  EXPECT_NE(wrong.err.find("--memory is '81x480x832'"), std::string::npos) << wrong.err;
}

// The loaded bytes agree with the prediction. Matrices as narrow as these are padded with zeros.
TEST_F(Complete, PredictedWeightsAreThoseLoaded) {
  for (const char* layout : {"", "ulysses=2", "ring=2", "tensor=2"}) {
    const std::string ranks = *layout ? std::string(" --ranks 2 --layout ") + layout : "";
    const json plan =
        json::parse(run("inspect --json --dtype f32 --memory 100 " + path("model") + ranks).out);
    const json done = told("x --max-tokens 2" + ranks)[1];
    EXPECT_GE(done.at("weights_bytes"), plan.at("weights_bytes")) << layout;
    EXPECT_LE(done.at("weights_bytes"), 1.9 * plan.at("weights_bytes").get<double>()) << layout;
  }
}

// Widths without padding are predicted exactly but for the norms' few bytes.
TEST_F(Complete, PredictedWeightsOfThePocketModel) {
  const std::string folder = "models/pocket/language";
  for (const char* dtype : {"f32", "bf16"}) {
    const std::string flags = std::string(" --json --dtype ") + dtype;
    const json plan = json::parse(run("inspect --memory 100 " + folder + flags).out);
    const Outcome outcome = run("complete -q --max-tokens 2 ball --model " + folder + flags);
    const json done = json::parse(outcome.out.substr(outcome.out.find('\n') + 1));
    EXPECT_NEAR(done.at("weights_bytes").get<double>(), plan.at("weights_bytes").get<double>(),
                0.01 * plan.at("weights_bytes").get<double>());
  }
}

TEST_F(Complete, ProcessesSayItOnce) {
  if (std::system("command -v mpirun > /dev/null") != 0) GTEST_SKIP() << "no mpirun";
  const std::string want = run(job("'a red ball' 'x' --max-tokens 20")).out;
  for (const char* layout : {"tensor=2", "ulysses=2"}) {
    const std::string command = "mpirun --allow-run-as-root --oversubscribe -n 2 " WEFT_BINARY " " +
                                job(std::string("--prompt-file ") + path("two.txt") +
                                    " --max-tokens 20 --layout " + layout) +
                                " > " + path("out") + " 2> " + path("err");
    std::ofstream(path("two.txt")) << "a red ball\nx\n";
    EXPECT_EQ(std::system(command.c_str()), 0);
    std::ifstream file(path("out"));
    EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}), want) << layout;
  }
  // A prompt file that the first process cannot read is an error of all processes, printed once.
  std::ofstream(path("job.sh")) << "mpirun --allow-run-as-root --oversubscribe -n 2 " WEFT_BINARY
                                   " "
                                << job("--prompt-file " + path("none")) << " 2> " << path("err");
  EXPECT_EQ(WEXITSTATUS(std::system(("sh " + path("job.sh")).c_str())), 2);
  std::ifstream said(path("err"));
  const std::string err((std::istreambuf_iterator<char>(said)), {});
  EXPECT_EQ(err.find("cannot be read"), err.rfind("cannot be read")) << err;
  EXPECT_NE(err.find("cannot be read"), std::string::npos) << err;
  EXPECT_EQ(err.find("rank 0 failed"), std::string::npos) << err;
  // Standard input goes to the first process alone.
  const std::string command =
      "printf 'a red ball' | mpirun --allow-run-as-root --oversubscribe "
      "-n 2 " WEFT_BINARY " " +
      job("--max-tokens 20 --layout tensor=2") + " > " + path("out");
  EXPECT_EQ(std::system(command.c_str()), 0);
  std::ifstream file(path("out"));
  EXPECT_EQ(std::string((std::istreambuf_iterator<char>(file)), {}),
            text("'a red ball' --max-tokens 20") + "\n");
}

}  // namespace
}  // namespace weft
