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

void print_header(const Flags& flags, const Generator& generator, const Request& request,
                  const Ranks& ranks, const Layout& layout, const MemoryPlan& plan,
                  const UploadForecast& upload, FILE* out) {
  std::fprintf(
      out,
      "model   %s (%s)    job %lldx%lld, %lld frames, %d steps, guidance %g%s%s   tokens %lld\n",
      printable(generator.model_name()).c_str(),
      std::string(to_string(generator.options().dtype)).c_str(),
      static_cast<long long>(request.width), static_cast<long long>(request.height),
      static_cast<long long>(request.frames), request.steps, request.guidance_scale.value_or(1),
      generator.limits().experts > 1 ? "/" : "",
      generator.limits().experts > 1
          ? std::to_string(request.guidance_scale_2.value_or(1)).substr(0, 4).c_str()
          : "",
      static_cast<long long>(generator.tokens(request)));
  std::fprintf(out, "device  %s%s\n", device_description(generator.options().device).c_str(),
               flags.origin("device") == "auto" ? " (chosen by --device auto)" : "");
  std::fprintf(out, "layout  %s (%s)\n", to_string(layout).c_str(), ranks.description.c_str());
  std::fprintf(out, "memory  %s%s\n", layout.ranks() > 1 ? "per rank, rank 0: " : "",
               plan.to_string().c_str());
  if (upload.bytes_per_forward > 0) std::fprintf(out, "upload  %s\n", to_string(upload).c_str());
  if (flags.text("log-level") == "debug" || flags.on("verbose"))
    std::fprintf(out, "%s", flags.to_string().c_str());
}

// The pattern with the present date and time in place of their fields.
std::string stamped(std::string pattern, const NameFields& fields) {
  for (const auto& [field, text] : {std::pair{"{date}", fields.date}, {"{time}", fields.time}})
    for (size_t at; (at = pattern.find(field)) != std::string::npos;)
      pattern.replace(at, std::strlen(field), text);
  return pattern;
}

