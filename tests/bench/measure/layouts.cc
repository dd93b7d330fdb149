#include <algorithm>
#include <cstdio>
#include <map>
#include <optional>

#include "apps/bench/bench_limits.h"
#include "apps/device.h"
#include "engine/schedules/denoiser.h"
#include "io/json.h"
#include "kernels/transfer.h"
#include "models/random_weights/random_weights.h"
#include "parallel/schedule/simulate.h"
#include "parallel/transport/local.h"
#include "tests/bench/measure/measure.h"

namespace weft {
namespace {

constexpr int64_t kLayoutTextRows = 60, kTextLength = 512;
// The first step prepares the text and warms up; on a device a second one records a graph; the last
// one counts. Of more steps, all after the second count.
int fewest_steps(const Device& device) { return device == Device{} ? 2 : 3; }
// Displaced patches on two ranks, whose first step is exact.
constexpr std::pair<const char*, Axis> kDisplaced[] = {
    {"distrifusion:patches=2,warmup=1", Axis::kPatch},
    {"pcpp:patches=2,window=0.3,warmup=1", Axis::kPatch},
    {"pipefusion:patches=4,warmup=1", Axis::kLayers}};

struct LayoutShape {
  std::string name = "wan2.1-1.3b";
  std::shared_ptr<const TransformerModel> model;
  DType dtype = DType::kF32;
  std::array<int64_t, 4> latent{};  // [C, F, H, W]
  int64_t tokens = 0;
  int steps = 0;

  std::array<int64_t, 3> grid() const {
    const auto& patch = model->traits().patch;
    return {latent[1] / patch[0], latent[2] / patch[1], latent[3] / patch[2]};
  }
};

// Seconds of a rank by its clock, and those of them that it waited for messages.
struct Moment {
  double at = 0, waited = 0;
};

// One rank's run: a step that counts, the mean of all steps, and the share of the former that it
// waited. 0 where the rank updates nothing.
struct Times {
  double step_s = 0, mean_s = 0, waiting = 0;
};

// The slices of a model that one rank holds; each is loaded once.
class Slices final : public Experts {
 public:
  Slices(const LayoutShape& shape, const TensorFile& file) : shape_(shape), file_(file) {}

  // The layout that the next job runs with.
  void choose(const RankPlacement& placement) {
    load_ = placement.load(shape_.model->traits(), {.dtype = shape_.dtype});
  }
  DType dtype() const override { return shape_.dtype; }
  const ModelFamily& family() const override { return family_; }
  const TransformerTraits& traits() const override { return shape_.model->traits(); }
  int64_t text_length(int64_t) const override { return kTextLength; }
  const Transformer& expert(Stream& stream, int) override {
    const Range heads = load_.width.heads;
    const std::array<int64_t, 4> key{load_.blocks.begin, load_.blocks.end, heads.begin, heads.end};
    auto found = held_.find(key);
    if (found == held_.end())
      found = held_.emplace(key, shape_.model->load(stream, file_, load_)).first;
    return *found->second;
  }
  void done_with_experts() override {}

