#include "models/causal_decoder/names.h"

#include <utility>

namespace weft {

namespace {

// Prefixes of the block names; they depend on the tool that saved the checkpoint.
constexpr const char* kPrefixes[] = {"model.", "", "model.language_model.", "language_model.model.",
                                     "language_model."};

// Pairs of (transformers, llama.cpp) spellings, of what stands after the number of the layer and
// of other names.
constexpr std::pair<const char*, const char*> kOfLayer[] = {
    {".input_layernorm.", ".attn_norm."},    {".self_attn.q_proj.", ".attn_q."},
    {".self_attn.k_proj.", ".attn_k."},      {".self_attn.v_proj.", ".attn_v."},
    {".self_attn.q_norm.", ".attn_q_norm."}, {".self_attn.k_norm.", ".attn_k_norm."},
    {".self_attn.o_proj.", ".attn_output."}, {".post_attention_layernorm.", ".ffn_norm."},
    {".mlp.gate_proj.", ".ffn_gate."},       {".mlp.up_proj.", ".ffn_up."},
    {".mlp.down_proj.", ".ffn_down."}};
constexpr std::pair<const char*, const char*> kOther[] = {
    {"embed_tokens.", "token_embd."}, {"norm.", "output_norm."}, {"lm_head.", "output."}};

std::string gguf_name(const std::string& name) {
  for (const auto& [ours, theirs] : kOther)
    if (const std::string start = ours; name.starts_with(start))
      return theirs + name.substr(start.size());
  const std::string layers = "layers.";
  if (!name.starts_with(layers)) return name;
  const size_t end = name.find('.', layers.size());
  const std::string number = name.substr(layers.size(), end - layers.size());
  for (const auto& [ours, theirs] : kOfLayer)
    if (const std::string part = ours; name.compare(end, part.size(), part) == 0)
      return "blk." + number + theirs + name.substr(end + part.size());
  return name;
}

bool holds(const TensorNames& names, const char* mark) {
  const DecoderNames spelled = detect_decoder_names(names);
  return names.contains(spelled("embed_tokens.weight")) &&
         names.contains(spelled("layers.0.self_attn.q_proj.weight")) &&
         names.contains(spelled(mark));
}

}  // namespace

std::string DecoderNames::operator()(const std::string& name) const {
  if (gguf) return gguf_name(name);
  if (name != "lm_head.weight") return prefix + name;
  return prefix == "language_model.model." ? "language_model.lm_head.weight" : name;
}

std::vector<DecoderNames> all_decoder_names() {
  std::vector<DecoderNames> all{{.prefix = ""}};  // as decoder_tensors() has them
  for (const char* prefix : kPrefixes)
    if (*prefix) all.push_back({.prefix = prefix});
  all.push_back({.prefix = "", .gguf = true});
  return all;
}

DecoderNames detect_decoder_names(const TensorNames& names) {
  if (names.contains("token_embd.weight") && names.contains("blk.0.attn_q.weight"))
    return {.prefix = "", .gguf = true};
  for (const char* prefix : kPrefixes)
    if (names.contains(std::string(prefix) + "embed_tokens.weight")) return {.prefix = prefix};
  return {.prefix = kPrefixes[0]};
}

bool holds_qwen3(const TensorNames& names) {
  return holds(names, "layers.0.self_attn.q_norm.weight");
}

bool holds_qwen2(const TensorNames& names) {
  return holds(names, "layers.0.self_attn.q_proj.bias");
}

}  // namespace weft
