#pragma once
// Predicts the memory of a language model's job, and refuses one that does not fit.
#include <string>

#include "apps/command_line/flags.h"
#include "engine/language/language.h"
#include "engine/language/language_folder.h"
#include "io/json.h"

namespace weft {

// The memory of one of `ranks_per_device` ranks on this machine or device: its share of
// --memory-limit or of what is free.
uint64_t memory_share(const Flags& flags, Device device, int ranks_per_device);

// Predicts the memory of the fullest rank. `options` are sized for the requests. Error(kMemory)
// where it is more than `available`; the message says what would fit.
LanguageBytes plan_language(const DecoderConfig& config, const LanguageOptions& options,
                            const Layout& layout, std::span<const CompletionRequest> requests,
                            const CompletionOptions& how, uint64_t available);

// Describes a language model's folder for weft inspect, from its config.json and the weights'
// headers.
Json inspect_language(const std::string& path);
// weft inspect FOLDER --memory TOKENS: prints the memory of one sequence of so many tokens.
void inspect_language_memory(const Flags& flags, const std::string& path);

}  // namespace weft
