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

// Measures messages between the first rank and each other one, and describes the slowest link. The
// copies at both ends are part of it. All ranks must call it, and all receive the same.
Link measure_link(Communicator& world);

// "linear 251 GFLOP/s, attention 190 GFLOP/s, ..., memory 11.2 GB/s".
std::string to_string(const DeviceModel& device);

}  // namespace weft
