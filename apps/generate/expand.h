#pragma once
// weft generate --expand-prompt: writes full captions from short prompts, before anything else is
// loaded.
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/device.h"

namespace weft {

// The folder of the language model that --expand-prompt names; "auto" is the folder `language`
// inside
// --model. "" where prompts are not expanded. Error(kUsage), Error(kModel) before anything is run.
std::string expander_folder(const Flags& flags);

// Writes the captions of `prompts` and shows them. The first process does the work, and every
// process gets the result.
std::vector<std::string> expanded(const Flags& flags, const Ranks& ranks, const std::string& folder,
                                  const std::vector<std::string>& prompts, uint64_t seed);

}  // namespace weft
