#pragma once
// Random test cases. The same seed gives the same cases. WEFT_SEED (1 unless set) selects other
// cases, and WEFT_CASES their number.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <string>

#include "kernels/philox.h"

namespace weft::test {

// Deterministic values: about normal (sum of four uniforms), counter based.
class Random {
 public:
  explicit Random(uint32_t seed) : seed_(seed) {}
  double uniform() {  // [-1, 1)
    if (at_ == 4) {
      block_ = philox4x32_10({counter_++, 0, 0, 0}, {seed_, 77});
      at_ = 0;
    }
    return block_[at_++] * 0x1p-31 - 1;
  }
  double normal() { return (uniform() + uniform() + uniform() + uniform()) * 0.866; }
  int64_t below(int64_t n) { return static_cast<int64_t>((uniform() + 1) / 2 * n); }

 private:
  uint32_t seed_, counter_ = 0;
  PhiloxCounter block_{};
  int at_ = 4;
};

// Draws the values of one test case.
class Draw : public Random {
 public:
  using Random::Random;
  bool maybe(double probability) { return uniform() < 2 * probability - 1; }
  template <class T>
  T one_of(std::initializer_list<T> values) {
    return values.begin()[below(static_cast<int64_t>(values.size()))];
  }
  // Draws from 1 ... top. Half of the draws are at or beside a power of two, where vectors and
  // blocks end.
  int64_t size(int64_t top) {
    if (maybe(0.5)) return 1 + below(top);
    const int64_t power = int64_t{1} << below(std::bit_width(static_cast<uint64_t>(top)));
    return std::clamp<int64_t>(power + below(3) - 1, 1, top);
  }
};

inline int64_t number_of(const char* variable, int64_t otherwise) {
  const char* text = std::getenv(variable);
  return text ? std::strtoll(text, nullptr, 10) : otherwise;
}

// Runs check(draw) for every case up to the first one that fails. The failure names the case.
template <class Check>
void for_cases(int64_t count, Check&& check) {
  const int64_t seed = number_of("WEFT_SEED", 1);
  count = number_of("WEFT_CASES", count);
  for (int64_t i = 0; i < count && !::testing::Test::HasFailure(); ++i) {
    SCOPED_TRACE("WEFT_SEED=" + std::to_string(seed) + ", case " + std::to_string(i));
    Draw draw(static_cast<uint32_t>(seed * 1'000'003 + i));
    check(draw);
  }
}

}  // namespace weft::test
