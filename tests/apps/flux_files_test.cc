// FLUX.1 from single files: two text encoders, whose order the user need not know.
#include "models/clip_towers/text.h"
#include "tests/apps/cli_testing.h"
#include "tests/models/slices_testing.h"
#include "tests/support/single_files.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::Cli, test::Outcome, test::run;

const std::string kFluxFolder = "tests/golden/pipeline_flux_dev/model";
const std::string kFluxJob = " --size 64x64 --steps 2 --seed 5 --threads 1 --progress none ";

// A folder whose transformer has heads of 128, whose CLIP has heads of 64, and whose VAE has 16
// latent channels: its files alone tell all of it.
class FluxFiles : public Cli {
 protected:
  void SetUp() override {
    Cli::SetUp();
    folder_of_model_ = path("published");
    transformer_ = path("unet/flux1-dev.safetensors");
    t5_ = path("clip/t5xxl_fp16.safetensors");
    clip_ = path("clip/clip_l.safetensors");
    vae_ = path("vae/ae.safetensors");
    for (const char* folder : {"unet", "clip", "vae"}) fs::create_directories(path(folder));
    fs::copy(kFluxFolder, folder_of_model_, fs::copy_options::recursive);
    make_transformer();
    make_clip();
    make_vae();
    test::save_flux_transformer(TensorFile::open(folder_of_model_ + "/transformer"), flux_,
                                transformer_, "model.diffusion_model.");
    test::resave(TensorFile::open(folder_of_model_ + "/text_encoder_2"), t5_,
                 [](const std::string& name) { return name; });
    test::save_kl_vae(TensorFile::open(folder_of_model_ + "/vae"), vae_config_, vae_);
  }
  static void edit(const std::string& path, const json& changes) {
    json object = json::parse(std::ifstream(path));
    object.update(changes);
    std::ofstream(path) << object.dump();
  }
  void make_transformer() {
    const std::string folder = folder_of_model_ + "/transformer";
    flux_.heads = 1;
    flux_.double_blocks = flux_.single_blocks = 1;
    flux_.text_dim = 24;
    flux_.pooled_dim = 64;
    test::write_file(folder + "/diffusion_pytorch_model.safetensors",
                     test::random_weights(flux_tensors(flux_), 3));
    edit(folder + "/config.json", {{"num_attention_heads", 1},
                                   {"attention_head_dim", 128},
                                   {"axes_dims_rope", {16, 56, 56}},
                                   {"num_layers", 1},
                                   {"num_single_layers", 1},
                                   {"in_channels", 64},
                                   {"pooled_projection_dim", 64}});
  }
  // It has positions by number, as clip_l.safetensors does.
  void make_clip() {
    const std::string folder = folder_of_model_ + "/text_encoder";
    const ClipTextConfig config{
        .blocks = {.width = 64, .ffn = 96, .heads = 1, .layers = 2, .names = kClipBlockNames},
        .vocab_size = 545,
        .end_id = 544};
    test::NamedTensors tensors;
    for (auto& [name, tensor] : test::random_weights(clip_text_tensors(config), 7))
      tensors["text_model." + name] = std::move(tensor);
    test::write_file(folder + "/model.safetensors", tensors);
    edit(folder + "/config.json",
         {{"hidden_size", 64}, {"num_attention_heads", 1}, {"intermediate_size", 96}});
    tensors["text_model.embeddings.position_ids"] = Tensor(DType::kI64, {1, 77});
    test::write_file(clip_, tensors);
  }
  void make_vae() {
    const std::string folder = folder_of_model_ + "/vae";
    vae_config_.channels = {32, 32, 32};
    vae_config_.resnets = 1;
    vae_config_.quant_conv = vae_config_.post_quant_conv = false;
    test::write_file(folder + "/diffusion_pytorch_model.safetensors",
                     test::random_weights(kl_vae_tensors(vae_config_), 9));
    edit(folder + "/config.json",
         {{"block_out_channels", {32, 32, 32}}, {"latent_channels", 16}, {"norm_num_groups", 32}});
  }
  std::string hash(const std::string& arguments, const std::string& name) {
    const Outcome outcome = run("generate --json -q -p 'a small ball' --overwrite" + kFluxJob +
                                arguments + " -o " + path(name));
    EXPECT_EQ(outcome.code, 0) << arguments << ": " << outcome.err;
    return outcome.code ? "" : json::parse(outcome.out).at("framehash").get<std::string>();
  }
  void expect_refused(const std::string& arguments, int code, const std::string& part) {
    const Outcome outcome =
        run("generate -q -p x " + kFluxJob + arguments + " -o " + path("no.png"));
    EXPECT_EQ(outcome.code, code) << arguments << ": " << outcome.err;
    EXPECT_NE(outcome.err.find(part), std::string::npos) << outcome.err;
    EXPECT_EQ(test::lines(outcome.err), 1u) << outcome.err;
  }

