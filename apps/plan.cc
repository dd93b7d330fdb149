// weft plan: predicts the memory, messages and time of a job under a layout, on this or another
// device.
#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/calibrate.h"
#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/offload_report.h"
#include "apps/generate/request_flags.h"
#include "apps/inspect/memory.h"
#include "apps/model_folder.h"
#include "engine/generation/generator.h"
#include "io/atomic_file.h"
#include "kernels/transfer.h"
#include "parallel/schedule/plan_check.h"

namespace weft {
namespace {

// The simulated time at which each stage of the job began on the first rank.
struct StageTimes final : ProgressListener {
  std::vector<std::pair<std::string, double>> begun;
  void progress(const Progress& progress) override {
    if (begun.empty() || begun.back().first != progress.stage)
      begun.emplace_back(progress.stage, simulated_seconds());
  }
};

// The device and the link that a plan is made for.
struct Target {
  std::optional<PlannedDevice> planned;  // nullopt: a CPU
  DeviceModel model;
  std::string description;
  Link link;
  int ranks_per_device = 1;  // ranks that share the device's memory and its link to the host
  UploadForecast upload{};   // its rate alone is used
};

// The copying of weights that do not stay on the device, for each step, on the slowest rank.
struct Uploads {
  int64_t bytes = 0;
  double seconds = 0, hidden_s = 0;  // hidden_s overlaps with computing
};

struct Outlook {
  Layout layout;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> stages;
  std::vector<MemoryPlan> memory;  // per rank
  std::vector<SimulatedRank> ranks;
  Uploads uploads;
  DenoisePlanConfig schedule;

