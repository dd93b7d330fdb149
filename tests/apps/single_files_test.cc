// Models of single files: --transformer, --vae, --text-encoder and --tokenizer.
#include "tests/support/single_files.h"

#include "models/random_weights/random_weights.h"
#include "models/wan/transformer.h"
#include "tests/apps/cli_testing.h"
#include "tests/support/gguf_text_encoder.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::kJob, test::kModel, test::Outcome, test::run;

class SingleFiles : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    test::save_transformer(kModel, path("transformer.safetensors"));
    test::save_vae(kModel, path("vae.safetensors"));
    test::save_text_encoder(kModel, path("text.safetensors"));
  }
  std::string hash(const std::string& arguments, const std::string& name) {
    const Outcome outcome = run("generate --json -q -p 'a small ball' --overwrite" + kJob +
                                arguments + " -o " + path(name));
    EXPECT_EQ(outcome.code, 0) << arguments << ": " << outcome.err;
    return outcome.code ? "" : json::parse(outcome.out).at("framehash").get<std::string>();
  }
  std::string parts() const {
    return " --transformer " + path("transformer.safetensors") + " --vae " +
           path("vae.safetensors") + " --text-encoder " + path("text.safetensors");
  }
  // A folder whose transformer has heads of 128, whose VAE has the published statistics, and whose
  // scheduler is the built-in one: its files alone tell all of it.
  std::string published() {
    const std::string folder = path("published");
    fs::copy(kModel, folder, fs::copy_options::recursive);
    fs::remove_all(folder + "/transformer");
    fs::create_directories(folder + "/transformer");
    WanConfig config = WanConfig::from_json_file(kModel + "/transformer/config.json");
    config.heads = 1;
    config.head_dim = 128;
    write_random(folder + "/transformer/diffusion_pytorch_model.safetensors", random_wan(config));
    edit(kModel + "/transformer/config.json", folder + "/transformer/config.json", [](json& c) {
      c["num_attention_heads"] = 1;
      c["attention_head_dim"] = 128;
      c["rope_max_seq_len"] = 1024;
    });
    edit(kModel + "/vae/config.json", folder + "/vae/config.json", [](json& c) {
      c.erase("latents_mean");
      c.erase("latents_std");
    });
    fs::remove(folder + "/tokenizer/tokenizer_config.json");
    return folder;
  }
  static void edit(const std::string& from, const std::string& to,
                   const std::function<void(json&)>& change) {
    json object = json::parse(std::ifstream(from));
    change(object);
    std::ofstream(to) << object.dump();
  }
  void expect_refused(const std::string& arguments, int code, const std::string& part) {
    const Outcome outcome = run("generate -q -p x " + kJob + arguments + " -o " + path("no.mp4"));
    EXPECT_EQ(outcome.code, code) << arguments << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(test::lines(outcome.err), 1u) << outcome.err;
  }
};

TEST_F(SingleFiles, DrawWhatTheFolderDraws) {
  const std::string model = "--model " + kModel;
  const std::string whole = hash(model, "a.mp4");
  EXPECT_EQ(hash(model + parts(), "b.mp4"), whole);
  for (const char* part : {"transformer", "vae"})
    EXPECT_EQ(hash(model + " --" + part + " " + path(std::string(part) + ".safetensors"), "c.mp4"),
              whole)
        << part;
  test::save_text_encoder(kModel, path("text.safetensors"), Umt5Spelling::kHuggingFace);
  EXPECT_EQ(hash(model + " --text-encoder " + path("text.safetensors"), "d.mp4"), whole);
  // The part of another folder, with its own config.
  EXPECT_EQ(hash(model + " --vae " + kModel + "/vae", "e.mp4"), whole);
}

