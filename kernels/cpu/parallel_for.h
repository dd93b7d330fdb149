#pragma once
// These functions share the work of one op call among threads. Every index is computed by one
// thread alone, so results do not depend on the number of threads.
#include <algorithm>
#include <atomic>
#include <exception>

#include "kernels/stream.h"

namespace weft::cpu {

// A FirstError carries an exception of a body (only out-of-memory is thrown there) out of the
// OpenMP region, which no exception may leave.
class FirstError {
 public:
  template <class Body>
  void guard(Body&& body) noexcept {
    try {
      body();
    } catch (...) {
      if (!taken_.test_and_set()) error_ = std::current_exception();
    }
  }
  void rethrow() const {  // call it after the region
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic_flag taken_;
  std::exception_ptr error_;
};

// Calls body(begin, end) over disjoint ranges that cover [0, n). A thread is only worth starting
// for `grain` indices or more. One thread runs inline, without OpenMP.
template <class Body>
void parallel_for(const Stream& stream, int64_t n, int64_t grain, Body&& body) {
  const int64_t useful = n / std::max<int64_t>(grain, 1);
  const int64_t threads = std::min<int64_t>(stream.threads(), useful);
  if (threads <= 1) {
    body(int64_t{0}, n);
    return;
  }
  FirstError error;
#pragma omp parallel for num_threads(static_cast <int>(threads)) schedule(static, 1)
  for (int64_t t = 0; t < threads; ++t)
    error.guard([&] { body(n * t / threads, n * (t + 1) / threads); });
  error.rethrow();
}

// Calls body(i) for i in [0, n), handed out one by one; this suits few, large or uneven tasks.
template <class Body>
void parallel_tasks(const Stream& stream, int64_t n, Body&& body) {
  const int64_t threads = std::min<int64_t>(stream.threads(), n);
  if (threads <= 1) {
    for (int64_t i = 0; i < n; ++i) body(i);
    return;
  }
  FirstError error;
#pragma omp parallel for num_threads(static_cast <int>(threads)) schedule(dynamic, 1)
  for (int64_t i = 0; i < n; ++i) error.guard([&] { body(i); });
  error.rethrow();
}

// Returns the number of rows that is worth a thread: about 16k elements, some microseconds of work.
inline int64_t row_grain(int64_t elements_per_row) {
  return std::max<int64_t>(1, 16384 / std::max<int64_t>(elements_per_row, 1));
}

}  // namespace weft::cpu
