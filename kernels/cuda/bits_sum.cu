#include "kernels/cuda/bits_sum.h"
#include "kernels/cuda/common.cuh"

namespace weft::cuda {

namespace {

// A hash of one element; the mixer is that of Steele, Lea and Flood, Fast Splittable Pseudorandom
// Number Generators (OOPSLA 2014), figure 16.
__device__ uint64_t mixed(uint64_t bits, uint64_t place) {
  uint64_t x = bits + place * 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

// Integers are added, so the order of the threads does not matter.
template <class Word>
__global__ void add_bits(const Word* out, Gemm g, unsigned long long* sum) {
  const int64_t j = column();
  uint64_t part = 0;
  for (int64_t row = first_row(); j < g.n && row < g.m * g.batch; row += row_step())
    part += mixed(out[row / g.m * g.out.batch_stride + row % g.m * g.out.row_stride + j],
                  static_cast<uint64_t>(row * g.n + j + 1));
  constexpr int kWarp = 32;
  for (int apart = kWarp / 2; apart > 0; apart /= 2)
    part += __shfl_xor_sync(0xffffffffu, part, apart);
  if ((threadIdx.y * blockDim.x + threadIdx.x) % kWarp == 0)
    atomicAdd(sum, static_cast<unsigned long long>(part));
}

}  // namespace

void sum_bits(const Stream& stream, const Gemm& g, uint64_t* sum) {
  WEFT_CUDA_CHECK(cudaMemsetAsync(sum, 0, sizeof(*sum), cuda_queue(stream).stream()));
  const auto run = [&]<class Word>(const Word* out) {
    launch(stream, over_rows(stream, g.m * g.batch, g.n), add_bits<Word>, out, g,
           reinterpret_cast<unsigned long long*>(sum));
  };
  if (g.out.dtype == DType::kBF16)
    run(static_cast<const uint16_t*>(g.out.data));
  else
    run(static_cast<const uint32_t*>(g.out.data));
}

}  // namespace weft::cuda
