#pragma once
// The tokenizer that llama.cpp's GGUF files hold in their metadata.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "io/weights/gguf_header.h"

namespace weft {

struct GgufTokenizer {
  // A token's type as llama.cpp numbers it, which is SentencePiece's numbering too.
  enum Type : int32_t { kNormal = 1, kUnknown, kControl, kUserDefined, kUnused, kByte };

  std::string model;  // "t5", "gpt2"
  std::string words;  // the name of the pattern that splits texts: "qwen2"; "" where none is named
  std::vector<std::string> tokens;
  std::vector<float> scores;        // one per token, or empty
  std::vector<int32_t> types;       // one per token, or empty: all are kNormal
  std::vector<std::string> merges;  // "left right"
  std::string charsmap;             // SentencePiece's precompiled_charsmap
  bool add_space_prefix = true, remove_extra_whitespaces = true;
};

// Reads the tokenizer of the file whose bytes are `file` and whose header has been read; nullopt
// where it holds none. Error(kModel) names the key whose value is not legal.
std::optional<GgufTokenizer> read_gguf_tokenizer(std::string_view file, const GgufHeader& header,
                                                 const std::string& path);
// The same by the path of a .gguf file.
std::optional<GgufTokenizer> read_gguf_tokenizer(const std::string& path);

}  // namespace weft
