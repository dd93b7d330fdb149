// LoRAs are facts of a job: its record, replay and resumption state them.
#include "io/weights/tensor_file.h"
#include "tests/apps/cli_testing.h"
#include "tests/apps/resume_testing.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

using nlohmann::json;

// A job without its length and its steps.
const std::string kSize = " --width 32 --height 16 --seed 5 --threads 1 --progress none ";

// Writes a file that adds `value` to the queries of the first block.
void write_lora(const std::string& path, float value, const std::string& model = kModel) {
  const TensorFile weights = TensorFile::open(model + "/transformer");
  Tensor difference(DType::kF32, weights.describe("blocks.0.attn1.to_q.weight").shape());
  std::fill_n(difference.as<float>(), difference.count(), value);
  difference.as<float>()[0] = -value;
  write_safetensors(path, {{"diffusion_model.blocks.0.self_attn.q.diff", difference}});
}

class LoraJob : public Cli {
 protected:
  Outcome drawn(const std::string& name, const std::string& more,
                const std::string& model = kModel) {
    const std::string frames = name.ends_with(".png") ? "1" : "9";
    const bool steps = more.find("--steps") != more.npos;
    return run("generate --json -q --model " + model + kSize + "-p x --overwrite --num-frames " +
               frames + (steps ? "" : " --steps 2") + " -o " + path(name) + " " + more);
  }
  std::string hash(const Outcome& outcome) {
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code ? "" : json::parse(outcome.out).at("framehash").get<std::string>();
  }
  // The path as records state it.
  std::string file(const std::string& name) {
    return fs::path(path(name)).lexically_normal().string();
  }
  json record(const std::string& name) {
    return json::parse(std::ifstream(path(name))).at("request");
  }
};

TEST_F(LoraJob, TheRecordStatesThemAndReplayTakesThem) {
  write_lora(path("one.safetensors"), 0.5);
  write_lora(path("two.safetensors"), -0.25);
  const std::string one = file("one.safetensors"), two = file("two.safetensors");
  const std::string plain = hash(drawn("plain.mp4", ""));
  const std::string first = hash(drawn("a.mp4", "--lora " + one));
  const std::string both = hash(drawn("b.mp4", "--lora " + one + ":0.5 --lora " + two));
  EXPECT_NE(plain, first);
  EXPECT_NE(first, both);
  EXPECT_EQ(hash(drawn("c.mp4", "--lora " + one + ":0")), plain);
  EXPECT_FALSE(record("plain.mp4.json").contains("lora"));
  EXPECT_EQ(record("a.mp4.json").at("lora"), one);
  EXPECT_EQ(record("b.mp4.json").at("lora"), one + ":0.5," + two);

  for (const auto& [name, expected] : {std::pair{"a.mp4", first}, {"b.mp4", both}}) {
    const Outcome again = run("replay -q --json " + path(name));
    ASSERT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(json::parse(again.out).at("framehash"), expected);
    EXPECT_EQ(json::parse(again.out).at("differences"), json::object());
  }
  write_lora(two, -0.75);  // the same header, other values: the frames tell
  EXPECT_EQ(run("replay -q " + path("b.mp4")).code, 1);
  fs::remove(two);
  const Outcome gone = run("replay -q " + path("b.mp4"));
  EXPECT_EQ(gone.code, 3);
  EXPECT_NE(gone.err.find("two.safetensors"), std::string::npos) << gone.err;
}

TEST_F(LoraJob, SplitsOfTheWidthAndTheLayersShareThem) {
  write_lora(path("one.safetensors"), 0.5);
  const std::string lora = " --lora " + path("one.safetensors");
  const std::string whole = hash(drawn("a.png", lora));
  for (const char* layout : {"cfg=2", "layers=2", "ulysses=2", "tensor=2"}) {
    const Outcome split = drawn("b.png", std::string("--ranks 2 --layout ") + layout + lora);
    EXPECT_EQ(split.code, 0) << layout << ": " << split.err;
    if (std::string(layout) == "cfg=2") {
      EXPECT_EQ(hash(split), whole);
    }
  }
}

TEST_F(LoraJob, WrongOnesAreRefusedByName) {
  write_lora(path("one.safetensors"), 0.5);
  const std::string one = file("one.safetensors");
  for (const auto& [lora, code, part] :
       {std::tuple{one + ":2:middle", 2, "--lora is '"},
        {one + ":1e9", 2, "a scale from -100 to 100"},
        {one + ":1:high", 2, "this model has one expert"},
        {path("none.safetensors"), 3, "none.safetensors: no such file"}}) {
    const Outcome outcome = drawn("a.mp4", "--lora " + lora);
    EXPECT_EQ(outcome.code, code) << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  }
  Tensor other(DType::kF32, {4, 4});
  std::fill_n(other.as<float>(), 16, 1.0f);
  write_safetensors(path("other.safetensors"), {{"unet.down.diff", other}});
  const Outcome outcome = drawn("a.mp4", "--lora " + path("other.safetensors"));
  EXPECT_EQ(outcome.code, 3) << outcome.err;
  EXPECT_NE(outcome.err.find("lacks 1 modules: \"unet.down\""), std::string::npos) << outcome.err;
  EXPECT_EQ(files(), (std::vector<std::string>{"one.safetensors", "other.safetensors"}));
}

