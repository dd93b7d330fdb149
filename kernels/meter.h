#pragma once
// Meter: sees every op of a thread with the work it stands for, and runs it, times it or leaves it
// out. What profiles, calibration and simulated devices hang on.
#include <array>
#include <functional>

#include "kernels/ops.h"

namespace weft {

enum class OpFamily : uint8_t {
  kLinear,
  kAttention,
  kConv,
  kNorm,
  kRope,
  kPointwise,
  kCopy,
  kCount
};
inline constexpr int kOpFamilies = static_cast<int>(OpFamily::kCount);
const char* to_string(OpFamily family);

struct Work {
  OpFamily family = OpFamily::kCopy;
  double flop = 0;   // of products: linear, attention, convolution
  double bytes = 0;  // read and written, weights included
};

struct Meter {
  virtual ~Meter() = default;
  // False: ops are left out and results are whatever the memory holds.
  virtual bool runs() const = 0;
  // Called for every op; `run` does it, and is only there where runs().
  virtual void op(const Work& work, const std::function<void()>& run) = 0;
};

// cpu_ops() seen by the calling thread's meter; by none where there is none.
const Ops& metered_ops();

// Puts a meter on the calling thread for the time of its life.
class MeterScope {
 public:
  explicit MeterScope(Meter& meter);
  ~MeterScope();
  MeterScope(const MeterScope&) = delete;
  MeterScope& operator=(const MeterScope&) = delete;

 private:
  Meter* before_;
};

// Whether the ops of this thread and stream are left out, so that values need not be read.
bool left_out(const Stream& stream);

// Time, work and calls per family.
class TimingMeter final : public Meter {
 public:
  struct Total {
    double seconds = 0, flop = 0, bytes = 0;
    int64_t calls = 0;
  };
  bool runs() const override { return true; }
  void op(const Work& work, const std::function<void()>& run) override;
  const Total& total(OpFamily family) const { return totals_[static_cast<int>(family)]; }

 private:
  std::array<Total, kOpFamilies> totals_;
};

}  // namespace weft
