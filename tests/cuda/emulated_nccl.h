#pragma once
// Shared by the files of the emulated NCCL. Everything here is used under machine().mutex.
#include <nccl.h>

#include "tests/cuda/machine.h"

namespace weft::emulated {

struct Message {
  bool receives = false;
  int peer = 0;
  char* data = nullptr;  // null where a sum keeps the bytes that it receives
  size_t bytes = 0;
  bool counts = true;  // false for a part of a sum
  uint64_t number = 0;
  bool done = false;
  std::vector<char> kept{};
};
struct Sum {
  const float* from;
  float* to;
  size_t count;
  std::vector<size_t> received;  // the messages with the values of the other ranks
};
// One communicator's messages and sums of one group.
struct Exchange {
  std::vector<Message> messages;
  std::vector<Sum> sums;
};

}  // namespace weft::emulated

struct ncclComm {
  std::string folder;
  int rank = 0, ranks = 1, device = 0;
  bool elsewhere = false;  // other processes have ranks of it
  enum class State { kLive, kAborted, kDestroyed } state = State::kLive;
  ncclResult_t error = ncclSuccess;
  std::map<std::pair<bool, int>, uint64_t> numbers;  // messages begun, by direction and peer
  std::shared_ptr<weft::emulated::Exchange> active;  // which has begun and is not done
  CUstream_st* stream = nullptr;                     // of the last group that no graph holds
  uint64_t position = 0;                             // in that stream
  uint64_t issued = 0, begun = 0;                    // groups that no graph holds
};

namespace weft::emulated {

using Comm = std::shared_ptr<ncclComm>;

struct NcclState {
  std::map<ncclComm_t, Comm> live;
  std::string error;
  uint64_t messages = 0, bytes = 0, groups = 0;
  std::map<int, uint64_t> begun;  // messages of a device, both directions
};
NcclState& nccl();

// Makes the kernel of one group and communicator. It occupies its stream until all its messages
// have moved. `turn` counts the communicator's kernels in the order of issue; those of graphs
// have 0.
Work nccl_kernel(Comm comm, Exchange exchange, uint64_t turn);

}  // namespace weft::emulated
