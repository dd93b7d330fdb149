#pragma once
// The names that the checkpoint of a CLIP tower may use: Hugging Face's, which are used
// here, or for the vision tower those of Wan's original repository, where queries, keys and values
// are joined.
#include <optional>
#include <string>

#include "io/weights/tensor_names.h"
#include "models/weights.h"

namespace weft {

inline constexpr const char* kClipClass = "embeddings.class_embedding";
inline constexpr const char* kClipPositions = "embeddings.position_embedding.weight";
inline constexpr const char* kClipTokens = "embeddings.token_embedding.weight";
inline constexpr const char* kClipPatches = "embeddings.patch_embedding.weight";
inline constexpr const char* kClipFirstLayer = "encoder.layers.0.mlp.fc1.weight";

inline constexpr const char* kClipTextPrefixes[] = {"", "text_model."};

struct ClipNames {
  std::string prefix;
  bool original = false;

  // The place of a tensor with a Hugging Face name in the file.
  TensorPlace operator()(const std::string& name) const;
};

// Return the names of a file that holds such a tower; nullopt for any other file.
std::optional<ClipNames> find_clip_text_names(const TensorNames& names);
std::optional<ClipNames> find_clip_vision_names(const TensorNames& names);

}  // namespace weft
