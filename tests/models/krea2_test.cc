// Krea-2: sizes, parts of grouped heads, names, conditions, prompts and what its folder says.
#include <gtest/gtest.h>

#include <fstream>
#include <set>

#include "models/causal_decoder/decoder.h"
#include "models/krea2/names.h"
#include "models/krea2/transformer.h"
#include "models/registry.h"
#include "tests/models/lora_testing.h"
#include "tests/models/transformer_cases.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

TEST(Krea2Sizes, AreThePublishedOnes) {
  const std::vector<TensorSpec> list = krea2_tensors({});
  EXPECT_EQ(parameter_count(list), 12'820'073'036l);
  EXPECT_EQ(list.size(), size_t{430});
}

// Ranks hold whole groups of heads with their keys. Beyond the heads of keys several ranks hold
// one.
TEST(Krea2Parts, GroupedHeadsKeepTheirKeys) {
  const Krea2Config config;
  const TransformerTraits traits = config.traits();
  const int64_t d = config.width(), e = config.head_dim;
  const TensorSpec q{"transformer_blocks.0.attn.to_q.weight", {d, d}},
      k{"transformer_blocks.0.attn.to_k.weight", {12 * e, d}};
  for (const int parts : {2, 5, 12, 24, 48}) {
    int64_t next = 0, keys = 0;
    for (int part = 0; part < parts; ++part) {
      const WidthSlice width = traits.width_part(parts, part);
      const Range queries = krea2_part(config, q, width).range,
                  own = krea2_part(config, k, width).range;
      EXPECT_EQ(queries.begin, next);
      next = queries.end;
      keys += own.size();
      EXPECT_EQ(own.begin, queries.begin / (4 * e) * e) << part << " of " << parts;
      EXPECT_EQ(queries.size() % own.size(), 0) << part << " of " << parts;
    }
    EXPECT_EQ(next, d);
    EXPECT_EQ(keys, std::max(parts, 12) * e);
  }
}

// The prompt's rows have no positions, so that their order means nothing. Their taps have one.
TEST(Krea2Forward, RowsOfAPromptAreASet) {
  TransformerCase c("dit_krea2_twelve_taps");
  TransformerRun model(c);
  const std::vector<double> expected = to_f64(model.run());
  const int64_t rows = c.conditions.text[0], columns = c.conditions.text[1],
                taps = Krea2Config::from_json_file(c.config()).taps;
  Tensor text(DType::kF32, {rows, columns});
  const auto difference = [&] { return relative_l2(to_f64(model.run()), expected); };
  const TensorView given = c.conditions.text;
  for (int64_t row = 0; row < rows; ++row)
    copy(model.stream, given.select(0, row), text.view().select(0, rows - 1 - row));
  c.conditions.text = text;
  EXPECT_LT(difference(), 1e-6);
  const int64_t each = columns / taps;
  for (int64_t tap = 0; tap < taps; ++tap)
    copy(model.stream, given.slice(1, tap * each, each),
         text.view().slice(1, (taps - 1 - tap) * each, each));
  EXPECT_GT(difference(), 1e-3);
  c.conditions.text = given.slice(0, 0, rows - 1);
  EXPECT_GT(difference(), 1e-3);
}

// The prompts of whole pipelines are longer than what is mixed at a time.
TEST(Krea2Forward, LongPromptsAreMixedInPieces) {
  TransformerCase c("dit_krea2_twelve_taps");
  TransformerRun model(c);
  const std::vector<double> once = to_f64(model.run());
  const int64_t rows = c.conditions.text[0], columns = c.conditions.text[1], times = 40;
  Tensor text(DType::kF32, {times * rows, columns});
  for (int64_t i = 0; i < times; ++i)
    copy(model.stream, c.conditions.text, text.view().slice(0, i * rows, rows));
  Context context = model.context();
  const auto one = model.prepare(context);
  c.conditions.text = text;
  const auto many = model.prepare(context);
  const auto& row = dynamic_cast<const Krea2Prompt&>(*one).rows;
  const auto& all = dynamic_cast<const Krea2Prompt&>(*many).rows;
  // A row that attends to each row 40 times sees what it sees of each once.
  for (int64_t i = 0; i < times; ++i)
    EXPECT_LT(relative_l2(to_f64(all.view().slice(0, i * rows, rows)), to_f64(row)), 1e-5) << i;
}

TEST(Krea2Names, OriginalNames) {
  std::set<std::string> names;
  for (const TensorSpec& tensor : krea2_tensors({})) {
    const std::string name = krea2_original_name(tensor.name);
    EXPECT_NE(name, tensor.name);
    EXPECT_TRUE(names.insert(name).second) << name;
  }
  for (const char* name :
       {"first.weight", "tmlp.0.bias", "tproj.1.weight", "txtmlp.0.scale", "txtmlp.3.weight",
        "blocks.27.mod.lin", "blocks.0.attn.gate.weight", "blocks.0.attn.qknorm.knorm.scale",
        "txtfusion.refiner_blocks.1.postnorm.scale", "txtfusion.layerwise_blocks.0.mlp.down.weight",
        "last.modulation.lin", "last.linear.bias"})
    EXPECT_TRUE(names.contains(name)) << name;
  TransformerCase c("dit_krea2_original_names");
  EXPECT_TRUE(holds_krea2(c.file));
  EXPECT_TRUE(c.matches("output", TransformerRun(c).run(), DType::kF32));
  EXPECT_EQ(c.traits.heads, 4);
  EXPECT_EQ(c.traits.kv_heads, 2);
  EXPECT_EQ(c.traits.text_columns, 3 * 24);
  EXPECT_EQ(c.traits.ffn_columns, 80);
}

// diffusers accepts two factors after these prefixes.
class Krea2Lora : public LoraTest {
 protected:
  Krea2Lora() {
    Krea2Config config;
    config.heads = 4;
    config.kv_heads = 2;
    config.head_dim = 16;
    config.axes_dims = {4, 6, 6};
    config.layers = 1;
    config.ffn = 40;
    config.text_dim = 24;
    config.text_ffn = 32;
    config.taps = 3;
    config.text_heads = config.text_kv_heads = 2;
    open(make_krea2_model(config));
  }
};

TEST_F(Krea2Lora, EveryPrefixNamesTheMatrix) {
  const std::vector<std::pair<std::string, std::string>> modules{
      {"blocks.0.attn.wk", "transformer_blocks.0.attn.to_k"},
      {"blocks.0.attn.wo", "transformer_blocks.0.attn.to_out.0"},
      {"blocks.0.attn.gate", "transformer_blocks.0.attn.to_gate"},
      {"blocks.0.mlp.gate", "transformer_blocks.0.ff.gate"},
      {"txtfusion.refiner_blocks.0.attn.wq", "text_fusion.refiner_blocks.0.attn.to_q"},
      {"txtfusion.projector", "text_fusion.projector"},
      {"first", "img_in"},
      {"tproj.1", "time_mod_proj"},
      {"txtmlp.3", "txt_in.linear_2"},
      {"last.linear", "final_layer.linear"}};
  for (const auto& [original, ours] : modules) {
    const std::string tensor = ours + ".weight";
    const TensorView like = base_->describe(tensor);
    const int64_t out = like[0], in = like[1];
    const Shared down = tensor_of({2, in}, 7), up = tensor_of({out, 2}, 8);
    const std::vector<float> before = values(*base_, tensor);
    for (const std::string& module :
         {"transformer." + ours, "diffusion_model." + original, "base_model.model." + original}) {
      const TensorFile file =
          merged({write({{module + ".lora_A.weight", down}, {module + ".lora_B.weight", up}})});
      const std::vector<float> after = values(file, tensor);
      for (int64_t i = 0; i < out * in; ++i) {
        double change = 0;
        for (int64_t r = 0; r < 2; ++r)
          change += double{up->as<float>()[i / in * 2 + r]} * down->as<float>()[r * in + i % in];
        ASSERT_NEAR(after[i], before[i] + change, 1e-5) << module;
      }
    }
  }
}

// The index chooses the layers whose states are the rows.
TEST(Krea2Folder, TheIndexSaysTheLayersAndThePatch) {
  const std::string path = testing::TempDir() + "weft_krea2_index.json";
  const auto read = [&](const char* index) {
    std::ofstream(path) << index;
    ModelDirectory model;
    kKrea2Family.read_index(path, model);
    return model.text_taps;
  };
  EXPECT_EQ(read(R"({"text_encoder_select_layers": [4, 1]})"), (std::vector{4, 1}));
  EXPECT_TRUE(read(R"({"text_encoder_select_layers": null, "patch_size": 2})").empty());
  EXPECT_EQ(kKrea2Family.text_taps.size(), 12u);
  expect_error(ErrorKind::kModel, "patch_size", [&] { read(R"({"patch_size": 1})"); });
  expect_error(ErrorKind::kModel, "select_layers is empty",
               [&] { read(R"({"text_encoder_select_layers": []})"); });
  expect_error(ErrorKind::kModel, "text_encoder_select_layers",
               [&] { read(R"({"text_encoder_select_layers": [-1]})"); });
}

TEST(Krea2Folder, RawAndTurboDiffer) {
  const ModelDirectory raw = open_model_directory("tests/golden/pipeline_krea2_raw/model"),
                       turbo = open_model_directory("tests/golden/pipeline_krea2_turbo/model");
  EXPECT_EQ(raw.family, &kKrea2Family);
  EXPECT_EQ(raw.defaults.steps, 28);
  EXPECT_EQ(raw.defaults.guidance_scale, 4.5);
  EXPECT_EQ(raw.text_model->traits().columns, 3 * 24);
  EXPECT_EQ(turbo.family, &kKrea2TurboFamily);
  EXPECT_EQ(turbo.defaults.steps, 8);
  EXPECT_EQ(turbo.defaults.guidance_scale, 0);
  EXPECT_FALSE(kKrea2Family.shift_exponent);  // the scheduler's config has the line
  for (const int64_t tokens : {256, 4096, 10000})
    EXPECT_EQ(kKrea2TurboFamily.shift_exponent(tokens, 8), 1.15);
  EXPECT_EQ(family_of_transformer("Krea2Transformer2DModel"), &kKrea2TurboFamily);
}

// A long prompt loses its end, and keeps the beginning of the answer.
TEST(Krea2Prompts, ACutPromptKeepsTheAnswer) {
  const ModelDirectory model = open_model_directory("tests/golden/pipeline_krea2_turbo/model");
  const auto tokenizer = model.family->tokenizer(model);
  const PromptTokens one = tokenizer->read("a"), two = tokenizer->read("a b");
  EXPECT_FALSE(one.cut);
  std::string text;
  while (text.size() < 6000) text += "a ball and a kite ";
  const PromptTokens cut = tokenizer->read(text);
  ASSERT_TRUE(cut.cut);
  EXPECT_EQ(std::ssize(cut.ids), tokenizer->max_ids());
  EXPECT_TRUE(text.ends_with(cut.cut->lost));
  EXPECT_GT(cut.cut->tokens, cut.cut->read);
  int64_t same = 0;  // ids of the answer, at least one
  while (one.ids[one.ids.size() - 1 - same] == two.ids[two.ids.size() - 1 - same]) ++same;
  EXPECT_GE(same, 2);
  EXPECT_TRUE(std::equal(one.ids.end() - same, one.ids.end(), cut.ids.end() - same));
  EXPECT_EQ(tokenizer->unread_ids(), 34);
}

// The language part of Qwen3-VL turns positions five times as slowly as Qwen3.
TEST(Krea2Encoder, ReadsTheLanguagePart) {
  const std::string folder = "tests/golden/text_taps_qwen3vl/model/text_encoder";
  const DecoderConfig config = DecoderConfig::from_json_file(folder + "/config.json");
  EXPECT_EQ(config.rope_theta, 5e6);
  EXPECT_TRUE(config.head_norms);
  EXPECT_EQ(config.layers, 4);
  const auto model = open_text_encoder(folder + "/config.json");
  for (const TensorSpec& tensor : model->tensors()) EXPECT_NE(tensor.name, "lm_head.weight");
}

}  // namespace
}  // namespace weft::test
