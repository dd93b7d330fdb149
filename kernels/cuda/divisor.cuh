#pragma once
#include <cuda_runtime.h>

#include <bit>
#include <cstdint>

#include "kernels/check.h"

namespace weft::cuda {

// Divides by a number that a whole launch shares: a multiplication and a shift take the place of
// dozens of instructions (Granlund and Montgomery, Division by Invariant Integers using
// Multiplication, PLDI 1994, section 4).
class Divisor {
 public:
  static constexpr int64_t kMost = int64_t{1} << 31;  // dividends and divisors are below

  Divisor() = default;  // divides by 1
  explicit Divisor(int64_t by) : by_(static_cast<uint32_t>(by)) {
    CHECK(by > 0 && by < kMost, "divisor", by);
    shift_ = static_cast<uint32_t>(std::bit_width(by_ - 1));
    factor_ = static_cast<uint32_t>((((uint64_t{1} << shift_) - by_) << 32) / by_ + 1);
  }

  __host__ __device__ __forceinline__ uint32_t quotient(uint32_t n) const {
    return (static_cast<uint32_t>(uint64_t{n} * factor_ >> 32) + n) >> shift_;
  }
  __host__ __device__ __forceinline__ uint32_t remainder(uint32_t n) const {
    return n - quotient(n) * by_;
  }

 private:
  uint32_t by_ = 1, factor_ = 1, shift_ = 0;
};

}  // namespace weft::cuda
