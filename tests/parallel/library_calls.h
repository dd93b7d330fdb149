#pragma once
// The calls of the library that moves the messages of processes, which a test program passes
// through functions of its own: mpi_calls.cc or ucx_calls.cc.
#include <atomic>
#include <cstdint>

namespace weft::test {

struct LibraryCalls {
  std::atomic<bool> fails{false};  // tests of messages fail on demand
  std::atomic<int64_t> sends{0}, largest{0};
  std::atomic<bool> takes_device_memory{false};  // the library's answer
  std::atomic<int64_t> of_devices{0};            // messages that UCX was told to be a device's

  void count(int64_t bytes) {
    ++sends;
    if (bytes > largest) largest = bytes;
  }
};
inline LibraryCalls& library_calls() {
  static LibraryCalls calls;
  return calls;
}

// Ends the library of a process whose job has failed.
void end_library();

}  // namespace weft::test
