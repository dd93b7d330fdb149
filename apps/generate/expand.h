#pragma once
// --expand-prompt: writes full captions from short prompts.
#include <atomic>
#include <span>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/device.h"
#include "apps/generate/request_flags.h"

namespace weft {

// The folder of the language model that --expand-prompt names; "auto" is the folder `language`
// inside --model. "" where prompts are not expanded. Error(kUsage), Error(kModel) before anything
// is run.
std::string expander_folder(const Flags& flags);
// The same for jobs that may ask for captions themselves. Error(kUsage) where one does, but no
// folder is given.
std::string expander_folder(const Flags& flags, std::span<const GivenJob> jobs);

// Makes the caption the prompt of a job, which keeps the one that it had.
void set_caption(const std::string& caption, JobSpec& job);

// Writes the captions of `prompts`. The first process does the work, and every process gets the
// result. Error(kStopped) where `stop` became true.
std::vector<std::string> captions_of(const Flags& flags, const Ranks& ranks,
                                     const std::string& folder,
                                     const std::vector<std::string>& prompts, uint64_t seed,
                                     const std::atomic<bool>& stop);
// Writes them and shows them.
std::vector<std::string> expanded(const Flags& flags, const Ranks& ranks, const std::string& folder,
                                  const std::vector<std::string>& prompts, uint64_t seed);

}  // namespace weft
