// Files of single parts: configurations from tensors, other spellings of names, tokenizers inside.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>

#include "io/weights/weights_file.h"
#include "models/autoencoder_kl/vae.h"
#include "models/causal_decoder/names.h"
#include "models/causal_decoder/text_model.h"
#include "models/files/part_prefix.h"
#include "models/files/tokenizer_files.h"
#include "models/registry.h"
#include "models/umt5/encoder.h"
#include "tests/support/error_of.h"
#include "tests/support/gguf_text_encoder.h"
#include "tests/support/single_files.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

class PartFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "weft_part_" +
              testing::UnitTest::GetInstance()->current_test_info()->name();
    fs::remove_all(folder_);
    fs::create_directories(folder_);
  }
  void TearDown() override { fs::remove_all(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  std::string folder_;
};

// The names and shapes of tensors as one text.
std::string listed(const std::vector<TensorSpec>& tensors) {
  std::string text;
  for (const TensorSpec& tensor : tensors) {
    text += tensor.name + " [";
    for (const int64_t extent : tensor.shape) text += std::to_string(extent) + " ";
    text += "]\n";
  }
  return text;
}

// The rows of some ids, as an encoder gives them from a file.
Tensor rows_of(const TextEncoderModel& model, const TensorFile& file,
               const std::vector<int32_t>& ids) {
  Stream stream = Stream::cpu(1, Determinism::kFixed);
  Arena arena(size_t{1} << 30);
  SerialSeams seams;
  const auto encoder = model.load(stream, file, {});
  const auto n = static_cast<int64_t>(ids.size());
  Context context = seams.context(stream, arena, {}, TokenRanges::all(n));
  Tensor out(DType::kF32, {n, model.traits().columns});
  encoder->encode(context, ids, out);
  return out;
}

TEST_F(PartFile, WanVaeConfigsFollowFromTensors) {
  for (const std::string name : {"vae21_tiny_decode3", "vae21_mult_decode2", "vae22_decode3"}) {
    const std::string model = "tests/golden/" + name + "/model";
    const WanVaeConfig config = WanVaeConfig::from_json_file(model + "/vae/config.json");
    if (config.z_dim != 16 && config.z_dim != 48) {
      EXPECT_THROW(WanVaeConfig::from_tensors(TensorFile::open(model + "/vae")), Error) << name;
      continue;
    }
    save_vae(model, path("vae.safetensors"));
    for (const std::string& file : {model + "/vae", path("vae.safetensors")}) {
      const TensorFile opened = TensorFile::open(file);
      EXPECT_TRUE(holds_wan_vae(opened));
      const WanVaeConfig read = WanVaeConfig::from_tensors(opened);
      EXPECT_EQ(listed(wan_vae_tensors(read)), listed(wan_vae_tensors(config))) << name;
      EXPECT_EQ(read.temporal_downsample, config.temporal_downsample);
      EXPECT_EQ(read.patch_size, config.patch_size);
    }
  }
}

TEST_F(PartFile, PublishedWanVaesFollowFromTensors) {
  WanVaeConfig large{.base_dim = 160,
                     .decoder_base_dim = 256,
                     .z_dim = 48,
                     .in_channels = 12,
                     .out_channels = 12,
                     .patch_size = 2,
                     .residual = true};
  large.latents_mean.resize(48);
  large.latents_std.resize(48, 1);
  for (const WanVaeConfig& config : {WanVaeConfig(), large}) {
    std::vector<TensorSpec> tensors = wan_vae_tensors(config);
    for (TensorSpec& tensor : tensors) tensor.name = wan_vae_original_name(config, tensor.name);
    const WanVaeConfig read = WanVaeConfig::from_tensors(without_values(tensors));
    EXPECT_EQ(listed(wan_vae_tensors(read)), listed(wan_vae_tensors(config)));
    EXPECT_EQ(read.z_dim, std::ssize(read.latents_mean));
  }
  const WanVaeConfig read = WanVaeConfig::from_tensors(without_values(wan_vae_tensors(large)));
  EXPECT_FLOAT_EQ(read.latents_mean[47], -0.0667f);
  EXPECT_FLOAT_EQ(read.latents_std[47], 0.7744f);
}

TEST_F(PartFile, KlVaesHaveTwoSpellings) {
  const std::string folder = "tests/golden/vae_kl_decode/model/vae";
  const KlVaeConfig config = KlVaeConfig::from_json_file(folder + "/config.json");
  const TensorFile source = TensorFile::open(folder);
  save_kl_vae(source, config, path("ae.safetensors"));
  const TensorFile file = TensorFile::open(path("ae.safetensors"));
  EXPECT_TRUE(file.contains("decoder.up." + std::to_string(config.channels.size() - 1) +
                            ".block.0.conv1.weight"));
  ASSERT_TRUE(holds_kl_vae(file));
  for (const TensorFile* each : {&source, &file}) {
    if (config.latent_channels != 16 || config.groups != 32) break;
    EXPECT_EQ(listed(kl_vae_tensors(KlVaeConfig::from_tensors(*each))),
              listed(kl_vae_tensors(config)));
  }
  Stream stream = Stream::cpu(1, Determinism::kFixed);
  Arena arena(size_t{1} << 30);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, {});
  Tensor latent(DType::kF32, {config.latent_channels, 4, 4});
  for (int64_t i = 0; i < latent.count(); ++i)
    latent.as<float>()[i] = static_cast<float>(i % 7) / 7;
  std::vector<std::vector<double>> pictures;
  for (const TensorFile* each : {&source, &file}) {
    const Vae vae(make_kl_vae_model(config), *each, stream, DType::kF32, VaeParts::kDecoder);
    VaeDecoder decoder(vae, 4, 4);
    const Tensor frames(DType::kF32, {1, 3, decoder.height(), decoder.width()});
    decoder.decode_chunk(context, latent, frames);
    pictures.push_back(to_f64(frames));
  }
  EXPECT_EQ(pictures[0], pictures[1]);
}

