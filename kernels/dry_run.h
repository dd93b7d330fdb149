#pragma once
// DryRun: finds how much memory a program takes by running it without computing anything. Its
// stream and arena are in memory that is counted but does not exist. The program runs as it would
// on the host or on a device; ops, weights and messages are skipped.
#include <functional>
#include <optional>

#include "kernels/arena.h"
#include "kernels/device_plan.h"
#include "kernels/meter.h"
#include "kernels/stream.h"

namespace weft {

// The bytes that a part of a program takes.
struct Footprint {
  size_t held = 0;     // tensors that are left when it ends
  size_t passing = 0;  // tensors at most, beyond those that are left
  size_t arena = 0;    // of the arena at most
  size_t scratch = 0;  // of the op that takes the most of a device
  size_t host = 0;     // tensors of the host at most, beside a device
};

// Belongs to one thread, which has its meter as long as the object exists.
class DryRun {
 public:
  // Measures the memory of a device that need not be present, or of the host.
  explicit DryRun(std::optional<DeviceTraits> device = {});

  const std::optional<DeviceTraits>& device() const { return meter_.device; }
  Stream& stream() { return stream_; }
  Arena& arena() { return arena_; }
  Tensor tensor(DType dtype, std::initializer_list<int64_t> shape) const {
    return Tensor(dtype, shape, stream_.device());
  }
  Footprint measure(const std::function<void()>& program);

 private:
  struct ScratchMeter final : Meter {
    bool runs() const override { return false; }
    const DeviceTraits* measures() const override { return device ? &*device : nullptr; }
    void op(const Work& work, const std::function<void()>&) override {
      most = std::max(most, work.scratch);
    }
    std::optional<DeviceTraits> device;
    size_t most = 0;
  };

  ScratchMeter meter_;
  MeterScope scope_;
  Stream stream_;
  Arena arena_;
};

}  // namespace weft
