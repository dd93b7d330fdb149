#include "kernels/dry_run.h"

#include "kernels/transfer.h"

namespace weft {

namespace {

Device place_of(const std::optional<DeviceTraits>& device) {
  return {device ? Device::Kind::kMeasuredDevice : Device::Kind::kMeasuredHost};
}

}  // namespace

DryRun::DryRun(std::optional<DeviceTraits> device)
    : scope_(meter_),
      stream_(stream_on(place_of(device))),
      arena_(size_t{1} << 45, place_of(device)) {
  meter_.device = std::move(device);
}

Footprint DryRun::measure(const std::function<void()>& program) {
  const Device::Kind kind = stream_.device().kind;
  const size_t before = tensor_bytes_live(kind);
  const size_t of_host = tensor_bytes_live(Device::Kind::kMeasuredHost);
  reset_tensor_bytes_peak(kind);
  reset_tensor_bytes_peak(Device::Kind::kMeasuredHost);
  arena_.reset_high_water();
  meter_.most = 0;
  program();
  const size_t live = tensor_bytes_live(kind);
  return {.held = live - before,
          .passing = tensor_bytes_peak(kind) - live,
          .arena = arena_.high_water(),
          .scratch = meter_.most,
          .host = meter_.device ? tensor_bytes_peak(Device::Kind::kMeasuredHost) - of_host : 0};
}

}  // namespace weft