TEST_F(PartFile, TextEncodersHaveThreeSpellings) {
  const std::vector<int32_t> ids{5, 17, 3, 9, 1};
  for (const std::string name : {"umt5", "t5"}) {
    const std::string folder = "tests/golden/" + name + "/model/text_encoder";
    const TensorFile source = TensorFile::open(folder);
    const Umt5Config config = Umt5Config::from_json_file(folder + "/config.json");
    const std::vector<double> expected = to_f64(rows_of(*make_umt5_model(config), source, ids));
    for (const Umt5Spelling spelling :
         {Umt5Spelling::kHuggingFace, Umt5Spelling::kOriginal, Umt5Spelling::kGguf}) {
      const auto renamed = [&](const std::string& own) {
        return umt5_name(spelling, own == "encoder.embed_tokens.weight" ? "shared.weight" : own);
      };
      const std::string file =
          path(spelling == Umt5Spelling::kGguf ? "text.gguf" : "text.safetensors");
      if (spelling == Umt5Spelling::kGguf)
        write_gguf(file, TensorFile::open(folder), std::nullopt, renamed);
      else
        resave(source, file, renamed);
      const TensorFile opened = open_weights(file);
      EXPECT_EQ(find_umt5_spelling(opened), spelling);
      EXPECT_EQ(holds_umt5(opened), name == "umt5");
      EXPECT_EQ(holds_t5(opened), name == "t5");
      const Umt5Config read = Umt5Config::from_tensors(opened);
      EXPECT_EQ(listed(umt5_tensors(read)), listed(umt5_tensors(config)));
      EXPECT_EQ(to_f64(rows_of(*make_umt5_model(read), opened, ids)), expected);
    }
  }
}

