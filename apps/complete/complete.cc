// weft complete: a language model continues or answers prompts.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>

#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/complete/complete_output.h"
#include "apps/device.h"
#include "apps/generate/profile.h"
#include "apps/generate/progress.h"
#include "apps/generate/request_flags.h"
#include "apps/generate/stop.h"
#include "apps/inspect/language_memory.h"
#include "apps/model_folder.h"
#include "engine/memory/memory_plan.h"
#include "io/json.h"

namespace weft {
namespace {

double now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

// Refuses wrong flags before a model is opened.
void check_flags(const Flags& flags) {
  wants_cuda(flags);  // refuses an illegal --device
  for (const char* flag : {"system", "think"})
    if (flags.given(flag) && !flags.on("chat"))
      throw Error(ErrorKind::kUsage, flags.label(flag) + " needs --chat");
  for (const char* flag : {"prompt", "prompt-file"})
    if (flags.given(flag) && !flags.operands().empty())
      throw Error(ErrorKind::kUsage,
                  flags.label(flag) + " and prompts as operands exclude each other");
  seed_of(flags);
  model_folder(flags);
}

std::vector<std::string> read_prompts(const Flags& flags) {
  if (flags.given("prompt") || flags.given("prompt-file")) return prompts_of(flags);
  if (!flags.operands().empty()) return flags.operands();
  if (isatty(STDIN_FILENO))
    throw Error(ErrorKind::kUsage,
                "weft complete needs a prompt: an operand, --prompt-file FILE, or standard input");
  return {standard_input()};
}

RingBalance ring_balance(const Flags& flags) {
  const std::string name = flags.text("ring-balance");
  return name == "contiguous"  ? RingBalance::kContiguous
         : name == "light-seq" ? RingBalance::kLightSeq
                               : RingBalance::kZigzag;
}

struct Job {
  LanguageFolder folder;
  std::vector<std::string> prompts;
  std::vector<CompletionRequest> requests{};
  LanguageOptions options{};
  CompletionOptions how{};
  Layout layout{};
  LanguageBytes bytes{};
};

// The most new tokens for a prompt of `prompt` tokens. Error(kUsage) where --max-tokens does not
// fit the context.
int64_t max_tokens(const Flags& flags, const DecoderConfig& config, int64_t prompt,
                   const std::string& what) {
  const int64_t context = flags.integer("context").value_or(config.max_positions);
  const int64_t most = context - prompt + 1;  // the last token is never fed back
  const auto asked = flags.integer("max-tokens");
  const std::string limit = flags.given("context") ? "--context" : "the model's positions";
  if (most < 1)
    throw Error(ErrorKind::kUsage, what + std::to_string(prompt) + " tokens, more than the " +
                                       std::to_string(context) + " of " + limit);
  if (asked && *asked > most)
    throw Error(ErrorKind::kUsage, flags.label("max-tokens") + " is " + std::to_string(*asked) +
                                       ", but " + what + std::to_string(prompt) +
                                       " tokens, which leaves room for " + std::to_string(most) +
                                       " of the " + std::to_string(context) + " of " + limit +
                                       "; nearest: " + std::to_string(most));
  return asked.value_or(std::min<int64_t>(CompletionRequest{}.max_tokens, most));
}

void add_requests(const Flags& flags, uint64_t seed, Job& job) {
  const DecoderConfig& config = job.folder.config;
  if (const auto context = flags.integer("context"); context && *context > config.max_positions)
    throw Error(ErrorKind::kUsage, flags.label("context") + " is " + std::to_string(*context) +
                                       ", legal: 1 ... " + std::to_string(config.max_positions) +
                                       ", the model's positions");
  const TokenSampling sampling{.temperature = flags.real("temperature").value_or(0),
                               .top_p = flags.real("top-p").value_or(1),
                               .top_k = static_cast<int>(flags.integer("top-k").value_or(0)),
                               .seed = seed};
  std::optional<std::string> system;
  if (flags.given("system")) system = text_argument(flags, "system");
  const bool chat = flags.on("chat");
  const Thinking thinking = flags.on("think") ? Thinking::kOn : Thinking::kOff;
  std::vector<int32_t> ends = chat ? job.folder.chat_end_ids() : job.folder.end_ids;
  if (flags.on("ignore-eos")) ends.clear();
  for (size_t i = 0; i < job.prompts.size(); ++i) {
    const std::string& text = job.prompts[i];
    CompletionRequest request{.prompt = chat ? job.folder.chat(system, text, thinking)
                                             : job.folder.tokenizer.encode(text),
                              .sampling = sampling,
                              .stop = ends};
    const std::string what = "prompt " + std::to_string(i + 1) + " has ";
    if (request.prompt.empty()) throw Error(ErrorKind::kUsage, what + "no tokens");
    request.max_tokens =
        max_tokens(flags, config, static_cast<int64_t>(request.prompt.size()), what);
    job.requests.push_back(std::move(request));
  }
}

Job job_of(const Flags& flags, const Ranks& ranks, uint64_t seed, const Ops* ops) {
  Job job{.folder = LanguageFolder::open(model_folder(flags)), .prompts = {}};
  job.prompts = agreed_texts(ranks, [&] { return read_prompts(flags); });
  add_requests(flags, seed, job);
  job.how = {.stop = &stop_requested(),
             .batch = static_cast<int>(*flags.integer("batch")),
             .chunk = *flags.integer("chunk")};
  job.options = {
      .device = device_of(flags, ranks),
      .dtype = compute_dtype(flags),
      .weights = weight_format(flags),
      .threads = threads_per_rank(flags, ranks),
      .determinism = flags.on("deterministic") ? Determinism::kFixed : Determinism::kFast,
      .ops = ops,
      .resident = static_cast<int>(flags.integer("resident-layers").value_or(0)),
      .balance = ring_balance(flags)};
  job.options = sized_for(job.requests, job.how.batch, job.options);
  job.layout = parse_layout(layout_text(flags), ranks.count,
                            LanguageRank::limits(job.folder.config, job.options.positions));
  job.bytes =
      plan_language(job.folder.config, job.options, job.layout, job.requests, job.how,
                    memory_share(flags, job.options.device, ranks_per_device(flags, ranks)));
  return job;
}

std::string model_name(const Job& job) {
  std::filesystem::path path(job.folder.path);
  if (!path.has_filename()) path = path.parent_path();
  return path.filename().string();
}

void print_header(const Flags& flags, const Job& job, const Ranks& ranks, uint64_t seed) {
  int64_t tokens = 0;
  for (const CompletionRequest& request : job.requests)
    tokens += static_cast<int64_t>(request.prompt.size());
  std::fprintf(stderr, "model   %s (%s%s)    prompts %zu, tokens %lld\n", model_name(job).c_str(),
               std::string(to_string(job.options.dtype)).c_str(),
               job.options.weights != WeightFormat::kCompute ? ", 8-bit weights" : "",
               job.requests.size(), static_cast<long long>(tokens));
  std::fprintf(stderr, "device  %s%s\n", device_description(job.options.device).c_str(),
               chosen_by_auto(flags).c_str());
  std::fprintf(stderr, "layout  %s (%s)\n", to_string(job.layout).c_str(),
               ranks.description.c_str());
  std::fprintf(
      stderr, "memory  %sweights %s%s | cache %s | workspace %s\n",
      job.layout.ranks() > 1 ? "per rank: " : "", format_bytes(job.bytes.weights).c_str(),
      job.layout.sequence() > 1 ? " (passes split by heads hold slices a second time)" : "",
      format_bytes(job.bytes.cache).c_str(), format_bytes(job.bytes.workspace).c_str());
  if (job.requests.front().sampling.temperature > 0)
    std::fprintf(stderr, "seed    %llu (%s)\n", static_cast<unsigned long long>(seed),
                 flags.given("seed") && flags.text("seed") != "-1" ? "given" : "random");
  if (flags.text("log-level") == "debug" || flags.on("verbose"))
    std::fprintf(stderr, "%s", flags.to_string().c_str());
}

// The figures that the first rank reports.
struct Report {
  CompletionStats stats{};
  uint64_t weights = 0;
  double load_s = 0, seconds = 0, first_token_s = 0;
  int64_t tokens = 0;
  bool cut = false;
  Json profile{};
};

double rate(int64_t tokens, double seconds) {
  return seconds > 0 ? static_cast<double>(tokens) / seconds : 0;
}

Json summary(const Job& job, const Report& report, uint64_t seed) {
  const CompletionStats& stats = report.stats;
  Json object{{"model", model_name(job)},
              {"dtype", to_string(job.options.dtype)},
              {"weights", to_string(job.options.weights)},
              {"layout", to_string(job.layout)},
              {"ranks", job.layout.ranks()},
              {"seed", seed},
              {"prompts", job.requests.size()},
              {"prompt_tokens", stats.prefill_tokens},
              {"tokens", report.tokens},
              {"prefill_tokens_per_s", rate(stats.prefill_tokens, stats.prefill_s)},
              {"decode_tokens_per_s", rate(stats.decode_tokens, stats.decode_s)},
              {"first_token_s", report.first_token_s},
              {"load_s", report.load_s},
              {"seconds", report.seconds},
              {"weights_bytes", report.weights},
              {"cache_bytes", job.bytes.cache}};
  if (!report.profile.is_null()) object["profile"] = report.profile;
  return object;
}

void print_figures(const Job& job, const Report& report) {
  const CompletionStats& stats = report.stats;
  std::fprintf(stderr,
               "%lld prompt tokens, %.4g/s | %lld tokens, %.4g/s | first token %.3g s | load "
               "%.3g s | weights %s, cache %s%s\n",
               static_cast<long long>(stats.prefill_tokens),
               rate(stats.prefill_tokens, stats.prefill_s), static_cast<long long>(report.tokens),
               rate(stats.decode_tokens, stats.decode_s), report.first_token_s, report.load_s,
               format_bytes(report.weights).c_str(), format_bytes(job.bytes.cache).c_str(),
               job.layout.ranks() > 1 ? " per rank" : "");
}

// Runs the job on one rank; the root prints through `printer`. `silence`, where it is given,
// reports on the terminal while nothing else is printed.
Report run_rank(const Job& job, Device device, RankPlacement placement, CompletionPrinter* printer,
                Silence* silence, Profiling& profiling) {
  profiling.restart();
  if (silence) silence->doing("loading the model");
  const double start = now();
  Report report;
  std::unique_ptr<LanguageModel> model;
  {
    const ZoneScope zone(Zone::kLoad);
    LanguageOptions options = job.options;
    options.device = device;
    model = std::make_unique<LanguageModel>(job.folder.path, options, std::move(placement));
  }
  report.load_s = now() - start;
  CompletionOptions how = job.how;
  int64_t tokens = 0;
  if (silence) silence->doing("reading the prompts");
  if (printer) {
    how.on_token = [&](int request, int32_t id) {
      if (silence && tokens == 0) silence->doing("writing");
      // A single prompt's text appears as it is written, which is sign of life enough.
      if (silence && job.prompts.size() == 1) silence->heard();
      ++tokens;
      printer->token(request, id);
    };
    how.on_end = [&](int request, const Completion& done) { printer->end(request, done); };
  }
  const std::vector<Completion> completions = model->complete(job.requests, how);
  report.stats = model->stats();
  report.weights = model->rank().weights_bytes();
  report.first_token_s = completions.front().first_token_s;
  for (const Completion& completion : completions) {
    report.tokens += static_cast<int64_t>(completion.ids.size());
    report.seconds = std::max(report.seconds, completion.seconds);
    report.cut = report.cut || completion.end == Completion::End::kCut;
  }
  if (printer) report.profile = profiling.result();
  return report;
}

}  // namespace

int run_complete(const Flags& flags) {
  check_flags(flags);
  const Ranks ranks = ranks_of(flags);
  Profiling profiling(flags, ranks);
  const uint64_t seed = broadcast_from_root(ranks, seed_of(flags));
  const Job job = job_of(flags, ranks, seed, profiling.ops());
  const bool shows = ranks.speaks && informative(flags);
  if (shows) print_header(flags, job, ranks, seed);
  const bool json = flags.on("json");
  CompletionPrinter printer(job.folder.tokenizer, job.prompts, job.requests,
                            json ? CompletionStyle::kJson : CompletionStyle::kText);
  std::optional<Silence> silence;
  if (shows) silence.emplace();
  Report report;
  const std::map<std::string, std::string> about{
      {"model", model_name(job)}, {"layout", to_string(job.layout)}, {"weft", version_text()}};
  profiling.around(about, [&] {
    if (ranks.alone()) {
      const auto recorded = profiling.record(0);
      report =
          run_rank(job, job.options.device, {}, &printer, silence ? &*silence : nullptr, profiling);
    } else {
      on_ranks(ranks, [&](Communicator& world) {
        const auto recorded = profiling.record(world.rank());
        const bool root = world.rank() == 0;
        const Report own = run_rank(job, device_of(flags, ranks, world.rank()),
                                    RankPlacement::of(world, job.layout), root ? &printer : nullptr,
                                    root && silence ? &*silence : nullptr, profiling);
        if (root || ranks.processes) report = own;
        profiling.gather(world);
      });
    }
    silence.reset();
    if (ranks.speaks && json) printer.line(summary(job, report, seed));
    if (shows) print_figures(job, report);
    if (!report.profile.is_null() && !json) print_profile(report.profile);
  });
  if (report.cut)
    throw Error(ErrorKind::kStopped, "stopped after " + std::to_string(report.tokens) + " tokens");
  return 0;
}

}  // namespace weft