TEST_F(SingleFiles, NeedNoFolder) {
  const std::string folder = published();
  test::save_transformer(folder, path("transformer.safetensors"), "diffusion_model.");
  const std::string whole = hash("--model " + folder, "a.mp4");
  EXPECT_EQ(hash(parts(), "b.mp4"), whole);
  const json record = json::parse(std::ifstream(path("b.mp4.json")));
  EXPECT_EQ(record.at("request").at("vae"),
            fs::path(path("vae.safetensors")).lexically_normal().string());
  const Outcome again = run("replay --json -q " + path("b.mp4"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("framehash"), whole);
  // A tokenizer of its own.
  test::resave(TensorFile::open(kModel + "/text_encoder"), path("text.safetensors"),
               [](const std::string& name) { return name; });
  expect_refused(parts(), 2, "holds no tokenizer: give --tokenizer FILE");
  for (const std::string tokenizer : {"/tokenizer", "/tokenizer/spiece.model"})
    EXPECT_EQ(hash(parts() + " --tokenizer " + folder + tokenizer, "c.mp4"), whole);
  const Outcome planned = run("plan --size 32x16 --num-frames 9 --steps 2" + parts() +
                              " --tokenizer " + kModel + "/tokenizer");
  EXPECT_EQ(planned.code, 0) << planned.err;
  const Outcome memory =
      run("inspect --memory 9x16x32" + parts() + " --tokenizer " + kModel + "/tokenizer");
  EXPECT_EQ(memory.code, 0) << memory.err;
}

// One file of all parts, each under a prefix of its own.
TEST_F(SingleFiles, AFileOfAllPartsNeedsNoOther) {
  const std::string folder = published(),
                    all = fs::path(path("all/model.safetensors")).lexically_normal().string();
  fs::create_directories(path("all"));
  test::save_transformer(folder, path("transformer.safetensors"), "");
  std::vector<TensorFile> files;
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const auto& [file, prefix] :
       {std::pair<std::string, std::string>{"transformer", "model.diffusion_model."},
        {"vae", "first_stage_model."},
        {"text", "text_encoders.umt5xxl.transformer."}}) {
    files.push_back(TensorFile::open(path(file + ".safetensors")));
    for (const std::string& name : files.back().names())
      tensors.emplace_back((name == "spiece_model" ? "text_encoders." : prefix) + name,
                           files.back().view(name));
  }
  write_safetensors(all, tensors);
  const std::string whole = hash("--model " + folder, "a.mp4"), model = "--model " + folder;
  EXPECT_EQ(hash(" --transformer " + all, "b.mp4"), whole);
  EXPECT_EQ(hash(model + " --vae " + all + " --text-encoder " + all, "c.mp4"), whole);
  const Outcome again = run("replay --json -q " + path("b.mp4"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("framehash"), whole);
  const json told = json::parse(run("inspect --json " + all).out);
  EXPECT_EQ(told.at("holds"), json::parse(R"([
      {"prefix": "model.diffusion_model.", "part": "transformer", "class": "WanTransformer3DModel"},
      {"prefix": "text_encoders.umt5xxl.transformer.", "part": "text_encoder",
       "class": "UMT5EncoderModel"},
      {"prefix": "first_stage_model.", "part": "vae", "class": "AutoencoderKLWan"}])"));
  EXPECT_FALSE(told.contains("missing")) << told.dump();
  EXPECT_NE(told.at("command").get<std::string>().find(" --vae " + all), std::string::npos);
}

// The encoder of a GGUF file, which holds the tokenizer, too.
TEST_F(SingleFiles, NeedNoFolderBesideAGgufTextEncoder) {
  const std::string folder = published();
  test::save_transformer(folder, path("transformer.safetensors"), "");
  const std::string whole = hash("--model " + folder, "a.mp4");
  for (const auto& type : {std::optional<BlockType>(), std::optional(BlockType::kQ8_0)}) {
    test::save_gguf_text_encoder(kModel, path("text.gguf"), type);
    const std::string others =
        " --transformer " + path("transformer.safetensors") + " --vae " + path("vae.safetensors");
    const std::string drawn = hash(others + " --text-encoder " + path("text.gguf"), "b.mp4");
    EXPECT_TRUE(drawn == whole || type);
    EXPECT_EQ(drawn, hash("--model " + folder + " --text-encoder " + path("text.gguf"), "c.mp4"));
    const Outcome again = run("replay --json -q " + path("b.mp4"));
    EXPECT_EQ(again.code, 0) << again.err;
    EXPECT_EQ(json::parse(again.out).at("framehash"), drawn);
  }
}

TEST_F(SingleFiles, ResumeTakesTheSame) {
  const std::string model = "--model " + kModel;
  const std::string whole = hash(model + parts(), "a.mp4");
  const Outcome outcome = run("generate -q -p 'a small ball'" + kJob + model + parts() +
                              " --keep-latents -o " + path("b.mp4"));
  ASSERT_EQ(outcome.code, 0) << outcome.err;
  fs::remove(path("b.mp4"));
  const Outcome resumed =
      run("generate --json -q --overwrite --resume " + path("b.mp4.latents.safetensors"));
  ASSERT_EQ(resumed.code, 0) << resumed.err;
  EXPECT_EQ(json::parse(resumed.out).at("framehash"), whole);
}

TEST_F(SingleFiles, MissingPartsNameTheirFlags) {
  const std::string folder = published();
  test::save_transformer(folder, path("transformer.safetensors"), "");
  const std::string transformer = " --transformer " + path("transformer.safetensors"),
                    vae = " --vae " + path("vae.safetensors"),
                    text = " --text-encoder " + path("text.safetensors");
  expect_refused(transformer, 2, "give --text-encoder FILE, a UMT5EncoderModel");
  expect_refused(transformer + text, 2, "give --vae FILE, an AutoencoderKLWan");
  expect_refused(vae + text, 2, "needs --model FOLDER or --transformer FILE");
  expect_refused(transformer + text + " --vae " + path("none"), 2, "no file that exists");
  expect_refused(transformer + vae + " --text-encoder " + path("vae.safetensors") +
                     " --tokenizer " + kModel + "/tokenizer",
                 3, "holds the vae AutoencoderKLWan (legal here: UMT5EncoderModel)");
  expect_refused(" --transformer " + path("text.safetensors") + vae + text, 3,
                 "holds the text_encoder UMT5EncoderModel (legal for --transformer: ");
  expect_refused("--model " + kModel + " --vae " + path("text.safetensors"), 3, "legal here: ");
  // Heads of 12 do not follow from tensors.
  test::save_transformer(kModel, path("transformer.safetensors"));
  expect_refused(transformer + text + vae, 3, "the number of heads does not follow");
}

TEST_F(SingleFiles, NamesThatContradictAreTold) {
  const std::string two = "tests/golden/pipeline_two_experts/model";
  const std::string low = path("wan_low_noise.safetensors"), high = path("wan_High.safetensors");
  test::save_transformer(two, high);
  test::save_transformer(two, low, "", "transformer_2");
  const auto told = [&](const std::string& arguments) {
    return run("generate -p x --overwrite" + kJob + "--model " + two + arguments + " -o " +
               path("a.mp4"))
        .err;
  };
  const std::string right = told(" --transformer " + high + " --transformer-2 " + low);
  EXPECT_EQ(right.find("noise, and"), std::string::npos) << right;
  const std::string wrong = told(" --transformer " + low + " --transformer-2 " + high);
  EXPECT_NE(wrong.find("whose name says low noise, and --transformer is the expert of high noise"),
            std::string::npos)
      << wrong;
  EXPECT_NE(wrong.find("--transformer-2 is the expert of low noise"), std::string::npos) << wrong;
}

// The number of heads follows from no tensor. The config.json beside a file tells it, if it is that
// of the tensors.
TEST_F(SingleFiles, InspectReadsTheConfigBesideAFile) {
  const auto config = [&](const std::string& file) {
    const Outcome outcome = run("inspect --json " + file);
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    return outcome.code ? "" : json::parse(outcome.out).value("config", "");
  };
  const std::string published = "models/pocket/transformer/diffusion_pytorch_model.safetensors";
  EXPECT_NE(config(published).find("4 heads x 32"), std::string::npos) << config(published);
  fs::create_directories(path("alone"));
  const std::string file = path("alone/pocket.safetensors"), beside = path("alone/config.json");
  fs::copy(published, file);
  EXPECT_NE(config(file).find("1 heads x 128"), std::string::npos) << config(file);
  fs::copy("models/pocket/transformer/config.json", beside);
  EXPECT_NE(config(file).find("4 heads x 32"), std::string::npos) << config(file);
  edit(beside, beside, [](json& c) { c["num_layers"] = 3; });  // of another model
  EXPECT_NE(config(file).find("1 heads x 128"), std::string::npos) << config(file);
}

TEST_F(SingleFiles, InspectTellsTheCommandThatRunsThem) {
  const std::string folder = published();
  fs::create_directories(path("split/diffusion_models"));
  fs::create_directories(path("split/vae"));
  fs::create_directories(path("split/text encoders"));
  const std::string transformer = path("split/diffusion_models/one.safetensors");
  test::save_transformer(folder, transformer);
  fs::rename(path("vae.safetensors"), path("split/vae/two.safetensors"));
  fs::rename(path("text.safetensors"), path("split/text encoders/three.safetensors"));
  for (const char* file : {"diffusion_models/one", "vae/two", "text encoders/three"}) {
    const Outcome outcome = run("inspect --json '" + path("split/") + file + ".safetensors'");
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json object = json::parse(outcome.out);
    ASSERT_TRUE(object.contains("command")) << object.dump(1);
    EXPECT_FALSE(object.contains("missing")) << object.dump(1);
    std::string command = object.at("command");
    command.replace(command.find("out.mp4"), std::string("out.mp4").size(), path("out.mp4"));
    EXPECT_EQ(std::system((command + kJob + "-q --overwrite").c_str()), 0) << command;
  }
  const json text = json::parse(
      run("inspect --json '" + path("split/text encoders/three.safetensors") + "'").out);
  EXPECT_EQ(text.at("part"), "text_encoder");
  EXPECT_EQ(text.at("class"), "UMT5EncoderModel");
  EXPECT_EQ(text.at("tokenizer"), "inside");
  fs::remove(path("split/vae/two.safetensors"));
  const json lone = json::parse(run("inspect --json " + transformer).out);
  EXPECT_EQ(lone.at("missing"), json::array({"--vae FILE (AutoencoderKLWan)"}));
  EXPECT_NE(lone.at("command").get<std::string>().find("--vae FILE"), std::string::npos);
}

}  // namespace
}  // namespace weft