TEST_F(PartFile, TokenizersAreReadFromMetadataAndTensors) {
  for (const std::string name : {"tokenizer_spm", "tokenizer_spm_nofallback"}) {
    const std::string golden = "tests/golden/" + name;
    const std::string pieces = file_bytes(golden_part(name, "tokenizer") + "/spiece.model");
    const TensorFile weights = TensorFile::open("tests/golden/umt5/model/text_encoder");
    const auto same = [](const std::string& own) { return own; };
    resave(weights, path("text.safetensors"), same, "spiece_model", pieces);
    write_gguf(path("text.gguf"), TensorFile::open("tests/golden/umt5/model/text_encoder"),
               std::nullopt, same, t5_metadata(pieces));
    const nlohmann::json spec = read_json_file(golden + "/case.json");
    for (const char* file : {"text.safetensors", "text.gguf"}) {
      EXPECT_TRUE(holds_tokenizer(path(file)));
      const SentencePieceTokenizer tokenizer = open_sentencepiece(path(file));
      for (size_t i = 0; i < spec.at("texts").size(); ++i) {
        const auto text = spec["texts"][i].get<std::string>();
        EXPECT_EQ(tokenizer.encode(text, spec.at("max_length")),
                  spec["ids"][i].get<std::vector<int32_t>>())
            << file << ": " << text;
      }
    }
  }
  EXPECT_FALSE(holds_tokenizer("tests/golden/umt5/model/text_encoder"));
  EXPECT_THROW(open_byte_bpe(path("text.gguf")), Error);
  EXPECT_THROW(open_byte_bpe(path("text.safetensors")), Error);
}

// The kind of a tokenizer follows from what its path holds.
TEST_F(PartFile, TokenizersAreToldByWhatTheyHold) {
  const std::string spiece = golden_part("tokenizer_spm", "tokenizer"),
                    clip = "tests/golden/tokenizer_clip/model/tokenizer",
                    bpe = "tests/golden/tokenizer_bpe_qwen/model/tokenizer";
  const TensorFile weights = TensorFile::open("tests/golden/t5/model/text_encoder");
  const auto same = [](const std::string& own) { return own; };
  const std::string pieces = file_bytes(spiece + "/spiece.model");
  resave(weights, path("inside.safetensors"), same, "spiece_model", pieces);
  write_gguf(path("inside.gguf"), TensorFile::open("tests/golden/t5/model/text_encoder"),
             std::nullopt, same, t5_metadata(pieces));
  resave(weights, path("bare.safetensors"), same);
  std::ofstream(path("clip.json")) << R"({"model": {"end_of_word_suffix": "</w>"}})";
  using Kind = TokenizerKind;
  for (const auto& [holder, kinds] : std::vector<std::pair<std::string, std::vector<Kind>>>{
           {spiece, {Kind::kSentencePiece}},
           {spiece + "/spiece.model", {Kind::kSentencePiece}},
           {path("inside.safetensors"), {Kind::kSentencePiece}},
           {path("inside.gguf"), {Kind::kSentencePiece}},
           {clip, {Kind::kClip}},
           {clip + "/vocab.json", {Kind::kClip}},
           {clip + "/merges.txt", {Kind::kClip}},
           {path("clip.json"), {Kind::kClip}},
           {bpe, {Kind::kByteBpe}},
           {bpe + "/tokenizer.json", {Kind::kByteBpe}},
           {path("bare.safetensors"), {}},
           {path("none"), {}},
           {"tests/golden/t5/model/text_encoder", {}}})
    for (const Kind kind : {Kind::kSentencePiece, Kind::kByteBpe, Kind::kClip})
      EXPECT_EQ(is_tokenizer(holder, kind), std::ranges::count(kinds, kind) == 1)
          << holder << " " << files_of(kind);
  for (const std::string& from : {clip, clip + "/vocab.json", clip + "/merges.txt"})
    EXPECT_EQ(open_clip_tokenizer(from).encode("a cat", 77).size(),
              ClipTokenizer::open_folder(clip).encode("a cat", 77).size());
}

