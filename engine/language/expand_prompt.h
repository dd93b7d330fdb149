#pragma once
// Expands short prompts to full captions. The language model is loaded for this and freed after it.
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "engine/language/language.h"

namespace weft {

struct ExpandOptions {
  LanguageOptions language{};
  TokenSampling sampling{};
  int64_t max_tokens = 512;   // per caption
  uint64_t memory_limit = 0;  // bytes; 0: what the machine has free now
  const std::atomic<bool>* stop = nullptr;
};

// Returns one caption per prompt, computed on one rank. `folder` holds a chat model. Its system
// text is models/templates/expand_prompt.txt, which is part of the binary. Throws Error(kModel) for
// a caption that is empty or does not end within max_tokens, Error(kMemory) for a model that does
// not fit, and Error(kStopped) when `stop` was raised.
std::vector<std::string> expand_prompts(const std::string& folder,
                                        std::span<const std::string> prompts,
                                        const ExpandOptions& options);

namespace detail {
extern const char* const kExpandPrompt;  // generated from expand_prompt.txt
}

}  // namespace weft
