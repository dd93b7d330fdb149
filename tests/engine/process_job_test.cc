// Runs a whole generation with processes, under every layout of that many ranks and in both
// precisions. Each rank sends the bytes of the methods' formulas. The number of messages
// and the bits of the video equal those of threads. In f32 the video equals that of one rank.
// Random delays of messages change nothing.
// usage: process_job_test [LAYOUT...]   under mpirun or tests/processes.sh; all legal ones where
// none
//                                       is given
#include <cmath>
#include <cstdio>

#include "tests/engine/replica_job.h"
#include "tests/support/process_rank.h"
#include "tests/support/random_delays.h"

namespace weft::test {
namespace {

constexpr double kBound = 1e-5;  // relative L2 error in f32
constexpr size_t kKinds = static_cast<size_t>(Payload::kCount);

// Gathers every rank's counters on the first rank.
std::vector<CommCounters> gather_counters(Communicator& world) {
  std::vector<int64_t> own;
  for (const auto* counts : {&world.counters().sent, &world.counters().received})
    for (const auto& count : *counts) own.insert(own.end(), {count.messages, count.bytes});
  std::vector<CommCounters> all(world.size());
  const auto values = gather(world, own);
  for (int rank = 0; rank < world.size(); ++rank) {
    size_t at = 0;
    for (auto* counts : {&all[rank].sent, &all[rank].received})
      for (auto& count : *counts) {
        count.messages = values[rank][at++];
        count.bytes = values[rank][at++];
      }
  }
  return all;
}

// Draws the videos again over a slow and uneven network; `videos` are those of the layouts.
std::vector<std::string> delay_faults(const std::vector<Layout>& layouts,
                                      const std::vector<std::vector<float>>& videos) {
  constexpr int kSeeds = 34, kDelayUs = 300;
  std::vector<std::string> faults;
  for (int seed = 0; seed < kSeeds; ++seed) {
    const size_t at = static_cast<size_t>(seed) % layouts.size();
    Communicator world(std::make_shared<RandomDelays>(process_transport(), seed, kDelayUs));
    const auto video = run_rank(RankPlacement::of(world, layouts[at]), DType::kF32);
    if (world.rank() == 0 && video != videos[at])
      faults.push_back(to_string(layouts[at]) + ": delays of seed " + std::to_string(seed) +
                       " change the video");
  }
  return faults;
}

std::vector<std::string> work_job(Communicator& world, const std::vector<std::string>& names) {
  const bool first = world.rank() == 0;
  const Generator generator(kModel, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(job()));
  const std::vector<float> alone =
      first ? run_rank(RankPlacement(), DType::kF32) : std::vector<float>{};
  std::vector<std::string> faults;
  std::vector<Layout> layouts;
  for (const std::string& name : names) layouts.push_back(parse_layout(name, world.size(), limits));
  if (names.empty()) layouts = legal_layouts(world.size(), limits);
  double worst = 0;
  std::vector<std::vector<float>> videos;  // in f32, of the layouts
  int64_t bytes = 0;
  for (const Layout& layout : layouts)
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      world.reset_counters();
      const std::vector<float> video = run_rank(RankPlacement::of(world, layout), dtype);
      if (dtype == DType::kF32) videos.push_back(video);
      const std::vector<CommCounters> counters = gather_counters(world);
      if (!first) continue;
      for (const std::string& fault : byte_faults(layout, dtype, counters)) faults.push_back(fault);
      const std::string name = to_string(layout) + " " + std::string(to_string(dtype));
      const Outcome threads = run_threads(layout, dtype);
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
  for (const std::string& fault : delay_faults(layouts, videos)) faults.push_back(fault);
  if (first)
    std::printf("%d processes, %zu layouts, f32 and bf16: %lld bytes, f32 video within %.3g\n",
                world.size(), layouts.size(), static_cast<long long>(bytes), worst);
  return faults;
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  return weft::test::process_main([&](weft::Communicator& world) {
    return weft::test::work_job(world, {argv + 1, argv + argc});
  });
}
