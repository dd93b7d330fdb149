// Runs a whole job on simulated devices. It sends the messages of the real run, at the times that
// the model gives.
#include <gtest/gtest.h>

#include "parallel/schedule/simulate.h"
#include "tests/engine/replica_job.h"

namespace weft::test {
namespace {

DeviceModel simulated_device() {
  DeviceModel model;
  model.flop_per_s.fill(1e9);
  model.bytes_per_s.fill(1e9);
  return model;
}

std::vector<SimulatedRank> simulated(const Layout& layout, const Link& link) {
  return simulate(layout.ranks(), simulated_device(), link, [&](Communicator& world) {
    GeneratorOptions options = options_of(DType::kF32);
    options.ops = &metered_ops();
    Generator(kModel, options, RankPlacement::of(world, layout)).run(job(), nullptr);
  });
}

// replica_test compares real runs with the formulas.
TEST(SimulatedJob, SendsWhatTheRealOneSends) {
  const Generator generator(kModel, options_of(DType::kF32));
  const LayoutLimits limits = generator.layout_limits(generator.resolve(job()));
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (const Layout& layout : legal_layouts(ranks, limits)) {
      const Outcome real = run_threads(layout, DType::kF32);
      const std::vector<SimulatedRank> outlook = simulated(layout, {});
      for (int rank = 0; rank < ranks; ++rank) {
        CommCounters::Count sent = outlook[rank].counters.total_sent();
        const CommCounters& counters = real.counters[rank];
        // The real run's tap gathers the video for the test.
        sent.bytes -= outlook[rank].counters.sent[static_cast<size_t>(Payload::kFrames)].bytes;
        EXPECT_EQ(sent.bytes, counters.total_sent().bytes -
                                  counters.sent[static_cast<size_t>(Payload::kFrames)].bytes)
            << to_string(layout) << ", rank " << rank;
        EXPECT_GT(outlook[rank].seconds, 0);
      }
    }
}

TEST(SimulatedJob, IsTheSameEveryTimeAndSlowerOnASlowLink) {
  Layout layout;
  layout[Axis::kUlysses] = 2;
  const auto seconds = [&](const Link& link) { return simulated(layout, link)[0].seconds; };
  const double free = seconds({});
  EXPECT_EQ(seconds({}), free);
  EXPECT_GT(seconds({.latency_s = 1e-3, .bytes_per_s = 1e8}), free + 4e-3);
}

}  // namespace
}  // namespace weft::test
