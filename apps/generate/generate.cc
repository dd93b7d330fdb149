// weft generate: draws clips and pictures from prompts.
#include "apps/generate/generate.h"

#include <algorithm>
#include <cstdio>
#include <set>

#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/generate/expand.h"
#include "apps/generate/output_name.h"
#include "apps/generate/profile.h"
#include "apps/generate/progress.h"
#include "apps/generate/resume.h"
#include "apps/generate/runner_flags.h"
#include "apps/generate/stop.h"
#include "apps/inspect/memory.h"
#include "apps/preview/preview_file.h"
#include "engine/planning/calibrate.h"
#include "engine/runner/result_files.h"
#include "io/json.h"
#include "io/text/utf8.h"
#include "io/writable.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

bool are_several(const Flags& flags, const std::vector<GivenJob>& jobs) {
  return jobs.size() > 1 || flags.given("prompt-file");
}

// The pattern of a job's path. The output of a line lies in the folder of --output.
std::string pattern_of(const Flags& flags, const JobSpec& job, bool several) {
  OutputChoice choice{.output = flags.text("output"),
                      .label = flags.label("output"),
                      .frames_as_pictures = flags.text("frames") == "png",
                      .in_segments = segment_seconds(flags).has_value(),
                      .several = several,
                      .frames = job.request.frames};
  if (!job.output.empty()) {
    choice.output.resize(choice.output.rfind('/') + 1);
    choice.output += job.output;
    choice.several = false;
  }
  return output_pattern(choice);
}

std::string percent(double share) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2f %%", 100 * share);
  return text;
}

// Returns "teacache:0.1, 9 of 20 steps skipped, ...", and a line per audited step. The output of a
// computed step after skipped ones shows what they missed together.
std::string cache_text(const RunResult& result) {
  const auto& steps = result.cached;
  std::string text = to_string(result.request.cache) + ", " +
                     std::to_string(std::ranges::count(steps, true, &CachedStep::skipped)) +
                     " of " + std::to_string(steps.size()) + " steps skipped";
  double sum = 0, most = 0;
  int count = 0;
  for (size_t i = 1; i < steps.size(); ++i)
    if (steps[i - 1].skipped && !steps[i].skipped && steps[i].output_change) {
      sum += *steps[i].output_change;
      most = std::max(most, *steps[i].output_change);
      ++count;
    }
  if (count > 0)
    text += "; after them the output changed by " + percent(sum / count) + " in the mean, " +
            percent(most) + " at most";
  for (size_t i = 0; i < steps.size(); ++i)
    if (steps[i].error)
      text += "\n        step " + std::to_string(i + 1) + " skipped, relative error " +
              percent(*steps[i].error);
  return text;
}

void print_result(const Flags& flags, const Finished& done) {
  const RunResult& result = done.result;
  const JobSpec& job = done.drawing.spec;
  if (flags.on("json")) {
    Json object{{"output", path_text(done.output())}, {"framehash", result.framehash},
                {"signature", result.signature},      {"seconds", result.seconds},
                {"seed", result.request.seed},        {"frames", result.frames}};
    if (done.segments > 0) object["segments"] = done.segments;
    for (const StageSeconds& stage : result.stages) object["stages"][stage.stage] = stage.seconds;
    if (!job.expanded_from.empty()) {
      object["prompt"] = result.request.prompt;
      object["expanded_from"] = job.expanded_from;
    }
    if (done.cut) object["prompt_cut"] = to_json(*done.cut);
    object["first_frame_seconds"] = result.first_frame_seconds;
    object["arena_high_water"] = result.arena_high_water;
    object["decode_high_water"] = result.decode_high_water;
    object["tensor_bytes_peak"] = result.tensor_bytes_peak;
    object["memory_high_water"] = result.memory_high_water;
    if (result.streaming.forwards > 0) object["streaming"] = to_json(done.upload, result.streaming);
    if (!result.cached.empty()) object["cache"] = cache_json(result);
    if (!done.profile.is_null()) object["profile"] = done.profile;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%s %s %.2f\n", done.output().c_str(), result.framehash.c_str(), result.seconds);
  }
  std::fflush(stdout);
  if (!done.profile.is_null() && !flags.on("json")) print_profile(done.profile);
  if (!result.cached.empty() && informative(flags))
    std::fprintf(stderr, "cache   %s\n", cache_text(result).c_str());
  if (result.streaming.forwards > 0 && informative(flags))
    std::fprintf(stderr, "%s  %s\n", line_name(done.upload),
                 to_string(done.upload, result.streaming).c_str());
}

