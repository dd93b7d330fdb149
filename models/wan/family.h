#pragma once
// The code that Wan's rows of the registry share.
#include <memory>

#include "models/registry.h"

namespace weft {

// The prompts of all of Wan's transformers, for UMT5.
std::unique_ptr<PromptTokenizer> wan_tokenizer(const ModelDirectory& model);

}  // namespace weft
