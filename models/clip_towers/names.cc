#include "models/clip_towers/names.h"

#include <utility>

namespace weft {

namespace {

using Spelling = std::pair<const char*, const char*>;  // Hugging Face, original

constexpr Spelling kOutside[] = {{kClipClass, "cls_embedding"},
                                 {kClipPositions, "pos_embedding"},
                                 {kClipPatches, "patch_embedding.weight"},
                                 {"pre_layrnorm.", "pre_norm."},
                                 {"post_layernorm.", "post_norm."}};
// The part of a name after the number of the layer.
constexpr Spelling kOfLayer[] = {{".layer_norm1.", ".norm1."},
                                 {".self_attn.q_proj.", ".attn.to_qkv."},
                                 {".self_attn.k_proj.", ".attn.to_qkv."},
                                 {".self_attn.v_proj.", ".attn.to_qkv."},
                                 {".self_attn.out_proj.", ".attn.proj."},
                                 {".layer_norm2.", ".norm2."},
                                 {".mlp.fc1.", ".mlp.0."},
                                 {".mlp.fc2.", ".mlp.2."}};
constexpr const char kLayers[] = "encoder.layers.";
constexpr const char kOriginalLayers[] = "transformer.";

std::string respelled(std::span<const Spelling> pairs, const std::string& name) {
  for (const auto& [ours, theirs] : pairs)
    if (const std::string start = ours; name.starts_with(start))
      return theirs + name.substr(start.size());
  return name;
}

}  // namespace

TensorPlace ClipNames::operator()(const std::string& name) const {
  if (!original) return {.name = prefix + name};
  const std::string layers = kLayers;
  if (!name.starts_with(layers)) return {.name = prefix + respelled(kOutside, name)};
  const size_t end = name.find('.', layers.size());
  const std::string rest = name.substr(end);
  TensorPlace place{.name = prefix + kOriginalLayers +
                            name.substr(layers.size(), end - layers.size()) +
                            respelled(kOfLayer, rest)};
  for (const auto& [part, index] :
       {std::pair{".self_attn.q_proj.", 0}, {".self_attn.k_proj.", 1}, {".self_attn.v_proj.", 2}})
    if (rest.starts_with(part)) {
      place.part = index;
      place.parts = 3;
    }
  return place;
}

std::optional<ClipNames> find_clip_text_names(const TensorNames& names) {
  for (const std::string prefix : kClipTextPrefixes)
    if (names.contains(prefix + kClipTokens) && names.contains(prefix + kClipFirstLayer))
      return ClipNames{.prefix = prefix};
  return std::nullopt;
}

std::optional<ClipNames> find_clip_vision_names(const TensorNames& names) {
  for (const std::string prefix : {"vision_model.", ""})
    if (names.contains(prefix + kClipPositions) && names.contains(prefix + kClipPatches))
      return ClipNames{.prefix = prefix};
  for (const std::string prefix : {"visual.", ""})
    if (names.contains(prefix + "cls_embedding") &&
        names.contains(prefix + "transformer.0.attn.to_qkv.weight"))
      return ClipNames{.prefix = prefix, .original = true};
  return std::nullopt;
}

}  // namespace weft
