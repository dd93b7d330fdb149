// Krea-2 from single files with original names, which count as the distilled model.
#include "models/causal_decoder/decoder.h"
#include "models/krea2/names.h"
#include "models/krea2/transformer.h"
#include "tests/apps/cli_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/support/single_files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::Outcome, test::run;

const std::string kTurboFolder = "tests/golden/pipeline_krea2_turbo/model";

// A folder with all layers of the published text encoder, whose VAE has the published statistics:
// its files alone tell all of it.
class Krea2Files : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    published_ = path("published");
    fs::copy(kTurboFolder, published_, fs::copy_options::recursive);
    for (const char* folder : {"diffusion_models", "text_encoders", "vae"})
      fs::create_directories(path(folder));
    transformer_ = path("diffusion_models/krea2_turbo.safetensors");
    text_ = path("text_encoders/qwen3vl_4b.safetensors");
    vae_ = path("vae/qwen_image_vae.safetensors");
    make_transformer();
    make_text_encoder();
    edit(published_ + "/vae/config.json", [](json& config) {
      config.erase("latents_mean");
      config.erase("latents_std");
    });
    edit(published_ + "/model_index.json",
         [](json& index) { index["text_encoder_select_layers"] = nullptr; });
    test::save_vae(published_, vae_);
  }
  static void edit(const std::string& path, const std::function<void(json&)>& change) {
    json object = json::parse(std::ifstream(path));
    change(object);
    std::ofstream(path) << object.dump();
  }
  void make_transformer() {
    const std::string folder = published_ + "/transformer";
    edit(folder + "/config.json", [](json& config) {
      config["num_text_layers"] = 12;
      config["num_layers"] = 2;
      config["num_attention_heads"] = 4;
    });
    const Krea2Config config = Krea2Config::from_json_file(folder + "/config.json");
    // The norms of a file are those less one.
    test::NamedTensors tensors = test::random_weights(krea2_tensors(config), 3);
    for (auto& [name, tensor] : tensors)
      if (name.find("norm") != std::string::npos)
        for (int64_t i = 0; i < tensor.count(); ++i) tensor.as<float>()[i] -= 1;
    test::write_file(folder + "/diffusion_pytorch_model.safetensors", tensors);
    save_original(transformer_, "model.diffusion_model.");
  }
  // Writes the transformer with the names of single files, where a block's table is one row.
  void save_original(const std::string& path, const std::string& prefix) const {
    const TensorFile source = TensorFile::open(published_ + "/transformer");
    std::vector<std::pair<std::string, TensorView>> tensors;
    for (const std::string& name : source.names()) {
      const TensorView view = source.view(name);
      const bool flat = name.starts_with("transformer_blocks.") && name.ends_with("_table");
      tensors.emplace_back(prefix + krea2_original_name(name),
                           flat ? view.reshape({view.count()}) : view);
    }
    write_safetensors(path, tensors);
  }
  void make_text_encoder() {
    const std::string folder = published_ + "/text_encoder";
    edit(folder + "/config.json",
         [](json& config) { config["text_config"]["num_hidden_layers"] = 36; });
    test::NamedTensors tensors;
    const DecoderConfig config = DecoderConfig::from_json_file(folder + "/config.json");
    for (auto& [name, tensor] : test::random_weights(decoder_tensors(config), 7))
      tensors["language_model." + name] = std::move(tensor);
    test::write_file(folder + "/model.safetensors", tensors);
    save_encoder("model.language_model.");
  }
  void save_encoder(const std::string& prefix) const {
    test::resave(TensorFile::open(published_ + "/text_encoder"), text_,
                 [&](const std::string& name) {
                   return prefix + name.substr(std::string("language_model.").size());
                 });
  }
  std::string files() const {
    return "--transformer " + transformer_ + " --vae " + vae_ + " --text-encoder " + text_;
  }
  std::string tokenizer() const { return " --tokenizer " + published_ + "/tokenizer"; }
  std::string hash(const std::string& arguments, const std::string& name) {
    const Outcome outcome = run(
        "generate --json -q -p 'a small ball' --size 48x64 --seed 5 --threads 1 --progress none "
        "--overwrite " +
        arguments + " -o " + path(name));
    EXPECT_EQ(outcome.code, 0) << arguments << ": " << outcome.err;
    return outcome.code ? "" : json::parse(outcome.out).at("framehash").get<std::string>();
  }

  std::string published_;                 // a folder
  std::string transformer_, text_, vae_;  // files
};

TEST_F(Krea2Files, NeedNoFolder) {
  const std::string model = "--model " + published_, whole = hash(model, "a.png");
  EXPECT_EQ(hash(files() + tokenizer(), "b.png"), whole);
  const json request = json::parse(std::ifstream(path("b.png.json"))).at("request");
  EXPECT_EQ(request.at("steps"), 8);
  EXPECT_EQ(request.at("guidance_scale"), 0);
  const Outcome again = run("replay --json -q " + path("b.png"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("framehash"), whole);
  for (const std::string command : {"plan --size 48x64 ", "inspect --memory 1x64x48 "}) {
    const Outcome planned = run(command + files() + tokenizer());
    EXPECT_EQ(planned.code, 0) << planned.err;
  }
  // The prefixes that other tools write, and the tokenizer beside the encoder's folder.
  save_original(transformer_, "");
  save_encoder("model.");
  fs::copy(published_ + "/tokenizer", path("tokenizer"), fs::copy_options::recursive);
  EXPECT_EQ(hash(files(), "c.png"), whole);
}

TEST_F(Krea2Files, TakeThePlacesOfAFoldersParts) {
  const std::string model = "--model " + published_, whole = hash(model, "a.png");
  for (const std::string& file :
       {" --transformer " + transformer_, " --vae " + vae_, " --text-encoder " + text_})
    EXPECT_EQ(hash(model + file, "b.png"), whole) << file;
  // Other weights make another picture, also those of the last layer that is read.
  const TensorFile text = TensorFile::open(text_);
  test::NamedTensors tensors;
  for (const std::string& name : text.names()) tensors[name] = test::load_tensor(text, name);
  for (const auto& [layer, reads] : {std::pair{"34", true}, {"35", false}}) {
    Tensor& down =
        tensors.at(std::string("model.language_model.layers.") + layer + ".mlp.down_proj.weight");
    const auto turn = [&] {
      for (int64_t i = 0; i < down.count(); ++i) down.as<float>()[i] *= -1;
    };
    turn();
    test::write_file(path("other.safetensors"), tensors);
    turn();
    const std::string other = hash(model + " --text-encoder " + path("other.safetensors"), "c.png");
    EXPECT_EQ(other != whole, reads) << layer;
  }
}

TEST_F(Krea2Files, InspectTellsTheCommandThatRunsThem) {
  fs::copy(published_ + "/tokenizer", path("tokenizer"), fs::copy_options::recursive);
  fs::remove_all(published_);  // so that the files alone are found
  for (const std::string& file : {transformer_, text_, vae_}) {
    const Outcome outcome = run("inspect --json " + file);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json object = json::parse(outcome.out);
    ASSERT_TRUE(object.contains("command")) << object.dump(1);
    EXPECT_FALSE(object.contains("missing")) << object.dump(1);
    std::string command = object.at("command");
    command.replace(command.find("out.png"), std::string("out.png").size(), path("out.png"));
    command += " --size 48x64 --seed 5 --threads 1 -q --progress none --overwrite";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
  }
}

}  // namespace
}  // namespace weft
