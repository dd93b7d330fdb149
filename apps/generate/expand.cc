#include "apps/generate/expand.h"

#include <cstdio>
#include <filesystem>

#include "apps/command_line/printable.h"
#include "apps/generate/progress.h"
#include "apps/generate/stop.h"
#include "apps/model_folder.h"
#include "engine/language/expand_prompt.h"
#include "engine/language/language_folder.h"

namespace weft {

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
  folder = find_model(folder);
  LanguageFolder::open(folder).chat_end_ids();  // refuses a model that cannot chat
  return folder;
}

std::string expander_folder(const Flags& flags, std::span<const GivenJob> jobs) {
  const std::string folder = expander_folder(flags);
  for (const GivenJob& job : jobs)
    if (folder.empty() && job.expand.value_or(false))
      throw Error(ErrorKind::kUsage, job.label("expand_prompt") +
                                         " is true, but no language model is given; legal: "
                                         "false, or --expand-prompt FOLDER of the command");
  return folder;
}

void set_caption(const std::string& caption, JobSpec& job) {
  job.expanded_from = job.request.prompt;
  job.request.prompt = caption;
}

std::vector<std::string> captions_of(const Flags& flags, const Ranks& ranks,
                                     const std::string& folder,
                                     const std::vector<std::string>& prompts, uint64_t seed,
                                     const std::atomic<bool>& stop) {
  return agreed_texts(ranks, [&] {
    ExpandOptions options;
    options.language = {
        .device = device_of(flags),
        .dtype = compute_dtype(flags),
        .threads = threads_per_rank(flags),  // the other processes wait
        .determinism = flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast};
    options.sampling = {.temperature = *flags.real("expand-temperature"), .seed = seed};
    options.memory_limit = flags.bytes("memory-limit");
    options.stop = &stop;
    return expand_prompts(folder, prompts, options);
  });
}

std::vector<std::string> expanded(const Flags& flags, const Ranks& ranks, const std::string& folder,
                                  const std::vector<std::string>& prompts, uint64_t seed) {
  std::vector<std::string> captions =
      captions_of(flags, ranks, folder, prompts, seed, stop_requested());
  if (ranks.speaks && informative(flags))
    for (size_t i = 0; i < prompts.size(); ++i)
      std::fprintf(stderr, "prompt  %s -> %s\n", printable(prompts[i]).c_str(),
                   printable(captions[i]).c_str());
  return captions;
}

}  // namespace weft
