#pragma once
// Says what a weights file is for, and which command runs it.
#include <string>

#include "io/json.h"
#include "io/weights/tensor_file.h"

namespace weft {

// Adds to the JSON of weft inspect what the file `path` holds: "part", "class", "config", and where
// they apply "model" (the published models with such shapes), "lora", "tokenizer", "command" and
// "missing" (the flags of parts that were not found beside the file or in the folders beside its
// own).
void add_use(const std::string& path, const TensorFile& file, Json& object);

}  // namespace weft
