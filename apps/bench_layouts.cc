#include "apps/bench_layouts.h"

#include <algorithm>
#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>

#include "apps/bench_limits.h"
#include "apps/device.h"
#include "engine/executor.h"
#include "models/random_weights.h"
#include "parallel/local.h"
#include "parallel/simulate.h"

namespace weft {
namespace {

constexpr int64_t kTextRows = 60, kTextLength = 512;
constexpr int kSteps = 2;  // the first prepares the text and warms up, the second counts

struct Shape {
  WanConfig config;
  DType dtype = DType::kF32;
  std::array<int64_t, 4> latent{};  // [C, F, H, W]
  int64_t tokens = 0;
};

// The slices that one rank holds of a model, each loaded once.
class Slices final : public Experts {
 public:
  Slices(const Shape& shape, const TensorFile& file) : shape_(shape), file_(file) {}

  // What the next job runs with.
  void choose(const Replica& replica) { load_ = replica.load(shape_.config, shape_.dtype); }
  DType dtype() const override { return shape_.dtype; }
  int64_t text_length() const override { return kTextLength; }
  const WanTransformer& expert(Stream& stream, int) override {
    const Range heads = load_.width.heads;
    const std::array<int64_t, 4> key{load_.blocks.begin, load_.blocks.end, heads.begin, heads.end};
    auto found = held_.find(key);
    if (found == held_.end())
      found = held_.emplace(key, WanTransformer::load(stream, file_, shape_.config, load_)).first;
    return found->second;
  }
  void done_with_experts() override {}

 private:
  const Shape& shape_;
  const TensorFile& file_;
  WanLoad load_;
  std::map<std::array<int64_t, 4>, WanTransformer> held_;
};

// Runs two guided steps as one rank; the seconds of the second by `now`, 0 where this rank updates
// nothing.
double second_step(const Shape& shape, Slices& slices, Replica& replica, Stream& stream,
                   const std::function<double()>& now) {
  slices.choose(replica);
  Request request;
  request.guidance_scale = request.guidance_scale_2 = 5;
  SamplerConfig solver;
  solver.kind = SolverKind::kEuler;
  const Sampler sampler(solver, kSteps);
  Tensor latent(DType::kF32, shape.latent);
  Tensor embeds(DType::kF32, {kTextRows, shape.config.text_dim});
  for (Tensor* tensor : {&latent, &embeds})
    for (int64_t i = 0; i < tensor->count(); ++i)
      tensor->as<float>()[i] = static_cast<float>((i * 7919) % 1009) / 504.5f - 1;
  std::array<double, kSteps> ended{};
  Job job{.request = request,
          .sampler = sampler,
          .embeds = {embeds.view(), embeds.view()},
          .latent = latent,
          .on_update = [&](int step) { ended[step] = now(); },
          .decode = [] {}};
  DenoisePlanConfig config;
  config.steps.assign(kSteps, {.model = 0, .branches = 2});
  config.blocks = {shape.config.layers};
  config.layout = replica.layout();
  config.tokens = replica.token_counts(shape.tokens);
  config.hidden_bytes = shape.config.width() * static_cast<int64_t>(size_of(shape.dtype));
  config.latent_bytes = shape.latent[0] * 4 * static_cast<int64_t>(sizeof(float));
  Arena arena;
  Executor(stream, arena, slices, replica).run(plan_denoise(config)[replica.rank()], job);
  return ended[1] - ended[0];
}

// Every rank's number, on every rank.
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
  std::vector<double> seconds, waiting;  // of the rounds; waiting as a share
  double simulated = 0;
};

// The steps of all entries; a process of several holds one rank's slices, else every rank's.
class Bench {
 public:
  Bench(const Shape& shape, const Ranks& ranks, const TensorFile& file)
      : shape_(shape), ranks_(ranks), file_(file) {
    for (int rank = 0; rank < (ranks.processes ? 1 : ranks.count); ++rank)
      slices_.emplace_back(shape, file);
  }

