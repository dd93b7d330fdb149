#pragma once
// Shared by test programs whose ranks are processes: a main function around the ranks' work, the
// ranks' devices, and a function that gathers measured values on the first rank.
#include <cstdint>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/transport/nccl.h"
#include "parallel/transport/processes/process_transport.h"

namespace weft::test {

// Runs work(world), which returns the faults it found, as this process' rank. Returns the exit
// code.
inline int process_main(const std::function<std::vector<std::string>(Communicator&)>& work) {
  Communicator world(process_transport());
  try {
    const std::vector<std::string> faults = work(world);
    for (const std::string& fault : faults) std::printf("FAIL  %s\n", fault.c_str());
    finish_process_transport();
    return faults.empty() ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "rank %d: %s\n", world.rank(), error.what());
    world.abort(error.what());
    return 2;
  }
}

// Rank r's device: GPU r, or the CPU.
inline Device device_of_rank(bool gpus, int rank) {
  return gpus ? Device{Device::Kind::kCuda, static_cast<int8_t>(rank)} : Device{};
}

// The transport between the processes. Where they have GPUs, these exchange by NCCL, with
// communicators of this transport's own.
inline std::shared_ptr<Transport> rank_transport(bool gpus) {
  std::shared_ptr<Transport> transport = process_transport();
  return gpus ? make_nccl(transport, device_of_rank(gpus, transport->rank())) : transport;
}

// Gathers every rank's values on the first rank; all have equally many. Other ranks get zeros.
inline std::vector<std::vector<int64_t>> gather(Communicator& world, std::vector<int64_t> own) {
  Stream stream = Stream::cpu(1);
  const auto count = static_cast<int64_t>(own.size());
  std::vector<std::vector<int64_t>> all(world.size(), std::vector<int64_t>(own.size()));
  for (int rank = 1; rank < world.size(); ++rank) {
    if (world.rank() == rank)
      world.send(stream, 0, {}, TensorView(own.data(), DType::kI64, {count}));
    if (world.rank() == 0)
      world.receive(stream, rank, {}, TensorView(all[rank].data(), DType::kI64, {count}));
  }
  if (world.rank() == 0) all[0] = std::move(own);
  return all;
}

}  // namespace weft::test
