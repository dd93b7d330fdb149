#include "models/umt5/encoder.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"
#include "models/config_reader.h"
#include "models/files/tensor_sizes.h"
#include "models/umt5/names.h"

namespace weft {

namespace {

constexpr IntRange kWidths{1, 1 << 20}, kHeads{1, 4096};
constexpr int64_t kMostTokens = 1 << 24;
constexpr const char* kBiasName = "0.SelfAttention.relative_attention_bias.weight";

std::string block_name(int64_t layer, const char* rest) {
  return "encoder.block." + std::to_string(layer) + ".layer." + rest;
}

// Expands one layer's table [buckets, A], a host tensor, to the bias [A, n, n]. The bias depends
// only on key - query, so row i of a head is a window into that head's 2n - 1 values.
void expand_bias(const Umt5Config& config, const Tensor& table, int64_t n, Context& context,
                 const TensorView& bias) {
  const Arena::Scope scope(context.arena);
  const int64_t deltas = 2 * n - 1, heads = table.view()[1];
  const TensorView lines = context.arena.alloc(DType::kF32, {heads, deltas});
  make_on_host(context.stream, lines, [&](const TensorView& to) {
    for (int64_t d = 0; d < deltas; ++d) {
      const int64_t bucket = umt5_bucket(d - (n - 1), config.num_buckets, config.max_distance);
      for (int64_t head = 0; head < heads; ++head)
        to.as<float>()[head * deltas + d] = table.as<float>()[bucket * heads + head];
    }
  });
  for (int64_t query = 0; query < n; ++query)
    copy(context.stream, lines.slice(1, n - 1 - query, n), bias.select(1, query));
}

class Umt5Model final : public TextEncoderModel {
 public:
  explicit Umt5Model(const Umt5Config& config)
      : TextEncoderModel(config.traits()), config_(config) {}

  std::vector<TensorSpec> tensors() const override { return umt5_tensors(config_); }
  std::vector<TensorPlace> spellings(const std::string& name) const override {
    return {{.name = name},
            {.name = umt5_name(Umt5Spelling::kOriginal, name)},
            {.name = umt5_name(Umt5Spelling::kGguf, name)}};
  }
  std::unique_ptr<TextEncoder> load(Stream& stream, const TensorFile& file,
                                    const EncoderLoad& load) const override {
    return std::make_unique<Umt5Encoder>(Umt5Encoder::load(file, config_, stream, load));
  }

