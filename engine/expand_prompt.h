#pragma once
// A short prompt as a full caption, by a language model that is loaded for it and freed behind it.
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "engine/language.h"

namespace weft {

struct ExpandOptions {
  LanguageOptions language{};
  TokenSampling sampling{};
  int64_t max_tokens = 512;   // of a caption
  uint64_t memory_limit = 0;  // bytes; 0: what the machine has free now
  const std::atomic<bool>* stop = nullptr;
};

// The captions, on one rank. `folder` holds a language model that chats; it is told what to do by
// models/templates/expand_prompt.txt, a part of the binary. Error(kModel) for a caption that is
// empty or has no end within max_tokens, Error(kMemory) for a model that does not fit,
// Error(kStopped) where `stop` was raised.
std::vector<std::string> expand_prompts(const std::string& folder,
                                        std::span<const std::string> prompts,
                                        const ExpandOptions& options);

namespace detail {
extern const char* const kExpandPrompt;  // generated from expand_prompt.txt
}

}  // namespace weft