 private:
  const LayoutShape& shape_;
  const TensorFile& file_;
  TransformerLoad load_;
  ModelFamily family_{};  // guidance from the negative prompt
  std::map<std::array<int64_t, 4>, std::unique_ptr<Transformer>> held_;
};

void fill(const TensorView& tensor) {
  for (int64_t i = 0; i < tensor.count(); ++i)
    tensor.as<float>()[i] = static_cast<float>((i * 7919) % 1009) / 504.5f - 1;
}

// Notes when each step ends.
struct TimedSteps final : JobHost {
  TimedSteps(Stream& on, const std::function<Moment()>& clock, std::vector<Moment>& ends)
      : stream(on), now(clock), ended(ends) {}
  void noise(const Segment&, const TensorView& latent) override { fill(latent); }
  void stepped(const Step& step) override {
    if (step.kind != Step::Kind::kUpdate) return;
    stream.sync();
    ended[step.pass.step] = now();
  }
  Stream& stream;
  const std::function<Moment()>& now;
  std::vector<Moment>& ended;
};

// Runs guided steps of a method as one rank.
Times run_steps(const LayoutShape& shape, const Method& method, Slices& slices,
                RankPlacement& placement, Stream& stream, const std::function<Moment()>& now) {
  slices.choose(placement);
  SamplerConfig solver;
  solver.kind = SolverKind::kEuler;
  const JobFacts facts{.request = {},
                       .sampler = {solver, shape.steps},
                       .window = shape.latent,
                       .guidance = {5},
                       .patches = method->stale_patches(shape.grid(), shape.steps)};
  Tensor embeds(DType::kF32, {kLayoutTextRows, shape.model->traits().text_columns});
  Tensor pooled(DType::kF32, {shape.model->traits().pooled_columns});
  fill(embeds);
  fill(pooled);
  embeds = on_device(stream, std::move(embeds));
  pooled = on_device(stream, std::move(pooled));
  std::vector<Moment> ended(shape.steps);
  TimedSteps host(stream, now, ended);
  Job job{.facts = facts,
          .host = host,
          .prompts = {embeds.view()},
          .negative = embeds,
          .pooled = {pooled.view(), pooled.view()}};
  const TransformerTraits& traits = shape.model->traits();
  DenoisePlanConfig config =
      staged_config(placement, traits, shape.dtype, shape.tokens, facts.patches);
  config.steps.assign(shape.steps, {.model = 0, .branches = 2});
  config.blocks = {traits.blocks};
  config.joint_rows.fill(shape.model->joint_rows(shape.tokens, kLayoutTextRows));
  if (const auto& patches = facts.patches.pipefusion) displace_steps(config.steps, patches->warmup);
  Arena arena(size_t{256} << 30, stream.device());
  const Moment begun = now();
  Denoiser({stream, arena, slices, placement}).run(config, job);
  const Moment &last = ended.back(), &first = ended[shape.steps > 2];
  if (last.at == 0) return {};
  const double counted = last.at - first.at;
  return {counted / (shape.steps > 2 ? shape.steps - 2 : 1), (last.at - begun.at) / shape.steps,
          (last.waited - first.waited) / counted};
}

// Gives every rank the number of every rank.
std::vector<double> gathered(Communicator& world, double value) {
  Stream stream = Stream::cpu(1);
  Tensor all(DType::kF64, {world.size()});
  std::vector<TensorView> parts;
  for (int rank = 0; rank < world.size(); ++rank) parts.push_back(all.view().slice(0, rank, 1));
  static_cast<double*>(all.view().data)[world.rank()] = value;
  world.all_gather_v(stream, {}, parts[world.rank()], parts);
  const auto* values = static_cast<const double*>(all.view().data);
  return {values, values + world.size()};
}

struct Wire {
  std::string name;
  Link link;
};

std::vector<Wire> wires_of(const Flags& flags) {
  if (!flags.given("link-gbit") && !flags.given("link-ms"))
    return {{"none", {}},
            {"10 Gbit/s, 1 ms", {1e-3, 10e9 / 8}},
            {"1 Gbit/s, 10 ms", {10e-3, 1e9 / 8}},
            {"0.1 Gbit/s, 10 ms", {10e-3, 0.1e9 / 8}}};
  const Link link{.latency_s = flags.real("link-ms").value_or(0) * 1e-3,
                  .bytes_per_s = flags.real("link-gbit").value_or(0) * 1e9 / 8};
  const std::string gbit = flags.text("link-gbit");
  return {{"none", {}},
          {(gbit.empty() ? "unlimited" : gbit + " Gbit/s") + ", " + flags.text("link-ms") + " ms",
           link}};
}

// One line of the table.
struct LayoutEntry {
  LayoutEntry(std::string name, const Layout& layout, int threads, Wire wire, Method method = {})
      : name(std::move(name)),
        layout(layout),
        threads(threads),
        wire(std::move(wire)),
        method(std::move(method)) {}
  std::string name;
  Layout layout;
  int threads;
  Wire wire;
  Method method;
  std::vector<double> seconds{}, mean{}, waiting{};  // one per round
  double simulated = 0;
};

// Runs the steps of all entries. A process under mpirun holds the slices of one rank, any other
// process those of every rank.
class LayoutBench {
 public:
  LayoutBench(const LayoutShape& shape, const Ranks& ranks, const TensorFile& file,
              std::vector<Device> devices)
      : shape_(shape), ranks_(ranks), file_(file), devices_(std::move(devices)) {
    for (int rank = 0; rank < (ranks.processes ? 1 : ranks.count); ++rank)
      slices_.emplace_back(shape, file);
    streams_.resize(devices_.size());
  }

