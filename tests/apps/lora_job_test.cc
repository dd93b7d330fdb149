// LoRAs are facts of a job: its record, replay and resumption state them.
#include "apps/serve/jobs/older_jobs.h"
#include "apps/worker/job_team.h"
#include "engine/job/job_spec.h"
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

// The lines of a batch, by id.
std::map<std::string, json> results_in(const std::string& folder) {
  std::map<std::string, json> out;
  std::ifstream file(folder + "/results.jsonl");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  for (const json& line : json_lines(text))
    out[line.at("custom_id")] = line.at("response").at("body");
  return out;
}

TEST_F(LoraJob, LinesOfABatchHaveTheirOwn) {
  write_lora(path("one.safetensors"), 0.5);
  write_lora(path("two.safetensors"), -0.25);
  const std::string one = file("one.safetensors"), two = file("two.safetensors");
  std::ofstream jobs(path("jobs.jsonl"));
  for (const auto& [id, lora] : {std::pair{"base", "none"}, {"two", two.c_str()}, {"empty", ""}})
    jobs << json{{"id", id}, {"prompt", "x"}, {"lora", lora}}.dump() << "\n";
  jobs << json{{"id", "both"}, {"prompt", "x"}, {"lora", one + ":0.5," + two}}.dump() << "\n"
       << R"({"id":"command","prompt":"x"})"
       << "\n";
  jobs.close();
  const std::string batch = "batch " + path("jobs.jsonl") + " -q --model " + kModel + kSize +
                            "--num-frames 9 --steps 2 --lora " + one + " -o ";
  const std::map<std::string, std::string> expected{
      {"base", hash(drawn("a.mp4", ""))},
      {"empty", hash(drawn("a.mp4", ""))},
      {"two", hash(drawn("a.mp4", "--lora " + two))},
      {"both", hash(drawn("a.mp4", "--lora " + one + ":0.5 --lora " + two))},
      {"command", hash(drawn("a.mp4", "--lora " + one))}};
  for (const std::string& more :
       {std::string(), std::string(" --ranks 2 --layout cfg=2"), " --store " + path("store")}) {
    const std::string out = path("out" + std::to_string(more.size()));
    const Outcome outcome = run(batch + out + more);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    for (const auto& [id, body] : results_in(out))
      EXPECT_EQ(body.at("framehash"), expected.at(id)) << id << more;
    EXPECT_EQ(results_in(out).size(), expected.size());
    const auto lora_of = [&](const std::string& id) {
      return json::parse(std::ifstream(out + "/" + id + ".mp4.json")).at("request");
    };
    EXPECT_FALSE(lora_of("base").contains("lora"));
    EXPECT_EQ(lora_of("both").at("lora"), one + ":0.5," + two);
    EXPECT_EQ(lora_of("command").at("lora"), one);
    const Outcome again = run("replay -q " + out + "/both.mp4");
    EXPECT_EQ(again.code, 0) << again.err;
  }
  // A result is not drawn again, but another LoRA is another request.
  EXPECT_EQ(run(batch + path("out0")).code, 0);
  std::ofstream(path("jobs.jsonl")) << json{{"id", "two"}, {"prompt", "x"}, {"lora", one}}.dump();
  const Outcome other = run(batch + path("out0"));
  EXPECT_EQ(other.code, 2);
  EXPECT_NE(other.err.find("its id 'two' has a result of another request"), std::string::npos)
      << other.err;
}

TEST_F(LoraJob, LinesWhoseLorasDoNotFitAreNamed) {
  Tensor other(DType::kF32, {4, 4});
  std::fill_n(other.as<float>(), 16, 1.0f);
  write_safetensors(path("other.safetensors"), {{"unet.down.diff", other}});
  std::ofstream jobs(path("jobs.jsonl"));
  jobs << R"({"id":"a","prompt":"x"})"
       << "\n";
  for (const std::string& lora :
       {std::string("/elsewhere"), path("other.safetensors"), std::string("x:1000")})
    jobs << json{{"id", "b" + lora.substr(lora.size() - 5)}, {"prompt", "x"}, {"lora", lora}}.dump()
         << "\n";
  jobs.close();
  const Outcome outcome = run("batch " + path("jobs.jsonl") + " -q --model " + kModel + kSize +
                              "--num-frames 9 --steps 2 -o " + path("out"));
  EXPECT_EQ(outcome.code, 2);
  for (const char* part :
       {"line 2: /elsewhere: no such file", "line 3: ", "lacks 1 modules: \"unet.down\"",
        "line 4: lora is 'x:1000', legal: FILE", "3 of 4 jobs"})
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(path("out/a.mp4")));
}

