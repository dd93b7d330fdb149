#include <gtest/gtest.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "io/json.h"
#include "io/weights/weights_file.h"
#include "kernels/copy.h"
#include "kernels/dry_run.h"
#include "kernels/fp8.h"
#include "kernels/ops.h"
#include "models/causal_decoder/decoder.h"
#include "models/causal_decoder/text_model.h"
#include "models/footprint.h"
#include "models/random_weights/random_weights.h"
#include "tests/models/encoder_testing.h"
#include "tests/support/compare.h"
#include "tests/support/draw.h"
#include "tests/support/error_of.h"
#include "tests/support/golden_case.h"

namespace weft::test {
namespace {

// The decoder as in the papers, in f64, from the checkpoint's own tensors. Every fast path is
// compared with this slow one.
class Plain {
 public:
  Plain(const TensorFile& file, const DecoderConfig& config, std::string prefix)
      : file_(file), c_(config), prefix_(std::move(prefix)) {}

  // logits [n, V].
  std::vector<double> logits(const std::vector<int32_t>& ids) const {
    const size_t n = ids.size(), d = c_.hidden;
    const std::vector<double> embedding = tensor("embed_tokens.weight");
    std::vector<double> x;
    for (int32_t id : ids)
      x.insert(x.end(), embedding.begin() + id * c_.hidden,
               embedding.begin() + (id + 1) * c_.hidden);
    for (int layer = 0; layer < c_.layers; ++layer) {
      const std::string at = "layers." + std::to_string(layer) + ".";
      attend(at, x, n);
      const std::vector<double> h = normed(x, d, tensor(at + "post_attention_layernorm.weight"));
      std::vector<double> gate = times(h, d, tensor(at + "mlp.gate_proj.weight"));
      const std::vector<double> up = times(h, d, tensor(at + "mlp.up_proj.weight"));
      for (size_t i = 0; i < gate.size(); ++i) gate[i] *= up[i] / (1 + std::exp(-gate[i]));
      add(x, times(gate, c_.ffn, tensor(at + "mlp.down_proj.weight")));
    }
    const std::vector<double> h = normed(x, d, tensor("norm.weight"));
    return times(h, d, c_.tied ? embedding : to_f64(file_.view("lm_head.weight")));
  }

 private:
  std::vector<double> tensor(const std::string& name) const {
    return to_f64(file_.view(prefix_ + name));
  }
  static void add(std::vector<double>& x, const std::vector<double>& y) {
    for (size_t i = 0; i < x.size(); ++i) x[i] += y[i];
  }
  std::vector<double> normed(const std::vector<double>& x, size_t width,
                             const std::vector<double>& weight) const {
    std::vector<double> out(x.size());
    for (size_t row = 0; row < x.size(); row += width) {
      double sum = 0;
      for (size_t i = 0; i < width; ++i) sum += x[row + i] * x[row + i];
      const double scale = 1 / std::sqrt(sum / static_cast<double>(width) + c_.eps);
      for (size_t i = 0; i < width; ++i) out[row + i] = x[row + i] * scale * weight[i];
    }
    return out;
  }
  // x [n, in] weight [out, in]^T
  static std::vector<double> times(const std::vector<double>& x, size_t in,
                                   const std::vector<double>& weight) {
    std::vector<double> out;
    for (size_t row = 0; row < x.size(); row += in)
      for (size_t column = 0; column < weight.size(); column += in)
        out.push_back(std::inner_product(x.begin() + static_cast<int64_t>(row),
                                         x.begin() + static_cast<int64_t>(row + in),
                                         weight.begin() + static_cast<int64_t>(column), 0.0));
    return out;
  }
  std::vector<double> projected(const std::string& at, const char* which,
                                const std::vector<double>& h, int64_t heads, size_t n) const {
    const std::string name = at + "self_attn." + which + "_proj.";
    std::vector<double> out = times(h, c_.hidden, tensor(name + "weight"));
    const size_t e = c_.head_dim, width = heads * e;
    if (c_.projection_biases) {
      const std::vector<double> bias = tensor(name + "bias");
      for (size_t i = 0; i < out.size(); ++i) out[i] += bias[i % width];
    }
    if (*which == 'v') return out;
    if (c_.head_norms) out = normed(out, e, tensor(at + "self_attn." + which + "_norm.weight"));
    for (size_t t = 0; t < n; ++t)
      for (int64_t head = 0; head < heads; ++head) {
        double* row = out.data() + t * width + head * e;
        for (size_t j = 0; j < e / 2; ++j) {
          const double angle =
              static_cast<double>(t) * std::pow(c_.rope_theta, -2.0 * static_cast<double>(j) / e);
          const double a = row[j], b = row[j + e / 2];
          row[j] = a * std::cos(angle) - b * std::sin(angle);
          row[j + e / 2] = b * std::cos(angle) + a * std::sin(angle);
        }
      }
    return out;
  }
  void attend(const std::string& at, std::vector<double>& x, size_t n) const {
    const std::vector<double> h = normed(x, c_.hidden, tensor(at + "input_layernorm.weight"));
    const std::vector<double> q = projected(at, "q", h, c_.heads, n),
                              k = projected(at, "k", h, c_.kv_heads, n),
                              v = projected(at, "v", h, c_.kv_heads, n);
    const size_t e = c_.head_dim, group = c_.heads / c_.kv_heads;
    std::vector<double> mixed(n * c_.heads * e);
    for (size_t t = 0; t < n; ++t)
      for (size_t head = 0; head < static_cast<size_t>(c_.heads); ++head) {
        std::vector<double> weight(t + 1);
        double total = 0;
        const double* query = q.data() + (t * c_.heads + head) * e;
        const auto key_at = [&](size_t s) { return (s * c_.kv_heads + head / group) * e; };
        for (size_t s = 0; s <= t; ++s) {
          weight[s] = std::exp(std::inner_product(query, query + e, k.data() + key_at(s), 0.0) /
                               std::sqrt(static_cast<double>(e)));
          total += weight[s];
        }
        for (size_t s = 0; s <= t; ++s)
          for (size_t i = 0; i < e; ++i)
            mixed[(t * c_.heads + head) * e + i] += weight[s] / total * v[key_at(s) + i];
      }
    add(x, times(mixed, c_.heads * e, tensor(at + "self_attn.o_proj.weight")));
  }

