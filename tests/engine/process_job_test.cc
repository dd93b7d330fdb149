// Runs a whole generation with processes, under every layout of that many ranks and in both
// precisions. Each rank sends the bytes of the methods' formulas. The number of messages
// and the bits of the video equal those of threads. In f32 the video equals that of one rank.
// Random delays of messages change nothing.
// usage: process_job_test [--gpus] [--seeds N] [LAYOUT...]   under mpirun or tests/processes.py
//   --gpus   rank r has GPU r, and they exchange by NCCL: the host waits for no message, and graphs
//            change nothing
//   --seeds  so many runs have delays
//   LAYOUT   all legal ones where none is given
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <string_view>

#include "tests/engine/replica_job.h"
#include "tests/support/process_rank.h"
#include "tests/support/random_delays.h"

namespace weft::test {
namespace {

constexpr double kBound = 1e-5;  // relative L2 error in f32
constexpr size_t kKinds = static_cast<size_t>(Payload::kCount);

// The ranks' devices, and the layouts to run.
struct Setup {
  bool gpus = false;
  int seeds = 34;  // runs with random delays
  std::vector<std::string> layouts;

  GeneratorOptions options(DType dtype, int rank) const {
    GeneratorOptions options = options_of(dtype);
    options.device = device_of_rank(gpus, rank);
    return options;
  }
};

// Gathers every rank's counters on the first rank.
std::vector<CommCounters> gather_counters(Communicator& world, const CommCounters& counters) {
  std::vector<int64_t> own{counters.enqueued, counters.blocked};
  for (const auto* counts : {&counters.sent, &counters.received})
    for (const auto& count : *counts) own.insert(own.end(), {count.messages, count.bytes});
  std::vector<CommCounters> all(world.size());
  const auto values = gather(world, own);
  for (int rank = 0; rank < world.size(); ++rank) {
    size_t at = 0;
    all[rank].enqueued = values[rank][at++];
    all[rank].blocked = values[rank][at++];
    for (auto* counts : {&all[rank].sent, &all[rank].received})
      for (auto& count : *counts) {
        count.messages = values[rank][at++];
        count.bytes = values[rank][at++];
      }
  }
  return all;
}

// Runs the job over a transport of its own. Returns what the first rank knows.
Outcome run_processes(Communicator& world, const Setup& setup, const Layout& layout,
                      const GeneratorOptions& options) {
  Communicator ranks(rank_transport(setup.gpus));
  Outcome outcome;
  outcome.video = run_rank(RankPlacement::of(ranks, layout), options);
  outcome.counters = gather_counters(world, ranks.counters());
  return outcome;
}

// Draws the videos again over a slow and uneven network; `videos` are those of the layouts.
std::vector<std::string> delay_faults(const Setup& setup, const std::vector<Layout>& layouts,
                                      const std::vector<std::vector<float>>& videos) {
  constexpr int kDelayUs = 300;
  std::vector<std::string> faults;
  for (int seed = 0; seed < setup.seeds; ++seed) {
    const size_t at = static_cast<size_t>(seed) % layouts.size();
    Communicator world(std::make_shared<RandomDelays>(rank_transport(setup.gpus), seed, kDelayUs));
    const auto video =
        run_rank(RankPlacement::of(world, layouts[at]), setup.options(DType::kF32, world.rank()));
    if (world.rank() == 0 && video != videos[at])
      faults.push_back(to_string(layouts[at]) + ": delays of seed " + std::to_string(seed) +
                       " change the video");
  }
  return faults;
}

// No host of a rank with a GPU waits for a message, and a run without graphs has the same video.
std::vector<std::string> enqueue_faults(Communicator& world, const Setup& setup,
                                        const Layout& layout, const Outcome& outcome) {
  GeneratorOptions options = setup.options(DType::kF32, world.rank());
  options.graphs = Graphs::kNone;
  const Outcome plain = run_processes(world, setup, layout, options);
  if (world.rank() > 0) return {};
  std::vector<std::string> faults;
  if (plain.video != outcome.video)
    faults.push_back(to_string(layout) + ": graphs change the video");
  for (const Outcome* run : {&outcome, &plain})
    for (int rank = 0; rank < world.size(); ++rank) {
      const CommCounters& own = run->counters[rank];
      const int64_t all = own.total_sent().messages + own.total_received().messages;
      if (own.blocked > 0 || own.enqueued != all)
        faults.push_back(to_string(layout) + ": of " + std::to_string(all) + " messages rank " +
                         std::to_string(rank) + " enqueues " + std::to_string(own.enqueued) +
                         ", and its host waits " + std::to_string(own.blocked) + " times");
    }
  return faults;
}

std::vector<std::string> work_job(Communicator& world, const Setup& setup) {
  const bool first = world.rank() == 0;
  const auto& names = setup.layouts;
  const Generator generator(kModel, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(job()));
  const std::vector<float> alone =
      first ? run_rank(RankPlacement(), setup.options(DType::kF32, 0)) : std::vector<float>{};
  std::vector<std::string> faults;
  std::vector<Layout> layouts;
  for (const std::string& name : names) layouts.push_back(parse_layout(name, world.size(), limits));
  if (names.empty()) layouts = legal_layouts(world.size(), limits);
  double worst = 0;
  std::vector<std::vector<float>> videos;  // in f32, of the layouts
  int64_t bytes = 0;
  for (const Layout& layout : layouts)
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      const Outcome outcome =
          run_processes(world, setup, layout, setup.options(dtype, world.rank()));
      const auto& [video, counters] = outcome;
      if (dtype == DType::kF32) videos.push_back(video);
      if (setup.gpus && dtype == DType::kF32)
        for (const std::string& fault : enqueue_faults(world, setup, layout, outcome))
          faults.push_back(fault);
      if (!first) continue;
      for (const std::string& fault : byte_faults(layout, dtype, counters)) faults.push_back(fault);
      const std::string name = to_string(layout) + " " + std::string(to_string(dtype));
      const Outcome threads =
          run_threads(layout, [&](int rank) { return setup.options(dtype, rank); });
      for (int rank = 0; rank < world.size(); ++rank) {
        bytes += counters[rank].total_sent().bytes;
        for (size_t kind = 0; kind < kKinds; ++kind)
          if (counters[rank].sent[kind] != threads.counters[rank].sent[kind] ||
              counters[rank].received[kind] != threads.counters[rank].received[kind])
            faults.push_back(name + ": rank " + std::to_string(rank) +
                             " and a thread count other " +
                             std::string(to_string(static_cast<Payload>(kind))));
      }
      if (video != threads.video) faults.push_back(name + ": the video is not that of threads");
      if (dtype != DType::kF32) continue;
      const double error = rel_l2(video, alone);
      worst = std::max(worst, error);
      if (error <= kBound) continue;
      char text[80];
      std::snprintf(text, sizeof text, ": the video is %.3g from one rank's", error);
      faults.push_back(name + text);
    }
  for (const std::string& fault : delay_faults(setup, layouts, videos)) faults.push_back(fault);
  if (first)
    std::printf("%d processes, %zu layouts, f32 and bf16: %lld bytes, f32 video within %.3g\n",
                world.size(), layouts.size(), static_cast<long long>(bytes), worst);
  return faults;
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  weft::test::Setup setup;
  for (int i = 1; i < argc; ++i)
    if (const std::string_view word = argv[i]; word == "--gpus")
      setup.gpus = true;
    else if (word == "--seeds" && i + 1 < argc)
      setup.seeds = std::atoi(argv[++i]);
    else
      setup.layouts.emplace_back(word);
  return weft::test::process_main(
      [&](weft::Communicator& world) { return weft::test::work_job(world, setup); });
}
