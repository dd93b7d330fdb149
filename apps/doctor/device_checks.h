#pragma once
// The checks of `weft doctor` on GPUs: the driver, each card and what the vendor's libraries take.
#include "apps/doctor/doctor.h"
#include "kernels/device_plan.h"

namespace weft {

// "NVIDIA H200 (9.0): wgmma kernels and cuDNN attention, bf16, fp8 weights and attention".
HealthCheck card_check(int index, const DeviceTraits& card);

// The driver first, then one check per card and, where --device is one, one per family of the
// libraries' ops. A missing device is a failure only where --device asks for one.
HealthChecks device_checks(const Flags& flags);

}  // namespace weft
