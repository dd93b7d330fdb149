// Reads the transformers config.json of a Qwen2.5 or Qwen3 decoder; tensor lists and memory.
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "models/causal_decoder/decoder.h"
#include "models/causal_decoder/names.h"
#include "models/config_check.h"
#include "models/files/tensor_sizes.h"

namespace weft {

namespace {

constexpr IntRange kWidths{1, 1 << 20};
constexpr IntRange kCounts{1, 4096};
constexpr const char* kSeeingType = "qwen2_5_vl";

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

// Returns the fields of the language part of a model that also sees pictures. Newer files have them
// in text_config, apart from those of the whole model. Its language part is a Qwen2.5.
nlohmann::json language_part(const nlohmann::json& json, const std::string& path) {
  nlohmann::json part = json;
  if (json_has(json, "text_config")) {
    if (!json.at("text_config").is_object())
      refuse(path, "text_config", json.at("text_config").dump(), "an object");
    part.update(json.at("text_config"));
    if (json_has(json, "tie_word_embeddings"))
      part["tie_word_embeddings"] = json.at("tie_word_embeddings");
  }
  part["model_type"] = "qwen2";
  return part;
}

}  // namespace

DecoderConfig DecoderConfig::from_json_file(const std::string& path) {
  const nlohmann::json file = read_config(path);
  const bool sees = json_string(file, "model_type", path) == kSeeingType;
  const nlohmann::json json = sees ? language_part(file, path) : file;
  const std::string type = json_string(json, "model_type", path);
  if (!is_decoder_type(type))
    refuse(path, "model_type", "\"" + type + "\"",
           "\"qwen2\", \"qwen3\", \"" + std::string(kSeeingType) + "\"");
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

namespace {

// A number of the metadata of a GGUF file, `fallback` where it has none.
double metadata_number(const TensorFile& file, const std::string& key, double fallback) {
  const auto architecture = file.metadata().find("general.architecture");
  if (architecture == file.metadata().end()) return fallback;
  const auto found = file.metadata().find(architecture->second + "." + key);
  if (found == file.metadata().end()) return fallback;
  char* end = nullptr;
  const double value = std::strtod(found->second.c_str(), &end);
  if (found->second.empty() || *end || !std::isfinite(value) || !(value > 0))
    refuse(file.files().front(), found->first, "\"" + found->second + "\"", "finite and above 0");
  return value;
}

}  // namespace

DecoderConfig DecoderConfig::from_tensors(const TensorFile& file) {
  constexpr int64_t kHeadDim = 128;  // of every Qwen2.5, whose tensors do not tell it
  constexpr int64_t kWidest = 1 << 24;
  const TensorSizes sizes(file, detect_decoder_names(file), kWidest);
  const std::string first = "layers.0.self_attn.";
  DecoderConfig config;
  config.vocab = sizes.extent("embed_tokens.weight", 0);
  config.hidden = sizes.extent("embed_tokens.weight", 1);
  config.ffn = sizes.extent("layers.0.mlp.gate_proj.weight", 0);
  config.head_norms = sizes.has(first + "q_norm.weight");
  config.projection_biases = sizes.has(first + "q_proj.bias");
  config.tied = !sizes.has("lm_head.weight");
  const int64_t queries = sizes.extent(first + "q_proj.weight", 0),
                keys = sizes.extent(first + "k_proj.weight", 0);
  const double heads = metadata_number(file, "attention.head_count", 0);
  const int64_t head = config.head_norms             ? sizes.extent(first + "q_norm.weight", 0)
                       : heads >= 1 && heads <= 4096 ? queries / static_cast<int64_t>(heads)
                                                     : kHeadDim;
  if (head < 2 || head > 1024 || head % 2 || queries % head || keys % head || queries % keys ||
      queries / head > 4096)
    sizes.refuse("heads of " + std::to_string(head) + " columns do not divide " +
                 std::to_string(queries) + " of queries and " + std::to_string(keys) + " of keys");
  config.head_dim = static_cast<int>(head);
  config.heads = static_cast<int>(queries / head);
  config.kv_heads = static_cast<int>(keys / head);
  config.layers = sizes.count("layers.", ".self_attn.q_proj.weight");
  config.rope_theta = metadata_number(file, "rope.freq_base", config.rope_theta);
  config.eps =
      static_cast<float>(metadata_number(file, "attention.layer_norm_rms_epsilon", config.eps));
  if (!(config.rope_theta > 1))
    throw Error(ErrorKind::kModel, shown_name(file) + ": rope.freq_base is " +
                                       std::to_string(config.rope_theta) + " (legal: above 1)");
  if (!(config.eps > 0) || !std::isfinite(config.eps))
    throw Error(ErrorKind::kModel, shown_name(file) + ": attention.layer_norm_rms_epsilon is " +
                                       std::to_string(config.eps) +
                                       " as f32 (legal: positive and finite)");
  return config;
}

std::string to_string(const DecoderConfig& config) {
  const auto text = [](int64_t value) { return std::to_string(value); };
  return std::string(config.head_norms ? "Qwen3" : "Qwen2.5") + " decoder: width " +
         text(config.hidden) + ", " + text(config.heads) + " query and " + text(config.kv_heads) +
         " key heads x " + text(config.head_dim) + ", " + text(config.layers) + " layers, ffn " +
         text(config.ffn) + ", vocabulary " + text(config.vocab);
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
