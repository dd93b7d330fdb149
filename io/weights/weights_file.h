#pragma once
// Opens the weights of a model in any format that is read here, as a TensorFile of floats.
#include <string>

#include "io/weights/gguf_header.h"
#include "io/weights/tensor_file.h"

namespace weft {

// Opens a .gguf file, or whatever TensorFile::open takes. In a folder without safetensors the
// only .gguf file is opened. Quantised tensors appear as f32 under their own names; they stay
// packed in the file and are expanded when they are used.
TensorFile open_weights(const std::string& path);

// Opens a GGUF file, whatever its name is.
TensorFile open_gguf(const std::string& path);

// Returns the header of a GGUF file.
GgufHeader read_gguf_header(const std::string& path);

}  // namespace weft
