#pragma once
// Expands short prompts to full captions with a language model, which stays loaded from call to
// call.
#include <atomic>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/language/language.h"
#include "engine/language/language_folder.h"

namespace weft {

struct ExpandOptions {
  TokenSampling sampling{};
  int64_t max_tokens = 512;   // per caption
  uint64_t memory_limit = 0;  // bytes; 0: what the machine has free now
  const std::atomic<bool>* stop = nullptr;
};

// It may be called from several threads. Captions are then written one call after the other.
class PromptExpander {
 public:
  // Loads no weights. Throws Error(kModel) for a folder that holds no chat model. `language` needs
  // no `positions` and no `cache_tokens`.
  explicit PromptExpander(const std::string& folder, const LanguageOptions& language = {});

  // Returns one caption per prompt, computed on one rank. The weights are loaded unless they are
  // held, and held afterwards. The model's system text is models/templates/expand_prompt.txt, which
  // is part of the binary. Throws Error(kModel) for a caption that is empty or does not end within
  // max_tokens, Error(kMemory) for a model that does not fit, and Error(kStopped) when `stop` was
  // raised, also while others' captions are written.
  std::vector<std::string> expand(std::span<const std::string> prompts,
                                  const ExpandOptions& options);

  // Frees the weights and the cache, after the captions that are being written. Frees nothing where
  // `stop` is raised before.
  void release(const std::atomic<bool>* stop = nullptr);
  // The bytes that the model takes at most, as they were predicted; 0: no weights are held.
  uint64_t held_bytes() const { return held_; }
  int loads() const { return loads_; }  // how often the weights were loaded

 private:
  CompletionRequest request_for(const std::string& prompt, const ExpandOptions& options) const;
  void make_ready(std::span<const CompletionRequest> requests, uint64_t limit);
  std::unique_lock<std::timed_mutex> lock_unless(const std::atomic<bool>* stop);

  const LanguageFolder folder_;
  const LanguageOptions language_;
  std::timed_mutex mutex_;  // guards the model
  std::optional<LanguageModel> model_;
  std::atomic<uint64_t> held_{0};
  std::atomic<int> loads_{0};
};

namespace detail {
extern const char* const kExpandPrompt;  // generated from expand_prompt.txt
}

}  // namespace weft
