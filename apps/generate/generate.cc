// weft generate: draws clips and pictures from prompts.
#include "apps/generate/generate.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/expand.h"
#include "apps/generate/output_name.h"
#include "apps/generate/profile.h"
#include "apps/generate/progress.h"
#include "apps/generate/request_flags.h"
#include "apps/generate/resume.h"
#include "apps/generate/sidecar.h"
#include "apps/generate/stop.h"
#include "apps/inspect/memory.h"
#include "apps/layout_choice.h"
#include "apps/model_folder.h"
#include "engine/generation/generator.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

namespace fs = std::filesystem;

OutputChoice output_choice(const Flags& flags, bool several) {
  OutputChoice choice{.output = flags.text("output"),
                      .label = flags.label("output"),
                      .frames_as_pictures = flags.text("frames") == "png",
                      .several = several};
  const bool names_folder = flags.origin("output") == "environment WEFT_OUTPUT_DIR";
  if (names_folder && !choice.output.ends_with('/')) choice.output += '/';
  return choice;
}

VideoSettings video_settings(const Flags& flags, const Request& request, int threads) {
  VideoSettings settings;
  settings.width = static_cast<int>(request.width);
  settings.height = static_cast<int>(request.height);
  const bool whole = request.fps == std::floor(request.fps);
  settings.fps_den = whole ? 1 : 1000;
  settings.fps_num = static_cast<int>(std::lround(request.fps * settings.fps_den));
  // The encoder's own choice of threads depends on the machine, and files depend on the threads.
  settings.threads = threads;
  settings.deterministic = flags.on("deterministic");
  return settings;
}

// The pattern with the present date and time in place of their fields.
std::string stamped(std::string pattern, const NameFields& fields) {
  for (const auto& [field, text] : {std::pair{"{date}", fields.date}, {"{time}", fields.time}})
    for (size_t at; (at = pattern.find(field)) != std::string::npos;)
      pattern.replace(at, std::strlen(field), text);
  return pattern;
}

// Predicts the time that weights take which are copied to the device for every forward.
UploadForecast upload_of(const Flags& flags, Device device, const MemoryPlan& plan) {
  const std::vector<uint64_t>& streamed = plan.parts.streamed;
  const uint64_t most = streamed.empty() ? 0 : *std::max_element(streamed.begin(), streamed.end());
  if (most == 0) return {};
  if (!plan.fits()) return upload_forecast(flags, static_cast<int64_t>(most), nullptr);
  Stream stream = stream_on(device);
  return upload_forecast(flags, static_cast<int64_t>(most), &stream);
}

// "moving left on a navy background ...": at most eight words.
std::string first_words(const std::string& text) {
  constexpr int kMost = 8;
  std::istringstream stream(text);
  std::string shown, word;
  for (int count = 0; stream >> word; ++count) {
    if (count == kMost) return shown + " ...";
    shown += (count ? " " : "") + word;
  }
  return shown;
}

void warn_of_cut(const std::string& what, const PromptCut& cut) {
  std::fprintf(
      stderr,
      "weft: warning: the %s has %lld tokens, but this model's text encoder reads %lld; it "
      "ignores everything from '%s' on\n",
      what.c_str(), static_cast<long long>(cut.tokens), static_cast<long long>(cut.read),
      printable(first_words(cut.lost)).c_str());
}

// Warns of prompts that the text encoder does not read to their end; returns the prompt's own cut.
std::optional<PromptCut> checked_prompt(const Generator& generator, const Request& request) {
  const std::optional<PromptCut> cut = generator.prompt_cut(request.prompt);
  if (cut) warn_of_cut("prompt", *cut);
  if (generator.layout_limits(request).guided)
    if (const auto negative = generator.prompt_cut(request.negative_prompt.value_or("")))
      warn_of_cut("negative prompt", *negative);
  return cut;
}