TEST_F(PartFile, TokenizersAreFoundAroundAnEncoder) {
  const std::string spiece = golden_part("tokenizer_spm", "tokenizer"),
                    clip = "tests/golden/tokenizer_clip/model/tokenizer";
  using Kind = TokenizerKind;
  fs::create_directories(path("encoders"));
  const std::string file = path("encoders/t5.safetensors");
  const TensorFile weights = TensorFile::open("tests/golden/t5/model/text_encoder");
  resave(weights, file, [](const std::string& own) { return own; });
  EXPECT_EQ(find_tokenizer(file, Kind::kSentencePiece, "tokenizer_2"), "");
  EXPECT_EQ(find_tokenizer(file, Kind::kClip, "tokenizer"), "");
  fs::copy(spiece, path("tokenizer_2"), fs::copy_options::recursive);
  fs::copy(clip, path("tokenizer"), fs::copy_options::recursive);
  EXPECT_EQ(find_tokenizer(file, Kind::kSentencePiece, "tokenizer_2"), path("tokenizer_2"));
  EXPECT_EQ(find_tokenizer(file, Kind::kClip, "tokenizer"), path("tokenizer"));
  EXPECT_EQ(find_tokenizer(path("encoders"), Kind::kClip, "tokenizer"), path("tokenizer"));
  fs::copy(spiece + "/spiece.model", path("encoders"));
  fs::copy(clip, path("encoders/tokenizer"), fs::copy_options::recursive);
  EXPECT_EQ(find_tokenizer(file, Kind::kSentencePiece, "tokenizer_2"),
            path("encoders/spiece.model"));
  EXPECT_EQ(find_tokenizer(file, Kind::kClip, "tokenizer"), path("encoders/tokenizer"));
}

TEST_F(PartFile, TheTokenizerOfASplitFileIsInItsFirstPart) {
  const std::string spiece = "models/pocket/tokenizer/spiece.model";
  const auto split = [](uint16_t number) {
    return std::vector<std::string>{gguf_entry("split.no", 2, le(number)),
                                    gguf_entry("split.count", 2, le<uint16_t>(2))};
  };
  std::vector<std::string> entries = t5_metadata(file_bytes(spiece));
  for (const std::string& entry : split(0)) entries.push_back(entry);
  const std::string first = path("t-00001-of-00002.gguf"), second = path("t-00002-of-00002.gguf");
  write_gguf(
      first, TensorFile::open("tests/golden/t5/model/text_encoder"), std::nullopt,
      [](const std::string& name) { return name; }, entries);
  const GgufBytes more{.entries = split(1),
                       .tensors = {gguf_tensor("more", {1}, 0, 0)},
                       .data = std::string(4, '\0')};
  std::ofstream(second, std::ios::binary) << more.file();
  const std::vector<int32_t> ids = SentencePieceTokenizer::load(spiece).encode("a red ball", 16);
  for (const std::string& part : {first, second}) {
    EXPECT_EQ(find_tokenizer(part, TokenizerKind::kSentencePiece, "tokenizer"), part);
    EXPECT_EQ(open_sentencepiece(part).encode("a red ball", 16), ids) << part;
  }
}

// A component of a folder.
struct SourcePart {
  PartKind kind;
  std::string part, folder;
};
const SourcePart kSourceParts[] = {
    {PartKind::kTransformer, "transformer", "models/pocket/transformer"},
    {PartKind::kVae, "vae", "tests/golden/vae21_tiny_decode3/model/vae"},
    {PartKind::kTextEncoder, "text_encoder", "tests/golden/umt5/model/text_encoder"},
    {PartKind::kTextEncoder, "text_encoder", "tests/golden/t5/model/text_encoder"},
    {PartKind::kTextEncoder, "text_encoder", "tests/golden/llm_qwen3_tied/model"},
    {PartKind::kAudioEncoder, "audio_encoder",
     "tests/golden/wav2vec2_bare_names/model/audio_encoder"},
};

