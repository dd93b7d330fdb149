#pragma once
// Opens the weights of a model in any format that is read here, as a TensorFile of floats.
#include <functional>
#include <string>
#include <vector>

#include "io/weights/gguf_header.h"
#include "io/weights/tensor_file.h"

namespace weft {

// Opens a .gguf file, or whatever TensorFile::open takes. In a folder without safetensors the
// only .gguf file is opened. Quantised tensors appear as f32; they stay packed in the file and are
// expanded when they are used. `choose` sees the names in the file and may give others.
using NameChoice = std::function<TensorFile::Renaming(const std::vector<std::string>& names)>;
TensorFile open_weights(const std::string& path, const NameChoice& choose = {});

// The names of the tensors of such a file, sorted.
std::vector<std::string> weight_names(const std::string& path);

// Opens a GGUF file, whatever its name is. One that is a part of several (split.count) is opened
// with the others, which lie beside it: Error(kModel) names those that are missing.
TensorFile open_gguf(const std::string& path, const NameChoice& choose = {});

// Returns the header of a GGUF file.
GgufHeader read_gguf_header(const std::string& path);

}  // namespace weft
