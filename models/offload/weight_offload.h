#pragma once
// Counters and times of weight offload: weights that are copied to a device, or on a CPU read from
// the file, because the memory does not hold all of a model.
#include <algorithm>
#include <cstdint>

namespace weft {

// Totals of any number of passes: the time that the copies or reads took, and the time that the
// work waited for them. The difference overlapped with computation.
struct WeightOffload {
  int64_t bytes = 0;
  double copying_s = 0, waited_s = 0;

  double bytes_per_s() const { return copying_s > 0 ? static_cast<double>(bytes) / copying_s : 0; }
  double hidden_share() const {
    return copying_s > 0 ? std::clamp(1 - waited_s / copying_s, 0.0, 1.0) : 0;
  }
  WeightOffload& operator+=(const WeightOffload& other) {
    bytes += other.bytes;
    copying_s += other.copying_s;
    waited_s += other.waited_s;
    return *this;
  }
  WeightOffload operator-(const WeightOffload& before) const {
    return {bytes - before.bytes, copying_s - before.copying_s, waited_s - before.waited_s};
  }
};

// Totals of a job's forwards. bytes_per_forward is 0 if all weights were resident.
struct OffloadTotals {
  int64_t bytes_per_forward = 0, forwards = 0;
  double forward_s = 0;  // time of all forwards together
  WeightOffload weights{};

  // Adds the figures of forwards that follow.
  OffloadTotals& operator+=(const OffloadTotals& other) {
    bytes_per_forward = other.bytes_per_forward;
    forwards += other.forwards;
    forward_s += other.forward_s;
    weights += other.weights;
    return *this;
  }
};

}  // namespace weft
