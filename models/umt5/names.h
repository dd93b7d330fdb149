#pragma once
// The spellings that the checkpoint of a UMT5 or T5 encoder may use: Hugging Face's, which
// are used here, of Wan's original repository, and of llama.cpp in GGUF files.
#include <optional>
#include <string>

#include "io/weights/tensor_names.h"

namespace weft {

enum class Umt5Spelling : uint8_t { kHuggingFace, kOriginal, kGguf };

// The spelling of a file that holds such an encoder; nullopt for any other file.
std::optional<Umt5Spelling> find_umt5_spelling(const TensorNames& names);

// The file's spelling of a Hugging Face name.
std::string umt5_name(Umt5Spelling spelling, const std::string& name);

// Return whether the file holds a UMT5 encoder, whose layers have a position bias each, or a T5
// encoder, whose layers share the first one's.
bool holds_umt5(const TensorNames& names);
bool holds_t5(const TensorNames& names);

}  // namespace weft
