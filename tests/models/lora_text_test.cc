// The parts of LoRA files that change text encoders.
#include "models/causal_decoder/text_model.h"
#include "models/clip_towers/text.h"
#include "models/umt5/encoder.h"
#include "models/umt5/names.h"
#include "tests/models/lora_testing.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Renamed = std::function<std::string(const std::string&)>;

class TextLora : public LoraTest {
 protected:
  TextLora() {
    umt5_.d_model = 16;
    umt5_.d_kv = 4;
    umt5_.d_ff = 24;
    umt5_.num_heads = 4;
    umt5_.num_layers = 2;
    umt5_.vocab_size = 32;
    clip_.blocks.names = kClipBlockNames;
    clip_.blocks.width = 12;
    clip_.blocks.ffn = 20;
    clip_.blocks.heads = 2;
    clip_.blocks.layers = 2;
    clip_.vocab_size = 32;
    clip_.positions = 8;
    first_ = make_umt5_model(umt5_);
    second_ = make_clip_text_model(clip_);
    save(*first_, rows_, [](const std::string& name) { return name; });
    save(*second_, pooled_, [](const std::string& name) { return "text_model." + name; });
  }
  void save(const TextEncoderModel& model, std::shared_ptr<const TensorFile>& file,
            const Renamed& renamed) {
    NamedTensors tensors;
    for (auto& [name, value] : random_weights(model.tensors(), 7))
      tensors[renamed(name)] = std::move(value);
    const std::string path = dir_ / ("text" + std::to_string(++saved_) + ".safetensors");
    write_file(path, tensors);
    file = std::make_shared<const TensorFile>(TensorFile::open(path));
  }
  void change(const std::vector<Lora>& loras) {
    notes_.clear();
    const TextEncoderWeights encoders[] = {{*first_, rows_}, {*second_, pooled_}};
    change_text_encoders(encoders, loras, notes_);
  }
  // A LoRA of rank 3 for a module, in the spelling of kohya or of PEFT.
  Given pair(const std::string& module, int64_t rows, int64_t columns, int seed = 1) {
    const bool flat = module.starts_with("lora_");
    return {{module + (flat ? ".lora_up" : ".lora_B") + ".weight", tensor_of({rows, 3}, seed)},
            {module + (flat ? ".lora_down" : ".lora_A") + ".weight",
             tensor_of({3, columns}, seed + 1)}};
  }
  // Expects the pair, and nothing else, in one of the two files, and then restores them.
  void expect_change(const std::string& module, int64_t rows, int64_t columns, bool pooled,
                     const std::string& tensor) {
    SCOPED_TRACE(module);
    const auto before_rows = rows_, before_pooled = pooled_;
    const Given given = pair(module, rows, columns);
    change({write(given, 0.5)});
    EXPECT_TRUE(notes_.empty()) << notes_[0];
    base_ = pooled ? before_pooled : before_rows;
    const bool down_first = given.begin()->first.find("lora_A") != std::string::npos ||
                            given.begin()->first.find("lora_down") != std::string::npos;
    const Shared up = (down_first ? std::next(given.begin()) : given.begin())->second,
                 down = (down_first ? given.begin() : std::next(given.begin()))->second;
    expect_product(pooled ? *pooled_ : *rows_, tensor, 0.5, up, down);
    EXPECT_EQ(pooled ? rows_ : pooled_, pooled ? before_rows : before_pooled);
    rows_ = before_rows;
    pooled_ = before_pooled;
  }

  Umt5Config umt5_;
  ClipTextConfig clip_;
  std::shared_ptr<const TextEncoderModel> first_, second_;
  std::shared_ptr<const TensorFile> rows_, pooled_;
  int saved_ = 0;
};

TEST_F(TextLora, EveryPrefixFindsTheEncoderThatItFits) {
  const std::string query = "encoder.block.1.layer.0.SelfAttention.q",
                    flat_query = "encoder_block_1_layer_0_SelfAttention_q",
                    fc = "text_model.encoder.layers.0.mlp.fc1",
                    flat_fc = "text_model_encoder_layers_0_mlp_fc1";
  for (const std::string prefix :
       {"text_encoder.", "text_encoder_2.", "text_encoders.umt5xxl.transformer.",
        "text_encoders.t5xxl.", "base_model.model.text_encoder.", "text_encoder.base_model.model.",
        "base_model.model.", "transformer.text_encoder_3.", ""}) {
    expect_change(prefix + query, 16, 16, false, query + ".weight");
    expect_change(prefix + fc, 20, 12, true, fc + ".weight");
  }
  for (const std::string prefix : {"lora_te_", "lora_te1_", "lora_te2_", "lora_te3_"}) {
    expect_change(prefix + flat_query, 16, 16, false, query + ".weight");
    expect_change(prefix + flat_fc, 20, 12, true, fc + ".weight");
    expect_change(prefix + "text_model_encoder_layers_0.mlp.fc1", 20, 12, true, fc + ".weight");
  }
}

// The encoder's file may have other names than the LoRA.
TEST_F(TextLora, OtherSpellingsOfTheWeights) {
  const std::string query = "encoder.block.1.layer.1.DenseReluDense.wo";
  for (const Umt5Spelling spelling : {Umt5Spelling::kOriginal, Umt5Spelling::kGguf}) {
    save(*first_, rows_, [&](const std::string& name) { return umt5_name(spelling, name); });
    expect_change("text_encoders.umt5xxl.transformer." + query, 16, 24, false,
                  umt5_name(spelling, query + ".weight"));
  }
  save(*second_, pooled_, [](const std::string& name) { return name; });
  expect_change("lora_te1_text_model_encoder_layers_1_self_attn_v_proj", 12, 12, true,
                "encoder.layers.1.self_attn.v_proj.weight");
}