  const TensorFile& file_;
  const DecoderConfig& c_;
  std::string prefix_;
};

DecoderConfig odd(bool third) {
  return {.hidden = 20,
          .ffn = 33,
          .vocab = 41,
          .layers = 3,
          .heads = 6,
          .kv_heads = 2,
          .head_dim = 10,
          .head_norms = third,
          .projection_biases = !third,
          .tied = third,
          .rope_theta = 5e4};
}

std::vector<TensorSpec> named(const DecoderConfig& config, const std::string& prefix) {
  std::vector<TensorSpec> tensors = decoder_tensors(config);
  for (TensorSpec& tensor : tensors)
    if (tensor.name != "lm_head.weight") tensor.name = prefix + tensor.name;
  return tensors;
}

std::vector<int32_t> some_ids(int64_t n, int64_t vocab) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>((5 + 17 * i + i * i) % vocab));
  return ids;
}

CausalDecoder dry_model(DryRun& run, const DecoderConfig& config, const DecoderLoad& load) {
  return CausalDecoder::load(without_values(decoder_tensors(config)), config, run.stream(), load);
}

// Runs one pass on one rank, and compares the arena's high-water mark with a dry run's.
Tensor logits_of(const CausalDecoder& model, std::vector<int32_t> ids, const Ops& ops) {
  Stream stream = Stream::cpu(2, Determinism::kFast, &ops);
  Arena arena(size_t{1} << 30);
  SerialSeams seams;
  const auto n = static_cast<int64_t>(ids.size());
  Context context = seams.context(stream, arena, {}, TokenRanges::all(n));
  const SequenceRows rows{.rows = {0, n}, .tokens = TokenRanges::all(n)};
  Tensor hidden(DType::kF32, {n, model.config().hidden});
  Tensor out(DType::kF32, {n, model.config().vocab});
  model.forward(context, TensorView(ids.data(), DType::kI32, {n}), {&rows, 1}, model.rope(n),
                hidden);
  model.logits(context, hidden, out);
  DryRun dry;
  const CausalDecoder same = dry_model(dry, model.config(), {.dtype = model.loaded().dtype});
  Context dry_context = seams.context(dry.stream(), dry.arena(), {}, TokenRanges::all(n));
  const Tensor dry_hidden = dry.tensor(DType::kF32, {n, model.config().hidden});
  const Footprint pass = dry.measure([&] {
    same.forward(dry_context, TensorView(ids.data(), DType::kI32, {n}), {&rows, 1},
                 on_device(dry.stream(), same.rope(n)), dry_hidden);
    same.logits(dry_context, dry_hidden, dry.tensor(DType::kF32, {n, model.config().vocab}));
  });
  EXPECT_EQ(arena.high_water(), pass.arena);
  return out;
}

