#pragma once
// A Meter sees every op of a thread, with its work (flop, bytes) and the zones around it. It runs
// and times the op, or skips it (dry run). Profiles, calibration and simulated devices are meters.
#include <array>
#include <functional>

#include "kernels/ops.h"
#include "kernels/zone.h"

namespace weft {

struct DeviceTraits;

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
  double flop = 0;   // of linear, attention and convolution
  double bytes = 0;  // read and written, weights included
  const char* op = "";
  size_t scratch = 0;  // that the op takes on Meter::measures()
};

struct Meter {
  virtual ~Meter() = default;
  // False means a dry run: ops are skipped, and results are whatever the memory holds.
  virtual bool runs() const = 0;
  // The device whose memory a dry run measures, or null.
  virtual const DeviceTraits* measures() const { return nullptr; }
  // True if an op's `run` returns only when the device has finished the op, as timing requires.
  virtual bool waits() const { return true; }
  // This is called for every op. `run` executes it; it is only set where runs().
  virtual void op(const Work& work, const std::function<void()>& run) = 0;

  // begin() and end() bracket the zones of the thread; zones nest. `what` must live as long as the
  // program.
  virtual void begin(Zone, int /*index*/, const char* /*what*/, double /*bytes*/) {}
  virtual void end() {}
  virtual void counter(const char* /*name*/, double /*value*/) {}
  // Returns the meter of a helper thread, by the thread's name, or null if it is not to be seen.
  virtual Meter* helper(const char* /*name*/) { return nullptr; }
};

namespace detail {
inline thread_local constinit Meter* t_meter = nullptr;
}
// The calling thread's meter, or null.
inline Meter* thread_meter() { return detail::t_meter; }

// Returns the ops of the stream's device (cpu_ops() or cuda_ops()) as seen by the calling thread's
// meter, if it has one.
const Ops& metered_ops();

// A MeterScope puts a meter on the calling thread for the scope's lifetime.
class MeterScope {
 public:
  explicit MeterScope(Meter& meter) : before_(detail::t_meter) { detail::t_meter = &meter; }
  ~MeterScope() { detail::t_meter = before_; }
  MeterScope(const MeterScope&) = delete;
  MeterScope& operator=(const MeterScope&) = delete;

 private:
  Meter* before_;
};

// A ZoneScope opens a zone on the calling thread if it has a meter.
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

// True if this thread's ops on this stream are skipped, so that values need not be read.
bool is_dry_run(const Stream& stream);
// True if the stream's ops run on a device, or if this thread's meter measures one.
bool computes_on_device(const Stream& stream);

// A TimingMeter adds up time, work and calls per family.
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