void print_result(const Flags& flags, const Finished& done) {
  const RunResult& result = done.result;
  if (flags.on("json")) {
    nlohmann::json object{{"output", done.path},           {"framehash", result.framehash},
                          {"signature", result.signature}, {"seconds", result.seconds},
                          {"seed", result.request.seed},   {"frames", result.frames}};
    for (const StageSeconds& stage : result.stages) object["stages"][stage.stage] = stage.seconds;
    if (!done.expanded_from.empty()) {
      object["prompt"] = result.request.prompt;
      object["expanded_from"] = done.expanded_from;
    }
    if (done.cut) object["prompt_cut"] = to_json(*done.cut);
    object["arena_high_water"] = result.arena_high_water;
    object["decode_high_water"] = result.decode_high_water;
    object["tensor_bytes_peak"] = result.tensor_bytes_peak;
    object["memory_high_water"] = result.memory_high_water;
    if (result.streaming.forwards > 0) object["streaming"] = to_json(done.upload, result.streaming);
    if (!done.profile.is_null()) object["profile"] = done.profile;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%s %s %.2f\n", done.path.c_str(), result.framehash.c_str(), result.seconds);
  }
  std::fflush(stdout);
  if (!done.profile.is_null() && !flags.on("json")) print_profile(done.profile);
  if (result.streaming.forwards > 0 && informative(flags))
    std::fprintf(stderr, "upload  %s\n", to_string(done.upload, result.streaming).c_str());
}

// The seconds between checkpoints; nullopt where none are written.
std::optional<double> checkpoint_seconds(const Flags& flags) {
  const std::string text = flags.text("checkpoint-every");
  if (text == "none") return std::nullopt;
  char* end = nullptr;
  const double seconds = std::strtod(text.c_str(), &end);
  if (text.empty() || *end || !(seconds >= 0) || !std::isfinite(seconds))
    throw Error(ErrorKind::kUsage, flags.label("checkpoint-every") + " is '" + text +
                                       "', legal: seconds from 0 up, or none");
  return seconds;
}

// Removes the files that only a running job needs. This comes after the sidecar: a job that is
// killed before it can be resumed, and one that is killed after it is complete; the next run of the
// same command tidies up.
void drop_leftovers(const Flags& flags, const OutputNames& names) {
  remove_checkpoints(names.checkpoint);
  if (!flags.on("keep-latents")) fs::remove(names.latents);
}

// The job's name in progress events: the name of its file or folder.
std::string job_name(const std::string& path) {
  const fs::path name(path.ends_with('/') ? path.substr(0, path.size() - 1) : path);
  return name.filename().string();
}

// The options of a rank that is not its replica's root.
RunOptions joining() {
  RunOptions options;
  options.stop = &stop_requested();
  return options;
}

// Refuses --output and its companions before anything is loaded.
OutputChoice checked_output(const Flags& flags, bool several) {
  const OutputChoice output = output_choice(flags, several);
  output_pattern(output);
  if (flags.on("overwrite") && flags.on("no-clobber") && flags.given("no-clobber"))
    throw Error(ErrorKind::kUsage, flags.label("overwrite") + " and " + flags.label("no-clobber") +
                                       " exclude each other");
  return output;
}

GeneratorOptions generator_options(const Flags& flags, const Ranks& ranks, const Ops* ops) {
  GeneratorOptions options = model_options(flags);
  options.graphs = flags.on("no-graphs") ? Graphs::kNone : Graphs::kRecord;
  options.device = device_of(flags, ranks);
  options.threads = threads_per_rank(flags, ranks);
  if (options.threads == 0) options.threads = Stream::cpu().threads();
  options.ranks_per_device = ranks_per_device(flags, ranks);
  options.determinism = flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast;
  options.ranks_per_host = ranks.on_this_host;
  options.keeping = checkpoint_seconds(flags) ? Keeping::kCheckpoints : Keeping::kNothing;
  options.ops = ops;
  return options;
}

// The job of one command line. Its request, names, seed and layout are the same on all ranks.
class Job {
 public:
  Job(const Flags& flags, const ResultListener& on_result, const std::string& expanded_from)
      : flags_(flags),
        on_result_(on_result),
        expanded_from_(expanded_from),
        prompts_(prompts_of(flags)),
        several_(prompts_.size() > 1 || flags.given("prompt-file")),
        output_(checked_output(flags, several_)),
        expander_(expander_folder(flags)),
        ranks_(ranks_of(flags)),
        profiling_(flags, ranks_),
        options_(generator_options(flags, ranks_, profiling_.ops())),
        model_(model_folder(flags)),
        generator_(model_, options_) {}