TEST(Qwen, EqualsThePlainBlockInF64) {
  for (const bool third : {true, false})
    for (const char* prefix : {"model.", ""}) {
      const DecoderConfig config = odd(third);
      const TensorFile file = random_tensors(named(config, prefix), 3);
      const std::vector<int32_t> ids = some_ids(13, config.vocab);
      const std::vector<double> expected = Plain(file, config, prefix).logits(ids);
      for (const Ops* ops : all_ops())
        for (const DType dtype : {DType::kF32, DType::kBF16}) {
          Stream stream = Stream::cpu(1, Determinism::kFast, ops);
          const CausalDecoder model = CausalDecoder::load(file, config, stream, {.dtype = dtype});
          const double error = relative_l2(to_f64(logits_of(model, ids, *ops)), expected);
          EXPECT_LE(error, dtype == DType::kF32 ? 1e-5 : 2e-2)
              << ops->name << " " << to_string(dtype) << " prefix '" << prefix << "'";
          std::printf("[  plain   ] %s %s: relative L2 %.2g\n", ops->name.c_str(),
                      std::string(to_string(dtype)).c_str(), error);
        }
    }
}

TEST(Qwen, CountsOfThePublishedModels) {
  // The counts are those of the published checkpoints.
  EXPECT_EQ(parameter_count(decoder_tensors(qwen3_0_6b())), 596049920);
  DecoderConfig four = qwen3_0_6b();
  four.hidden = 2560, four.ffn = 9728, four.layers = 36, four.heads = 32;
  EXPECT_EQ(parameter_count(decoder_tensors(four)), 4022468096);
  DecoderConfig eight = four;
  eight.hidden = 4096, eight.ffn = 12288, eight.tied = false;
  EXPECT_EQ(parameter_count(decoder_tensors(eight)), 8190735360);
  DecoderConfig three{.hidden = 2048,
                      .ffn = 11008,
                      .vocab = 151936,
                      .layers = 36,
                      .heads = 16,
                      .kv_heads = 2,
                      .head_dim = 128,
                      .projection_biases = true,
                      .tied = true};
  EXPECT_EQ(parameter_count(decoder_tensors(three)), 3085938688);
  three.hidden = 3584, three.ffn = 18944, three.layers = 28, three.heads = 28, three.kv_heads = 4;
  three.vocab = 152064, three.tied = false;
  EXPECT_EQ(parameter_count(decoder_tensors(three)), 7615616512);
}

TEST(Qwen, WeightsAreWhatWasPredicted) {
  // The widths are multiples of the packing's panels, so that none is padded.
  DecoderConfig config = odd(true);
  config.hidden = 128, config.ffn = 192, config.head_dim = 64, config.vocab = 320;
  const TensorFile file = random_tensors(decoder_tensors(config), 3);
  Stream stream = Stream::cpu(1);
  for (const DecoderLoad& load :
       {DecoderLoad{}, DecoderLoad{.dtype = DType::kBF16}, DecoderLoad{.blocks = {1, 3, 3}},
        DecoderLoad{.blocks = {0, 2, 3}}, DecoderLoad{.weights = WeightFormat::kInt8},
        DecoderLoad{.width = {{3, 6}, {64, 192}}, .vocab = {64, 192}}}) {
    const CausalDecoder model = CausalDecoder::load(file, config, stream, load);
    DryRun dry;
    EXPECT_EQ(model.bytes(), dry_model(dry, config, load).bytes());
  }
}

// A text encoder of this model gives its hidden states before the last block or after the final
// norm, of all ids or of the last ones.
TEST(Qwen, TextEncodersGiveHiddenStates) {
  const GoldenCase golden("llm_qwen2_bias");
  const DecoderConfig config = DecoderConfig::from_json_file(golden.folder + "/model/config.json");
  const TensorFile file = TensorFile::open(golden.folder + "/model");
  const Tensor ids = golden.input("input_ids");
  const int64_t n = ids.count();
  Stream stream = Stream::cpu(2);
  Arena arena(size_t{1} << 30);
  SerialSeams seams;
  for (const auto& [rows, layer] : {std::pair{DecoderRows::kBeforeLast, config.layers - 1},
                                    {DecoderRows::kFinal, config.layers}}) {
    const auto model = make_decoder_text_model(config, rows);
    const auto encoder = model->load(stream, file, {});
    const Tensor expected = load_tensor(golden.expected, "hidden_states." + std::to_string(layer));
    for (const int64_t kept : {n, n - 3, int64_t{1}}) {
      Tensor out(DType::kF32, {kept, config.hidden});
      Context context = seams.context(stream, arena, {}, TokenRanges::all(n));
      const std::span<const int32_t> read(ids.as<int32_t>(), static_cast<size_t>(n));
      encoder->encode(context, read, out);
      EXPECT_LT(relative_l2(to_f64(out), to_f64(expected.view().slice(0, n - kept, kept))),
                golden.bound(DType::kF32));
      EXPECT_EQ(arena.used(), 0u);
      EXPECT_TRUE(kept < n || arena.high_water() ==
                                  dry_arena(*model, without_values(model->tensors()), {}, read));
    }
  }
}

