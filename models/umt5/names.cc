#include "models/umt5/names.h"

#include <utility>

namespace weft {

namespace {

struct Names {
  const char* ours;
  const char* original;
  const char* gguf;
};

// The part of a name after the number of the layer.
constexpr Names kOfLayer[] = {{".layer.0.layer_norm.", ".norm1.", ".attn_norm."},
                              {".layer.0.SelfAttention.relative_attention_bias.",
                               ".pos_embedding.embedding.", ".attn_rel_b."},
                              {".layer.0.SelfAttention.q.", ".attn.q.", ".attn_q."},
                              {".layer.0.SelfAttention.k.", ".attn.k.", ".attn_k."},
                              {".layer.0.SelfAttention.v.", ".attn.v.", ".attn_v."},
                              {".layer.0.SelfAttention.o.", ".attn.o.", ".attn_o."},
                              {".layer.1.layer_norm.", ".norm2.", ".ffn_norm."},
                              {".layer.1.DenseReluDense.wi_0.", ".ffn.gate.0.", ".ffn_gate."},
                              {".layer.1.DenseReluDense.wi_1.", ".ffn.fc1.", ".ffn_up."},
                              {".layer.1.DenseReluDense.wo.", ".ffn.fc2.", ".ffn_down."}};
constexpr Names kOther[] = {{"shared.", "token_embedding.", "token_embd."},
                            {"encoder.final_layer_norm.", "norm.", "enc.output_norm."}};
constexpr const char* kBlocks = "encoder.block.";

constexpr const char* kFirstQuery = "encoder.block.0.layer.0.SelfAttention.q.weight";
constexpr const char* kSecondBias =
    "encoder.block.1.layer.0.SelfAttention.relative_attention_bias.weight";

const char* of(const Names& names, Umt5Spelling spelling) {
  return spelling == Umt5Spelling::kOriginal ? names.original : names.gguf;
}

bool has_second_bias(const TensorNames& names, Umt5Spelling spelling) {
  return names.contains(umt5_name(spelling, kSecondBias));
}

}  // namespace

std::string umt5_name(Umt5Spelling spelling, const std::string& name) {
  if (spelling == Umt5Spelling::kHuggingFace) return name;
  for (const Names& names : kOther)
    if (const std::string start = names.ours; name.starts_with(start))
      return of(names, spelling) + name.substr(start.size());
  const std::string blocks = kBlocks;
  if (!name.starts_with(blocks)) return name;
  const size_t end = name.find('.', blocks.size());
  const std::string start = (spelling == Umt5Spelling::kOriginal ? "blocks." : "enc.blk.") +
                            name.substr(blocks.size(), end - blocks.size());
  for (const Names& names : kOfLayer)
    if (const std::string part = names.ours; name.compare(end, part.size(), part) == 0)
      return start + of(names, spelling) + name.substr(end + part.size());
  return name;
}

std::optional<Umt5Spelling> find_umt5_spelling(const TensorNames& names) {
  for (const Umt5Spelling spelling :
       {Umt5Spelling::kHuggingFace, Umt5Spelling::kOriginal, Umt5Spelling::kGguf})
    if (names.contains(umt5_name(spelling, kFirstQuery)) &&
        (spelling != Umt5Spelling::kOriginal || names.contains("token_embedding.weight")))
      return spelling;
  return std::nullopt;
}

bool holds_umt5(const TensorNames& names) {
  const std::optional<Umt5Spelling> spelling = find_umt5_spelling(names);
  return spelling && has_second_bias(names, *spelling);
}

bool holds_t5(const TensorNames& names) {
  const std::optional<Umt5Spelling> spelling = find_umt5_spelling(names);
  return spelling && !has_second_bias(names, *spelling);
}

}  // namespace weft