void print_plan_json(const Generator& generator, const Request& request, const Layout& layout,
                     const MemoryPlan& plan, const UploadForecast& upload) {
  nlohmann::json object{{"model", generator.model_name()},
                        {"dtype", to_string(generator.options().dtype)},
                        {"width", request.width},
                        {"height", request.height},
                        {"frames", request.frames},
                        {"steps", request.steps},
                        {"seed", request.seed},
                        {"tokens", generator.tokens(request)},
                        {"layout", to_string(layout)},
                        {"ranks", layout.ranks()},
                        {"weights_bytes", plan.weights},
                        {"encode_text_bytes", plan.encode_text},
                        {"denoise_bytes", plan.denoise},
                        {"decode_bytes", plan.decode},
                        {"high_water_bytes", plan.high_water},
                        {"available_bytes", plan.available},
                        {"residency", to_string(plan.residency)},
                        {"fits", plan.fits()}};
  describe_device_memory(plan, object);
  if (upload.bytes_per_forward > 0) object["streaming"] = to_json(upload);
  std::printf("%s\n", object.dump().c_str());
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

// Draws one prompt. Its file names are claimed before anything is computed, and nothing
// half-written stays. `notes` go into its checkpoints.
void run_one(const Flags& flags, const Ranks& ranks, Generator& generator, const Request& request,
             const std::string& expanded_from, const std::string& path,
             const std::map<std::string, std::string>& notes, const UploadForecast& upload,
             Profiling& profiling, const ResultListener& on_result) {
  const bool with_sidecar = !flags.on("no-metadata");
  const OutputNames names = output_names(path);
  const Overwrite overwrite = flags.on("overwrite") ? Overwrite::kReplace : Overwrite::kRefuse;
  if (overwrite == Overwrite::kRefuse && with_sidecar && fs::exists(names.sidecar)) {
    if (complete(generator, request, path, names)) drop_leftovers(flags, names);
    throw Error(ErrorKind::kOutput, names.sidecar + " exists; --overwrite replaces it");
  }
  RunOptions options;
  options.resume = left_by_earlier_run(flags, generator, request, names);
  // A job that was killed after its last frame has a whole result but no sidecar.
  const bool whole = options.resume && options.resume->final() && with_sidecar &&
                     overwrite == Overwrite::kRefuse && fs::exists(path) && !fs::is_empty(path);
  VideoSettings settings = video_settings(flags, request, generator.options().threads);
  if (with_sidecar) settings.metadata = embedded_metadata(flags, generator, request, expanded_from);
  std::unique_ptr<FrameSink> sink = whole ? nullptr : make_sink(path, settings, overwrite);

  ProgressPrinter printer(progress_mode(flags), job_name(path));
  options.latents_path = names.latents;
  const std::optional<double> seconds = checkpoint_seconds(flags);
  if (seconds) options.checkpoint_path = names.checkpoint;
  options.checkpoint_seconds = seconds.value_or(0);
  options.notes = notes;
  options.listener = &printer;
  options.stop = &stop_requested();
  Finished done{.path = path,
                .result = {},
                .expanded_from = expanded_from,
                .profile = nullptr,
                .upload = upload,
                .cut = checked_prompt(generator, request)};
  profiling.restart();
  try {
    done.result = generator.run(request, sink.get(), options);
  } catch (const Error& error) {
    const std::string advice = resume_advice(ranks, names);
    if (error.kind() == ErrorKind::kUsage || advice.empty()) throw;
    // Among several ranks, main() may print another rank's error instead of this one.
    const bool several = error.kind() == ErrorKind::kStopped && !ranks.alone();
    if (several) std::fprintf(stderr, "weft: %s\n", advice.c_str());
    throw Error(error.kind(), std::string(error.what()) + (several ? "" : ". " + advice));
  }
  done.profile = profiling.result();
  if (with_sidecar) write_sidecar(names.sidecar, flags, generator, done, overwrite);
  drop_leftovers(flags, names);
  printer.finish();
  on_result(done);
}

// The options of a rank that is not its replica's root.
RunOptions joining() {
  RunOptions options;
  options.stop = &stop_requested();
  return options;
}

}  // namespace

