#pragma once
// Meter: sees every op of a thread with the work it stands for, and runs it, times it or leaves it
// out, and the zones that the ops are in. What profiles, calibration and simulated devices hang on.
#include <array>
#include <functional>

#include "kernels/ops.h"
#include "kernels/zone.h"

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
Zone zone_of(OpFamily family);
inline const char* to_string(OpFamily family) { return to_string(zone_of(family)); }

struct Work {
  OpFamily family = OpFamily::kCopy;
  double flop = 0;   // of products: linear, attention, convolution
  double bytes = 0;  // read and written, weights included
  const char* op = "";
};

struct Meter {
  virtual ~Meter() = default;
  // False: ops are left out and results are whatever the memory holds.
  virtual bool runs() const = 0;
  // Whether an op's `run` returns only when a device has done it, as times want it.
  virtual bool waits() const { return true; }
  // Called for every op; `run` does it, and is only there where runs().
  virtual void op(const Work& work, const std::function<void()>& run) = 0;

  // Zones of the thread; they nest. `what` lives as long as the program.
  virtual void begin(Zone, int /*index*/, const char* /*what*/, double /*bytes*/) {}
  virtual void end() {}
  virtual void counter(const char* /*name*/, double /*value*/) {}
  // The meter of a thread that helps this one, by the thread's name; null: it is not seen.
  virtual Meter* helper(const char* /*name*/) { return nullptr; }
};

namespace detail {
inline thread_local constinit Meter* t_meter = nullptr;
}
// The calling thread's; null: none.
inline Meter* thread_meter() { return detail::t_meter; }

// The ops of the stream's device (cpu_ops() or cuda_ops()) seen by the calling thread's meter; by
// none where there is none.
const Ops& metered_ops();

// Puts a meter on the calling thread for the time of its life.
class MeterScope {
 public:
  explicit MeterScope(Meter& meter) : before_(detail::t_meter) { detail::t_meter = &meter; }
  ~MeterScope() { detail::t_meter = before_; }
  MeterScope(const MeterScope&) = delete;
  MeterScope& operator=(const MeterScope&) = delete;

 private:
  Meter* before_;
};

// A zone of the calling thread, where it has a meter.
class ZoneScope {
 public:
  explicit ZoneScope(Zone zone, int index = -1, const char* what = "", double bytes = 0)
      : meter_(thread_meter()) {
    if (meter_) meter_->begin(zone, index, what, bytes);
  }
  ~ZoneScope() {
    if (meter_) meter_->end();
  }
  ZoneScope(const ZoneScope&) = delete;
  ZoneScope& operator=(const ZoneScope&) = delete;

 private:
  Meter* meter_;
};

// Whether the ops of this thread and stream are left out, so that values need not be read.
bool is_dry_run(const Stream& stream);

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
