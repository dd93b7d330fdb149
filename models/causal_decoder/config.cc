// Reads the transformers config.json of a Qwen2.5 or Qwen3 decoder; tensor lists and memory.
#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/causal_decoder/decoder.h"
#include "models/config_check.h"

namespace weft {

namespace {

constexpr IntRange kWidths{1, 1 << 20};
constexpr IntRange kCounts{1, 4096};

[[noreturn]] void refuse(const std::string& path, const std::string& field,
                         const std::string& value, const std::string& legal) {
  throw Error(ErrorKind::kModel, path + ": " + field + " is " + value + ", legal: " + legal);
}

// Reads rope_theta, which newer files have in rope_parameters. Any scaling of positions is refused.
double read_theta(const nlohmann::json& json, const std::string& path) {
  double theta = json_number_or(json, "rope_theta", path, 10000.0);
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    if (!json_has(json, field)) continue;
    const nlohmann::json& rope = json[field];
    const std::string what = path + ": " + field;
    if (!rope.is_object()) throw Error(ErrorKind::kModel, what + " must be an object or null");
    const std::string type =
        json_string_or(rope, "rope_type", what, json_string_or(rope, "type", what, "default"));
    // "mrope" has sections for the rows and columns of pictures. For text it equals "default".
    if (type != "default" && type != "mrope")
      refuse(path, std::string(field) + ".rope_type", "\"" + type + "\"", "\"default\"");
    theta = json_number_or(rope, "rope_theta", what, theta);
  }
  if (!(theta > 1) || !std::isfinite(theta))
    refuse(path, "rope_theta", std::to_string(theta), "finite and above 1");
  return theta;
}

}  // namespace

DecoderConfig DecoderConfig::from_json_file(const std::string& path) {
  const nlohmann::json json = read_config(path);
  const std::string type = json_string(json, "model_type", path);
  if (!is_decoder_type(type))
    refuse(path, "model_type", "\"" + type + "\"", "\"qwen2\", \"qwen3\"");
  const std::string act = json_string_or(json, "hidden_act", path, "silu");
  if (act != "silu") refuse(path, "hidden_act", "\"" + act + "\"", "\"silu\"");
  if (json_bool_or(json, "use_sliding_window", path, false))
    refuse(path, "use_sliding_window", "true", "false");
  DecoderConfig config;
  config.head_norms = type == "qwen3";
  config.projection_biases = json_bool_or(json, "attention_bias", path, type == "qwen2");
  if (config.projection_biases != (type == "qwen2"))
    refuse(path, "attention_bias", config.projection_biases ? "true" : "false",
           type == "qwen2" ? "true" : "false");
  config.hidden = json_int(json, "hidden_size", path, kWidths);
  config.ffn = json_int(json, "intermediate_size", path, kWidths);
  config.vocab = json_int(json, "vocab_size", path, {1, 1 << 24});
  config.layers = static_cast<int>(json_int(json, "num_hidden_layers", path, {1, 1024}));
  config.heads = static_cast<int>(json_int(json, "num_attention_heads", path, kCounts));
  config.kv_heads =
      static_cast<int>(json_int_or(json, "num_key_value_heads", path, config.heads, kCounts));
  if (config.heads % config.kv_heads)
    refuse(path, "num_key_value_heads", std::to_string(config.kv_heads),
           "a divisor of num_attention_heads, " + std::to_string(config.heads));
  config.head_dim = static_cast<int>(
      json_int_or(json, "head_dim", path, config.hidden / config.heads, {2, 1024}));
  if (config.head_dim % 2)
    refuse(path, "head_dim", std::to_string(config.head_dim), "an even number");
  config.tied = json_bool_or(json, "tie_word_embeddings", path, false);
  config.eps = static_cast<float>(json_number_or(json, "rms_norm_eps", path, config.eps));
  if (!(config.eps > 0) || !std::isfinite(config.eps))
    throw Error(ErrorKind::kModel, path + ": rms_norm_eps must be positive and finite");
  config.rope_theta = read_theta(json, path);
  config.max_positions =
      json_int_or(json, "max_position_embeddings", path, config.max_positions, {1, 1 << 24});
  return config;
}

bool is_decoder_type(const std::string& model_type) {
  return model_type == "qwen2" || model_type == "qwen3";
}

std::string decoder_families() { return "Qwen2.5 or Qwen3"; }

std::vector<TensorSpec> decoder_tensors(const DecoderConfig& config) {
  const int64_t d = config.hidden, inner = config.inner(), kv = config.kv_inner();
  std::vector<TensorSpec> tensors{{"embed_tokens.weight", {config.vocab, d}}};
  for (int i = 0; i < config.layers; ++i) {
    const auto add = [&](const char* name, std::vector<int64_t> shape) {
      tensors.push_back({"layers." + std::to_string(i) + "." + name, std::move(shape)});
    };
    add("input_layernorm.weight", {d});
    add("self_attn.q_proj.weight", {inner, d});
    add("self_attn.k_proj.weight", {kv, d});
    add("self_attn.v_proj.weight", {kv, d});
    if (config.projection_biases) {
      add("self_attn.q_proj.bias", {inner});
      add("self_attn.k_proj.bias", {kv});
      add("self_attn.v_proj.bias", {kv});
    }
    if (config.head_norms) {
      add("self_attn.q_norm.weight", {config.head_dim});
      add("self_attn.k_norm.weight", {config.head_dim});
    }
    add("self_attn.o_proj.weight", {d, inner});
    add("post_attention_layernorm.weight", {d});
    add("mlp.gate_proj.weight", {config.ffn, d});
    add("mlp.up_proj.weight", {config.ffn, d});
    add("mlp.down_proj.weight", {d, config.ffn});
  }
  tensors.push_back({"norm.weight", {d}});
  if (!config.tied) tensors.push_back({"lm_head.weight", {config.vocab, d}});
  return tensors;
}

Range decoder_kv_heads(const DecoderConfig& config, const Range& heads) {
  const int64_t group = config.heads / config.kv_heads;
  return {heads.begin / group, (heads.end + group - 1) / group};
}

TensorPart decoder_part(const DecoderConfig& config, const TensorSpec& tensor,
                        const DecoderLoad& load) {
  const WidthSlice width = load.width.of(config.heads, config.ffn);
  const auto channels = [&](const Range& heads) {
    return Range{heads.begin * config.head_dim, heads.end * config.head_dim};
  };
  const auto has = [&](const char* part) { return tensor.name.find(part) != std::string::npos; };
  const Range all{0, tensor.shape[0]};
  if (has(".q_proj.")) return {.dim = 0, .range = channels(width.heads)};
  if (has(".k_proj.") || has(".v_proj."))
    return {.dim = 0, .range = channels(decoder_kv_heads(config, width.heads))};
  if (has(".o_proj.")) return {.dim = 1, .range = channels(width.heads)};
  if (has(".gate_proj.") || has(".up_proj.")) return {.dim = 0, .range = width.ffn};
  if (has(".down_proj.")) return {.dim = 1, .range = width.ffn};
  if (has("lm_head.")) return {.dim = 0, .range = load.vocab == Range{} ? all : load.vocab};
  return {.dim = 0, .range = all};
}

}  // namespace weft
