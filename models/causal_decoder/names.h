#pragma once
// The spellings that the checkpoint of a Qwen2.5 or Qwen3 decoder may use: names of transformers
// after one of several prefixes, or llama.cpp's in GGUF files.
#include <string>
#include <vector>

#include "io/weights/tensor_names.h"

namespace weft {

struct DecoderNames {
  std::string prefix;
  bool gguf = false;

  // The file's spelling of a name of decoder_tensors().
  std::string operator()(const std::string& name) const;
};

std::vector<DecoderNames> all_decoder_names();
DecoderNames detect_decoder_names(const TensorNames& names);

// Return whether the file holds a Qwen3, whose heads are normalised, or a Qwen2.5, whose queries,
// keys and values have biases.
bool holds_qwen3(const TensorNames& names);
bool holds_qwen2(const TensorNames& names);

}  // namespace weft