// Appends the tensors of a file under a prefix.
void append_under(const TensorFile& file, const std::string& prefix,
                  std::vector<std::pair<std::string, TensorView>>& out) {
  for (const std::string& name : file.names()) out.emplace_back(prefix + name, file.view(name));
}

TEST_F(PartFile, EveryPrefixLeadsToEveryKindOfComponent) {
  const std::vector<std::string> prefixes{"",
                                          "vae.",
                                          "first_stage_model.",
                                          "model.",
                                          "net.",
                                          "dit.",
                                          "module.",
                                          "_orig_mod.",
                                          "diffusion_model.",
                                          "model.diffusion_model.",
                                          "text_encoders.umt5xxl.transformer.",
                                          "text_encoders.a.transformer.model.",
                                          "module._orig_mod.",
                                          "_orig_mod.module.net.",
                                          "model.net.dit.",
                                          "module.vae._orig_mod.",
                                          "first_stage_model.model.",
                                          "conditioner.embedders.0.transformer."};
  for (const SourcePart& source : kSourceParts) {
    const TensorFile wants = TensorFile::open(source.folder);
    for (const std::string& prefix : prefixes) {
      SCOPED_TRACE(source.folder + " under '" + prefix + "'");
      std::vector<std::pair<std::string, TensorView>> tensors;
      append_under(wants, prefix, tensors);
      write_safetensors(path("x.safetensors"), tensors);
      const std::vector<ComponentFacts> held = held_components(path("x.safetensors"));
      ASSERT_EQ(held.size(), 1u);
      EXPECT_EQ(held[0].part, source.part);
      const TensorFile file = open_part_weights(source.kind, path("x.safetensors"));
      ASSERT_EQ(file.names().size(), wants.names().size());
      for (const std::string& name : wants.names()) {
        ASSERT_TRUE(file.contains(name)) << name;
        const TensorView is = file.view(name), want = wants.view(name);
        ASSERT_EQ(std::memcmp(is.data, want.data, want.bytes()), 0) << name;
      }
    }
  }
}

// Compiled and sharded modules have parts inside of their names, too.
TEST_F(PartFile, WrappersInsideOfNamesAreLeftOut) {
  const TensorFile wants = TensorFile::open("models/pocket/transformer");
  std::vector<std::pair<std::string, TensorView>> tensors;
  for (const std::string& name : wants.names()) {
    std::string theirs = "module." + name;
    if (const size_t at = theirs.find(".attn1."); at != theirs.npos)
      theirs.insert(at + 1, "_fsdp_wrapped_module._orig_mod.");
    tensors.emplace_back(theirs, wants.view(name));
  }
  write_safetensors(path("x.safetensors"), tensors);
  EXPECT_EQ(open_part_weights(PartKind::kTransformer, path("x.safetensors")).names(),
            wants.names());
  tensors.emplace_back("module._orig_mod.proj_out.bias", wants.view("proj_out.bias"));
  write_safetensors(path("x.safetensors"), tensors);
  expect_error(ErrorKind::kModel, "two tensors are called \"proj_out.bias\"",
               [&] { open_part_weights(PartKind::kTransformer, path("x.safetensors")); });
}