// A preset's LoRA is found by its published name, and those of the user take its place.
TEST_F(LoraJob, PresetsBringTheirs) {
  const std::string model = path("tiny-qwen");
  fs::copy("tests/golden/pipeline_qwen_image/model", model, fs::copy_options::recursive);
  const auto with = [&](const std::string& name, const std::string& more) {
    return run("generate --json -q --overwrite --model " + model + kSize +
               "-p x --num-frames 1 -o " + path(name) + " " + more);
  };
  const std::string preset = "--preset qwen-image-lightning-4 ";
  const Outcome missing = with("a.png", preset);
  EXPECT_EQ(missing.code, 2);
  EXPECT_NE(missing.err.find("its LoRA Qwen-Image-Lightning-4steps-V2.0.safetensors (lightx2v/"),
            std::string::npos)
      << missing.err;
  const TensorFile weights = TensorFile::open(model + "/transformer");
  const std::string module = "transformer_blocks.0.attn.to_q";
  Tensor difference(DType::kF32, weights.describe(module + ".weight").shape());
  std::fill_n(difference.as<float>(), difference.count(), 0.125f);
  difference.as<float>()[0] = -1;
  fs::create_directories(model + "/loras");
  const std::string lora = model + "/loras/Qwen-Image-Lightning-4steps-V2.0.safetensors";
  write_safetensors(lora, {{module + ".diff", difference}});
  const std::string fields = "--steps 4 --guidance-scale 1 --flow-shift 3 ";
  const std::string drawn = hash(with("a.png", preset));
  EXPECT_EQ(drawn, hash(with("b.png", fields + "--lora " + lora)));
  EXPECT_EQ(hash(with("c.png", preset + "--lora " + lora + ":0.5")),
            hash(with("d.png", fields + "--lora " + lora + ":0.5")));
  EXPECT_EQ(record("a.png.json").at("lora"), fs::path(lora).lexically_normal().string());
  EXPECT_FALSE(record("a.png.json").contains("preset"));
  for (const auto& [more, part] :
       {std::pair{preset + "--lora none", "--lora is none, but --preset is"},
        {preset + "--steps 8", "--steps is 8, but --preset is qwen-image-lightning-4"},
        {std::string("--preset wan2.1-t2v-lightx2v-4"),
         "belongs to wan2.1-t2v-14b, but the model is qwen-image or qwen-image-2512; legal with "
         "it: "
         "distill-4, "}}) {
    const Outcome refused = with("e.png", more);
    EXPECT_EQ(refused.code, 2);
    EXPECT_NE(refused.err.find(part), std::string::npos) << refused.err;
  }
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

// Servers of earlier versions opened the model with the LoRAs, which were a part of the program.
std::string older_program(const std::string& lora) {
  const Generator generator(
      std::make_shared<const OpenModel>(kModel, parse_loras(lora, "lora"), PartFiles{}), {});
  JobSpec job;
  job.request.prompt = "-";
  const auto label = [](const std::string& field) { return field; };
  return job_hash(generator.job_record(
      generator.resolve(request_of(job, generator.defaults(), generator.limits(), label))));
}

TEST_F(LoraJob, JobsThatAnOlderServerQueuedWithThemAreTakenOver) {
  write_lora(path("one.safetensors"), 0.5);
  write_lora(path("gone.safetensors"), 0.25);
  const std::string one = file("one.safetensors") + ":0.5", gone = file("gone.safetensors");
  const Generator now(std::make_shared<const OpenModel>(kModel, std::vector<Lora>{}, PartFiles{}),
                      {});
  JobStore store(path("jobs.sqlite"));
  const auto submit = [&](const std::string& id, const std::string& program,
                          const std::string& lora) {
    store.submit({.id = id,
                  .program = program,
                  .request = "{}",
                  .resolved = json{{"prompt", "x"}, {"lora", lora}}.dump(),
                  .output = path(id)});
  };
  submit("a", older_program(one), one);
  submit("b", older_program(one), one);
  submit("c", older_program(gone), gone);
  submit("d", "another model", one);
  submit("e", program_of(now), one);
  std::filesystem::remove(path("gone.safetensors"));
  OlderJobs older(now, program_of(now));
  EXPECT_EQ(older.take_over(store), 2);
  EXPECT_EQ(older.take_over(store), 0);
  for (const char* id : {"a", "b", "e"}) EXPECT_EQ(store.find(id)->job.program, program_of(now));
  EXPECT_EQ(store.find("d")->job.program, "another model");
  EXPECT_NE(store.find("c")->job.program, program_of(now));
  submit("f", older_program(one), one);  // by a server that still runs
  EXPECT_EQ(older.take_over(store), 1);
}

}  // namespace
}  // namespace weft::test