// The jobs of one command line. Their requests, names, seeds and layout are the same on all ranks.
class Generation {
 public:
  Generation(const Flags& flags, std::vector<GivenJob> jobs, std::shared_ptr<const OpenModel> model)
      : flags_(flags),
        jobs_(std::move(jobs)),
        several_(are_several(flags, jobs_)),
        // Captions that an interrupted run left are not expanded again.
        expander_(std::ranges::any_of(
                      jobs_, [](const GivenJob& job) { return job.spec.expanded_from.empty(); })
                      ? expander_of(flags)
                      : nullptr),
        runner_(job_runner(flags, std::move(model))) {}

  int run(const ResultListener& on_result) {
    resolve();
    if (flags_.on("dry-run")) {
      if (runner_.ranks().speaks) print_dry_run();
      return runner_.plan().fits() ? 0 : static_cast<int>(ErrorKind::kMemory);
    }
    if (runner_.ranks().speaks && informative(flags_)) {
      print_header(stderr);
      std::fprintf(stderr, "seed    %llu (%s)\n", static_cast<unsigned long long>(first().seed),
                   jobs_.front().spec.seeded ? "given" : "random");
      if (const std::string remark = first().method->remark(first().steps); !remark.empty())
        std::fprintf(stderr, "weft: %s\n", remark.c_str());
    }
    runner_.draw(drawings_, on_result);
    return 0;
  }

 private:
  const Request& first() const { return drawings_.all.front().spec.request; }

  // Completes the requests with the model's defaults, the seed, the captions and the names.
  void resolve() {
    const Generator& generator = runner_.generator();
    const bool dry = flags_.on("dry-run");
    uint64_t seed = seed_of(flags_);
    for (GivenJob& job : jobs_) {
      take_facts(job, runner_.ranks());
      take_preset(job.spec, generator.model()->directory, job.label);
      Drawing drawing{job.spec, {}};
      drawing.spec.request = generator.resolve(request_of(flags_, job, generator));
      if (preview_every(flags_) > 0 && drawing.spec.request.method->in_segments())
        throw Error(ErrorKind::kUsage, flags_.label("preview") +
                                           " is proj, but a queue decodes meanwhile; legal: none");
      if (!job.spec.seeded) drawing.spec.request.seed = seed;
      drawings_.all.push_back(std::move(drawing));
    }
    stamp_now(fields_);
    if (!jobs_.front().spec.seeded && !dry)
      seed = seed_left(resume_rule(flags_), output_names(expand_name(pattern(0), fields_of(0))))
                 .value_or(seed);
    seed = broadcast_from_root(runner_.ranks(), seed);
    for (size_t i = 0; i < jobs_.size(); ++i)
      if (!jobs_[i].spec.seeded) drawings_.all[i].spec.request.seed = seed;
    for (size_t i = 0; i < jobs_.size(); ++i)
      drawings_.all[i].path =
          jobs_[i].path.empty() ? output_path(pattern(i), fields_of(i)) : jobs_[i].path;
    check_names();
    drawings_.several = several_;
    drawings_.stop = &stop_requested();
    const std::vector<JobSpec*> captioned = jobs_with_captions();
    if (!captioned.empty() && !dry) {
      refuse_outputs(false);
      write_all_captions({flags_, runner_.ranks(), *expander_, first().seed, stop_requested()},
                         captioned);
    }
    if (!dry) refuse_outputs(true);
    runner_.arrange(drawings_.all);
  }

