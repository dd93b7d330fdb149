#pragma once
// Measures a few ops of each family, to describe this machine to simulations.
#include "kernels/stream.h"
#include "models/transformer.h"
#include "models/vae.h"
#include "parallel/schedule/simulate.h"

namespace weft {

// A decoder's convolutions that keep the number of channels: one kernel of each width, the
// narrowest first. These are most of its work, and each width has about the same share, because
// half the width goes with four times the pixels.
std::vector<std::vector<int64_t>> decoder_kernels(const VaeModel& vae);

// The model whose sizes the measured ops have.
struct SampledModel {
  DType dtype;
  const TransformerTraits& model;
  const VaeModel& vae;
  DType vae_dtype;
};
// Describes one of `ranks` ranks on this machine with `threads` threads each; takes about a second.
// The other ranks compute the same ops meanwhile, because they share caches and memory. Matrix
// products, attention and convolutions have the sizes of the transformer and of the decoder,
// because small heads, narrow rows and few channels are slower; rows above 1536 columns are cut,
// because they are no faster. The processor's time for a message is assumed.
DeviceModel measure_device(int ranks, int threads, const SampledModel& of);

// Measures messages between the first rank and each other one, and describes the slowest link. The
// copies at both ends are part of it. All ranks must call it, and all receive the same.
Link measure_link(Communicator& world);

// "linear 251 GFLOP/s, attention 190 GFLOP/s, ..., memory 11.2 GB/s".
std::string to_string(const DeviceModel& device);

}  // namespace weft