 private:
  Umt5Config config_;
};

}  // namespace

Umt5Config Umt5Config::from_json_file(const std::string& path) {
  ConfigReader fields(path);
  Umt5Config config;
  std::string type;
  fields.optional("model_type", type);
  config.shared_bias = type == "t5";
  fields.required("d_model", config.d_model, kWidths);
  fields.required("d_kv", config.d_kv, kHeads);
  fields.required("d_ff", config.d_ff, kWidths);
  fields.required("num_heads", config.num_heads, kHeads);
  fields.required("num_layers", config.num_layers, IntRange{1, 1024});
  fields.required("vocab_size", config.vocab_size, IntRange{1, kMostTokens});
  fields.optional("relative_attention_num_buckets", config.num_buckets, IntRange{4, 1 << 16});
  fields.optional("relative_attention_max_distance", config.max_distance,
                  IntRange{config.num_buckets / 4 + 1, 1 << 20});
  fields.optional("layer_norm_epsilon", config.eps, kPositive);
  fields.only("feed_forward_proj", {"gated-gelu"});
  fields.finish("the configuration of a UMT5 or T5 v1.1 encoder", OtherKeys::kIgnored);
  return config;
}

Umt5Config Umt5Config::from_tensors(const TensorFile& file) {
  const Umt5Spelling spelling = find_umt5_spelling(file).value_or(Umt5Spelling::kHuggingFace);
  const TensorSizes sizes(
      file, [&](const std::string& name) { return umt5_name(spelling, name); }, kMostTokens);
  const auto matrix = [&](const std::string& name) { return sizes.shape(name, 2); };
  Umt5Config config;
  const bool tied = sizes.has("shared.weight");
  const TensorView embedding = matrix(tied ? "shared.weight" : "encoder.embed_tokens.weight");
  config.vocab_size = embedding[0];
  config.d_model = embedding[1];
  const TensorView bias = matrix(block_name(0, kBiasName));
  config.num_buckets = bias[0];
  config.num_heads = bias[1];
  const int64_t inner = matrix(block_name(0, "0.SelfAttention.q.weight"))[0];
  if (inner % config.num_heads || config.num_buckets < 4 ||
      config.num_buckets / 4 + 1 > config.max_distance)
    sizes.refuse("the sizes of a head do not follow from queries of ", inner,
                 " columns and position biases of " + bias.to_string_shape());
  config.d_kv = inner / config.num_heads;
  config.d_ff = matrix(block_name(0, "1.DenseReluDense.wi_0.weight"))[0];
  config.num_layers = 1;
  const auto has = [&](int64_t layer, const char* name) {
    return sizes.has(block_name(layer, name));
  };
  while (config.num_layers < 1024 && has(config.num_layers, "0.SelfAttention.q.weight"))
    ++config.num_layers;
  config.shared_bias = !has(1, kBiasName);
  return config;
}

std::string to_string(const Umt5Config& config) {
  return text_of(config.shared_bias ? "T5" : "UMT5", " encoder: width ", config.d_model, ", ",
                 config.num_heads, " heads x ", config.d_kv, ", ", config.num_layers,
                 " layers, ffn ", config.d_ff, ", vocabulary ", config.vocab_size);
}

std::vector<TensorSpec> umt5_tensors(const Umt5Config& config) {
  const int64_t d = config.d_model, inner = config.inner(), ff = config.d_ff;
  std::vector<TensorSpec> tensors{{"shared.weight", {config.vocab_size, d}}};
  for (int64_t i = 0; i < config.num_layers; ++i) {
    tensors.push_back({block_name(i, "0.layer_norm.weight"), {d}});
    tensors.push_back({block_name(i, "0.SelfAttention.q.weight"), {inner, d}});
    tensors.push_back({block_name(i, "0.SelfAttention.k.weight"), {inner, d}});
    tensors.push_back({block_name(i, "0.SelfAttention.v.weight"), {inner, d}});
    tensors.push_back({block_name(i, "0.SelfAttention.o.weight"), {d, inner}});
    if (i == 0 || !config.shared_bias)
      tensors.push_back({block_name(i, kBiasName), {config.num_buckets, config.num_heads}});
    tensors.push_back({block_name(i, "1.layer_norm.weight"), {d}});
    tensors.push_back({block_name(i, "1.DenseReluDense.wi_0.weight"), {ff, d}});
    tensors.push_back({block_name(i, "1.DenseReluDense.wi_1.weight"), {ff, d}});
    tensors.push_back({block_name(i, "1.DenseReluDense.wo.weight"), {d, ff}});
  }
  tensors.push_back({"encoder.final_layer_norm.weight", {d}});
  return tensors;
}

int64_t umt5_bucket(int64_t delta, int64_t num_buckets, int64_t max_distance) {
  const int64_t half = num_buckets / 2, exact = half / 2;
  const int64_t base = delta > 0 ? half : 0, n = std::abs(delta);
  if (n < exact) return base + n;
  const float scale =
      static_cast<float>(std::log(static_cast<double>(max_distance) / static_cast<double>(exact)));
  const float octaves = std::log(static_cast<float>(n) / static_cast<float>(exact)) / scale;
  const auto step = static_cast<int64_t>(octaves * static_cast<float>(half - exact));
  return base + std::min(half - 1, exact + step);
}

TensorPart umt5_part(const Umt5Config& config, const TensorSpec& tensor, const WidthSlice& width) {
  const WidthSlice all = width.of(config.num_heads, config.d_ff);
  const Range channels{all.heads.begin * config.d_kv, all.heads.end * config.d_kv};
  const auto is = [&](const char* part) { return tensor.name.ends_with(part); };
  if (is(".q.weight") || is(".k.weight") || is(".v.weight")) return {.dim = 0, .range = channels};
  if (is(".o.weight")) return {.dim = 1, .range = channels};
  if (is(".relative_attention_bias.weight")) return {.dim = 1, .range = all.heads};
  if (is(".wi_0.weight") || is(".wi_1.weight")) return {.dim = 0, .range = all.ffn};
  if (is(".wo.weight")) return {.dim = 1, .range = all.ffn};
  return {.dim = 0, .range = {0, tensor.shape[0]}};
}

Umt5Encoder Umt5Encoder::load(const TensorFile& file, const Umt5Config& config, Stream& stream,
                              const EncoderLoad& load) {
  const auto& [dtype, width, weights] = load;
  const Umt5Spelling spelling = find_umt5_spelling(file).value_or(Umt5Spelling::kHuggingFace);
  const auto spelled = [&](const std::string& name) { return umt5_name(spelling, name); };
  WeightBinder binder(file, "text_encoder", spelled);
  const std::vector<TensorSpec> tensors = umt5_tensors(config);
  Umt5Encoder encoder;
  encoder.config_ = config;
  encoder.dtype_ = dtype;
  encoder.width_ = width.of(config.num_heads, config.d_ff);
  CHECK(!rounds_to_8bit(weights) || encoder.width_.heads.size() == config.num_heads,
        "8-bit weights of a part of the width");
  encoder.embedding_ = {&file, binder.take_any({"shared.weight", "encoder.embed_tokens.weight"},
                                               {config.vocab_size, config.d_model})};
  CheckpointPart held(file);
  for (size_t i = 1; i < tensors.size(); ++i) {
    binder.take(tensors[i].name, tensors[i].shape);
    held.add(tensors[i].name, spelled(tensors[i].name), umt5_part(config, tensors[i], width),
             tensors[i].shape);
  }
  binder.ignore("spiece_model");                // the tokenizer, which single-file repacks contain
  for (const std::string& name : file.names())  // the other half of a whole T5
    if (name.starts_with("decoder.") || name.starts_with("dec.") || name == "lm_head.weight")
      binder.ignore(name);
  binder.finish();

  Stream host = host_stream(stream);
  for (int64_t i = 0; i < config.num_layers; ++i) {
    const auto norm = [&](const char* name) { return held.vector(stream, block_name(i, name)); };
    const auto matrix = [&](const char* name) {
      return held.linear(stream, block_name(i, name), dtype, weights);
    };
    const auto row_linear = [&](const char* name) {
      return held.row_linear(stream, block_name(i, name), dtype, weights);
    };
    encoder.layers_.push_back({.attention_norm = norm("0.layer_norm.weight"),
                               .q = matrix("0.SelfAttention.q"),
                               .k = matrix("0.SelfAttention.k"),
                               .v = matrix("0.SelfAttention.v"),
                               .o = row_linear("0.SelfAttention.o"),
                               .bias = i == 0 || !config.shared_bias
                                           ? held.table(host, block_name(i, kBiasName))
                                           : Tensor(),
                               .feed_forward_norm = norm("1.layer_norm.weight"),
                               .wi_0 = matrix("1.DenseReluDense.wi_0"),
                               .wi_1 = matrix("1.DenseReluDense.wi_1"),
                               .wo = row_linear("1.DenseReluDense.wo")});
  }
  encoder.final_norm_ = held.vector(stream, "encoder.final_layer_norm.weight");
  return encoder;
}

void Umt5Encoder::encode(Context& context, std::span<const int32_t> ids,
                         const TensorView& out) const {
  const auto n = static_cast<int64_t>(ids.size());
  CHECK(out.rank == 2 && out[0] == n && out[1] == config_.d_model && out.dtype == DType::kF32,
        out.to_string_shape(), "ids", n);
  CHECK((context.reducer.parts() == 1) == (width_.heads.size() == config_.num_heads), "a sum over",
        context.reducer.parts(), "parts for heads", to_string(width_.heads), "of",
        config_.num_heads);
  if (n == 0) return;
  check_ids(ids, config_.vocab_size);
  const Arena::Scope scope(context.arena);
  const TensorView x = context.arena.alloc(DType::kF32, {n, config_.d_model});
  read_rows(context.stream, embedding_, ids, x);
  TensorView bias;
  if (config_.shared_bias && !layers_.empty()) {
    bias = context.arena.alloc(DType::kF32, {width_.heads.size(), n, n});
    expand_bias(config_, layers_[0].bias, n, context, bias);
  }
  for (size_t i = 0; i < layers_.size(); ++i) {
    const ZoneScope zone(Zone::kBlock, static_cast<int>(i));
    attend(context, layers_[i], bias, x);
    feed_forward(context, layers_[i], x);
    context.observe("text_encoder.block", x, static_cast<int>(i));
  }
  rms_norm(context.stream, x, final_norm_, config_.eps, out);
}

void Umt5Encoder::attend(Context& context, const Layer& layer, const TensorView& shared_bias,
                         const TensorView& x) const {
  const Arena::Scope scope(context.arena);
  const int64_t n = x[0], heads = width_.heads.size(), inner = heads * config_.d_kv;
  const TensorView h = rms_normed(context, x, layer.attention_norm, config_.eps, dtype_);
  TensorView q, k, v;
  for (const auto& [view, weight] :
       {std::pair{&q, &layer.q}, std::pair{&k, &layer.k}, std::pair{&v, &layer.v}}) {
    *view = context.arena.alloc(dtype_, {n, heads, config_.d_kv});
    linear(context.stream, h, *weight, LinearActivation::kNone, view->reshape({n, inner}));
  }
  TensorView bias = shared_bias;
  if (!bias) {
    bias = context.arena.alloc(DType::kF32, {heads, n, n});
    expand_bias(config_, layer.bias, n, context, bias);
  }
  const TensorView mixed = context.arena.alloc(dtype_, {n, heads, config_.d_kv});
  const KVSegment keys{.k = k, .v = v};
  // The scale is 1, because T5 puts the factor 1 / sqrt(E) into the initialisation of q.
  attention(context.stream,
            {.q = q, .segments = {&keys, 1}, .bias = bias, .scale = 1, .out = mixed});
  row_linear_add(context, mixed.reshape({n, inner}), layer.o, x);
}

void Umt5Encoder::feed_forward(Context& context, const Layer& layer, const TensorView& x) const {
  const Arena::Scope scope(context.arena);
  const TensorView h = rms_normed(context, x, layer.feed_forward_norm, config_.eps, dtype_);
  const TensorView gate = context.arena.alloc(dtype_, {x[0], width_.ffn.size()});
  const TensorView value = context.arena.alloc(dtype_, {x[0], width_.ffn.size()});
  linear(context.stream, h, layer.wi_0, LinearActivation::kNone, gate);
  linear(context.stream, h, layer.wi_1, LinearActivation::kNone, value);
  gelu_tanh_mul(context.stream, gate, value, gate);
  row_linear_add(context, gate, layer.wo, x);
}

size_t Umt5Encoder::bytes() const {
  size_t total = bytes_of(final_norm_);
  for (const Layer& layer : layers_) total += bytes_of(layer.weights());
  return total;
}

std::unique_ptr<TextEncoderModel> make_umt5_model(const Umt5Config& config) {
  return std::make_unique<Umt5Model>(config);
}

}  // namespace weft
