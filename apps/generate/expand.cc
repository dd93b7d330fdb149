#include "apps/generate/expand.h"

#include <cstdio>
#include <filesystem>

#include "apps/command_line/printable.h"
#include "apps/generate/progress.h"
#include "apps/model_folder.h"

namespace weft {
namespace {

// The folder that --expand-prompt names; "" where prompts are not expanded.
std::string expander_folder(const Flags& flags) {
  std::string folder = flags.text("expand-prompt");
  if (folder.empty()) {
    if (flags.given("expand-temperature"))
      throw Error(ErrorKind::kUsage, flags.label("expand-temperature") + " needs --expand-prompt");
    return "";
  }
  if (folder == "auto") {
    folder = (std::filesystem::path(model_folder(flags)) / "language").string();
    if (!std::filesystem::is_directory(folder))
      throw Error(ErrorKind::kUsage, flags.label("expand-prompt") +
                                         " is 'auto', but there is no folder " + folder +
                                         "; legal: the folder of a Qwen2.5 or Qwen3");
  }
  return find_model(folder);
}

}  // namespace

std::shared_ptr<PromptExpander> expander_of(const Flags& flags) {
  const std::string folder = expander_folder(flags);
  if (folder.empty()) return nullptr;
  return std::make_shared<PromptExpander>(
      folder, LanguageOptions{.device = device_of(flags),
                              .dtype = compute_dtype(flags),
                              .threads = threads_per_rank(flags),  // the other processes wait
                              .determinism = flags.on("deterministic") ? Determinism::kFixed
                                                                       : Determinism::kFast});
}

bool wants_caption(const GivenJob& job, bool has_expander) {
  if (job.expand.value_or(false) && !has_expander)
    throw Error(ErrorKind::kUsage, job.label("expand_prompt") +
                                       " is true, but --expand-prompt is not given; legal: false, "
                                       "or --expand-prompt FOLDER of the command");
  return job.expand.value_or(has_expander);
}

void set_caption(const std::string& caption, JobSpec& job) {
  job.expanded_from = job.request.prompt;
  job.request.prompt = caption;
}

void write_captions(const Captioning& how, std::span<JobSpec* const> jobs) {
  std::vector<std::string> prompts;
  for (const JobSpec* job : jobs) prompts.push_back(job->request.prompt);
  const std::vector<std::string> captions = agreed_texts(how.ranks, [&] {
    ExpandOptions options;
    options.sampling = {.temperature = *how.flags.real("expand-temperature"), .seed = how.seed};
    options.memory_limit = how.flags.bytes("memory-limit");
    options.stop = &how.stop;
    return how.expander.expand(prompts, options);
  });
  for (size_t i = 0; i < jobs.size(); ++i) set_caption(captions[i], *jobs[i]);
}

void write_all_captions(const Captioning& how, std::span<JobSpec* const> jobs) {
  write_captions(how, jobs);
  how.expander.release();
  if (!how.ranks.speaks || !informative(how.flags)) return;
  for (const JobSpec* job : jobs)
    std::fprintf(stderr, "prompt  %s -> %s\n", printable(job->expanded_from).c_str(),
                 printable(job->request.prompt).c_str());
}

}  // namespace weft