  // Names that were cut may have become the same.
  void check_names() const {
    std::set<std::string> paths;
    for (const Drawing& drawing : drawings_.all)
      if (!paths.insert(drawing.path).second)
        throw Error(ErrorKind::kUsage, flags_.label("output") + " is '" + flags_.text("output") +
                                           "', which gives two results the name " + drawing.path +
                                           "; legal: a shorter name with {idx}");
  }

  // Refuses outputs before anything is printed, and before more than the model's headers are read.
  void refuse_outputs(bool prompts_are_final) {
    agreed_texts(runner_.ranks(), [&] {
      for (const Drawing& drawing : drawings_.all) {
        const auto is_drawn = [&] { return complete(runner_.generator(), drawing); };
        check_output(flags_, drawing.path, several_,
                     prompts_are_final ? is_drawn : std::function<bool()>());
      }
      return std::vector<std::string>();
    });
  }

  std::vector<JobSpec*> jobs_with_captions() {
    std::vector<JobSpec*> captioned;
    for (size_t i = 0; i < jobs_.size(); ++i)
      if (wants_caption(jobs_[i], expander_ != nullptr))
        captioned.push_back(&drawings_.all[i].spec);
    return captioned;
  }

  std::string pattern(size_t i) const {
    return pattern_of(flags_, drawings_.all[i].spec, several_);
  }

  NameFields fields_of(size_t i) const {
    const JobSpec& job = drawings_.all[i].spec;
    NameFields fields = fields_;
    fields.id = job.id;
    fields.seed = job.request.seed;
    fields.model = runner_.generator().model_name();
    fields.prompt = job.request.prompt;
    fields.width = job.request.width;
    fields.height = job.request.height;
    fields.frames = job.request.frames;
    fields.index = static_cast<int>(i);
    return fields;
  }

  void print_dry_run() const {
    runner_.checked_prompt(first());
    if (flags_.on("json"))
      print_plan_json();
    else
      print_header(stdout);
  }

  void print_header(FILE* out) const {
    const Generator& generator = runner_.generator();
    const bool experts = generator.limits().experts > 1;
    if (const KnownModel* known = generator.model()->directory.known(); known && !known->is_free())
      std::fprintf(out, "licence %s, if these are the weights of %s: %s\n", known->licence,
                   known->name, known->restriction);
    std::fprintf(
        out, "model   %s (%s)    job %lldx%lld, %s frames, %d steps, guidance %g%s%s   tokens %s\n",
        printable(generator.model_name()).c_str(),
        std::string(to_string(generator.options().dtype)).c_str(),
        static_cast<long long>(first().width), static_cast<long long>(first().height),
        first().endless ? "endless" : std::to_string(first().frames).c_str(), first().steps,
        first().guidance_scale.value_or(1), experts ? "/" : "",
        experts ? std::to_string(first().guidance_scale_2.value_or(1)).substr(0, 4).c_str() : "",
        generator.facts(first()).tokens().c_str());
    std::fprintf(out, "device  %s%s\n", device_description(generator.options().device).c_str(),
                 chosen_by_auto(flags_).c_str());
    const Layout& layout = runner_.layout();
    const std::optional<LayoutChoice>& choice = runner_.choice();
    std::fprintf(out, "layout  %s (%s)%s%s\n", to_string(layout).c_str(),
                 runner_.ranks().description.c_str(), choice ? ", chosen by simulation: " : "",
                 choice ? to_string(*choice).c_str() : "");
    if (choice)
      std::fprintf(out, "rates   %s, link %s\n", printable(runner_.machine()->description).c_str(),
                   to_string(runner_.machine()->link).c_str());
    std::fprintf(out, "mode    %s\n",
                 mode_text(runner_.generator().options(), runner_.plan()).c_str());
    std::fprintf(out, "memory  %s%s\n", layout.ranks() > 1 ? "per rank, rank 0: " : "",
                 runner_.plan().to_string().c_str());
    if (runner_.upload().bytes_per_forward > 0)
      std::fprintf(out, "%s  %s\n", line_name(runner_.upload()),
                   to_string(runner_.upload()).c_str());
    if (flags_.text("log-level") == "debug" || flags_.on("verbose"))
      std::fprintf(out, "%s", flags_.to_string().c_str());
  }

