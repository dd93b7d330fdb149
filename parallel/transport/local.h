#pragma once
// Local transport: the ranks are threads of this process. A message is written into the receiver's
// buffer as soon as both ends are posted: by the sender, or by the receiver where the message came
// first. The receiver copies device memory on a stream beside the one that computes, and the host
// does not wait. `--ranks N` and the tests of parallel methods use it.
#include <functional>
#include <memory>
#include <vector>

#include "parallel/communicator.h"

namespace weft {

struct LocalOptions {
  // A send's wait returns once the receiver has posted its receive (as large NCCL and MPI messages
  // do, and every message in a device's memory); else a payload that comes first is copied at the
  // send, whose wait returns at once.
  bool rendezvous = false;
  // Other than 0: a courier's thread takes every message of the host's memory to its receiver after
  // a random delay of 0 ... max_delay_us, so that messages with different tags overtake each other.
  // It reads the sender's buffer and writes the receiver's only then, and the receiver's buffer is
  // filled with 0xff at the post. A program that touches either before the wait gets wrong bits, as
  // it may over a network. The seed decides the delays.
  uint64_t delay_seed = 0;
  int max_delay_us = 300;
  double startup_seconds = 60;  // every rank must have begun within this time
};

// Runs work(communicator) as ranks 0 ... ranks - 1, each on a thread of its own (rank 0 on the
// caller's), and returns when all have ended. A rank that throws aborts the others, and the first
// error is rethrown, with the rank named. A rank that ends with kStopped does not abort the others,
// because all ranks stop by agreement. Where every rank waits and nothing is under way, all end
// with an Error(kComm) that lists who waits for what.
void run_ranks(int ranks, const std::function<void(Communicator&)>& work,
               const LocalOptions& options = {});

// The transports alone, for decorators (parallel/transport/link.h) and tests. `note` is called on a
// rank's thread before its work and after it.
std::vector<std::shared_ptr<Transport>> make_local_transports(int ranks,
                                                              const LocalOptions& options = {});
void run_ranks(std::span<const std::shared_ptr<Transport>> transports,
               const std::function<void(Communicator&)>& work,
               const std::function<void(int rank, bool ended)>& note = {});

}  // namespace weft
