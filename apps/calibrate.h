#pragma once
// Measures a few ops of each family, to describe this machine to simulations.
#include "kernels/stream.h"
#include "models/transformer.h"
#include "parallel/schedule/simulate.h"

namespace weft {

// Describes one rank with `threads` threads; takes about a second. Its matrix products and
// attention have the model's sizes, because small heads and narrow rows are slower; sizes above
// 1536 columns are cut, because they are no faster. The processor's time for a message is assumed.
DeviceModel measure_device(int threads, DType dtype, const TransformerTraits& model);
// Describes an H200 by published measurements, for plans on machines without a GPU.
DeviceModel assumed_device_model(DType dtype);

// Measures messages between the first rank and each other one, and describes the slowest link. The
// copies at both ends are part of it. All ranks must call it, and all receive the same.
Link measure_link(Communicator& world);

// "linear 251 GFLOP/s, attention 190 GFLOP/s, ..., memory 11.2 GB/s".
std::string to_string(const DeviceModel& device);

}  // namespace weft
