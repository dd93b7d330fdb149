#pragma once
// A stub of the calls of NCCL and CUDA that the NCCL transport makes, in host memory: messages
// match in the order posted between a pair and must agree in size, a group is done when all of its
// messages are, and a communicator that is not blocking is often in progress.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "parallel/transport/nccl_api.h"

namespace weft::test {

struct NcclStub {
  // Resets the stub and returns the table of its calls.
  static NcclApi reset();

  static void never_ready(int rank);
  static void fail(int rank, ncclResult_t error);  // the state of its communicator from now on
  static void hold(bool held);                     // no message ends while held
  static void* allocate(size_t bytes);             // "on a device"
  static void release(void* memory);

  static int live_communicators();
  static int aborted();
  static int live_buffers();
  static int live_handles();  // streams and events
  static int event_waits();   // waits of streams for events
  static int64_t moved_bytes();
  static std::string faults();  // misuse that would corrupt data with a real NCCL
};

}  // namespace weft::test
