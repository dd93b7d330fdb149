#include "apps/bench/bench_layouts.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "apps/bench/bench_limits.h"
#include "apps/device.h"
#include "engine/denoising/denoiser.h"
#include "kernels/transfer.h"
#include "models/random_weights.h"
#include "parallel/schedule/simulate.h"
#include "parallel/transport/local.h"

namespace weft {
namespace {

constexpr int64_t kTextRows = 60, kTextLength = 512;
// The first run prepares the text and warms up; on a device a second one records a graph; the last
// one counts.
constexpr int kMostSteps = 3;
int steps_on(const Stream& stream) { return stream.queue() ? kMostSteps : 2; }

struct Shape {
  std::string name = "wan2.1-1.3b";
  std::shared_ptr<const TransformerModel> model;
  DType dtype = DType::kF32;
  std::array<int64_t, 4> latent{};  // [C, F, H, W]
  int64_t tokens = 0;
};

// The slices of a model that one rank holds; each is loaded once.
class Slices final : public Experts {
 public:
  Slices(const Shape& shape, const TensorFile& file) : shape_(shape), file_(file) {}

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
  const Shape& shape_;
  const TensorFile& file_;
  TransformerLoad load_;
  ModelFamily family_{};  // guidance from the negative prompt
  std::map<std::array<int64_t, 4>, std::unique_ptr<Transformer>> held_;
};

// Runs guided steps as one rank and returns the seconds of the last one by `now`; 0 where this rank
// updates nothing.
double last_step(const Shape& shape, Slices& slices, RankPlacement& placement, Stream& stream,
                 const std::function<double()>& now) {
  slices.choose(placement);
  Request request;
  request.guidance_scale = request.guidance_scale_2 = 5;
  SamplerConfig solver;
  solver.kind = SolverKind::kEuler;
  const int steps = steps_on(stream);
  const Sampler sampler(solver, steps);
  Tensor latent(DType::kF32, shape.latent);
  Tensor embeds(DType::kF32, {kTextRows, shape.model->traits().text_columns});
  for (Tensor* tensor : {&latent, &embeds})
    for (int64_t i = 0; i < tensor->count(); ++i)
      tensor->as<float>()[i] = static_cast<float>((i * 7919) % 1009) / 504.5f - 1;
  latent = on_device(stream, std::move(latent));
  embeds = on_device(stream, std::move(embeds));
  std::array<double, kMostSteps> ended{};
  Job job{.request = request,
          .sampler = sampler,
          .embeds = {embeds.view(), embeds.view()},
          .latent = std::move(latent),
          .on_update =
              [&](int step) {
                stream.sync();
                ended[step] = now();
              },
          .decode = [](const TensorView&) {}};
  const TransformerTraits& traits = shape.model->traits();
  DenoisePlanConfig config = staged_config(placement, traits, shape.dtype, shape.tokens);
  config.steps.assign(steps, {.model = 0, .branches = 2});
  config.blocks = {traits.blocks};
  Arena arena(size_t{256} << 30, stream.device());
  Denoiser(stream, arena, slices, placement).run(config, job);
  return ended[steps - 1] - ended[steps - 2];
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
struct Entry {
  Entry(std::string method, const Layout& layout, int threads, Wire wire)
      : method(std::move(method)), layout(layout), threads(threads), wire(std::move(wire)) {}
  std::string method;
  Layout layout;
  int threads;
  Wire wire;
  std::vector<double> seconds, waiting;  // one per round; waiting is a share
  double simulated = 0;
};

// Runs the steps of all entries. A process under mpirun holds the slices of one rank, any other
// process those of every rank.
class Bench {
 public:
  Bench(const Shape& shape, const Ranks& ranks, const TensorFile& file, std::vector<Device> devices)
      : shape_(shape), ranks_(ranks), file_(file), devices_(std::move(devices)) {
    for (int rank = 0; rank < (ranks.processes ? 1 : ranks.count); ++rank)
      slices_.emplace_back(shape, file);
    streams_.resize(devices_.size());
  }

  // The seconds of the slowest rank, and the share that it waited.
  std::pair<double, double> run(const Layout& layout, int threads, const Link& link) {
    std::pair<double, double> result;
    on_ranks(ranks_, link, [&](Communicator& world) {
      Slices& slices = slices_[ranks_.processes ? 0 : world.rank()];
      double seconds = 0, waited = 0;
      Stream stream = stream_of_rank(world.rank(), threads);
      world.barrier(stream_, {});
      if (layout.ranks() == 1) {
        RankPlacement alone;
        if (world.rank() == 0) seconds = last_step(shape_, slices, alone, stream, wall_seconds);
      } else {
        RankPlacement placement = RankPlacement::of(world, layout);
        int64_t before = 0;
        seconds = last_step(shape_, slices, placement, stream, [&] {
          waited = static_cast<double>(world.counters().waited_ns - before) * 1e-9;
          before = world.counters().waited_ns;
          return wall_seconds();
        });
      }
      const std::vector<double> all = gathered(world, seconds),
                                waits = gathered(world, seconds > 0 ? waited / seconds : 0);
      if (world.rank() == 0) {
        const size_t slowest = std::max_element(all.begin(), all.end()) - all.begin();
        result = {all[slowest], waits[slowest]};
      }
    });
    return result;
  }

  // Measures this machine while all ranks compute at once: each takes a whole step alone.
  DeviceModel calibrate() {
    DeviceModel device;
    on_ranks(ranks_, {}, [&](Communicator& world) {
      Slices& slices = slices_[ranks_.processes ? 0 : world.rank()];
      RankPlacement alone;
      Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
      TimingMeter meter;
      world.barrier(stream_, {});
      {
        const MeterScope scope(meter);
        last_step(shape_, slices, alone, stream, wall_seconds);
      }
      const auto [copy_rate, message_s] = measure_messages(world);
      if (world.rank() != 0) return;
      device = measured_device(meter);
      device.copy_bytes_per_s = copy_rate;
      device.message_s = message_s;
    });
    return device;
  }

  double simulated(const Layout& layout, const DeviceModel& device, const Link& link) const {
    std::vector<double> seconds(layout.ranks());
    simulate(layout.ranks(), device, link, [&](Communicator& world) {
      Slices slices(shape_, file_);
      RankPlacement placement = RankPlacement::of(world, layout);
      Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
      seconds[world.rank()] = last_step(shape_, slices, placement, stream, simulated_seconds);
    });
    return *std::max_element(seconds.begin(), seconds.end());
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

  const Shape& shape_;
  const Ranks& ranks_;
  const TensorFile& file_;
  std::vector<Device> devices_;  // one per rank
  std::vector<std::optional<Stream>> streams_;
  std::vector<Slices> slices_;
  Stream stream_ = Stream::cpu(1);
};

void print(const Entry& entry, double one, std::optional<double> two, bool json, const Shape& shape,
           const std::string& description) {
  const double seconds = median(entry.seconds), waiting = median(entry.waiting);
  if (json) {
    nlohmann::json object{{"bench", "layouts"},
                          {"model", shape.name},
                          {"blocks", shape.model->traits().blocks},
                          {"tokens", shape.tokens},
                          {"dtype", to_string(shape.dtype)},
                          {"isa", cpu_isa()},
                          {"ranks", description},
                          {"method", entry.method},
                          {"threads", entry.threads},
                          {"link", entry.wire.name},
                          {"seconds", seconds},
                          {"speed_up", one / seconds},
                          {"waiting", waiting}};
    if (two) object["of_two_threads"] = *two / seconds;
    if (entry.simulated > 0) object["simulated"] = entry.simulated;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%-14s %d x %d  %-18s %9.4f %8.2fx %8.0f %%", entry.method.c_str(),
                entry.layout.ranks(), entry.threads, entry.wire.name.c_str(), seconds,
                one / seconds, 100 * waiting);
    if (two) std::printf(" %10.2f", *two / seconds);
    if (entry.simulated > 0)
      std::printf(" %10.3f %+7.1f %%", entry.simulated, 100 * (entry.simulated / seconds - 1));
    std::printf("\n");
  }
  std::fflush(stdout);
}

Shape shape_of(const Flags& flags, DType dtype) {
  Shape shape;
  shape.dtype = dtype;
  shape.tokens = *flags.integer("tokens");
  const auto [name, model] = transformer_of(flags, 2);
  shape.name = name;
  shape.model = model;
  int64_t width = std::min<int64_t>(52, shape.tokens);
  while (shape.tokens % width) --width;
  const TransformerTraits& traits = model->traits();
  shape.latent = {traits.in_channels, traits.patch[0], traits.patch[1] * (shape.tokens / width),
                  traits.patch[2] * width};
  return shape;
}

// Measures one rank (on a CPU also with two threads), and every layout of two ranks over every
// link.
std::vector<Entry> entries_of(const Shape& shape, const std::vector<Wire>& wires, bool on_cpu) {
  std::vector<Entry> entries;
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
  return entries;
}

void print_all(const std::vector<Entry>& entries, bool on_cpu, bool json, int repeat,
               const Shape& shape, const std::string& description) {
  const double one = median(entries[0].seconds);
  std::optional<double> two;
  if (on_cpu) two = median(entries[1].seconds);
  if (!json) {
    std::printf("%s, %d blocks, %lld tokens, %s, guided; %s; medians of %d\n", shape.name.c_str(),
                shape.model->traits().blocks, static_cast<long long>(shape.tokens),
                std::string(to_string(shape.dtype)).c_str(), description.c_str(), repeat);
    std::printf("%-14s %5s  %-18s %9s %9s %10s", "method", "ranks", "link", "s/step", "speed-up",
                "waiting");
    std::printf(on_cpu ? " %10s %10s %9s\n" : "\n", "of 2 thr.", "simulated", "error");
  }
  for (const Entry& entry : entries) print(entry, one, two, json, shape, description);
}

}  // namespace

int bench_layouts(const Flags& flags, DType dtype, int repeat) {
  Ranks ranks = ranks_of(flags);
  if (!ranks.processes && !flags.given("ranks"))
    ranks = {.count = 2, .on_this_host = 2, .description = "2 threads"};
  if (ranks.count != 2)
    throw Error(ErrorKind::kUsage, "weft bench layouts compares layouts of 2 ranks, --ranks is " +
                                       std::to_string(ranks.count));
  use_all_cpus();  // one rank on two threads is the measure
  const Shape shape = shape_of(flags, dtype);
  std::vector<Device> devices;
  for (int rank = 0; rank < ranks.count; ++rank) devices.push_back(device_of(flags, ranks, rank));
  const bool on_cpu = devices.front() == Device{};
  std::string description = ranks.description;
  if (!on_cpu)
    description += devices[0] == devices[1]
                       ? " on " + to_string(devices[0])
                       : " on " + to_string(devices[0]) + " and " + to_string(devices[1]);
  // Messages between devices stay inside the machine unless the user asks otherwise.
  std::vector<Wire> wires = wires_of(flags);
  if (!on_cpu && !flags.given("link-gbit") && !flags.given("link-ms")) wires.resize(1);
  std::vector<Entry> entries = entries_of(shape, wires, on_cpu);

  const TensorFile weights = random_tensors(shape.model->tensors());
  Bench bench(shape, ranks, weights, devices);
  for (const Entry& entry : entries)  // loads
    if (entry.wire.name == wires.front().name || entry.layout.ranks() == 1)
      bench.run(entry.layout, entry.threads, {});
  // Ops on a device cannot be timed alone: a meter waits for the device after each.
  std::optional<DeviceModel> model;
  if (on_cpu) model = bench.calibrate();
  for (int round = 0; round < repeat; ++round)
    for (Entry& entry : entries) {
      const auto [seconds, waiting] = bench.run(entry.layout, entry.threads, entry.wire.link);
      entry.seconds.push_back(seconds);
      entry.waiting.push_back(waiting);
    }
  if (!ranks.speaks) return 0;
  for (Entry& entry : entries)
    if (model && entry.layout.ranks() > 1)
      entry.simulated = bench.simulated(entry.layout, *model, entry.wire.link);
  print_all(entries, on_cpu, flags.on("json"), repeat, shape, description);
  return 0;
}

}  // namespace weft
