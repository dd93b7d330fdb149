// Division by an invariant number, against the processor's own.
#include "kernels/cuda/divisor.cuh"

#include <gtest/gtest.h>

#include <random>

namespace weft::cuda {
namespace {

TEST(Divisor, DividesAsTheProcessorDoes) {
  std::mt19937 random(1);
  std::vector<int64_t> divisors{Divisor::kMost - 1};
  for (int bit = 0; bit < 31; ++bit)
    for (const int64_t near : {-1, 0, 1})
      if (const int64_t by = (int64_t{1} << bit) + near; by > 0) divisors.push_back(by);
  for (int i = 0; i < 1000; ++i) divisors.push_back(1 + (random() >> (1 + random() % 31)));
  for (const int64_t by : divisors) {
    const Divisor divisor(by);
    const auto check = [&](int64_t n) {
      if (n < 0 || n >= Divisor::kMost) return;
      ASSERT_EQ(divisor.quotient(static_cast<uint32_t>(n)), n / by) << n << " / " << by;
      ASSERT_EQ(divisor.remainder(static_cast<uint32_t>(n)), n % by) << n << " % " << by;
    };
    for (const int64_t near : {-1, 0, 1}) {
      for (const int64_t times : {0, 1, 2, 3, 1000}) check(by * times + near);
      check((Divisor::kMost - 1) / by * by + near);
    }
    check(Divisor::kMost - 1);
    for (int i = 0; i < 100; ++i) check(random() >> 1);
  }
}

}  // namespace
}  // namespace weft::cuda