  int run() {
    resolve();
    if (flags_.on("dry-run")) {
      if (ranks_.speaks) print_dry_run();
      return plan_.fits() ? 0 : static_cast<int>(ErrorKind::kMemory);
    }
    if (ranks_.speaks && informative(flags_)) {
      print_header(stderr);
      std::fprintf(stderr, "seed    %llu (%s)\n", static_cast<unsigned long long>(first_.seed),
                   seeded() ? "given" : "random");
    }
    const std::map<std::string, std::string> about{{"model", generator_.model_name()},
                                                   {"layout", to_string(layout_)},
                                                   {"weft", version_text()}};
    profiling_.around(about, [&] {
      if (ranks_.alone()) {
        const auto recorded = profiling_.record(0);
        run_prompts(generator_, 0, 1, true);
        return;
      }
      on_ranks(ranks_, [&](Communicator& world) { run_rank(world); });
    });
    return 0;
  }

 private:
  bool seeded() const { return flags_.given("seed") && flags_.text("seed") != "-1"; }

  // Completes the request with the model's defaults, the seed, the captions and the layout.
  void resolve() {
    request_ = request_of(flags_, generator_);
    request_.prompt = prompts_.front();
    first_ = generator_.resolve(request_);
    output_.frames = first_.frames;
    pattern_ = output_pattern(output_);
    fields_ = {.seed = request_.seed,
               .model = generator_.model_name(),
               .prompt = prompts_.front(),
               .width = first_.width,
               .height = first_.height,
               .frames = first_.frames,
               .index = 0,
               .date = {},
               .time = {}};
    stamp_now(fields_);
    const bool dry = flags_.on("dry-run");
    uint64_t seed = request_.seed;
    if (!seeded() && !dry)
      seed = seed_left(flags_, output_names(expand_name(pattern_, fields_))).value_or(seed);
    request_.seed = first_.seed = fields_.seed = agreed(ranks_, seed);
    captions_ = prompts_;
    if (!expander_.empty() && !dry) {
      captions_ = expanded(flags_, ranks_, expander_, prompts_, request_.seed);
      first_.prompt = captions_.front();
    }
    LayoutLimits limits = generator_.layout_limits(first_);
    limits.requests = static_cast<int64_t>(prompts_.size());
    layout_ = layout_for(limits);
    plan_ = plan_of_rank(model_, options_, layout_, first_);
    upload_ = upload_of(flags_, options_.device, plan_);
  }

  // The layout that the flags ask for, or the one that an interrupted run chose, or the fastest by
  // simulation. A chosen one is kept as a given of the job. All ranks receive the same.
  Layout layout_for(const LayoutLimits& limits) {
    const std::string asked = layout_text(flags_);
    const std::vector<Layout> layouts = parse_layouts(asked, ranks_.count, limits);
    if (layouts.size() == 1 || !chooses_layout(asked))
      return parse_layout(asked, ranks_.count, limits);
    const Link link = link_between(flags_, ranks_);
    const std::string chosen =
        agreed_texts(ranks_, [&]() -> std::vector<std::string> {
          const std::string left =
              layout_left(flags_, output_names(expand_name(pattern_, fields_)), layouts);
          if (!left.empty()) return {left};
          PlannedJob job =
              planned_job(generator_, planned_options(), first_, target_of(flags_, ranks_, link));
          job.requests = limits.requests;
          choice_ = choose_layout(job, layouts);
          return {to_string(choice_->best.front().layout)};
        }).front();
    const Layout layout = parse_layout(chosen, ranks_.count, limits);
    Layout axes = layout;  // the other keys have flags of their own
    axes.text_ranks = axes.vae_ranks = 0;
    flags_.imply("layout", to_string(axes), "auto");
    return layout;
  }

  // The options of the ranks, with the memory that is free now as the limit.
  GeneratorOptions planned_options() const {
    GeneratorOptions options = options_;
    const auto limited = [](uint64_t& limit, uint64_t free) {
      limit = limit ? std::min(limit, free) : free;
    };
    limited(options.memory_limit, available_memory(options.device));
    limited(options.host_memory_limit, available_memory());
    return options;
  }