int generate(const Flags& flags, const ResultListener& on_result,
             const std::string& expanded_from) {
  check_request_flags(flags);
  const std::vector<std::string> prompts = prompts_of(flags);
  std::vector<std::string> captions = prompts;
  const bool several = prompts.size() > 1 || flags.given("prompt-file");
  OutputChoice output = output_choice(flags, several);
  output_pattern(output);  // refuses an illegal --output before anything is loaded
  if (flags.on("overwrite") && flags.on("no-clobber") && flags.given("no-clobber"))
    throw Error(ErrorKind::kUsage, flags.label("overwrite") + " and " + flags.label("no-clobber") +
                                       " exclude each other");
  const std::string expander = expander_folder(flags);

  GeneratorOptions options;
  options.dtype = compute_dtype(flags);
  options.weights = weight_format(flags);
  options.attention = attention_format(flags);
  options.resident_blocks = static_cast<int>(flags.integer("resident-layers").value_or(0));
  options.graphs = flags.on("no-graphs") ? Graphs::kNone : Graphs::kRecord;
  options.vae_dtype = flags.text("vae-dtype") == "bf16" ? DType::kBF16 : DType::kF32;
  const Ranks ranks = ranks_of(flags);
  options.device = device_of(flags, ranks);
  options.threads = threads_per_rank(flags, ranks);
  if (options.threads == 0) options.threads = Stream::cpu().threads();
  options.ranks_per_device = ranks_per_device(flags, ranks);
  options.determinism = flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast;
  options.memory_limit = flags.bytes("memory-limit");
  options.host_memory_limit = flags.bytes("host-memory-limit");
  options.ranks_per_host = ranks.on_this_host;
  if (checkpoint_seconds(flags)) options.keeping = Keeping::kCheckpoints;
  Profiling profiling(flags, ranks);
  options.ops = profiling.ops();
  const std::string model = model_folder(flags);
  Generator generator(model, options);

  Request base = request_of(flags, generator);
  base.prompt = prompts.front();
  Request first = generator.resolve(base);
  output.frames = first.frames;
  const std::string pattern = output_pattern(output);
  NameFields fields{.seed = base.seed,
                    .model = generator.model_name(),
                    .prompt = prompts.front(),
                    .width = first.width,
                    .height = first.height,
                    .frames = first.frames,
                    .index = 0,
                    .date = {},
                    .time = {}};
  stamp_now(fields);
  const bool seeded = flags.given("seed") && flags.text("seed") != "-1";
  if (!seeded && !flags.on("dry-run"))
    base.seed = seed_left(flags, output_names(expand_name(pattern, fields))).value_or(base.seed);
  base.seed = first.seed = fields.seed = agreed(ranks, base.seed);
  if (!expander.empty() && !flags.on("dry-run")) {
    captions = expanded(flags, ranks, expander, prompts, base.seed);
    first.prompt = captions.front();
  }
  LayoutLimits limits = generator.layout_limits(first);
  limits.requests = static_cast<int64_t>(prompts.size());
  const Layout layout = parse_layout(layout_text(flags), ranks.count, limits);
  const MemoryPlan plan = plan_of_rank(model, options, layout, first);
  const UploadForecast upload = upload_of(flags, options.device, plan);
  if (flags.on("dry-run")) {
    if (ranks.speaks) checked_prompt(generator, first);
    if (ranks.speaks && flags.on("json"))
      print_plan_json(generator, first, layout, plan, upload);
    else if (ranks.speaks)
      print_header(flags, generator, first, ranks, layout, plan, upload, stdout);
    return plan.fits() ? 0 : static_cast<int>(ErrorKind::kMemory);
  }
  if (ranks.speaks && informative(flags)) {
    print_header(flags, generator, first, ranks, layout, plan, upload, stderr);
    std::fprintf(stderr, "seed    %llu (%s)\n", static_cast<unsigned long long>(first.seed),
                 seeded ? "given" : "random");
  }

  const auto run_all = [&](Generator& mine, int replica, int replicas, bool root) {
    NameFields names = fields;
    Request request = base;
    request.seed = first.seed;
    for (size_t i = replica; i < prompts.size(); i += replicas) {
      request.prompt = captions[i];
      names.prompt = prompts[i];
      names.index = static_cast<int>(i);
      const Request resolved = mine.resolve(request);
      const std::string path = output_path(pattern, names);
      bool done = root && several && !flags.on("overwrite") && flags.text("resume") != "never" &&
                  complete(mine, resolved, path, output_names(path));
      done = mine.agreed(done);
      if (done && root) std::fprintf(stderr, "weft: %s is complete\n", path.c_str());
      if (done) continue;
      if (root) {
        run_one(flags, ranks, mine, resolved, expander.empty() ? expanded_from : prompts[i], path,
                resume_notes(flags, mine, several ? stamped(pattern, fields) : path, first.seed),
                upload, profiling, on_result);
      } else {
        profiling.restart();
        mine.run(resolved, nullptr, joining());
      }
    }
  };
  const std::map<std::string, std::string> about{
      {"model", generator.model_name()}, {"layout", to_string(layout)}, {"weft", version_text()}};
  profiling.around(about, [&] {
    if (ranks.alone()) {
      const auto recorded = profiling.record(0);
      run_all(generator, 0, 1, true);
      return;
    }
    on_ranks(ranks, [&](Communicator& world) {
      const auto recorded = profiling.record(world.rank());
      RankPlacement placement = RankPlacement::of(world, layout);
      const bool root = placement.root();
      const int index = world.rank() / placement.ranks();
      GeneratorOptions own = options;
      own.device = device_of(flags, ranks, world.rank());
      Generator mine(model, own, std::move(placement));
      run_all(mine, index, layout[Axis::kData], root);
      profiling.gather(world);
    });
  });
  return 0;
}

int run_generate(const Flags& flags) {
  return generate(flags, [&](const Finished& done) { print_result(flags, done); });
}

}  // namespace weft