  void print_plan_json() const {
    const Generator& generator = runner_.generator();
    const MemoryPlan& plan = runner_.plan();
    Json object{{"model", generator.model_name()},
                {"dtype", to_string(generator.options().dtype)},
                {"width", first().width},
                {"height", first().height},
                {"frames", first().frames},
                {"steps", first().steps},
                {"seed", first().seed},
                {"tokens", generator.facts(first()).sequence().tokens},
                {"layout", to_string(runner_.layout())},
                {"ranks", runner_.layout().ranks()},
                {"threads", generator.options().threads},
                {"weights_bytes", plan.weights},
                {"encode_text_bytes", plan.encode_text},
                {"denoise_bytes", plan.denoise},
                {"decode_bytes", plan.decode},
                {"high_water_bytes", plan.high_water},
                {"available_bytes", plan.available},
                {"residency", to_string(plan.residency)},
                {"fits", plan.fits()}};
    if (plan.encode_audio > 0) object["encode_audio_bytes"] = plan.encode_audio;
    if (plan.encode_image > 0) object["encode_image_bytes"] = plan.encode_image;
    if (const int64_t rows = generator.facts(first()).reference_rows; rows > 0)
      object["reference_rows"] = rows;
    describe_mode(generator.options(), plan, object);
    describe_device_memory(plan, object);
    if (runner_.choice()) {
      object["chosen_from"] = to_json(*runner_.choice());
      object["chosen_on"] = to_json(*runner_.machine());
    }
    if (runner_.upload().bytes_per_forward > 0) object["streaming"] = to_json(runner_.upload());
    std::printf("%s\n", object.dump().c_str());
  }

  const Flags& flags_;
  std::vector<GivenJob> jobs_;
  const bool several_;
  const std::shared_ptr<PromptExpander> expander_;
  JobRunner runner_;

  // Set by resolve().
  JobRunner::Drawings drawings_;  // with all defaults
  NameFields fields_;             // the date and the time
};

}  // namespace

void check_outputs(const Flags& flags, const std::vector<GivenJob>& jobs) {
  if (flags.on("overwrite") && flags.on("no-clobber") && flags.given("no-clobber"))
    throw Error(ErrorKind::kUsage, flags.label("overwrite") + " and " + flags.label("no-clobber") +
                                       " exclude each other");
  const bool several = are_several(flags, jobs);
  std::vector<std::string> patterns;
  if (jobs.front().path.empty()) pattern_of(flags, {}, several);
  for (const GivenJob& job : jobs)
    patterns.push_back(job.path.empty() ? pattern_of(flags, job.spec, several) : "");
  if (flags.on("dry-run")) return;
  agreed_texts(ranks_of(flags), [&] {
    for (size_t i = 0; i < jobs.size(); ++i)
      if (patterns[i].find('{') != std::string::npos)  // its folder is known
        check_writable(expand_name(patterns[i], {}), Overwrite::kReplace);
      else
        check_output(flags, jobs[i].path.empty() ? expand_name(patterns[i], {}) : jobs[i].path,
                     several);
    return std::vector<std::string>();
  });
}

int generate(const Flags& flags, std::vector<GivenJob> jobs, const ResultListener& on_result,
             std::shared_ptr<const OpenModel> model) {
  check_outputs(flags, jobs);
  return Generation(flags, std::move(jobs), std::move(model)).run(on_result);
}

int run_generate(const Flags& flags) {
  return generate(flags, jobs_to_draw(flags),
                  [&](const Finished& done) { print_result(flags, done); });
}

}  // namespace weft