  // The times of the slowest rank.
  Times run(const LayoutEntry& entry, const LayoutShape& shape, const Link& link) {
    Times result;
    on_ranks(ranks_, link, [&](Communicator& world) {
      Slices& slices = slices_[ranks_.processes ? 0 : world.rank()];
      Times times;
      Stream stream = stream_of_rank(world.rank(), entry.threads);
      const auto now = [&] {
        return Moment{wall_seconds(), static_cast<double>(world.counters().waited_ns) * 1e-9};
      };
      world.barrier(stream_, {});
      if (entry.layout.ranks() > 1 || world.rank() == 0) {
        RankPlacement placement =
            entry.layout.ranks() > 1 ? RankPlacement::of(world, entry.layout) : RankPlacement();
        times = run_steps(shape, entry.method, slices, placement, stream, now);
      }
      const std::vector<double> steps = gathered(world, times.step_s),
                                means = gathered(world, times.mean_s),
                                waits = gathered(world, times.waiting);
      const size_t slowest = std::ranges::max_element(steps) - steps.begin();
      if (world.rank() == 0) result = {steps[slowest], std::ranges::max(means), waits[slowest]};
    });
    return result;
  }

  // Measures this machine while all ranks compute at once: each takes a whole step alone.
  DeviceModel calibrate(const LayoutShape& brief) {
    DeviceModel device;
    on_ranks(ranks_, {}, [&](Communicator& world) {
      Slices& slices = slices_[ranks_.processes ? 0 : world.rank()];
      RankPlacement alone;
      Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
      TimingMeter meter;
      world.barrier(stream_, {});
      {
        const MeterScope scope(meter);
        run_steps(brief, Full(), slices, alone, stream, [] { return Moment{wall_seconds()}; });
      }
      const auto [copy_rate, message_s] = measure_messages(world);
      if (world.rank() != 0) return;
      device = measured_device(meter);
      device.copy_bytes_per_s = copy_rate;
      device.message_s = message_s;
    });
    return device;
  }

  double simulated(const LayoutEntry& entry, const DeviceModel& device) const {
    std::vector<double> seconds(entry.layout.ranks());
    simulate(entry.layout.ranks(), device, entry.wire.link, [&](Communicator& world) {
      Slices slices(shape_, file_);
      RankPlacement placement = RankPlacement::of(world, entry.layout);
      Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
      seconds[world.rank()] = run_steps(shape_, entry.method, slices, placement, stream, [] {
                                return Moment{simulated_seconds()};
                              }).step_s;
    });
    return std::ranges::max(seconds);
  }

 private:
  // A device's queue is kept, because its libraries have prepared it for the shapes.
  Stream stream_of_rank(int rank, int threads) {
    if (devices_[rank] == Device{}) return Stream::cpu(threads);
    std::optional<Stream>& kept = streams_[rank];
    if (!kept) kept = stream_on(devices_[rank], threads);
    return *kept;
  }

  // A message costs the processors at both ends time: bytes per second of one end, and seconds.
  std::pair<double, double> measure_messages(Communicator& world) {
    constexpr int kRounds = 9;
    constexpr int64_t kBytes = 8 << 20;
    const int peer = world.rank() ^ 1;
    std::vector<double> large, small;
    if (peer < world.size())
      for (int round = 0; round < 2 * kRounds; ++round) {
        const int64_t bytes = round % 2 ? 8 : kBytes;
        Tensor out(DType::kU8, {bytes}), in(DType::kU8, {bytes});
        const Message send{peer, {.hop = round}, out}, receive{peer, {.hop = round}, in};
        const double begun = wall_seconds();
        Communicator::Pending pending = world.post(stream_, {&send, 1}, {&receive, 1});
        world.wait(pending);
        (round % 2 ? small : large).push_back(wall_seconds() - begun);
      }
    if (large.empty()) return {0, 0};
    return {2 * static_cast<double>(kBytes) / median(large), median(small) / 2};
  }

