#pragma once
// Measures a few ops of each family, to describe this machine to simulations.
#include <span>
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/linear.h"
#include "kernels/stream.h"
#include "models/transformer.h"
#include "models/vae.h"
#include "parallel/schedule/simulate.h"

namespace weft {

// A decoder's convolutions that keep the number of channels: one kernel of each width, the
// narrowest first. These are most of its work, and each width has about the same share, because
// half the width goes with four times the pixels.
std::vector<std::vector<int64_t>> decoder_kernels(const VaeModel& vae);

// The model whose sizes and formats the measured ops have.
struct SampledModel {
  DType dtype;
  const TransformerTraits& model;
  const VaeModel& vae;
  DType vae_dtype;
  WeightFormat weights = WeightFormat::kCompute;
  AttentionFormat attention = AttentionFormat::kCompute;
};
// Describes one of `ranks` ranks on this machine with `threads` threads each; takes about a second.
// The other ranks compute the same ops meanwhile, because they share caches and memory. Matrix
// products, attention and convolutions have the sizes of the transformer and of the decoder,
// because small heads, narrow rows and few channels are slower; rows above 1536 columns are cut,
// because they are no faster. The processor's time for a message is assumed.
DeviceModel measure_device(int ranks, int threads, const SampledModel& of);
// The same for a GPU, by a stream on it that nothing else uses; takes a fraction of a second. Ops
// have as many rows as take long enough to be timed, at most kMostGpuRows. Copies of messages are
// part of a measured link.
DeviceModel measure_gpu(const Stream& stream, const SampledModel& of);
inline constexpr int64_t kMostGpuRows = 8192;

// The share of a device that each of so many ranks has which compute on it at a time.
DeviceModel share_of(DeviceModel device, int ranks);
// A device that is as slow in every family as the slowest of these: ranks wait for each other.
DeviceModel slowest_of(std::span<const DeviceModel> devices);

// Measures bytes per second from pinned memory to the stream's device. Weights that are copied from
// the host are compared with it.
double upload_rate(Stream& stream);

// Measures messages between the first rank and each other one, and describes the slowest link. They
// lie in the memory of the stream's device. The copies at both ends are part of it. All ranks must
// call it, and all receive the same.
Link measure_link(Communicator& world, Stream& stream);
// Returns every rank's device on all of them.
std::vector<DeviceModel> gathered(Communicator& world, const DeviceModel& own);

// "linear 251 GFLOP/s, attention 190 GFLOP/s, ..., copy 11.2 GB/s".
std::string to_string(const DeviceModel& device);
std::string to_string(const Link& link);  // "12.5 Gbit/s, 0.05 ms"; "unlimited, 0 ms"

}  // namespace weft
