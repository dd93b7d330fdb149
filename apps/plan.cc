// weft plan: predicts the memory, messages and time of a job under a layout, on this or another
// device.
#include <algorithm>
#include <cstdio>

#include "apps/command_line/placement.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/generate/request_flags.h"
#include "apps/inspect/memory.h"
#include "apps/model_folder.h"
#include "apps/plan_queue.h"
#include "apps/stream/plan_stream.h"
#include "engine/job/speech_chunks.h"
#include "engine/planning/calibrate.h"
#include "engine/planning/machine.h"
#include "io/atomic_file.h"
#include "io/json.h"
#include "parallel/schedule/plan_check.h"
#include "parallel/schedule/timeline_svg.h"

namespace weft {
namespace {

int64_t most_sent(const Forecast& out) {
  int64_t most = 0;
  for (const SimulatedRank& rank : out.ranks)
    most = std::max(most, rank.counters.total_sent().bytes);
  return most;
}

JobSchedule schedule_of(const PlannedJob& job, const Layout& layout) {
  return Generator(job.model, job.options, RankPlacement(layout, 0)).whole_schedule(job.request);
}

// Proves the schedule of a layout; throws where it has a fault.
std::string proof(const PlannedJob& job, const Layout& layout) {
  const auto [plans, rules] = schedule_of(job, layout);
  if (const auto fault = check_plans(plans, rules))
    throw Error(ErrorKind::kInternal,
                "the schedule of " + to_string(layout) + " is not sound: " + *fault);
  return proof_of(plans, rules);
}

Json schedule_json(const PlannedJob& job, const Layout& layout) {
  Json turns = Json::array();
  for (const TurnSummary& turn : summarize_turns(schedule_of(job, layout).plans))
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

Json sent_json(const CommCounters& counters) {
  Json sent = Json::object();
  for (size_t kind = 0; kind < counters.sent.size(); ++kind)
    if (counters.sent[kind].messages)
      sent[std::string(to_string(static_cast<Payload>(kind)))] = {
          {"messages", counters.sent[kind].messages}, {"bytes", counters.sent[kind].bytes}};
  return sent;
}

Json to_json(const PlannedJob& job, const Forecast& out, const SimulatedMachine& machine,
             double alone_s) {
  Json object{{"layout", to_string(out.layout)},   {"ranks", out.layout.ranks()},
              {"threads", machine.threads},        {"seconds", out.seconds},
              {"speed_up", alone_s / out.seconds}, {"high_water_bytes", out.high_water()}};
  for (const auto& [stage, seconds] : out.stages) object["stages"][stage] = seconds;
  if (out.queue)
    object["queue"] = to_json(*out.queue, out);
  else
    object["turns"] = schedule_json(job, out.layout);
  object["fits"] = out.fits();
  describe_mode(job.options, out.memory.front(), object);
  if (machine.planned) {
    object["device"] = machine.planned->description();
    object["available_bytes"] = out.memory.front().available;
  }
  if (out.uploads.bytes > 0)
    object["streaming"] = {{"source", machine.upload.from_file ? "file" : "host"},
                           {"bytes_per_step", out.uploads.bytes},
                           {"predicted_gbs", machine.upload.bytes_per_s * 1e-9},
                           {"predicted_from", machine.upload.source},
                           {"upload_seconds_per_step", out.uploads.seconds},
                           {"hidden_seconds_per_step", out.uploads.hidden_s}};
  for (size_t rank = 0; rank < out.memory.size(); ++rank) {
    Json line{{"weights_bytes", out.memory[rank].weights},
              {"high_water_bytes", out.memory[rank].high_water}};
    if (rank < out.ranks.size()) {
      line["seconds"] = out.ranks[rank].seconds;
      line["sent"] = sent_json(out.ranks[rank].counters);
    }
    describe_device_memory(out.memory[rank], line);
    const uint64_t streamed = most_streamed({&out.memory[rank], 1});
    if (machine.planned || streamed > 0) line["streamed_bytes_per_forward"] = streamed;
    object["per_rank"].push_back(std::move(line));
  }
  return object;
}

void print_one(const PlannedJob& job, const Forecast& out, const SimulatedMachine& machine,
               double alone_s) {
  const bool device = machine.planned.has_value();
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
  std::printf("\nmode    %s%s\n", out.layout.ranks() > 1 ? "rank 0: " : "",
              mode_text(job.options, out.memory.front()).c_str());
  if (device) std::printf("memory  %s\n", out.memory.front().to_string().c_str());
  if (out.uploads.bytes > 0)
    std::printf(
        "%s  %s a step from the %s at %.1f GB/s (%s): %.4g s, of which %.4g s "
        "during computation\n",
        line_name(machine.upload), format_bytes(static_cast<uint64_t>(out.uploads.bytes)).c_str(),
        machine.upload.from_file ? "file" : "host", machine.upload.bytes_per_s * 1e-9,
        machine.upload.source.c_str(), out.uploads.seconds, out.uploads.hidden_s);
  std::printf("\ntime    %.4g s:", out.seconds);
  for (const auto& [stage, seconds] : out.stages)
    std::printf(" %s %.4g s,", stage.c_str(), seconds);
  std::printf(" %.2f x one rank (%.4g s); loading is not in it\n", alone_s / out.seconds, alone_s);
}

// Prints what the ranks do together in every turn, or every step of one of them.
void print_schedule(const PlannedJob& job, const Layout& layout, std::optional<int64_t> rank) {
  const std::vector<Plan> plans = schedule_of(job, layout).plans;
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

void print_job(const Generator& generator, const Request& request,
               const SimulatedMachine& machine) {
  std::printf("model   %s (%s)    job %lldx%lld, %lld frames, %d steps, guidance %g    tokens %s\n",
              printable(generator.model_name()).c_str(),
              std::string(to_string(generator.options().dtype)).c_str(),
              static_cast<long long>(request.width), static_cast<long long>(request.height),
              static_cast<long long>(request.frames), request.steps,
              request.guidance_scale.value_or(1), generator.facts(request).tokens().c_str());
  std::printf("device  %s\n", printable(machine.description).c_str());
  std::printf("link    %s\n", to_string(machine.link).c_str());
}

void print_all(std::span<const Forecast> all, double alone_s) {
  std::printf("%-44s %10s %9s %10s %12s %12s\n", "layout", "seconds", "speed-up", "denoise",
              "high-water", all.front().ranks.empty() ? "" : "sent");
  for (const Forecast& out : all)
    std::printf(
        "%-44s %10.4g %8.2fx %10.4g %12s %12s%s\n", to_string(out.layout).c_str(), out.seconds,
        alone_s / out.seconds, out.stage("denoise"), format_bytes(out.high_water()).c_str(),
        out.ranks.empty() ? "" : format_bytes(static_cast<uint64_t>(most_sent(out))).c_str(),
        out.fits() ? "" : "  does not fit");
}

// Throws where the job does not fit, with what would fit.
void check_memory(const PlannedJob& job, const Forecast& out) {
  if (out.fits()) return;
  const auto first = std::ranges::find_if_not(out.memory, &MemoryPlan::fits);
  const int rank = static_cast<int>(first - out.memory.begin());
  std::string refusal;
  simulate(1, {}, {}, [&](Communicator&) {
    refusal =
        Generator(job.model, job.options, RankPlacement(out.layout, rank)).refusal(job.request);
  });
  throw Error(ErrorKind::kMemory, refusal);
}

// A queue of many segments is never simulated whole.
Forecast forecast_of(const PlannedJob& job, const Layout& layout) {
  if (!job.request.method->in_segments()) return forecast_whole(job, layout);
  Forecast out = QuickForecast(job)(layout);
  out.memory = memory_of(job, layout);
  return out;
}

// The layouts that a command line compares, those that fit first, the fastest first.
struct LayoutTimes {
  std::optional<LayoutChoice> choice;  // where a simulation chose the layout
  std::vector<Forecast> forecasts;
  double alone_s = 0;  // the time of one rank
};

// A layout that a simulation chose is simulated whole, rank by rank, only if `whole` is true.
LayoutTimes compare(const PlannedJob& job, const std::string& text, int ranks, bool whole) {
  const Generator generator(job.model, job.options);
  const LayoutLimits limits = generator.layout_limits(job.request);
  std::vector<Layout> layouts = parse_layouts(text, ranks, limits);
  // One rank computes exactly where it cannot have all patches.
  PlannedJob alone = job;
  if (!refuse({}, limits).empty()) alone.request.method = Full();
  LayoutTimes out;
  if (chooses_layout(text, layouts)) {
    out.choice = choose_layout(job, layouts);
    layouts = {out.choice->best.front().layout};
    out.forecasts = out.choice->best;
    out.alone_s = QuickForecast(alone)({}).seconds;
    if (!whole && !job.request.method->in_segments()) return out;
    out.forecasts.clear();
  }
  out.alone_s = forecast_of(alone, {}).seconds;
  for (const Layout& layout : layouts) out.forecasts.push_back(forecast_of(job, layout));
  std::ranges::stable_sort(out.forecasts, {},
                           [](const Forecast& one) { return std::pair(!one.fits(), one.seconds); });
  return out;
}

void print_comparison(const PlannedJob& job, const SimulatedMachine& machine,
                      const LayoutTimes& all, std::optional<int64_t> rank) {
  const Forecast& first = all.forecasts.front();
  if (all.choice)
    std::printf("chosen  %s: %s\n", to_string(first.layout).c_str(),
                to_string(*all.choice).c_str());
  if (all.forecasts.size() > 1 || first.ranks.empty()) return print_all(all.forecasts, all.alone_s);
  print_one(job, first, machine, all.alone_s);
  if (first.queue && !rank) return print_queue(*first.queue, first);
  print_schedule(job, first.layout, rank);
}

}  // namespace

int run_plan(const Flags& flags) {
  const std::shared_ptr<const OpenModel> model = open_model(flags);
  if (draws_streams_alone(model->directory)) return plan_stream(flags, model);
  if (flags.typed("kv-dtype"))
    throw Error(ErrorKind::kUsage, flags.label("kv-dtype") +
                                       " is of streams, and this plan is of a video or a picture; "
                                       "legal: a model that draws streams alone");
  GivenJob given = job_of(flags);
  Ranks ranks;
  ranks.count = ranks.on_this_host = static_cast<int>(flags.integer("ranks").value_or(1));
  const std::optional<int64_t> rank = flags.integer("plan-rank");
  if (rank && *rank >= ranks.count)
    throw Error(ErrorKind::kUsage, flags.label("plan-rank") + " is " + std::to_string(*rank) +
                                       ", legal: 0 ... " + std::to_string(ranks.count - 1));
  const std::string svg = flags.text("svg"), text = layout_text(flags);
  if (!svg.empty() && text.starts_with("all"))
    throw Error(ErrorKind::kUsage, flags.label("svg") + " draws one layout, but " +
                                       flags.label("layout") + " is all; legal: one layout");
  const RankMachine here = rank_machine(flags, ranks);
  const SimulatedMachine machine =
      simulated_machine(here, ranks, measured_ranks(here, ranks, *model), *model);
  const GeneratorOptions options = planning_options(flags, ranks.count, machine.planned);
  const Generator generator(model, options);
  take_facts(given.spec, given.label);
  take_preset(given.spec, model->directory, given.label);
  Request request = with_any_inputs(request_of(flags, given, generator), model->directory);
  request.prompt = flags.given("prompt") ? prompts_of(flags).front() : "a planned prompt";
  const PlannedJob job = planned_job(generator, options, generator.resolve(request), machine);
  const bool whole = rank || !svg.empty() || flags.on("check");
  const LayoutTimes all = compare(job, text, ranks.count, whole);
  const std::vector<Forecast>& forecasts = all.forecasts;
  const Forecast& first = forecasts.front();
  if (flags.on("json")) {
    for (const Forecast& out : std::span(forecasts).first(all.choice ? 1 : forecasts.size())) {
      Json object = to_json(job, out, machine, all.alone_s);
      if (flags.on("check")) object["checked"] = proof(job, out.layout);
      if (all.choice) {
        object["chosen_from"] = to_json(*all.choice);
        object["chosen_on"] = to_json(machine);
      }
      std::printf("%s\n", object.dump().c_str());
    }
  } else {
    print_job(generator, job.request, machine);
    print_comparison(job, machine, all, rank);
    if (flags.on("check"))
      for (const Forecast& out : forecasts)
        std::printf("checked %s: %s\n", to_string(out.layout).c_str(),
                    proof(job, out.layout).c_str());
  }
  if (!svg.empty()) {
    const std::string title = generator.model_name() + ", " + to_string(first.layout);
    write_file(svg, first.queue ? svg_of(*first.queue, title) : timeline_svg(first.ranks, title));
    if (!flags.on("json")) std::printf("drawn   %s\n", svg.c_str());
  }
  check_memory(job, first);
  return 0;
}

}  // namespace weft
