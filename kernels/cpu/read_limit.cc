#include "kernels/read_limit.h"

#include <array>
#include <atomic>

#include "kernels/cpu/parallel_for.h"

namespace weft {

namespace {

constexpr int64_t kWords = int64_t{1} << 27;
constexpr int64_t kLanes = 32;  // sums in flight: four cache lines

}  // namespace

ReadLimit::ReadLimit(const Stream& stream) : stream_(stream), memory_(DType::kI64, {kWords}) {
  int64_t* words = memory_.as<int64_t>();
  cpu::parallel_for(stream_, kWords, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) words[i] = i * 0x9e3779b97f4a7c15;
  });
}

void ReadLimit::run() {
  const int64_t* words = memory_.as<int64_t>();
  std::atomic<uint64_t> total{0};
  cpu::parallel_for(stream_, kWords / kLanes, 1 << 12, [&](int64_t begin, int64_t end) {
    std::array<uint64_t, kLanes> sums{};
    for (int64_t i = begin; i < end; ++i)
      for (int64_t lane = 0; lane < kLanes; ++lane)
        sums[lane] += static_cast<uint64_t>(words[i * kLanes + lane]);
    uint64_t sum = 0;
    for (uint64_t part : sums) sum += part;
    total += sum;
  });
  seen_ ^= total;
}

}  // namespace weft