  void print_dry_run() const {
    checked_prompt(generator_, first_);
    if (flags_.on("json"))
      print_plan_json();
    else
      print_header(stdout);
  }

  void print_header(FILE* out) const {
    std::fprintf(
        out,
        "model   %s (%s)    job %lldx%lld, %lld frames, %d steps, guidance %g%s%s   tokens %lld\n",
        printable(generator_.model_name()).c_str(),
        std::string(to_string(generator_.options().dtype)).c_str(),
        static_cast<long long>(first_.width), static_cast<long long>(first_.height),
        static_cast<long long>(first_.frames), first_.steps, first_.guidance_scale.value_or(1),
        generator_.limits().experts > 1 ? "/" : "",
        generator_.limits().experts > 1
            ? std::to_string(first_.guidance_scale_2.value_or(1)).substr(0, 4).c_str()
            : "",
        static_cast<long long>(generator_.tokens(first_)));
    std::fprintf(out, "device  %s%s\n", device_description(generator_.options().device).c_str(),
                 flags_.origin("device") == "auto" ? " (chosen by --device auto)" : "");
    std::fprintf(out, "layout  %s (%s)%s%s\n", to_string(layout_).c_str(),
                 ranks_.description.c_str(), choice_ ? ", chosen by simulation: " : "",
                 choice_ ? to_string(*choice_).c_str() : "");
    std::fprintf(out, "memory  %s%s\n", layout_.ranks() > 1 ? "per rank, rank 0: " : "",
                 plan_.to_string().c_str());
    if (upload_.bytes_per_forward > 0)
      std::fprintf(out, "upload  %s\n", to_string(upload_).c_str());
    if (flags_.text("log-level") == "debug" || flags_.on("verbose"))
      std::fprintf(out, "%s", flags_.to_string().c_str());
  }

  void print_plan_json() const {
    nlohmann::json object{{"model", generator_.model_name()},
                          {"dtype", to_string(generator_.options().dtype)},
                          {"width", first_.width},
                          {"height", first_.height},
                          {"frames", first_.frames},
                          {"steps", first_.steps},
                          {"seed", first_.seed},
                          {"tokens", generator_.tokens(first_)},
                          {"layout", to_string(layout_)},
                          {"ranks", layout_.ranks()},
                          {"weights_bytes", plan_.weights},
                          {"encode_text_bytes", plan_.encode_text},
                          {"denoise_bytes", plan_.denoise},
                          {"decode_bytes", plan_.decode},
                          {"high_water_bytes", plan_.high_water},
                          {"available_bytes", plan_.available},
                          {"residency", to_string(plan_.residency)},
                          {"fits", plan_.fits()}};
    describe_device_memory(plan_, object);
    if (choice_) object["chosen_from"] = to_json(*choice_);
    if (upload_.bytes_per_forward > 0) object["streaming"] = to_json(upload_);
    std::printf("%s\n", object.dump().c_str());
  }

  void run_rank(Communicator& world) {
    const auto recorded = profiling_.record(world.rank());
    RankPlacement placement = RankPlacement::of(world, layout_);
    const bool root = placement.root();
    const int replica = world.rank() / placement.ranks();
    GeneratorOptions own = options_;
    own.device = device_of(flags_, ranks_, world.rank());
    Generator mine(model_, own, std::move(placement));
    run_prompts(mine, replica, layout_[Axis::kData], root);
    profiling_.gather(world);
  }

  // Runs every `replicas`-th prompt.
  void run_prompts(Generator& mine, int replica, int replicas, bool root) {
    NameFields names = fields_;
    Request request = request_;
    request.seed = first_.seed;
    for (size_t i = replica; i < prompts_.size(); i += replicas) {
      request.prompt = captions_[i];
      names.prompt = prompts_[i];
      names.index = static_cast<int>(i);
      const Request resolved = mine.resolve(request);
      const std::string path = output_path(pattern_, names);
      bool done = root && several_ && !flags_.on("overwrite") && flags_.text("resume") != "never" &&
                  complete(mine, resolved, path, output_names(path));
      done = mine.agreed(done);
      if (done && root) std::fprintf(stderr, "weft: %s is complete\n", path.c_str());
      if (done) continue;
      if (root) {
        draw(mine, resolved, path, expander_.empty() ? expanded_from_ : prompts_[i]);
      } else {
        profiling_.restart();
        mine.run(resolved, nullptr, joining());
      }
    }
  }

