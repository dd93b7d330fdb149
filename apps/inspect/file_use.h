#pragma once
// Says what a weights file is for, and which command runs it.
#include <string>

#include "io/json.h"
#include "io/weights/tensor_file.h"
#include "models/registry.h"

namespace weft {

// Adds to the JSON of weft inspect what the file `path` holds: "part", "class", "config", and where
// they apply "model" (the published models with such shapes), "lora", "tokenizer", "command" and
// "missing" (the flags of parts that were not found beside the file or in the folders beside its
// own).
void add_use(const std::string& path, const TensorFile& file, Json& object);

// Adds "licence": that of a published model, and how it is known; null: none is known.
void add_licence(const KnownModel* known, Json& object);
// The published model whose transformer this is, by its class and sizes; null: none.
const KnownModel* known_transformer(const std::string& class_name, const TransformerModel& model);

}  // namespace weft
