#pragma once
// Faults of the environment, on demand: this program's own definitions of the calls that can fail,
// which stand before those of the C library, and so serve FFmpeg and the C++ library too.
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::test {

// From the `nth` call (from 1) of `call` on a file whose path holds `path` on, the fault happens:
//   ENOSPC EIO ...  the call fails with that errno
//   short           read, pread, write: half of the bytes are done, without an error
//   cut             open, mmap: the file is made half as long right after it
//   missing         encoder: FFmpeg has none of a name that holds `path`
// Calls: open read pread write mmap fsync close rename (renameat2 and link as well) encoder.
// A process that is started with this as a library takes INJECT_FAULT="call:path:nth:fault".
class Fault {
 public:
  explicit Fault(const std::string& rule);
  ~Fault();
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
  int64_t hits() const;  // calls that had the fault
};

// The `nth` allocation (from 1) made while this lives fails, once: operator new, aligned_alloc,
// posix_memalign and anonymous mmap of 1 KiB or more. 0: none does, they are counted. Smaller ones
// never fail: nlohmann-json allocates in destructors and the C++ library in functions that are
// noexcept, where a failure can only end the process.
class AllocationFault {
 public:
  explicit AllocationFault(int64_t nth);
  ~AllocationFault();
  AllocationFault(const AllocationFault&) = delete;
  AllocationFault& operator=(const AllocationFault&) = delete;
  int64_t seen() const;
  size_t peak_bytes() const;  // of operator new, above what was there at the start
};

}  // namespace weft::test
