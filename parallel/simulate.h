#pragma once
// Simulation: the program itself on described devices and links. Ops are left out and advance the
// rank's clock by what they would take; a message arrives when its link would have carried it. What
// overlaps, waits or repeats is not modelled but happens, and bytes are those of the real run.
#include <array>
#include <functional>
#include <vector>

#include "kernels/meter.h"
#include "parallel/communicator.h"
#include "parallel/link.h"

namespace weft {

// One rank's device. An op takes the longer of its products and its bytes.
struct DeviceModel {
  std::array<double, kOpFamilies> flop_per_s{};   // 0: has no products
  std::array<double, kOpFamilies> bytes_per_s{};  // 0: bytes take no time
  double copy_bytes_per_s = 0;                    // of a message, at either end; 0: no time
  double message_s = 0;                           // of the processor, at either end
};

// The device that would have taken the measured times for the measured work.
DeviceModel measured_device(const TimingMeter& meter);

struct TimelineSpan {
  double begin_s = 0, end_s = 0;
  bool waits = false;  // for a message; else computes:
  OpFamily family = OpFamily::kCopy;
};

struct SimulatedRank {
  double seconds = 0;               // when it ended
  std::vector<TimelineSpan> spans;  // in order; neighbours of one kind are joined
  CommCounters counters;
};

// Runs work(world) as every rank on a thread of its own; streams must use metered_ops(). Links of
// each pair of ranks are as one of `link`, its messages one after the other (parallel/link.h).
// Payloads of more than 64 KiB do not travel: their receivers read whatever is there.
std::vector<SimulatedRank> simulate(int ranks, const DeviceModel& device, const Link& link,
                                    const std::function<void(Communicator& world)>& work);

// The present time of the calling rank.
double simulated_seconds();

// A picture of the ranks' time, as SVG: per rank a bar of slices, each coloured by what it was
// spent on.
std::string timeline_svg(std::span<const SimulatedRank> ranks, const std::string& title);

}  // namespace weft
