#pragma once
// Wan's rows of the registry.
#include <memory>

#include "models/registry.h"

namespace weft {

// The prompts of all of Wan's transformers, for UMT5.
std::unique_ptr<PromptTokenizer> wan_tokenizer(const ModelDirectory& model);

extern const ModelFamily kWanFamily, kWanPictureFamily;

}  // namespace weft
