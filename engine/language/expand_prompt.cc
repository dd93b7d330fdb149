#include "engine/language/expand_prompt.h"

#include <algorithm>
#include <chrono>

#include "engine/memory/memory_plan.h"

namespace weft {

namespace {

constexpr const char* kStopped = "stopped while prompts were expanded";

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

}  // namespace

PromptExpander::PromptExpander(const std::string& folder, const LanguageOptions& language)
    : folder_(LanguageFolder::open(folder)), language_(language) {
  folder_.chat_end_ids();  // refuses a model that cannot chat
}

CompletionRequest PromptExpander::request_for(const std::string& prompt,
                                              const ExpandOptions& options) const {
  const std::string task = trimmed(detail::kExpandPrompt);
  CompletionRequest request{.prompt = folder_.chat(task, trimmed(prompt), Thinking::kOff),
                            .sampling = options.sampling,
                            .stop = folder_.chat_end_ids()};
  const auto asked = static_cast<int64_t>(request.prompt.size());
  request.max_tokens = std::min(options.max_tokens, folder_.config.max_positions - asked + 1);
  if (request.max_tokens < 1)
    throw Error(ErrorKind::kModel, folder_.path + ": expanding a prompt of " +
                                       std::to_string(prompt.size()) + " bytes needs " +
                                       std::to_string(asked) + " tokens, the model reads up to " +
                                       std::to_string(folder_.config.max_positions));
  return request;
}

// Throws Error(kMemory) before anything is loaded if the model does not fit in memory.
void PromptExpander::make_ready(std::span<const CompletionRequest> requests, uint64_t limit) {
  const LanguageOptions sized = sized_for(requests, CompletionOptions{}.batch, language_);
  const LanguageBytes bytes = LanguageModel::predict(folder_.config, sized, Layout{}, 0, requests);
  const uint64_t free = available_memory(language_.device) + held_;
  const uint64_t available = limit ? std::min(limit, free) : free;
  if (bytes.total() > available)
    throw Error(ErrorKind::kMemory, folder_.path + ": expanding prompts needs " +
                                        format_bytes(bytes.total()) + " of memory; available are " +
                                        format_bytes(available));
  if (model_) {
    model_->rank().reserve(sized.positions, sized.cache_tokens);
  } else {
    model_.emplace(folder_.path, sized);
    ++loads_;
  }
  held_ = std::max<uint64_t>(held_, bytes.total());
}

// Waits for the model. Where `stop` is raised meanwhile, the lock is not held.
std::unique_lock<std::timed_mutex> PromptExpander::lock_unless(const std::atomic<bool>* stop) {
  constexpr std::chrono::milliseconds kLook{50};
  std::unique_lock lock(mutex_, std::defer_lock);
  while (!(stop && stop->load()) && !lock.try_lock_for(kLook)) {
  }
  return lock;
}

std::vector<std::string> PromptExpander::expand(std::span<const std::string> prompts,
                                                const ExpandOptions& options) {
  std::vector<CompletionRequest> requests;
  for (const std::string& prompt : prompts) requests.push_back(request_for(prompt, options));
  std::vector<Completion> completions;
  {
    const auto lock = lock_unless(options.stop);
    if (!lock) throw Error(ErrorKind::kStopped, kStopped);
    make_ready(requests, options.memory_limit);
    completions = model_->complete(requests, {.stop = options.stop});
  }
  std::vector<std::string> captions;
  for (size_t i = 0; i < completions.size(); ++i) {
    if (completions[i].end == Completion::End::kCut) throw Error(ErrorKind::kStopped, kStopped);
    const std::string what = folder_.path + ": the caption for '" + prompts[i] + "' ";
    if (completions[i].end == Completion::End::kMaxTokens)
      throw Error(ErrorKind::kModel, what + "does not end within " +
                                         std::to_string(requests[i].max_tokens) + " tokens");
    const std::string reply = folder_.tokenizer.decode(completions[i].ids, SpecialTokens::kSkip);
    captions.push_back(trimmed(without_thoughts(reply)));
    if (captions.back().empty()) throw Error(ErrorKind::kModel, what + "is empty");
  }
  return captions;
}

void PromptExpander::release(const std::atomic<bool>* stop) {
  const auto lock = lock_unless(stop);
  if (!lock) return;
  model_.reset();
  held_ = 0;
}

}  // namespace weft