// States of several layers side by side, of which that after all layers is normed.
TEST(Qwen, TapsAreTheStatesOfTheReference) {
  const GoldenCase golden("llm_qwen2_bias");
  const DecoderConfig config = DecoderConfig::from_json_file(golden.folder + "/model/config.json");
  const TensorFile file = TensorFile::open(golden.folder + "/model");
  const Tensor ids = golden.input("input_ids");
  const int64_t n = ids.count(), d = config.hidden;
  const std::vector<int> layers{config.layers, 0, config.layers - 1};
  const auto model = make_decoder_text_model(config, DecoderRows::kFinal)->with_taps(layers);
  Stream stream = Stream::cpu(2);
  Arena arena(size_t{1} << 30);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(n));
  const Tensor out(DType::kF32, {n, d * std::ssize(layers)});
  model->load(stream, file, {})->encode(context, {ids.as<int32_t>(), static_cast<size_t>(n)}, out);
  for (size_t i = 0; i < layers.size(); ++i)
    EXPECT_LT(relative_l2(to_f64(out.view().slice(1, static_cast<int64_t>(i) * d, d)),
                          to_f64(load_tensor(golden.expected,
                                             "hidden_states." + std::to_string(layers[i])))),
              golden.bound(DType::kF32))
        << layers[i];
}

// Writes the projections of a decoder as 8-bit floats, with a scale per 128 x 128 values as
// Qwen3-FP8 has them, or with one per tensor and one of the inputs; and what they mean.
void write_fp8(const DecoderConfig& config, bool blocks, const std::string& path,
               const std::string& meant) {
  std::vector<std::pair<std::string, Tensor>> stored, values;
  Random random(blocks ? 7 : 8);
  for (const TensorSpec& spec : decoder_tensors(config)) {
    Tensor own(DType::kF32, spec.shape);
    for (int64_t i = 0; i < own.count(); ++i)
      own.as<float>()[i] = static_cast<float>(random.normal() * 0.1);
    const std::string name = (spec.name == "lm_head.weight" ? "" : "model.") + spec.name;
    if (spec.name.find("_proj.weight") != spec.name.npos) {
      const int64_t rows = spec.shape[0], columns = spec.shape[1], wide = (columns + 127) / 128;
      Tensor codes(DType::kF8E4M3, spec.shape);
      Tensor scales(DType::kF32, blocks ? std::vector<int64_t>{(rows + 127) / 128, wide}
                                        : std::vector<int64_t>{1});
      for (int64_t i = 0; i < scales.count(); ++i)
        scales.as<float>()[i] = 0.01f * static_cast<float>(i % 5 + 1);
      for (int64_t i = 0; i < own.count(); ++i) {
        const auto code = static_cast<uint8_t>(random.below(256) & 0xbf);  // below 2, no NaN
        static_cast<uint8_t*>(codes.view().data)[i] = code;
        const int64_t block = blocks ? i / columns / 128 * wide + i % columns / 128 : 0;
        own.as<float>()[i] = from_e4m3(code) * scales.as<float>()[block];
      }
      stored.emplace_back(name + (blocks ? "_scale_inv" : "_scale"), std::move(scales));
      if (!blocks) {
        const std::string layer = name.substr(0, name.size() - std::string(".weight").size());
        stored.emplace_back(layer + ".input_scale", Tensor(DType::kF32, {1}));
      }
      stored.emplace_back(name, std::move(codes));
    } else {
      Tensor copied(DType::kF32, spec.shape);
      std::copy_n(own.as<float>(), own.count(), copied.as<float>());
      stored.emplace_back(name, std::move(copied));
    }
    values.emplace_back(name, std::move(own));
  }
  write_safetensors(path, {stored.begin(), stored.end()});
  write_safetensors(meant, {values.begin(), values.end()});
}

