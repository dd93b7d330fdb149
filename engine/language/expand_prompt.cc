#include "engine/language/expand_prompt.h"

#include <algorithm>

#include "engine/language/language_folder.h"
#include "engine/memory/memory_plan.h"

namespace weft {

namespace {

std::string trimmed(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return "";
  return std::string(text.substr(begin, text.find_last_not_of(kSpace) - begin + 1));
}

// Throws Error(kMemory) before anything is loaded if the language model does not fit in memory.
void check_memory(const LanguageFolder& folder, const LanguageOptions& language,
                  std::span<const CompletionRequest> requests, uint64_t limit) {
  const LanguageBytes bytes =
      LanguageModel::predict(folder.config, language, Layout{}, 0, requests);
  const uint64_t free = available_memory(language.device);
  const uint64_t available = limit ? std::min(limit, free) : free;
  if (bytes.total() > available)
    throw Error(ErrorKind::kMemory, folder.path + ": expanding prompts needs " +
                                        format_bytes(bytes.total()) + " of memory; available are " +
                                        format_bytes(available));
}

}  // namespace

std::vector<std::string> expand_prompts(const std::string& path,
                                        std::span<const std::string> prompts,
                                        const ExpandOptions& options) {
  const LanguageFolder folder = LanguageFolder::open(path);
  const std::string task = trimmed(detail::kExpandPrompt);
  std::vector<CompletionRequest> requests;
  for (const std::string& prompt : prompts) {
    CompletionRequest request{.prompt = folder.chat(task, trimmed(prompt), Thinking::kOff),
                              .sampling = options.sampling,
                              .stop = folder.chat_end_ids()};
    const auto asked = static_cast<int64_t>(request.prompt.size());
    request.max_tokens = std::min(options.max_tokens, folder.config.max_positions - asked + 1);
    if (request.max_tokens < 1)
      throw Error(ErrorKind::kModel, path + ": expanding a prompt of " +
                                         std::to_string(prompt.size()) + " bytes needs " +
                                         std::to_string(asked) + " tokens, the model reads up to " +
                                         std::to_string(folder.config.max_positions));
    requests.push_back(std::move(request));
  }
  const LanguageOptions language = sized_for(requests, CompletionOptions{}.batch, options.language);
  check_memory(folder, language, requests, options.memory_limit);
  LanguageModel model(path, language);
  const std::vector<Completion> completions = model.complete(requests, {.stop = options.stop});

  std::vector<std::string> captions;
  for (size_t i = 0; i < completions.size(); ++i) {
    if (completions[i].end == Completion::End::kCut)
      throw Error(ErrorKind::kStopped, "stopped while prompts were expanded");
    const std::string what = path + ": the caption for '" + std::string(prompts[i]) + "' ";
    if (completions[i].end == Completion::End::kMaxTokens)
      throw Error(ErrorKind::kModel, what + "does not end within " +
                                         std::to_string(requests[i].max_tokens) + " tokens");
    const std::string reply = folder.tokenizer.decode(completions[i].ids, SpecialTokens::kSkip);
    captions.push_back(trimmed(without_thoughts(reply)));
    if (captions.back().empty()) throw Error(ErrorKind::kModel, what + "is empty");
  }
  return captions;
}

}  // namespace weft