// The prompts' rows are those of an encoder whose file has the changed weights, also in a cache.
TEST_F(LoraJob, TextEncodersAreChangedToo) {
  const std::string module = "encoder.block.0.layer.1.DenseReluDense.wo",
                    other = "lora_te1_text_model_encoder_layers_0_mlp_fc1";
  const TensorFile text = TensorFile::open(std::string(kModel) + "/text_encoder");
  Tensor changed = load_tensor(text, module + ".weight");
  Tensor difference(DType::kF32, changed.view().shape());
  for (int64_t i = 0; i < difference.count(); ++i) {
    difference.as<float>()[i] = 0.25f * static_cast<float>(i % 5 - 2);
    changed.as<float>()[i] += difference.as<float>()[i];
  }
  write_safetensors(path("one.safetensors"), {{"text_encoder." + module + ".diff", difference},
                                              {other + ".diff", difference}});
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const std::string& name : text.names())
    tensors.emplace_back(name, name == module + ".weight" ? changed.view() : text.view(name));
  write_safetensors(path("text.safetensors"), tensors);
  const std::string cache = " --cache-text " + path("cache"),
                    lora = cache + " --lora " + path("one.safetensors");
  const std::string plain = hash(drawn("a.png", cache)), with = hash(drawn("b.png", lora));
  EXPECT_NE(with, plain);
  EXPECT_EQ(hash(drawn("c.png", cache + " --text-encoder " + path("text.safetensors"))), with);
  EXPECT_EQ(hash(drawn("d.png", lora + ":0")), plain);
  EXPECT_EQ(hash(drawn("e.png", lora)), with);
  const Outcome told = run("generate --dry-run --model " + std::string(kModel) + kSize +
                           "-p x --num-frames 1 -o " + path("f.png") + lora);
  EXPECT_NE(
      told.err.find("warning: " + file("one.safetensors") +
                    ": leaves out what fits no text encoder of this model, 1 modules: \"" + other),
      std::string::npos)
      << told.err;
}

TEST_F(LoraJob, EachExpertHasItsOwn) {
  const std::string model = "tests/golden/pipeline_two_experts/model";
  write_lora(path("one.safetensors"), 0.5, model);
  const std::string one = " --steps 4 --lora " + path("one.safetensors");
  const std::string plain = hash(drawn("plain.png", "--steps 4", model));
  std::vector<std::string> hashes{plain};
  for (const char* scale : {":1:high", ":1:low", ""})
    hashes.push_back(hash(drawn("a.png", one + scale, model)));
  std::sort(hashes.begin(), hashes.end());
  EXPECT_EQ(std::unique(hashes.begin(), hashes.end()), hashes.end());
}

TEST_F(LoraJob, BatchesTakeTheOnesOfTheCommand) {
  write_lora(path("one.safetensors"), 0.5);
  const std::string one = file("one.safetensors");
  std::ofstream(path("jobs.jsonl"))
      << R"({"id":"a","prompt":"x"})"
      << "\n"
      << json{{"id", "b"}, {"prompt", "x"}, {"lora", one}}.dump() << "\n"
      << R"({"id":"c","prompt":"x","lora":"/elsewhere"})"
      << "\n";
  const Outcome outcome = run("batch " + path("jobs.jsonl") + " -q --model " + kModel + kSize +
                              "--num-frames 9 --steps 2 " + "--lora " + one + " -o " + path("out"));
  EXPECT_NE(outcome.code, 0);
  EXPECT_NE(outcome.err.find("lora is '/elsewhere', but the model was opened with '" + one),
            std::string::npos)
      << outcome.err;
}

// The checkpoint knows the files wherever the next command runs.
TEST_F(Resume, LorasComeAlong) {
  const std::string lora = fs::relative(folder_ + "/one.safetensors").string();
  write_lora(lora, 0.5);
  Child uninterrupted =
      start(job(300, "--json --lora " + lora + ":0.5 -o " + folder_ + "/whole.mp4"));
  ASSERT_EQ(uninterrupted.wait(), 0) << uninterrupted.err();
  const auto whole = json::parse(uninterrupted.out()).at("framehash");

  Child child = start(job(300, "--json --lora " + lora + ":0.5 -o " + path("a.mp4")));
  ASSERT_TRUE(child.says("\"stage\":\"denoise\",\"step\":3,"));
  child.signal(SIGINT);
  ASSERT_EQ(child.wait(), 130) << child.err();
  const std::string file = path("a.mp4.checkpoint.safetensors");
  Child other = start(job(300, "--json -o " + path("a.mp4")));
  EXPECT_EQ(other.wait(), 2);
  EXPECT_NE(other.err().find("belongs to another job"), std::string::npos) << other.err();
  Child again = start("generate --json --resume " + file);
  EXPECT_EQ(again.wait(), 0) << again.err();
  EXPECT_EQ(json::parse(again.out()).at("framehash"), whole);
}

}  // namespace
}  // namespace weft::test