TEST_F(TextLora, Decoders) {
  DecoderConfig config;
  config.hidden = 16;
  config.heads = 4;
  config.kv_heads = 2;
  config.head_dim = 4;
  config.ffn = 24;
  config.layers = 2;
  config.vocab = 32;
  first_ = make_decoder_text_model(config, DecoderRows::kFinal);
  const std::string gate = "layers.1.mlp.gate_proj";
  for (const std::string prefix : {"model.", "", "model.language_model."}) {
    save(*first_, rows_, [&](const std::string& name) { return prefix + name; });
    for (const std::string& module : std::vector<std::string>{
             "text_encoders.qwen3_4b.transformer.model." + gate, "text_encoder.model." + gate,
             "text_encoder.model.language_model." + gate, "lora_te1_model_layers_1_mlp_gate_proj",
             "lora_te_model_" + gate})
      expect_change(module, 24, 16, false, prefix + gate + ".weight");
  }
}

TEST_F(TextLora, WhatFitsNoEncoderIsLeftOutAndTold) {
  Given tensors = pair("lora_te1_text_model_encoder_layers_0_mlp_fc1", 20, 12);  // fits
  tensors.merge(pair("lora_te2_text_model_encoder_layers_0_mlp_fc2", 40, 60));   // of other sizes
  tensors.merge(pair("lora_te1_text_model_encoder_layers_7_mlp_fc1", 20, 12));   // of no layer
  tensors.merge(pair("text_encoders.clip_g.transformer.text_projection", 12, 12));
  const auto before = rows_;
  change({write(tensors)});
  EXPECT_EQ(rows_, before);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(contains(notes_[0],
                       "lora.safetensors: leaves out what fits no text encoder of this model, 3 "
                       "modules: \"lora_te1_text_model_encoder_layers_7_mlp_fc1\", "
                       "\"lora_te2_text_model_encoder_layers_0_mlp_fc2\", "));
  EXPECT_EQ(pooled_->files().size(), 2u);  // the weights and the LoRA
  // A transformer alone takes none of them, and its own modules as always.
  const Shared difference = tensor_of({24, 24}, 9);
  tensors["diffusion_model.blocks.0.self_attn.q.diff"] = difference;
  const TensorFile file = merged({write(tensors)});
  EXPECT_TRUE(notes_.empty());
  const std::string name = "blocks.0.attn1.to_q.weight";
  const std::vector<float> first = values(*base_, name), after = values(file, name);
  for (size_t i = 0; i < first.size(); ++i)
    ASSERT_EQ(after[i], first[i] + difference->as<float>()[i]);
  expect_others_unchanged(file, {name});
}

TEST_F(TextLora, SectionsOfPeftAreThoseOfTheirParts) {
  const std::string query = "encoder.block.0.layer.0.SelfAttention.q";
  const Given given = pair("text_encoder." + query, 16, 16);
  const auto before = rows_;
  change({write(given, 1, "lora",
                {{"lora_adapter_metadata",
                  R"({"transformer.lora_alpha": 9, "text_encoder.lora_alpha": 12,
                      "text_encoder.alpha_pattern": {"SelfAttention.q": 6, "wo": 3}})"}})});
  base_ = before;
  expect_product(*rows_, query + ".weight", 2, std::next(given.begin())->second,
                 given.begin()->second);
  ASSERT_EQ(notes_.size(), 1u);
  EXPECT_TRUE(contains(notes_[0], "text_encoder.alpha_pattern has keys that apply to no module"));
}

// The matrices may stay as they are stored; the product is then added to their results.
TEST_F(TextLora, AnEncoderReadsThem) {
  Given tensors = pair("text_encoder.encoder.block.0.layer.0.SelfAttention.v", 16, 16);
  tensors.merge(pair("text_encoder.encoder.block.1.layer.1.DenseReluDense.wi_1", 24, 16, 5));
  tensors["text_encoder.shared.diff"] = tensor_of({32, 16}, 11);
  const auto before = rows_;
  change({write(tensors)});
  NamedTensors whole;
  for (const std::string& name : rows_->names()) {
    const TensorView like = rows_->describe(name);
    Tensor values(DType::kF32, {like.shape().begin(), like.shape().end()});
    rows_->read_run(name, 0, values.view().reshape({like.count()}));
    whole[name] = std::move(values);
  }
  write_file(dir_ / "whole.safetensors", whole);
  const TensorFile merged = TensorFile::open(dir_ / "whole.safetensors");
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 24);
  SerialSeams seams;
  const std::vector<int32_t> ids{3, 9, 1};
  const auto encoded = [&](const TensorFile& file, WeightFormat format) {
    const auto encoder = first_->load(stream, file, {.weights = format});
    Context context = seams.context(stream, arena, {}, TokenRanges::all(3));
    Tensor out(DType::kF32, {3, 16});
    encoder->encode(context, ids, out);
    return std::vector<float>(out.as<float>(), out.as<float>() + out.count());
  };
  const std::vector<float> wanted = encoded(merged, WeightFormat::kCompute);
  EXPECT_EQ(encoded(*rows_, WeightFormat::kCompute), wanted);
  const std::vector<float> kept = encoded(*rows_, WeightFormat::kFile);
  double moved = 0;
  const std::vector<float> plain = encoded(*before, WeightFormat::kCompute);
  for (size_t i = 0; i < wanted.size(); ++i) {
    EXPECT_NEAR(kept[i], wanted[i], 1e-4) << i;
    moved = std::max(moved, std::abs(double{plain[i]} - double{wanted[i]}));
  }
  EXPECT_GT(moved, 1e-2);
}

}  // namespace
}  // namespace weft::test