  // Runs on_ranks() over slow links.
  static void on_ranks(const Ranks& ranks, const Link& link,
                       const std::function<void(Communicator&)>& work) {
    const bool slow = link.latency_s > 0 || link.bytes_per_s > 0;
    weft::on_ranks(ranks, work, slow ? &link : nullptr);
  }

  const LayoutShape& shape_;
  const Ranks& ranks_;
  const TensorFile& file_;
  std::vector<Device> devices_;  // one per rank
  std::vector<std::optional<Stream>> streams_;
  std::vector<Slices> slices_;
  Stream stream_ = Stream::cpu(1);
};

void print_entry(const LayoutEntry& entry, const LayoutEntry& one, std::optional<double> two,
                 bool json, const LayoutShape& shape, const std::string& description) {
  const double seconds = median(entry.seconds), mean = median(entry.mean),
               waiting = median(entry.waiting), speed_up = median(one.seconds) / seconds,
               mean_speed_up = median(one.mean) / mean;
  if (json) {
    Json object{{"bench", "layouts"},
                {"model", shape.name},
                {"blocks", shape.model->traits().blocks},
                {"tokens", shape.tokens},
                {"dtype", to_string(shape.dtype)},
                {"isa", cpu_isa()},
                {"ranks", description},
                {"method", entry.name},
                {"layout", to_string(entry.layout)},
                {"steps", shape.steps},
                {"threads", entry.threads},
                {"link", entry.wire.name},
                {"seconds", seconds},
                {"speed_up", speed_up},
                {"mean_seconds", mean},
                {"mean_speed_up", mean_speed_up},
                {"waiting", waiting}};
    if (two) object["of_two_threads"] = *two / seconds;
    if (entry.simulated > 0) object["simulated"] = entry.simulated;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%-34s %d x %d  %-18s %9.4f %8.2fx %8.2fx %8.0f %%", entry.name.c_str(),
                entry.layout.ranks(), entry.threads, entry.wire.name.c_str(), seconds, speed_up,
                mean_speed_up, 100 * waiting);
    if (two) std::printf(" %10.2f", *two / seconds);
    if (entry.simulated > 0)
      std::printf(" %10.3f %+7.1f %%", entry.simulated, 100 * (entry.simulated / seconds - 1));
    std::printf("\n");
  }
  std::fflush(stdout);
}

LayoutShape shape_of(const Flags& flags, DType dtype) {
  LayoutShape shape;
  shape.dtype = dtype;
  shape.tokens = *flags.integer("tokens");
  shape.steps = static_cast<int>(flags.integer("steps").value_or(0));
  const NamedTransformer named = transformer_of(flags, 2);
  shape.name = named.name;
  shape.model = named.model;
  if (named.model->traits().given_channels() > 0)
    throw Error(ErrorKind::kUsage, flags.label("arch") + " is " + named.name +
                                       ", which starts from a picture, and weft_measure layouts "
                                       "gives none; legal: models that need a prompt alone");
  int64_t width = std::clamp<int64_t>(shape.tokens / 4, 1, 52);  // rows enough for patches
  while (shape.tokens % width) --width;
  const TransformerTraits& traits = named.model->traits();
  shape.latent = {traits.in_channels, traits.patch[0], traits.patch[1] * (shape.tokens / width),
                  traits.patch[2] * width};
  return shape;
}

// Measures one rank (on a CPU also with two threads), and every layout of two ranks over every
// link; displaced patches where there are steps enough.
std::vector<LayoutEntry> entries_of(const LayoutShape& shape, const std::vector<Wire>& wires,
                                    bool on_cpu) {
  std::vector<LayoutEntry> entries;
  for (int threads = 1; threads <= (on_cpu ? 2 : 1); ++threads)
    entries.emplace_back("one rank", Layout{}, threads, Wire{"none", {}});
  const TransformerTraits& traits = shape.model->traits();
  const LayoutLimits limits{.heads = traits.heads,
                            .layers = traits.blocks,
                            .tokens = shape.tokens,
                            .ffn = traits.ffn_columns};
  for (const Wire& wire : wires)
    for (const Layout& layout : legal_layouts(2, limits))
      entries.emplace_back(to_string(layout), layout, 1, wire);
  if (shape.steps < kFewestDisplaced) return entries;
  for (const Wire& wire : wires)
    for (const auto& [text, axis] : kDisplaced) {
      const Method method = resolve_method(parse_method(text, "a method"),
                                           {.latents = shape.latent[1], .grid = shape.grid()});
      Layout layout;
      layout[axis] = 2;
      entries.emplace_back(text, layout, 1, wire, method);
    }
  return entries;
}

void print_entries(const std::vector<LayoutEntry>& entries, bool on_cpu, bool json, int repeat,
                   const LayoutShape& shape, const std::string& description) {
  std::optional<double> two;
  if (on_cpu) two = median(entries[1].seconds);
  if (!json) {
    std::printf("%s, %d blocks, %lld tokens, %d steps, %s, guided; %s; medians of %d\n",
                shape.name.c_str(), shape.model->traits().blocks,
                static_cast<long long>(shape.tokens), shape.steps,
                std::string(to_string(shape.dtype)).c_str(), description.c_str(), repeat);
    std::printf("%-34s %5s  %-18s %9s %9s %9s %10s", "method", "ranks", "link", "s/step",
                "speed-up", "all steps", "waiting");
    std::printf(on_cpu ? " %10s %10s %9s\n" : "\n", "of 2 thr.", "simulated", "error");
  }
  for (const LayoutEntry& entry : entries)
    print_entry(entry, entries[0], two, json, shape, description);
}

}  // namespace