TEST(Qwen, EightBitFloatsGiveTheModelOfTheirValues) {
  DecoderConfig config = odd(true);
  config.hidden = 200;
  config.ffn = 300;
  const std::string path = testing::TempDir() + "weft_qwen_fp8.safetensors",
                    meant = testing::TempDir() + "weft_qwen_meant.safetensors";
  const std::vector<int32_t> ids{3, 1, 4, 1, 5};
  const auto n = std::ssize(ids);
  for (const bool blocks : {true, false})
    for (const WeightFormat weights : {WeightFormat::kCompute, WeightFormat::kFile}) {
      write_fp8(config, blocks, path, meant);
      std::vector<Tensor> rows;
      for (const std::string& file : {path, meant}) {
        const TensorFile opened = open_weights(file);
        EXPECT_EQ(opened.is_derived(), file == path);
        Stream stream = Stream::cpu(1, Determinism::kFixed);
        Arena arena(size_t{1} << 30);
        SerialSeams seams;
        Context context = seams.context(stream, arena, {}, TokenRanges::all(n));
        const auto encoder = make_decoder_text_model(config, DecoderRows::kFinal)
                                 ->load(stream, opened, {.weights = weights});
        rows.emplace_back(DType::kF32, std::vector<int64_t>{n, config.hidden});
        encoder->encode(context, ids, rows.back());
      }
      EXPECT_TRUE(bitwise_equal(rows[0], rows[1])) << blocks;
    }
  std::remove(path.c_str());
  std::remove(meant.c_str());
}

std::string load_error(const TensorFile& file, const DecoderConfig& config) {
  Stream stream = Stream::cpu(1);
  return error_of([&] { CausalDecoder::load(file, config, stream); });
}

TEST(Qwen, NamesEveryTensorThatDoesNotFit) {
  const DecoderConfig config = odd(true);
  std::vector<TensorSpec> tensors = named(config, "model.");
  tensors[3].shape[0] += 2;
  tensors.push_back({"model.layers.3.mlp.up_proj.weight", {4, 4}});
  tensors.push_back({"visual.blocks.0.weight", {4, 4}});  // a picture encoder's: ignored
  tensors.push_back({"lm_head.weight", {41, 20}});        // tied to the embedding: ignored
  std::erase_if(tensors, [](const TensorSpec& tensor) {
    return tensor.name == "model.layers.1.self_attn.q_norm.weight";
  });
  const std::string message = load_error(random_tensors(tensors), config);
  for (const char* part : {"1 missing: model.layers.1.self_attn.q_norm.weight",
                           "1 extra: model.layers.3.mlp.up_proj.weight", "of the wrong shape"})
    EXPECT_TRUE(contains(message, part));
  EXPECT_FALSE(contains(message, "visual"));
  EXPECT_FALSE(contains(message, "lm_head"));
}

TEST(QwenConfig, HonoursWhatChangesNumbers) {
  const DecoderConfig config =
      DecoderConfig::from_json_file("tests/golden/llm_qwen3_tied/model/config.json");
  EXPECT_EQ(config.heads, 4);
  EXPECT_EQ(config.kv_heads, 2);
  EXPECT_EQ(config.head_dim, 16);
  EXPECT_TRUE(config.head_norms && config.tied && !config.projection_biases);
  EXPECT_EQ(config.rope_theta, 1e6);
}

// A model that also sees pictures has the language part's fields beside its own, or in text_config.
TEST(QwenConfig, TheLanguagePartOfAModelThatSees) {
  const std::string path = testing::TempDir() + "qwen_vl_config.json";
  const auto read = [&](const nlohmann::json& json) {
    std::ofstream(path) << json.dump();
    return DecoderConfig::from_json_file(path);
  };
  nlohmann::json language = read_json_file("tests/golden/llm_qwen2_bias/model/config.json");
  const DecoderConfig expected = read(language);
  nlohmann::json flat = language;
  flat["model_type"] = "qwen2_5_vl";
  flat["vision_config"] = {{"hidden_size", 7}};
  language["model_type"] = "qwen2_5_vl_text";
  const nlohmann::json nested{{"model_type", "qwen2_5_vl"},
                              {"tie_word_embeddings", expected.tied},
                              {"text_config", language},
                              {"vision_config", {{"hidden_size", 7}}}};
  for (const nlohmann::json& each : {flat, nested}) {
    const DecoderConfig config = read(each);
    EXPECT_EQ(parameter_count(decoder_tensors(config)), parameter_count(decoder_tensors(expected)));
    EXPECT_TRUE(config.projection_biases);
    EXPECT_EQ(config.rope_theta, expected.rope_theta);
    EXPECT_EQ(config.eps, expected.eps);
  }
  nlohmann::json wrong = nested;
  wrong["text_config"] = 3;
  EXPECT_THROW(read(wrong), Error);
  std::remove(path.c_str());
}

}  // namespace
}  // namespace weft::test