TEST_F(PartFile, AFileOfAllPartsHoldsThemAll) {
  std::vector<TensorFile> files;
  std::vector<std::pair<std::string, TensorView>> tensors;
  const std::vector<std::pair<std::string, std::string>> parts{
      {"model.diffusion_model.", "models/pocket/transformer"},
      {"text_encoders.t5xxl.transformer.", "tests/golden/t5/model/text_encoder"},
      {"text_encoders.umt5xxl.transformer.", "tests/golden/umt5/model/text_encoder"},
      {"vae.", "tests/golden/vae21_tiny_decode3/model/vae"}};
  for (const auto& [prefix, folder] : parts) {
    files.push_back(TensorFile::open(folder));
    append_under(files.back(), prefix, tensors);
  }
  const Tensor more(DType::kF32, {1});
  tensors.emplace_back("text_encoders.t5xxl.logit_scale", more.view());
  tensors.emplace_back("model_ema.decay", more.view());
  write_safetensors(path("all.safetensors"), tensors);
  const std::vector<ComponentFacts> held = held_components(path("all.safetensors"));
  ASSERT_EQ(held.size(), parts.size());
  for (size_t i = 0; i < held.size(); ++i) EXPECT_EQ(held[i].prefix, parts[i].first);
  EXPECT_EQ(held[1].class_name, "T5EncoderModel");
  EXPECT_EQ(held[2].class_name, "UMT5EncoderModel");
  const auto names = [&](PartKind kind, const char* class_name) {
    return open_part_weights(kind, path("all.safetensors"), class_name).names();
  };
  EXPECT_EQ(names(PartKind::kTransformer, nullptr), files[0].names());
  EXPECT_EQ(names(PartKind::kTextEncoder, "T5EncoderModel"), files[1].names());
  EXPECT_EQ(names(PartKind::kTextEncoder, "UMT5EncoderModel"), files[2].names());
  EXPECT_EQ(names(PartKind::kVae, "AutoencoderKLWan"), files[3].names());
  // The transformer may have no prefix; the other parts are left out all the same.
  for (auto& [name, view] : tensors)
    if (name.starts_with("model.diffusion_model.")) name = name.substr(22);
  std::erase_if(tensors, [](const auto& tensor) { return tensor.first == "model_ema.decay"; });
  write_safetensors(path("all.safetensors"), tensors);
  EXPECT_EQ(names(PartKind::kTransformer, nullptr), files[0].names());
}

// The guide lists what the tables have.
TEST(WeightsGuide, HasThePrefixesAndTypesOfTheTables) {
  const auto quoted = [](std::span<const char* const> list) {
    std::string text;
    for (const char* each : list) text += (text.empty() ? "`" : ", `") + std::string(each) + "`";
    return text;
  };
  const std::string guide = file_bytes("apps/guide/weights.md");
  for (const std::string& list :
       {quoted(component_prefixes()) + "\n  of components",
        quoted(wrapper_prefixes()) + " of wrappers", quoted(wrapper_parts()) + " are left out",
        "| " + known_gguf_types() + " |"})
    EXPECT_TRUE(contains(guide, list)) << list;
}

// The number of heads follows from no tensor. The config.json beside a file tells it, if it is that
// of the tensors.
TEST_F(PartFile, ConfigsBesideAFileAreReadWhereTheyFit) {
  const std::string folder = "models/pocket/transformer", file = path("pocket.safetensors");
  fs::copy(folder + "/diffusion_pytorch_model.safetensors", file);
  const auto description = [&] { return held_components(file).at(0).description; };
  EXPECT_TRUE(contains(description(), "1 heads x 128"));
  fs::copy(folder + "/config.json", path("config.json"));
  EXPECT_TRUE(contains(description(), "4 heads x 32"));
  EXPECT_EQ(open_transformer(TensorFile::open(file))->traits().heads, 4);
  nlohmann::json config = read_json_file(path("config.json"));
  config["num_layers"] = 3;  // of another model
  std::ofstream(path("config.json")) << config.dump();
  EXPECT_TRUE(contains(description(), "1 heads x 128"));
  std::ofstream(path("config.json")) << "no JSON";
  EXPECT_TRUE(contains(description(), "1 heads x 128"));
}

