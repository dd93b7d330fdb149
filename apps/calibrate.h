#pragma once
// The present machine as a device of simulations: a few ops of each family, measured.
#include "kernels/stream.h"
#include "parallel/simulate.h"

namespace weft {

// One rank's device with `threads` threads; takes about a second. What a message costs the
// processor is assumed.
DeviceModel measure_device(int threads, DType dtype);
// An H200 as published measurements have it, for plans where none is.
DeviceModel assumed_device_model(DType dtype);

// "linear 251 GFLOP/s, attention 190 GFLOP/s, ..., memory 11.2 GB/s".
std::string to_string(const DeviceModel& device);

}  // namespace weft