  std::string folder_of_model_;
  FluxConfig flux_;
  KlVaeConfig vae_config_{.scaling_factor = 0.3611f, .shift_factor = 0.1159f};
  std::string transformer_, t5_, clip_, vae_;  // files
};

TEST_F(FluxFiles, NeedNoFolderAndNoOrder) {
  const std::string whole = hash("--model " + folder_of_model_, "a.png"),
                    base = "--transformer " + transformer_ + " --vae " + vae_,
                    spiece = folder_of_model_ + "/tokenizer_2/spiece.model",
                    vocab = folder_of_model_ + "/tokenizer";
  EXPECT_EQ(hash(base + " --text-encoder " + t5_ + " --text-encoder-2 " + clip_ + " --tokenizer " +
                     spiece + " --tokenizer-2 " + vocab,
                 "b.png"),
            whole);
  EXPECT_EQ(hash(base + " --text-encoder " + clip_ + " --text-encoder-2 " + t5_ + " --tokenizer " +
                     spiece + " --tokenizer-2 " + vocab + "/vocab.json",
                 "c.png"),
            whole);
  EXPECT_EQ(hash(base + " --text-encoder " + clip_ + " --text-encoder-2 " + t5_ + " --tokenizer " +
                     vocab + " --tokenizer-2 " + folder_of_model_ + "/tokenizer_2",
                 "d.png"),
            whole);
  const json record = json::parse(std::ifstream(path("d.png.json")));
  EXPECT_EQ(record.at("request").at("text_encoder_2"), fs::path(t5_).lexically_normal().string());
  const Outcome again = run("replay --json -q " + path("d.png"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_EQ(json::parse(again.out).at("framehash"), whole);
  const std::string all = base + " --text-encoder " + t5_ + " --text-encoder-2 " + clip_ +
                          " --tokenizer " + spiece + " --tokenizer-2 " + vocab;
  for (const std::string command : {"plan --size 64x64 --steps 2 ", "inspect --memory 1x64x64 "}) {
    const Outcome planned = run(command + all);
    EXPECT_EQ(planned.code, 0) << planned.err;
  }
}

TEST_F(FluxFiles, TokenizersAreFoundBesideTheEncoders) {
  const std::string whole = hash("--model " + folder_of_model_, "a.png"),
                    files = "--transformer " + transformer_ + " --vae " + vae_ +
                            " --text-encoder " + t5_ + " --text-encoder-2 " + clip_;
  // Both lie in the folder of the encoders, or in folders beside it.
  for (const char* name : {"vocab.json", "merges.txt"})
    fs::copy(folder_of_model_ + "/tokenizer/" + name, path("clip"));
  fs::copy(folder_of_model_ + "/tokenizer_2/spiece.model", path("clip"));
  EXPECT_EQ(hash(files, "b.png"), whole);
  EXPECT_EQ(hash(files + " --tokenizer-2 " + path("clip"), "c.png"), whole);
  for (const char* name : {"vocab.json", "merges.txt", "spiece.model"})
    fs::remove(path("clip/") + name);
  for (const char* name : {"tokenizer", "tokenizer_2"})
    fs::copy(folder_of_model_ + "/" + name, path(name), fs::copy_options::recursive);
  EXPECT_EQ(hash(files, "d.png"), whole);
  // T5's is inside its weights.
  fs::remove_all(path("tokenizer_2"));
  test::resave(
      TensorFile::open(folder_of_model_ + "/text_encoder_2"), t5_,
      [](const std::string& name) { return name; }, "spiece_model",
      test::file_bytes(folder_of_model_ + "/tokenizer_2/spiece.model"));
  EXPECT_EQ(hash(files, "e.png"), whole);
}

TEST_F(FluxFiles, TakeThePlacesOfAFoldersParts) {
  const std::string model = "--model " + folder_of_model_, whole = hash(model, "a.png");
  for (const std::string& file :
       {" --transformer " + transformer_, " --vae " + vae_, " --text-encoder " + t5_,
        " --text-encoder " + clip_, " --text-encoder-2 " + clip_, " --text-encoder-2 " + t5_,
        " --tokenizer-2 " + folder_of_model_ + "/tokenizer_2/spiece.model",
        " --tokenizer " + folder_of_model_ + "/tokenizer/merges.txt"})
    EXPECT_EQ(hash(model + file, "b.png"), whole) << file;
  // Other weights make another picture.
  test::NamedTensors tensors;
  const TensorFile clip = TensorFile::open(clip_);
  for (const std::string& name : clip.names())
    if (!name.ends_with("position_ids")) tensors[name] = test::load_tensor(clip, name);
  Tensor& norm = tensors.at("text_model.final_layer_norm.bias");
  for (int64_t i = 0; i < norm.count(); ++i) norm.as<float>()[i] = static_cast<float>(i % 5) - 2;
  test::write_file(path("other.safetensors"), tensors);
  EXPECT_NE(hash(model + " --text-encoder-2 " + path("other.safetensors"), "c.png"), whole);
  // The cache of prompts tells them apart.
  const std::string cache = " --cache-text " + path("cache");
  EXPECT_EQ(hash(model + cache, "d.png"), whole);
  EXPECT_NE(hash(model + cache + " --text-encoder " + path("other.safetensors"), "e.png"), whole);
}

TEST_F(FluxFiles, MissingAndWrongPartsNameTheirFlags) {
  const std::string transformer = "--transformer " + transformer_, vae = " --vae " + vae_,
                    t5 = " --text-encoder " + t5_, clip = " --text-encoder " + clip_,
                    spiece = folder_of_model_ + "/tokenizer_2/spiece.model";
  expect_refused(transformer, 2, "give --text-encoder FILE, a T5EncoderModel");
  expect_refused(transformer + t5, 2, "give --text-encoder-2 FILE, a CLIPTextModel");
  expect_refused(transformer + clip, 2, "give --text-encoder-2 FILE, a T5EncoderModel");
  expect_refused(transformer + " --text-encoder-2 " + t5_, 2,
                 "give --text-encoder FILE, a CLIPTextModel");
  const std::string both = transformer + t5 + " --text-encoder-2 " + clip_;
  expect_refused(both, 2, "give --vae FILE, an AutoencoderKL");
  expect_refused(both + vae, 2, "holds no tokenizer: give --tokenizer FILE (spiece.model)");
  expect_refused(both + vae + " --tokenizer " + spiece, 2,
                 "holds no tokenizer: give --tokenizer-2 FILE (vocab.json and merges.txt, or ");
  expect_refused(both + vae + " --tokenizer " + spiece + " --tokenizer-2 " + spiece, 2,
                 "two tokenizers of one kind (spiece.model)");
  expect_refused(both + vae + " --tokenizer " + transformer_, 2, "which is no tokenizer of a");
  expect_refused(transformer + vae + t5 + " --text-encoder-2 " + t5_, 2,
                 "which are neither a CLIPTextModel (legal: a T5EncoderModel and a CLIPTextModel");
  expect_refused(transformer + vae + clip + " --text-encoder-2 " + clip_, 2,
                 "which are both a CLIPTextModel");
  expect_refused(transformer + vae + clip + " --text-encoder-2 " + vae_ + " --tokenizer " + spiece +
                     " --tokenizer-2 " + folder_of_model_ + "/tokenizer",
                 3, "holds the vae AutoencoderKL (legal here: T5EncoderModel)");
  expect_refused("--model " + test::kModel + " --text-encoder-2 " + t5_, 2,
                 "but a WanPipeline has one text encoder");
  expect_refused("--model " + test::kModel + " --tokenizer-2 " + spiece, 2,
                 "but a WanPipeline has one text encoder");
}

TEST_F(FluxFiles, InspectTellsTheCommandThatRunsThem) {
  for (const char* name : {"vocab.json", "merges.txt"})
    fs::copy(folder_of_model_ + "/tokenizer/" + name, path("clip"));
  fs::copy(folder_of_model_ + "/tokenizer_2/spiece.model", path("clip"));
  const json inside = json::parse(
      run("inspect --json " + folder_of_model_ + "/text_encoder/model.safetensors").out);
  const std::string own = inside.at("command");
  EXPECT_NE(own.find("/published --prompt "), std::string::npos) << own;
  EXPECT_TRUE(own.ends_with("-o out.png")) << own;
  fs::rename(folder_of_model_, path("unet/elsewhere"));  // so that the files alone are found
  for (const std::string& file : {transformer_, t5_, clip_, vae_}) {
    const Outcome outcome = run("inspect --json " + file);
    ASSERT_EQ(outcome.code, 0) << outcome.err;
    const json object = json::parse(outcome.out);
    ASSERT_TRUE(object.contains("command")) << object.dump(1);
    EXPECT_FALSE(object.contains("missing")) << object.dump(1);
    std::string command = object.at("command");
    EXPECT_NE(command.find(" --text-encoder-2 "), std::string::npos) << command;
    command.replace(command.find("out.png"), std::string("out.png").size(), path("out.png"));
    EXPECT_EQ(std::system((command + kFluxJob + "-q --overwrite").c_str()), 0) << command;
  }
  const json clip = json::parse(run("inspect --json " + clip_).out);
  EXPECT_EQ(clip.at("part"), "text_encoder");
  EXPECT_EQ(clip.at("class"), "CLIPTextModel");
  fs::remove(path("clip/merges.txt"));
  fs::remove(t5_);
  const json lone = json::parse(run("inspect --json " + transformer_).out);
  EXPECT_EQ(lone.at("missing"),
            json::array({"--text-encoder FILE (T5EncoderModel)",
                         "--tokenizer-2 FILE (vocab.json and merges.txt, or tokenizer.json)"}));
  const std::string command = lone.at("command");
  EXPECT_NE(command.find(" --text-encoder FILE --text-encoder-2 /"), std::string::npos) << command;
  EXPECT_NE(command.find("/clip_l.safetensors --tokenizer-2 FILE --vae /"), std::string::npos)
      << command;
}

// A LoRA changes a file with the original names as it changes the folder.
TEST_F(FluxFiles, ALoraChangesEither) {
  test::NamedTensors lora;
  for (const auto& [module, rows] : {std::pair{"double_blocks.0.img_attn.qkv", 3 * 128},
                                     {"single_blocks.0.linear1", 7 * 128},
                                     {"final_layer.adaLN_modulation.1", 2 * 128}}) {
    const std::string name = std::string("diffusion_model.") + module;
    for (auto& [tensor, values] : test::random_weights(
             {{name + ".lora_up.weight", {rows, 4}}, {name + ".lora_down.weight", {4, 128}}}, 11))
      lora[tensor] = std::move(values);
  }
  test::write_file(path("style.safetensors"), lora);
  const std::string model = "--model " + folder_of_model_,
                    more = " --lora " + path("style.safetensors");
  const std::string plain = hash(model, "a.png"), styled = hash(model + more, "b.png");
  EXPECT_NE(styled, plain);
  EXPECT_EQ(hash(model + more + " --transformer " + transformer_, "c.png"), styled);
}

}  // namespace
}  // namespace weft