// A Qwen tokenizer as llama.cpp's converter writes it.
std::vector<std::string> qwen_metadata(const nlohmann::json& tokenizer) {
  std::map<int64_t, std::pair<std::string, int32_t>> by_id;
  for (const auto& [token, id] : tokenizer.at("model").at("vocab").items()) by_id[id] = {token, 1};
  for (const auto& token : tokenizer.at("added_tokens"))
    by_id[token.at("id")] = {token.at("content"), token.at("special") ? 3 : 4};
  std::vector<std::string> tokens, merges;
  std::vector<int32_t> types;
  const int64_t size = by_id.rbegin()->first + 3;
  for (int64_t id = 0; id < size; ++id) {
    const auto found = by_id.find(id);
    tokens.push_back(found == by_id.end() ? "[PAD" + std::to_string(id) + "]"
                                          : found->second.first);
    types.push_back(found == by_id.end() ? 5 : found->second.second);
  }
  for (const auto& merge : tokenizer.at("model").at("merges"))
    merges.push_back(merge.is_string()
                         ? merge.get<std::string>()
                         : merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  return {gguf_entry("general.architecture", 8, gguf_text("qwen3")),
          gguf_entry("tokenizer.ggml.model", 8, gguf_text("gpt2")),
          gguf_entry("tokenizer.ggml.pre", 8, gguf_text("qwen2")),
          gguf_texts("tokens", tokens),
          gguf_numbers("token_type", 5, types),
          gguf_texts("merges", merges)};
}

TEST_F(PartFile, DecodersHaveTheNamesOfLlamaCpp) {
  const std::string golden = "tests/golden/tokenizer_bpe_qwen";
  const nlohmann::json tokenizer = read_json_file(golden + "/model/tokenizer/tokenizer.json",
                                                  JsonDialect::kStrict, {.values = 1 << 22});
  for (const std::string name : {"llm_qwen3_tied", "llm_qwen3_untied", "llm_qwen2_bias"}) {
    const std::string folder = "tests/golden/" + name + "/model";
    const TensorFile source = TensorFile::open(folder);
    const DecoderConfig config = DecoderConfig::from_json_file(folder + "/config.json");
    const DecoderNames own = detect_decoder_names(source);
    const DecoderNames theirs{.prefix = "", .gguf = true};
    std::map<std::string, std::string> spelled;
    for (const TensorSpec& tensor : decoder_tensors(config))
      spelled[own(tensor.name)] = theirs(tensor.name);
    std::vector<std::string> entries = qwen_metadata(tokenizer);
    const std::string start = "qwen3.";
    entries.push_back(gguf_entry(start + "attention.head_count", 4,
                                 le<uint32_t>(static_cast<uint32_t>(config.heads))));
    const auto theta = std::bit_cast<uint32_t>(static_cast<float>(config.rope_theta));
    entries.push_back(gguf_entry(start + "rope.freq_base", 6, le(theta)));
    write_gguf(
        path("text.gguf"), TensorFile::open(folder), std::nullopt,
        [&](const std::string& each) { return spelled.at(each); }, entries);
    const TensorFile opened = open_weights(path("text.gguf"));
    EXPECT_EQ(holds_qwen3(opened), config.head_norms);
    EXPECT_EQ(holds_qwen2(opened), !config.head_norms);
    const DecoderConfig read = DecoderConfig::from_tensors(opened);
    EXPECT_EQ(listed(decoder_tensors(read)), listed(decoder_tensors(config)));
    EXPECT_EQ(read.heads, config.heads);
    EXPECT_EQ(read.rope_theta, static_cast<double>(static_cast<float>(config.rope_theta)));
    const std::vector<int32_t> ids{5, 17, 3, 9, 1};
    for (const DecoderRows rows : {DecoderRows::kBeforeLast, DecoderRows::kFinal})
      EXPECT_EQ(to_f64(rows_of(*make_decoder_text_model(read, rows), opened, ids)),
                to_f64(rows_of(*make_decoder_text_model(config, rows), source, ids)));
  }
  const nlohmann::json spec = read_json_file(golden + "/case.json");
  const ByteBpeTokenizer bpe = open_byte_bpe(path("text.gguf"));
  for (size_t i = 0; i < spec.at("texts").size(); ++i)
    EXPECT_EQ(bpe.encode(spec["texts"][i].get<std::string>()),
              spec["ids"][i].get<std::vector<int32_t>>())
        << spec["texts"][i];
}

}  // namespace
}  // namespace weft::test