  // Draws one prompt. Its file names are claimed before anything is computed, and nothing
  // half-written stays.
  void draw(Generator& generator, const Request& request, const std::string& path,
            const std::string& expanded_from) {
    const bool with_sidecar = !flags_.on("no-metadata");
    const OutputNames names = output_names(path);
    const Overwrite overwrite = flags_.on("overwrite") ? Overwrite::kReplace : Overwrite::kRefuse;
    if (overwrite == Overwrite::kRefuse && with_sidecar && fs::exists(names.sidecar)) {
      if (complete(generator, request, path, names)) drop_leftovers(flags_, names);
      throw Error(ErrorKind::kOutput, names.sidecar + " exists; --overwrite replaces it");
    }
    RunOptions options;
    options.resume = left_by_earlier_run(flags_, generator, request, names);
    // A job that was killed after its last frame has a whole result but no sidecar.
    const bool whole = options.resume && options.resume->final() && with_sidecar &&
                       overwrite == Overwrite::kRefuse && fs::exists(path) && !fs::is_empty(path);
    VideoSettings settings = video_settings(flags_, request, generator.options().threads);
    if (with_sidecar)
      settings.metadata = embedded_metadata(flags_, generator, request, expanded_from);
    std::unique_ptr<FrameSink> sink = whole ? nullptr : make_sink(path, settings, overwrite);

    ProgressPrinter printer(progress_mode(flags_), job_name(path));
    options.latents_path = names.latents;
    const std::optional<double> seconds = checkpoint_seconds(flags_);
    if (seconds) options.checkpoint_path = names.checkpoint;
    options.checkpoint_seconds = seconds.value_or(0);
    options.notes =
        resume_notes(flags_, generator, several_ ? stamped(pattern_, fields_) : path, first_.seed);
    options.listener = &printer;
    options.stop = &stop_requested();
    Finished done{.path = path,
                  .result = {},
                  .expanded_from = expanded_from,
                  .profile = nullptr,
                  .upload = upload_,
                  .cut = checked_prompt(generator, request)};
    profiling_.restart();
    try {
      done.result = generator.run(request, sink.get(), options);
    } catch (const Error& error) {
      const std::string advice = resume_advice(ranks_, names);
      if (error.kind() == ErrorKind::kUsage || advice.empty()) throw;
      // Among several ranks, main() may print another rank's error instead of this one.
      const bool several = error.kind() == ErrorKind::kStopped && !ranks_.alone();
      if (several) std::fprintf(stderr, "weft: %s\n", advice.c_str());
      throw Error(error.kind(), std::string(error.what()) + (several ? "" : ". " + advice));
    }
    done.profile = profiling_.result();
    if (with_sidecar) write_sidecar(names.sidecar, flags_, generator, done, overwrite);
    drop_leftovers(flags_, names);
    printer.finish();
    on_result_(done);
  }

  Flags flags_;  // with the layout that was chosen
  const ResultListener& on_result_;
  const std::string& expanded_from_;
  const std::vector<std::string> prompts_;
  const bool several_;
  OutputChoice output_;
  const std::string expander_;
  const Ranks ranks_;
  Profiling profiling_;
  const GeneratorOptions options_;
  const std::string model_;
  Generator generator_;

  // Set by resolve().
  std::vector<std::string> captions_;
  Request request_, first_;  // as the flags say; of the first prompt, with all defaults
  std::string pattern_;
  NameFields fields_;
  Layout layout_;
  std::optional<LayoutChoice> choice_;  // on the first rank, where a simulation chose the layout
  MemoryPlan plan_;
  UploadForecast upload_;
};

}  // namespace

int generate(const Flags& flags, const ResultListener& on_result,
             const std::string& expanded_from) {
  check_request_flags(flags);
  return Job(flags, on_result, expanded_from).run();
}

int run_generate(const Flags& flags) {
  return generate(flags, [&](const Finished& done) { print_result(flags, done); });
}

}  // namespace weft