  uint64_t high_water() const {
    uint64_t most = 0;
    for (const MemoryPlan& plan : memory) most = std::max(most, plan.high_water);
    return most;
  }
  bool fits() const {
    return std::ranges::all_of(memory, [](const MemoryPlan& plan) { return plan.fits(); });
  }
  int64_t most_sent() const {
    int64_t most = 0;
    for (const SimulatedRank& rank : ranks) most = std::max(most, rank.counters.total_sent().bytes);
    return most;
  }
  double stage(const std::string& name) const {
    for (const auto& [stage, seconds] : stages)
      if (stage == name) return seconds;
    return 0;
  }
};

int64_t streamed_by(const MemoryPlan& plan) {
  const std::vector<uint64_t>& all = plan.parts.streamed;
  return all.empty() ? 0 : static_cast<int64_t>(*std::max_element(all.begin(), all.end()));
}

// Adds the part of the copying that does not overlap with computing: a step takes as long as its
// forwards compute or as long as their weights arrive, whichever is longer.
void add_uploads(const Target& target, const Request& request, bool guided, Outlook& out) {
  const int forwards = guided && out.layout[Axis::kCfg] == 1 ? 2 : 1;
  for (const MemoryPlan& plan : out.memory)
    out.uploads.bytes = std::max(out.uploads.bytes, forwards * streamed_by(plan));
  if (out.uploads.bytes == 0) return;
  out.uploads.seconds =
      static_cast<double>(out.uploads.bytes) * target.ranks_per_device / target.upload.bytes_per_s;
  for (auto& [stage, seconds] : out.stages)
    if (stage == "denoise") {
      out.uploads.hidden_s = std::min(out.uploads.seconds, seconds / request.steps);
      const double exposed = request.steps * (out.uploads.seconds - out.uploads.hidden_s);
      seconds += exposed;
      out.seconds += exposed;
    }
}

Outlook look(const std::shared_ptr<const OpenModel>& model, const GeneratorOptions& options,
             const Request& request, const Layout& layout, const Target& target) {
  Outlook out;
  out.layout = layout;
  out.memory.resize(layout.ranks());
  // A simulated job computes nothing, so it need not fit into memory.
  GeneratorOptions simulated = options;
  if (target.planned) {
    simulated.planned.reset();
    simulated.resident_blocks = 0;
    simulated.memory_limit = UINT64_MAX;
  }
  StageTimes times;
  bool guided = false;
  out.ranks = simulate(layout.ranks(), target.model, target.link, [&](Communicator& world) {
    Generator generator(model, simulated, RankPlacement::of(world, layout));
    out.memory[world.rank()] =
        target.planned
            ? Generator(model, options, RankPlacement(layout, world.rank())).plan(request)
            : generator.plan(request);
    RunOptions run;
    if (world.rank() == 0) {
      run.listener = &times;
      guided = generator.layout_limits(request).guided;
      out.schedule = generator.schedule(request);
    }
    generator.run(request, nullptr, run);
  });
  for (const SimulatedRank& rank : out.ranks) out.seconds = std::max(out.seconds, rank.seconds);
  for (size_t i = 0; i < times.begun.size(); ++i) {
    const double end = i + 1 < times.begun.size() ? times.begun[i + 1].second : out.seconds;
    if (end > times.begun[i].second)
      out.stages.emplace_back(times.begun[i].first, end - times.begun[i].second);
  }
  add_uploads(target, request, guided, out);
  return out;
}

std::optional<DeviceModel> given_model(const Flags& flags) {
  const auto gflops = flags.real("device-gflops");
  const auto gbs = flags.real("device-gbs");
  if (!gflops && !gbs) return {};
  if (!gflops || !gbs)
    throw Error(ErrorKind::kUsage, flags.label(gflops ? "device-gflops" : "device-gbs") +
                                       " describes a device only together with " +
                                       (gflops ? "--device-gbs" : "--device-gflops"));
  DeviceModel device;
  for (OpFamily family : {OpFamily::kLinear, OpFamily::kAttention, OpFamily::kConv})
    device.flop_per_s[static_cast<size_t>(family)] = *gflops * 1e9;
  device.bytes_per_s.fill(*gbs * 1e9);
  return device;
}

Link link_of(const Flags& flags) {
  return {.latency_s = flags.real("link-ms").value_or(0) * 1e-3,
          .bytes_per_s = flags.real("link-gbit").value_or(0) * 1e9 / 8};
}

Target target_of(const Flags& flags, const Ranks& ranks, DType dtype) {
  Target target{
      .planned = planned_device(flags), .model = {}, .description = {}, .link = link_of(flags)};
  const std::optional<DeviceModel> given = given_model(flags);
  std::string source;
  if (given) {
    target.model = *given;
  } else if (target.planned) {
    target.model = assumed_device_model(dtype);
    source = " (assumed: an NVIDIA H200; --device-gflops and --device-gbs describe another)";
  } else {
    const int threads = std::max(1, threads_per_rank(flags, ranks));
    target.model = measure_device(threads, dtype);
    source = " (measured here, " + std::to_string(threads) + " threads)";
  }
  target.description = to_string(target.model) + source;
  if (!target.planned) return target;
  target.description = target.planned->description() + ", " + target.description;
  target.ranks_per_device = planned_ranks_per_device(flags, ranks.count);
  std::optional<Stream> here;
  if (target.planned->here && flags.integer("resident-layers"))
    here = stream_on(*target.planned->here);
  target.upload = upload_forecast(flags, 1, here ? &*here : nullptr);
  return target;
}

// Proves the schedule of a layout; throws where it has a fault.
std::string proof(const Outlook& out) {
  const std::vector<Plan> plans = plan_denoise(out.schedule);
  const PlanRules rules{
      .bytes = [&](const Step& message) { return message_bytes(out.schedule, message); }};
  if (const auto fault = check_plans(plans, rules))
    throw Error(ErrorKind::kInternal,
                "the schedule of " + to_string(out.layout) + " is not sound: " + *fault);
  return proof_of(plans, rules);
}

nlohmann::json schedule_json(const Outlook& out) {
  nlohmann::json turns = nlohmann::json::array();
  for (const TurnSummary& turn : summarize_turns(plan_denoise(out.schedule)))
    turns.push_back({{"first", turn.turns.begin},
                     {"last", turn.turns.end - 1},
                     {"loads", turn.loads},
                     {"forwards", turn.forwards},
                     {"updates", turn.updates},
                     {"decodes", turn.decodes},
                     {"messages", turn.messages},
                     {"bytes", turn.bytes}});
  return turns;
}

nlohmann::json to_json(const Outlook& out, const Target& target, double alone_s, bool check) {
  nlohmann::json object{{"layout", to_string(out.layout)},
                        {"ranks", out.layout.ranks()},
                        {"seconds", out.seconds},
                        {"speed_up", alone_s / out.seconds},
                        {"high_water_bytes", out.high_water()}};
  for (const auto& [stage, seconds] : out.stages) object["stages"][stage] = seconds;
  object["turns"] = schedule_json(out);
  if (check) object["checked"] = proof(out);
  if (target.planned) {
    object["device"] = target.planned->description();
    object["available_bytes"] = out.memory.front().available;
    object["fits"] = out.fits();
  }
  if (out.uploads.bytes > 0)
    object["streaming"] = {{"bytes_per_step", out.uploads.bytes},
                           {"predicted_gbs", target.upload.bytes_per_s * 1e-9},
                           {"predicted_from", target.upload.source},
                           {"upload_seconds_per_step", out.uploads.seconds},
                           {"hidden_seconds_per_step", out.uploads.hidden_s}};
  for (size_t rank = 0; rank < out.ranks.size(); ++rank) {
    nlohmann::json sent = nlohmann::json::object();
    const CommCounters& counters = out.ranks[rank].counters;
    for (size_t kind = 0; kind < counters.sent.size(); ++kind)
      if (counters.sent[kind].messages)
        sent[std::string(to_string(static_cast<Payload>(kind)))] = {
            {"messages", counters.sent[kind].messages}, {"bytes", counters.sent[kind].bytes}};
    nlohmann::json line{{"seconds", out.ranks[rank].seconds},
                        {"weights_bytes", out.memory[rank].weights},
                        {"high_water_bytes", out.memory[rank].high_water},
                        {"sent", sent}};
    describe_device_memory(out.memory[rank], line);
    if (target.planned) line["streamed_bytes_per_forward"] = streamed_by(out.memory[rank]);
    object["per_rank"].push_back(std::move(line));
  }
  return object;
}

void print_one(const Outlook& out, const Target& target, double alone_s) {
  const bool device = target.planned.has_value();
  std::printf("layout  %s\n\n%-5s %12s %12s", to_string(out.layout).c_str(), "rank", "weights",
              "high-water");
  if (device) std::printf(" %12s %12s %12s", "ops' scratch", "host", "pinned");
  std::printf(" %12s %10s %10s\n", "sent", "messages", "seconds");
  for (size_t rank = 0; rank < out.ranks.size(); ++rank) {
    const CommCounters::Count sent = out.ranks[rank].counters.total_sent();
    const MemoryPlan& memory = out.memory[rank];
    std::printf("%-5zu %12s %12s", rank, format_bytes(memory.weights).c_str(),
                format_bytes(memory.high_water).c_str());
    if (device)
      std::printf(" %12s %12s %12s", format_bytes(memory.parts.scratch).c_str(),
                  format_bytes(memory.host.total()).c_str(),
                  format_bytes(memory.host.pinned()).c_str());
    std::printf(" %12s %10lld %10.4g\n", format_bytes(static_cast<uint64_t>(sent.bytes)).c_str(),
                static_cast<long long>(sent.messages), out.ranks[rank].seconds);
  }
  if (device) std::printf("\nmemory  %s\n", out.memory.front().to_string().c_str());
  if (out.uploads.bytes > 0)
    std::printf(
        "upload  %s a step from the host at %.1f GB/s (%s): %.4g s, of which %.4g s "
        "during computation\n",
        format_bytes(static_cast<uint64_t>(out.uploads.bytes)).c_str(),
        target.upload.bytes_per_s * 1e-9, target.upload.source.c_str(), out.uploads.seconds,
        out.uploads.hidden_s);
  std::printf("\ntime    %.4g s:", out.seconds);
  for (const auto& [stage, seconds] : out.stages)
    std::printf(" %s %.4g s,", stage.c_str(), seconds);
  std::printf(" %.2f x one rank (%.4g s); loading is not in it\n", alone_s / out.seconds, alone_s);
}

// Prints what the ranks do together in every turn, or every step of one of them.
void print_schedule(const Outlook& out, std::optional<int64_t> rank) {
  const std::vector<Plan> plans = plan_denoise(out.schedule);
  if (rank) {
    std::printf("\nschedule of %s", to_string(plans[*rank]).c_str());
    return;
  }
  std::printf("\n%-12s %8s %9s %8s %8s %9s %12s\n", "turns", "loads", "forwards", "updates",
              "decodes", "messages", "bytes");
  for (const TurnSummary& turn : summarize_turns(plans)) {
    std::string turns = std::to_string(turn.turns.begin);
    if (turn.turns.size() > 1) turns += " ... " + std::to_string(turn.turns.end - 1);
    std::printf("%-12s %8d %9d %8d %8d %9d %12s\n", turns.c_str(), turn.loads, turn.forwards,
                turn.updates, turn.decodes, turn.messages,
                format_bytes(static_cast<uint64_t>(turn.bytes)).c_str());
  }
}

void print_job(const Flags& flags, const Generator& generator, const Request& request,
               const Target& target) {
  std::printf(
      "model   %s (%s)    job %lldx%lld, %lld frames, %d steps, guidance %g    tokens %lld\n",
      printable(generator.model_name()).c_str(),
      std::string(to_string(generator.options().dtype)).c_str(),
      static_cast<long long>(request.width), static_cast<long long>(request.height),
      static_cast<long long>(request.frames), request.steps, request.guidance_scale.value_or(1),
      static_cast<long long>(generator.tokens(request)));
  std::printf("device  %s\n", printable(target.description).c_str());
  const std::string bandwidth = flags.text("link-gbit");
  std::printf("link    %s, %g ms\n",
              bandwidth.empty() ? "unlimited" : (bandwidth + " Gbit/s").c_str(),
              target.link.latency_s * 1e3);
}

void print_all(const std::vector<Outlook>& all, double alone_s) {
  std::printf("%-44s %10s %9s %10s %12s %12s\n", "layout", "seconds", "speed-up", "denoise",
              "high-water", "sent");
  for (const Outlook& out : all)
    std::printf("%-44s %10.4g %8.2fx %10.4g %12s %12s\n", to_string(out.layout).c_str(),
                out.seconds, alone_s / out.seconds, out.stage("denoise"),
                format_bytes(out.high_water()).c_str(),
                format_bytes(static_cast<uint64_t>(out.most_sent())).c_str());
}

}  // namespace

int run_plan(const Flags& flags) {
  const GivenJob job = job_of(flags);
  Ranks ranks;
  ranks.count = ranks.on_this_host = static_cast<int>(flags.integer("ranks").value_or(1));
  const auto model = std::make_shared<const OpenModel>(model_folder(flags));
  const Target target = target_of(flags, ranks, compute_dtype(flags));
  GeneratorOptions options = planning_options(flags, ranks.count, target.planned);
  options.ops = &metered_ops();
  if (!target.planned) options.ranks_per_device = 1;
  if (!target.planned && !options.memory_limit) options.memory_limit = UINT64_MAX;
  const Generator generator(model, options);
  Request request = request_of(flags, job, generator);
  request.prompt = flags.given("prompt") ? prompts_of(flags).front() : "a planned prompt";
  request = generator.resolve(request);
  const LayoutLimits limits = generator.layout_limits(request);
  const std::vector<Layout> layouts = parse_layouts(layout_text(flags), ranks.count, limits);
  const bool several = layouts.size() > 1;
  const std::optional<int64_t> rank = flags.integer("plan-rank");
  if (rank && *rank >= ranks.count)
    throw Error(ErrorKind::kUsage, flags.label("plan-rank") + " is " + std::to_string(*rank) +
                                       ", legal: 0 ... " + std::to_string(ranks.count - 1));
  const std::string svg = flags.text("svg");
  if (several && !svg.empty())
    throw Error(ErrorKind::kUsage, flags.label("svg") + " draws one layout, but " +
                                       flags.label("layout") + " is all; legal: one layout");

  const double alone_s = look(model, options, request, Layout{}, target).seconds;
  std::vector<Outlook> outlooks;
  for (const Layout& layout : layouts)
    outlooks.push_back(look(model, options, request, layout, target));
  std::stable_sort(outlooks.begin(), outlooks.end(),
                   [](const Outlook& a, const Outlook& b) { return a.seconds < b.seconds; });

  if (flags.on("json")) {
    for (const Outlook& out : outlooks)
      std::printf("%s\n", to_json(out, target, alone_s, flags.on("check")).dump().c_str());
  } else {
    print_job(flags, generator, request, target);
    if (several)
      print_all(outlooks, alone_s);
    else
      print_one(outlooks.front(), target, alone_s);
    if (!several) print_schedule(outlooks.front(), rank);
    if (flags.on("check"))
      for (const Outlook& out : outlooks)
        std::printf("checked %s: %s\n", to_string(out.layout).c_str(), proof(out).c_str());
  }
  if (!svg.empty()) {
    const Outlook& out = outlooks.front();
    write_file(svg, timeline_svg(out.ranks, generator.model_name() + ", " + to_string(out.layout)));
    if (!flags.on("json")) std::printf("drawn   %s\n", svg.c_str());
  }
  return outlooks.front().fits() ? 0 : static_cast<int>(ErrorKind::kMemory);
}

}  // namespace weft
