#pragma once
// weft generate --expand-prompt: short prompts as full captions, before anything else is loaded.
#include <string>
#include <vector>

#include "apps/device.h"
#include "apps/flags.h"

namespace weft {

// The folder of the language model: --expand-prompt, where "auto" is the folder `language` of
// --model; "" where prompts stay as they are. Error(kUsage), Error(kModel) before anything is run.
std::string expander_folder(const Flags& flags);

// The captions of `prompts`, the same in every process, shown to the user; by the first process.
std::vector<std::string> expanded(const Flags& flags, const Ranks& ranks, const std::string& folder,
                                  const std::vector<std::string>& prompts, uint64_t seed);

}  // namespace weft
