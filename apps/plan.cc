// weft plan: what a job would hold, send and take under a layout, on this or another device.
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/calibrate.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/request_flags.h"
#include "engine/generator.h"
#include "io/atomic_file.h"

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

struct Outlook {
  Layout layout;
  double seconds = 0;
  std::vector<std::pair<std::string, double>> stages;
  std::vector<MemoryPlan> memory;  // per rank
  std::vector<SimulatedRank> ranks;

  uint64_t high_water() const {
    uint64_t most = 0;
    for (const MemoryPlan& plan : memory) most = std::max(most, plan.high_water);
    return most;
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

Outlook look(const std::string& model, const GeneratorOptions& options, const Request& request,
             const Layout& layout, const DeviceModel& device, const Link& link) {
  Outlook out;
  out.layout = layout;
  out.memory.resize(layout.ranks());
  StageTimes times;
  out.ranks = simulate(layout.ranks(), device, link, [&](Communicator& world) {
    Generator generator(model, options, Replica::of(world, layout));
    out.memory[world.rank()] = generator.plan(request);
    RunOptions run;
    if (world.rank() == 0) run.listener = &times;
    generator.run(request, nullptr, run);
  });
  for (const SimulatedRank& rank : out.ranks) out.seconds = std::max(out.seconds, rank.seconds);
  for (size_t i = 0; i < times.begun.size(); ++i) {
    const double end = i + 1 < times.begun.size() ? times.begun[i + 1].second : out.seconds;
    if (end > times.begun[i].second)
      out.stages.emplace_back(times.begun[i].first, end - times.begun[i].second);
  }
  return out;
}

DeviceModel device_of(const Flags& flags, int threads, DType dtype) {
  const auto gflops = flags.real("device-gflops");
  const auto gbs = flags.real("device-gbs");
  if (!gflops && !gbs) return measure_device(threads, dtype);
  if (!gflops || !gbs)
    throw Error(ErrorKind::kUsage, "--device-gflops and --device-gbs describe a device together");
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

nlohmann::json to_json(const Outlook& out, double alone_s) {
  nlohmann::json object{{"layout", to_string(out.layout)},
                        {"ranks", out.layout.ranks()},
                        {"seconds", out.seconds},
                        {"speed_up", alone_s / out.seconds},
                        {"high_water_bytes", out.high_water()}};
  for (const auto& [stage, seconds] : out.stages) object["stages"][stage] = seconds;
  for (size_t rank = 0; rank < out.ranks.size(); ++rank) {
    nlohmann::json sent = nlohmann::json::object();
    const CommCounters& counters = out.ranks[rank].counters;
    for (size_t kind = 0; kind < counters.sent.size(); ++kind)
      if (counters.sent[kind].messages)
        sent[std::string(to_string(static_cast<Traffic>(kind)))] = {
            {"messages", counters.sent[kind].messages}, {"bytes", counters.sent[kind].bytes}};
    object["per_rank"].push_back({{"seconds", out.ranks[rank].seconds},
                                  {"weights_bytes", out.memory[rank].weights},
                                  {"high_water_bytes", out.memory[rank].high_water},
                                  {"sent", sent}});
  }
  return object;
}

void print_one(const Outlook& out, double alone_s) {
  std::printf("layout  %s\n\n%-5s %12s %12s %12s %10s %10s\n", to_string(out.layout).c_str(),
              "rank", "weights", "high-water", "sent", "messages", "seconds");
  for (size_t rank = 0; rank < out.ranks.size(); ++rank) {
    const CommCounters::Count sent = out.ranks[rank].counters.total_sent();
    std::printf("%-5zu %12s %12s %12s %10lld %10.4g\n", rank,
                format_bytes(out.memory[rank].weights).c_str(),
                format_bytes(out.memory[rank].high_water).c_str(),
                format_bytes(static_cast<uint64_t>(sent.bytes)).c_str(),
                static_cast<long long>(sent.messages), out.ranks[rank].seconds);
  }
  std::printf("\ntime    %.4g s:", out.seconds);
  for (const auto& [stage, seconds] : out.stages)
    std::printf(" %s %.4g s,", stage.c_str(), seconds);
  std::printf(" %.2f x one rank (%.4g s); loading is not in it\n", alone_s / out.seconds, alone_s);
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
  wants_cuda(flags);  // refuses what is no device; a plan needs none
  check_request_flags(flags);
  const std::string model = flags.text("model");
  if (model.empty())
    throw Error(ErrorKind::kUsage, "weft plan needs --model FOLDER (or WEFT_MODEL_PATH)");
  GeneratorOptions options;
  options.dtype = compute_dtype(flags);
  options.weights = weight_format(flags);
  options.attention = attention_format(flags);
  options.vae_dtype = flags.text("vae-dtype") == "bf16" ? DType::kBF16 : DType::kF32;
  options.threads = 1;
  options.keeping = Keeping::kCheckpoints;  // as weft generate does unless told otherwise
  options.ops = &metered_ops();
  options.memory_limit = bytes_of("memory-limit", flags.text("memory-limit"));
  if (!options.memory_limit) options.memory_limit = UINT64_MAX;

  Ranks ranks;
  ranks.count = ranks.on_this_host = static_cast<int>(flags.integer("ranks").value_or(1));
  const Generator generator(model, options);
  Request request = request_of(flags, generator);
  request.prompt = flags.given("prompt") ? prompts_of(flags).front() : "a planned prompt";
  request = generator.resolve(request);
  const LayoutLimits limits = generator.layout_limits(request);
  std::vector<Layout> layouts;
  const std::string layout = layout_text(flags);
  if (layout == "all")
    layouts = legal_layouts(ranks.count, limits);
  else
    layouts = {parse_layout(layout, ranks.count, limits)};
  const bool several = layouts.size() > 1;
  const std::string svg = flags.text("svg");
  if (several && !svg.empty())
    throw Error(ErrorKind::kUsage, "--svg draws one layout, --layout is all");

  const bool given = flags.given("device-gflops");
  const int threads = given ? 1 : std::max(1, threads_per_rank(flags, ranks));
  const DeviceModel device = device_of(flags, threads, options.dtype);
  const Link link = link_of(flags);
  const double alone_s = look(model, options, request, Layout{}, device, link).seconds;
  std::vector<Outlook> outlooks;
  for (const Layout& layout : layouts)
    outlooks.push_back(look(model, options, request, layout, device, link));
  std::stable_sort(outlooks.begin(), outlooks.end(),
                   [](const Outlook& a, const Outlook& b) { return a.seconds < b.seconds; });

  if (flags.on("json")) {
    for (const Outlook& out : outlooks) std::printf("%s\n", to_json(out, alone_s).dump().c_str());
  } else {
    std::printf(
        "model   %s (%s)    job %lldx%lld, %lld frames, %d steps, guidance %g    tokens %lld\n",
        printable(generator.model_name()).c_str(), std::string(to_string(options.dtype)).c_str(),
        static_cast<long long>(request.width), static_cast<long long>(request.height),
        static_cast<long long>(request.frames), request.steps, request.guidance_scale.value_or(1),
        static_cast<long long>(generator.tokens(request)));
    std::printf("device  %s%s\n", to_string(device).c_str(),
                given ? "" : (" (measured here, " + std::to_string(threads) + " threads)").c_str());
    const std::string bandwidth = flags.text("link-gbit");
    std::printf("link    %s, %g ms\n",
                bandwidth.empty() ? "unlimited" : (bandwidth + " Gbit/s").c_str(),
                link.latency_s * 1e3);
    if (several)
      print_all(outlooks, alone_s);
    else
      print_one(outlooks.front(), alone_s);
  }
  if (!svg.empty()) {
    const Outlook& out = outlooks.front();
    write_file(svg, timeline_svg(out.ranks, generator.model_name() + ", " + to_string(out.layout)));
    if (!flags.on("json")) std::printf("drawn   %s\n", svg.c_str());
  }
  return outlooks.front().memory.front().fits() ? 0 : static_cast<int>(ErrorKind::kMemory);
}

}  // namespace weft
