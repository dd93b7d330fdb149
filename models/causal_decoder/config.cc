// Reads the transformers config.json of a Qwen2.5 or Qwen3 decoder; tensor lists and memory.
#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>

#include "models/causal_decoder/decoder.h"
#include "models/causal_decoder/names.h"
#include "models/config_reader.h"
#include "models/files/tensor_sizes.h"

namespace weft {

namespace {

constexpr IntRange kWidths{1, 1 << 20};
constexpr IntRange kCounts{1, 4096};
constexpr const char *kSeeingQwen2 = "qwen2_5_vl", *kSeeingQwen3 = "qwen3_vl";

// Reads rope_theta, which newer files have in rope_parameters. Any scaling of positions is refused.
void read_theta(ConfigReader& fields, double& theta) {
  fields.optional("rope_theta", theta, kAboveOne);
  for (const char* field : {"rope_parameters", "rope_scaling"}) {
    if (!fields.has(field)) continue;
    ConfigReader rope = fields.part(field);
    // "mrope" has sections for the rows and columns of pictures. For text it equals "default".
    rope.only(rope.has("rope_type") ? "rope_type" : "type", {"default", "mrope"});
    rope.optional("rope_theta", theta, kAboveOne);
    rope.finish("the rotary embedding of a decoder", OtherKeys::kIgnored);
  }
}

// Returns the fields of the language part of a model that also sees pictures. Newer files have them
// in text_config, apart from those of the whole model. It is a Qwen2.5 or a Qwen3.
nlohmann::json language_part(const nlohmann::json& json, const std::string& path) {
  nlohmann::json part = json;
  if (json_has(json, "text_config")) {
    const nlohmann::json& text = json.at("text_config");
    if (!text.is_object()) refuse_model(path, "text_config is ", text.dump(), ", legal: an object");
    part.update(text);
    if (json_has(json, "tie_word_embeddings"))
      part["tie_word_embeddings"] = json.at("tie_word_embeddings");
  }
  part["model_type"] = json.at("model_type") == kSeeingQwen3 ? "qwen3" : "qwen2";
  return part;
}

}  // namespace

DecoderConfig DecoderConfig::from_json_file(const std::string& path) {
  nlohmann::json json = read_config(path);
  const std::string type = json_string(json, "model_type", path);
  if (type == kSeeingQwen2 || type == kSeeingQwen3) json = language_part(json, path);
  ConfigReader fields(json, path);
  fields.only("model_type", {"qwen2", "qwen3", kSeeingQwen2, kSeeingQwen3});
  DecoderConfig config;
  config.head_norms = json.at("model_type") == "qwen3";
  config.projection_biases = !config.head_norms;
  fields.only("attention_bias", {config.projection_biases});
  fields.required("hidden_size", config.hidden, kWidths);
  fields.required("intermediate_size", config.ffn, kWidths);
  fields.required("vocab_size", config.vocab, IntRange{1, 1 << 24});
  fields.required("num_hidden_layers", config.layers, IntRange{1, 1024});
  fields.required("num_attention_heads", config.heads, kCounts);
  fields.optional("num_key_value_heads", config.kv_heads, kCounts);
  fields.divides("num_key_value_heads", "num_attention_heads");
  fields.optional("head_dim", config.head_dim, IntRange{2, 1024});
  fields.optional("tie_word_embeddings", config.tied);
  fields.optional("rms_norm_eps", config.eps, kPositive);
  fields.optional("max_position_embeddings", config.max_positions, IntRange{1, 1 << 24});
  fields.only("hidden_act", {"silu"});
  fields.only("use_sliding_window", {false});
  config.rope_theta = type == kSeeingQwen3 ? 5e5 : 1e4;  // of files that do not say it
  read_theta(fields, config.rope_theta);
  fields.finish("the configuration of a " + decoder_families() + " decoder", OtherKeys::kIgnored);
  if (type == kSeeingQwen3) config.tied = true;
  if (!config.kv_heads) config.kv_heads = config.heads;
  if (!config.head_dim) config.head_dim = static_cast<int>(config.hidden / config.heads);
  if (config.head_dim < 2 || config.head_dim % 2)
    refuse_model(path, "head_dim is ", config.head_dim, ", legal: an even number");
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
    refuse_model(file.files().front(), found->first, " is \"", found->second,
                 "\", legal: finite and above 0");
  return value;
}

}  // namespace

DecoderConfig DecoderConfig::from_tensors(const TensorFile& file, double theta) {
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
    sizes.refuse("heads of ", head, " columns do not divide ", queries, " of queries and ", keys,
                 " of keys");
  config.head_dim = static_cast<int>(head);
  config.heads = static_cast<int>(queries / head);
  config.kv_heads = static_cast<int>(keys / head);
  config.layers = sizes.count("layers.", ".self_attn.q_proj.weight");
  config.rope_theta = metadata_number(file, "rope.freq_base", theta);
  config.eps =
      static_cast<float>(metadata_number(file, "attention.layer_norm_rms_epsilon", config.eps));
  if (!(config.rope_theta > 1))
    refuse_model(shown_name(file), "rope.freq_base is ", std::to_string(config.rope_theta),
                 " (legal: above 1)");
  if (!(config.eps > 0) || !std::isfinite(config.eps))
    refuse_model(shown_name(file), "attention.layer_norm_rms_epsilon is ",
                 std::to_string(config.eps), " as f32 (legal: positive and finite)");
  return config;
}

std::string to_string(const DecoderConfig& config) {
  return text_of(config.head_norms ? "Qwen3" : "Qwen2.5", " decoder: width ", config.hidden, ", ",
                 config.heads, " query and ", config.kv_heads, " key heads x ", config.head_dim,
                 ", ", config.layers, " layers, ffn ", config.ffn, ", vocabulary ", config.vocab);
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
