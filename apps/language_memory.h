#pragma once
// What a language model's job will hold, refused beforehand where there is less.
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "apps/flags.h"
#include "engine/language.h"
#include "engine/language_folder.h"

namespace weft {

struct LanguageSize {
  int64_t positions = 0;      // of the longest sequence
  int64_t prompt_tokens = 0;  // of all sequences at once
  int64_t sequences = 1;      // at once
  int64_t cache_tokens = 0;   // of all of them, in whole pages
};

// What requests need, at most `batch` at once; pages of `page_rows`.
LanguageSize size_of(std::span<const CompletionRequest> requests, int batch, int64_t page_rows);

// --memory-limit or what is free, of one of `ranks_per_device` ranks on this machine.
uint64_t memory_share(const Flags& flags, Device device, int ranks_per_device);

// Of the first rank. Error(kMemory) where it is more than `available`, with what would fit.
LanguageBytes plan_language(const QwenConfig& config, const LanguageOptions& options,
                            const Layout& layout, const LanguageSize& size, int64_t chunk,
                            uint64_t available);

// weft inspect of a language model's folder, from its config.json and the weights' headers.
nlohmann::json inspect_language(const std::string& path);
// weft inspect FOLDER --memory TOKENS: prints what one sequence of so many takes.
void inspect_language_memory(const Flags& flags, const std::string& path);

}  // namespace weft
