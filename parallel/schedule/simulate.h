#pragma once
// Simulation: runs the real program; only the durations of its operations are simulated. An op
// computes nothing and advances its rank's clock by the time it would take; a message arrives when
// the ports of both ranks would have carried it. Overlap, waits and message sizes are those of the
// real run.
#include <array>
#include <functional>
#include <vector>

#include "kernels/meter.h"
#include "parallel/communicator.h"
#include "parallel/transport/link.h"

namespace weft {

// One rank's device. An op takes the longer of the times of its arithmetic and of its bytes.
struct DeviceModel {
  std::array<double, kOpFamilies> flop_per_s{};   // 0: arithmetic takes no time
  std::array<double, kOpFamilies> bytes_per_s{};  // 0: bytes take no time
  double copy_bytes_per_s = 0;                    // copies a message at either end; 0: no time
  double message_s = 0;                           // computing time lost to a message at either end
};

// One rank's messages: its link's ports, and the stream that copies messages at either end.
class MessageClock {
 public:
  MessageClock(const DeviceModel& device, const Link& link) : device_(device), ports_(link) {}
  struct Sent {
    double copied_s;  // the sender's memory is free from this time on
    double due_s;     // when the last byte can reach the receiver
  };
  Sent send(double now_s, int64_t bytes);
  // When a message that can be there at `due_s` lies in the receiver's memory.
  double receive(double due_s, int64_t bytes);

 private:
  double copy(double from_s, int64_t bytes);

  const DeviceModel& device_;
  LinkPorts ports_;
  Port stream_;
};

// The device model that would take the measured times for the measured work.
DeviceModel measured_device(const TimingMeter& meter);

struct TimelineSpan {
  double begin_s = 0, end_s = 0;
  bool waits = false;  // waits for a message; otherwise it computes an op of `family`
  OpFamily family = OpFamily::kCopy;
};

struct SimulatedRank {
  double seconds = 0;               // when it ended
  std::vector<TimelineSpan> spans;  // in order; neighbours of one kind are joined
  CommCounters counters;
};

// Runs work(world) as every rank, each on a thread of its own; streams must use metered_ops().
// - A rank has two streams. One computes; the other copies messages at both ends meanwhile.
// - A rank's `link` to the others has a port in and a port out (LinkPorts).
// Payloads of more than 64 KiB are not copied: receivers see whatever their memory holds.
std::vector<SimulatedRank> simulate(int ranks, const DeviceModel& device, const Link& link,
                                    const std::function<void(Communicator& world)>& work);

// Runs work(world) as the first of so many ranks, alone: whatever it receives was there from the
// start, so it ends no later than in simulate().
SimulatedRank simulate_first(int ranks, const DeviceModel& device, const Link& link,
                             const std::function<void(Communicator& world)>& work);

// Tells if the calling thread is a rank of a simulation, and returns its simulated time.
bool is_simulated();
double simulated_seconds();

}  // namespace weft
