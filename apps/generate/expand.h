#pragma once
// --expand-prompt: writes full captions from short prompts.
#include <atomic>
#include <memory>
#include <span>
#include <string>

#include "apps/command_line/flags.h"
#include "apps/device.h"
#include "apps/generate/request_flags.h"
#include "engine/language/expand_prompt.h"

namespace weft {

// The language model of --expand-prompt, without its weights; "auto" is the folder `language`
// inside --model. Null where prompts are not expanded. Error(kUsage), Error(kModel).
std::shared_ptr<PromptExpander> expander_of(const Flags& flags);

// True where a caption is to be written for a job: it says so itself, else all want one where there
// is a language model. Error(kUsage) where it says so, but there is none.
bool wants_caption(const GivenJob& job, bool has_expander);

// Makes the caption the prompt of a job, which keeps the one that it had.
void set_caption(const std::string& caption, JobSpec& job);

struct Captioning {
  const Flags& flags;
  const Ranks& ranks;
  PromptExpander& expander;
  uint64_t seed;  // of drawn captions
  const std::atomic<bool>& stop;
};
// Writes the captions of the jobs. The first process does the work, and every process gets the
// result. Error(kStopped) where `stop` became true.
void write_captions(const Captioning& how, std::span<JobSpec* const> jobs);
// Writes those of all jobs that there will be, frees the weights and shows the captions.
void write_all_captions(const Captioning& how, std::span<JobSpec* const> jobs);

}  // namespace weft
