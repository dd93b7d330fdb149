#pragma once
// Injects faults of the environment. It defines the calls that can fail itself, and these
// definitions precede those of the C library. So calls from FFmpeg and the C++ library fail, too.
#include <cstddef>
#include <cstdint>
#include <string>

namespace weft::test {

// From the `nth` call (counted from 1) of `call` on a file whose path contains `path`, all calls
// have the fault:
//   ENOSPC EIO ...  the call fails with that errno
//   short           read, pread, write: half of the bytes are transferred, without an error
//   cut             open, mmap: the file is truncated to half its length right after the call
//   missing         encoder: FFmpeg has no encoder whose name contains `path`
// Calls: open read pread write mmap fsync close rename (renameat2 and link as well) encoder.
// A process that preloads this as a library reads INJECT_FAULT="call:path:nth:fault".
class Fault {
 public:
  explicit Fault(const std::string& rule);
  ~Fault();
  Fault(const Fault&) = delete;
  Fault& operator=(const Fault&) = delete;
  int64_t hits() const;  // number of calls that had the fault
};

// While this object exists, the `nth` allocation (counted from 1) fails once: operator new,
// aligned_alloc, posix_memalign and anonymous mmap of 1 KiB or more. 0: none fails, they are only
// counted. Smaller ones never fail: nlohmann-json allocates in destructors and the C++ library in
// functions that are noexcept, where a failure can only end the process.
class AllocationFault {
 public:
  explicit AllocationFault(int64_t nth);
  ~AllocationFault();
  AllocationFault(const AllocationFault&) = delete;
  AllocationFault& operator=(const AllocationFault&) = delete;
  int64_t seen() const;
  size_t peak_bytes() const;  // peak of operator new's bytes, above those at the start
};

}  // namespace weft::test