  // Slowest rank's seconds and waiting share.
  std::pair<double, double> run(const Layout& layout, int threads, const Link& link) {
    std::pair<double, double> result;
    on_ranks(ranks_, link, [&](Communicator& world) {
      Slices& slices = slices_[ranks_.processes ? 0 : world.rank()];
      double seconds = 0, waited = 0;
      world.barrier(stream_, {});
      if (layout.ranks() == 1) {
        Replica alone;
        Stream stream = Stream::cpu(threads);
        if (world.rank() == 0) seconds = second_step(shape_, slices, alone, stream, wall_seconds);
      } else {
        Replica replica = Replica::of(world, layout);
        Stream stream = Stream::cpu(threads);
        int64_t before = 0;
        seconds = second_step(shape_, slices, replica, stream, [&] {
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

  // This machine's device while every rank computes: a step that all ranks take alone at once.
  DeviceModel calibrate() {
    DeviceModel device;
    on_ranks(ranks_, {}, [&](Communicator& world) {
      Slices& slices = slices_[ranks_.processes ? 0 : world.rank()];
      Replica alone;
      Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
      TimingMeter meter;
      world.barrier(stream_, {});
      {
        const MeterScope scope(meter);
        second_step(shape_, slices, alone, stream, wall_seconds);
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
      Replica replica = Replica::of(world, layout);
      Stream stream = Stream::cpu(1, Determinism::kFast, &metered_ops());
      seconds[world.rank()] = second_step(shape_, slices, replica, stream, simulated_seconds);
    });
    return *std::max_element(seconds.begin(), seconds.end());
  }

 private:
  // What a message costs the processors at its ends: bytes per second of one end, and seconds.
  std::pair<double, double> measure_messages(Communicator& world) {
    constexpr int kRounds = 9;
    constexpr int64_t kBytes = 8 << 20;
    const int peer = world.rank() ^ 1;
    std::vector<double> large, small;
    if (peer < world.size())
      for (int round = 0; round < 2 * kRounds; ++round) {
        const int64_t bytes = round % 2 ? 8 : kBytes;
        Tensor out(DType::kU8, {bytes}), in(DType::kU8, {bytes});
        const Message send{peer, {.segment = round}, out}, receive{peer, {.segment = round}, in};
        const double begun = wall_seconds();
        Communicator::Pending pending = world.post(stream_, {&send, 1}, {&receive, 1});
        world.wait(pending);
        (round % 2 ? small : large).push_back(wall_seconds() - begun);
      }
    if (large.empty()) return {0, 0};
    return {2 * static_cast<double>(kBytes) / median(large), median(small) / 2};
  }

  // on_ranks with slow wires.
  static void on_ranks(const Ranks& ranks, const Link& link,
                       const std::function<void(Communicator&)>& work) {
    const bool slow = link.latency_s > 0 || link.bytes_per_s > 0;
    weft::on_ranks(ranks, work, slow ? &link : nullptr);
  }

  const Shape& shape_;
  const Ranks& ranks_;
  const TensorFile& file_;
  std::vector<Slices> slices_;
  Stream stream_ = Stream::cpu(1);
};

void print(const Entry& entry, double one, double two, bool json, const Shape& shape,
           const Ranks& ranks) {
  const double seconds = median(entry.seconds), waiting = median(entry.waiting);
  if (json) {
    nlohmann::json object{{"bench", "layouts"},
                          {"model", "wan2.1-1.3b"},
                          {"blocks", shape.config.layers},
                          {"tokens", shape.tokens},
                          {"dtype", to_string(shape.dtype)},
                          {"isa", cpu_isa()},
                          {"ranks", ranks.words},
                          {"method", entry.method},
                          {"threads", entry.threads},
                          {"link", entry.wire.name},
                          {"seconds", seconds},
                          {"speed_up", one / seconds},
                          {"of_two_threads", two / seconds},
                          {"waiting", waiting}};
    if (entry.simulated > 0) object["simulated"] = entry.simulated;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%-14s %d x %d  %-18s %9.3f %8.2fx %10.2f %8.0f %%", entry.method.c_str(),
                entry.layout.ranks(), entry.threads, entry.wire.name.c_str(), seconds,
                one / seconds, two / seconds, 100 * waiting);
    if (entry.simulated > 0)
      std::printf(" %10.3f %+7.1f %%", entry.simulated, 100 * (entry.simulated / seconds - 1));
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace

int bench_layouts(const Flags& flags, DType dtype, int repeat) {
  Ranks ranks = ranks_of(flags);
  if (!ranks.processes && !flags.given("ranks")) ranks = {.count = 2, .words = "2 threads"};
  if (ranks.count != 2)
    throw Error(ErrorKind::kUsage, "weft bench layouts compares layouts of 2 ranks, --ranks is " +
                                       std::to_string(ranks.count));
  use_all_cpus();  // one rank on two threads is the measure
  Shape shape;
  shape.config = wan_1_3b(blocks_of(flags, 2, 2, 30));
  shape.dtype = dtype;
  shape.tokens = *flags.integer("tokens");
  int64_t width = std::min<int64_t>(52, shape.tokens);
  while (shape.tokens % width) --width;
  shape.latent = {16, 1, 2 * (shape.tokens / width), 2 * width};

  std::vector<Entry> entries;
  for (int threads : {1, 2}) entries.emplace_back("one rank", Layout{}, threads, Wire{"none", {}});
  const std::vector<Wire> wires = wires_of(flags);
  const LayoutLimits limits{.heads = shape.config.heads,
                            .layers = shape.config.layers,
                            .tokens = shape.tokens,
                            .ffn = shape.config.ffn_dim};
  for (const Wire& wire : wires)
    for (const Layout& layout : legal_layouts(2, limits))
      entries.emplace_back(to_string(layout), layout, 1, wire);

  const TensorFile weights = random_wan(shape.config);
  Bench bench(shape, ranks, weights);
  for (const Entry& entry : entries)  // loads
    if (entry.wire.name == wires.front().name || entry.layout.ranks() == 1)
      bench.run(entry.layout, entry.threads, {});
  const DeviceModel device = bench.calibrate();
  for (int round = 0; round < repeat; ++round)
    for (Entry& entry : entries) {
      const auto [seconds, waiting] = bench.run(entry.layout, entry.threads, entry.wire.link);
      entry.seconds.push_back(seconds);
      entry.waiting.push_back(waiting);
    }
  if (!ranks.speaks) return 0;
  for (Entry& entry : entries)
    if (entry.layout.ranks() > 1)
      entry.simulated = bench.simulated(entry.layout, device, entry.wire.link);
  const double one = median(entries[0].seconds), two = median(entries[1].seconds);
  if (!flags.on("json")) {
    std::printf("Wan 1.3B, %d blocks, %lld tokens, %s, guided; %s; medians of %d\n",
                shape.config.layers, static_cast<long long>(shape.tokens),
                std::string(to_string(dtype)).c_str(), ranks.words.c_str(), repeat);
    std::printf("%-14s %5s  %-18s %9s %9s %10s %10s %10s %9s\n", "method", "ranks", "link",
                "s/step", "speed-up", "of 2 thr.", "waiting", "simulated", "error");
  }
  for (const Entry& entry : entries) print(entry, one, two, flags.on("json"), shape, ranks);
  return 0;
}

}  // namespace weft
