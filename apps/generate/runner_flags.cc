#include "apps/generate/runner_flags.h"

#include <cstdio>
#include <filesystem>

#include "apps/command_line/placement.h"
#include "apps/command_line/printable.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/profile.h"
#include "apps/generate/progress.h"
#include "apps/generate/request_flags.h"
#include "apps/generate/resume.h"
#include "apps/model_folder.h"
#include "apps/preview/preview_file.h"

namespace weft {
namespace {

Json as_given(const Flags& flags) {
  Json given = Json::object();
  for (const auto& [name, value] : flags.values()) {
    if (value.second == "default") continue;
    const bool prompt = name == "prompt" || name == "negative-prompt";
    if (prompt && flags.on("no-prompt-metadata")) continue;
    given[name] = {{"value", recorded_value(find_flag(flags.command(), name), value.first)},
                   {"origin", value.second}};
  }
  return given;
}

Layout fixed_stages(const Flags& flags) {
  Layout fixed;
  fixed.text_ranks = static_cast<int>(flags.integer("text-ranks").value_or(0));
  fixed.vae_ranks = static_cast<int>(flags.integer("vae-ranks").value_or(0));
  fixed.decode_rank = static_cast<int>(flags.integer("decode-rank").value_or(-1));
  return fixed;
}

Reporter reporter_of(const Flags& flags) {
  const Reporter::Say print = [](const std::string& line) {
    std::fprintf(stderr, "weft: %s\n", printable(line).c_str());
  };
  return {.told = print, .informed = informative(flags) ? print : nullptr};
}

// The job's name in progress events: the name of its file or folder.
std::string job_name(const std::string& path) {
  const std::filesystem::path name(path.ends_with('/') ? path.substr(0, path.size() - 1) : path);
  return name.filename().string();
}

// A server draws for strangers, and so do its workers and the batches that share its store.
bool draws_for_clients(const Flags& flags) {
  return flags.command() == kServe || flags.command() == kWorker || flags.given("store");
}

// weft generate says it in its header.
void tell_licence(const Flags& flags, const Ranks& ranks, const OpenModel& model) {
  const KnownModel* known = model.directory.known();
  if (flags.command() == kGenerate || !ranks.speaks || !known || known->is_free()) return;
  std::fprintf(stderr, "licence %s, if these are the weights of %s: %s\n", known->licence,
               known->name, known->restriction);
}

RunnerSettings runner_settings(const Flags& flags) {
  RunnerSettings settings;
  settings.ranks = ranks_of(flags);
  const Ranks& ranks = settings.ranks;
  settings.recorder = std::make_shared<Profiling>(flags, ranks);
  settings.options = options_of(flags, ranks);
  settings.machine = rank_machine(flags, ranks);
  settings.layout = layout_text(flags);
  settings.fixed = fixed_stages(flags);
  settings.overwrite = flags.on("overwrite");
  settings.with_sidecar = !flags.on("no-metadata");
  settings.latents = kept_latents(flags);
  settings.checkpoint_seconds = checkpoint_seconds(flags);
  settings.segment_seconds = segment_seconds(flags);
  settings.cache_audit = static_cast<int>(flags.integer("cache-audit").value_or(0));
  settings.text_cache = flags.text("cache-text");
  settings.records = {.given = as_given(flags),
                      .version = version_text(),
                      .without_prompts = flags.on("no-prompt-metadata"),
                      .without_folders = draws_for_clients(flags)};
  settings.resume = resume_rule(flags);
  settings.reporter = reporter_of(flags);
  settings.watch = [&flags](const Drawing& drawing, bool several) {
    auto watch = std::make_unique<ProgressPrinter>(progress_mode(flags), job_name(drawing.path));
    watch->show_previews(preview_path(flags, drawing.path, several, drawing.spec.request.frames));
    return watch;
  };
  settings.resume_advice = [&flags, ranks](const OutputNames& names) {
    return resume_advice(flags, ranks, names);
  };
  return settings;
}

}  // namespace

JobRunner job_runner(const Flags& flags, std::shared_ptr<const OpenModel> model) {
  RunnerSettings settings = runner_settings(flags);  // refuses flags before the model is opened
  if (!model) model = open_model(flags);
  tell_licence(flags, settings.ranks, *model);
  settings.kept_flags = flags_to_keep(flags);
  return JobRunner(std::move(settings), std::move(model));
}

}  // namespace weft