int measure_layouts(const Flags& flags, DType dtype, int repeat) {
  Ranks ranks = ranks_of(flags);
  if (!ranks.processes && !flags.given("ranks"))
    ranks = {.count = 2, .on_this_host = 2, .description = "2 threads"};
  if (ranks.count != 2)
    throw Error(ErrorKind::kUsage, "weft_measure layouts compares layouts of 2 ranks, --ranks is " +
                                       std::to_string(ranks.count));
  lift_mpirun_binding(detect_launch(), 2);  // one rank on two threads is the measure
  LayoutShape shape = shape_of(flags, dtype);
  std::vector<Device> devices;
  for (int rank = 0; rank < ranks.count; ++rank) devices.push_back(device_of(flags, ranks, rank));
  const bool on_cpu = devices.front() == Device{};
  shape.steps = std::max(shape.steps, fewest_steps(devices.front()));
  std::string description = ranks.description;
  if (!on_cpu)
    description += devices[0] == devices[1]
                       ? " on " + to_string(devices[0])
                       : " on " + to_string(devices[0]) + " and " + to_string(devices[1]);
  // Messages between devices stay inside the machine unless the user asks otherwise.
  std::vector<Wire> wires = wires_of(flags);
  if (!on_cpu && !flags.given("link-gbit") && !flags.given("link-ms")) wires.resize(1);
  std::vector<LayoutEntry> entries = entries_of(shape, wires, on_cpu);

  const TensorFile weights = random_tensors(shape.model->tensors());
  LayoutBench bench(shape, ranks, weights, devices);
  LayoutShape brief = shape;
  brief.steps = 2;
  for (const LayoutEntry& entry : entries)  // loads
    if (entry.wire.name == wires.front().name || entry.layout.ranks() == 1)
      bench.run(entry, brief, {});
  // Ops on a device cannot be timed alone: a meter waits for the device after each.
  std::optional<DeviceModel> model;
  if (on_cpu) model = bench.calibrate(brief);
  for (int round = 0; round < repeat; ++round)
    for (LayoutEntry& entry : entries) {
      const Times times = bench.run(entry, shape, entry.wire.link);
      entry.seconds.push_back(times.step_s);
      entry.mean.push_back(times.mean_s);
      entry.waiting.push_back(times.waiting);
    }
  if (!ranks.speaks) return 0;
  for (LayoutEntry& entry : entries)
    if (model && entry.layout.ranks() > 1) entry.simulated = bench.simulated(entry, *model);
  print_entries(entries, on_cpu, flags.on("json"), repeat, shape, description);
  return 0;
}

}  // namespace weft
