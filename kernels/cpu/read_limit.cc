// Reads memory as the GEMV reads its weights: whole vectors into several sums, with prefetches
// ahead.
#include "kernels/read_limit.h"

#include "kernels/cpu/parallel_for.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/read_limit.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/rows-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// Returns the sum of n values; n is a multiple of 256.
float sum_of(const float* x, int64_t n) {
  constexpr int64_t kStep = 256, kAhead = 1024;  // values
  const RowTag d;
  const int64_t lanes = row_lanes();
  RowVec sums[4] = {hn::Zero(d), hn::Zero(d), hn::Zero(d), hn::Zero(d)};
  for (int64_t i = 0; i < n; i += kStep) {
    for (int64_t line = 0; line < kStep; line += 16) hwy::Prefetch(x + i + kAhead + line);
    for (int64_t j = 0; j < kStep; j += lanes) {
      RowVec& sum = sums[j / lanes % 4];
      sum = hn::Add(sum, load(x + i + j));
    }
  }
  return hn::GetLane(
      hn::SumOfLanes(d, hn::Add(hn::Add(sums[0], sums[1]), hn::Add(sums[2], sums[3]))));
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {

namespace cpu {
HWY_EXPORT(sum_of);
namespace {
float sum_of_values(const float* x, int64_t n) { return HWY_DYNAMIC_DISPATCH(sum_of)(x, n); }
}  // namespace
}  // namespace cpu

namespace {

constexpr int64_t kValues = int64_t{1} << 28, kBlock = 1 << 16;

}  // namespace

ReadLimit::ReadLimit(Stream& stream) : stream_(stream), memory_(DType::kF32, {kValues}) {
  float* values = memory_.as<float>();
  cpu::parallel_for(stream_, kValues, kBlock, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) values[i] = static_cast<float>(i % 1000);
  });
  run();
}

void ReadLimit::run() {
  const float* values = memory_.as<float>();
  std::atomic<float> total{0};
  cpu::parallel_for(stream_, kValues / kBlock, 1, [&](int64_t begin, int64_t end) {
    const float sum = cpu::sum_of_values(values + begin * kBlock, (end - begin) * kBlock);
    float before = total;
    while (!total.compare_exchange_weak(before, before + sum)) {
    }
  });
  seen_ += total;
}

}  // namespace weft
#endif
