#pragma once
// Measures a few ops of each family, to describe this machine to simulations.
#include "kernels/stream.h"
#include "parallel/schedule/simulate.h"

namespace weft {

// Describes one rank with `threads` threads; takes about a second. The processor's time for a
// message is assumed.
DeviceModel measure_device(int threads, DType dtype);
// Describes an H200 by published measurements, for plans on machines without a GPU.
DeviceModel assumed_device_model(DType dtype);

// "linear 251 GFLOP/s, attention 190 GFLOP/s, ..., memory 11.2 GB/s".
std::string to_string(const DeviceModel& device);

}  // namespace weft
