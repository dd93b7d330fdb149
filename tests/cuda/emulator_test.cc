// The emulator itself: kernels with known answers, and faults it must report.
#include "tests/cuda/emulator.h"

#include <gtest/gtest.h>

#include "kernels/cuda/intrinsics.cuh"

namespace weft {
namespace {

__global__ void sum_kernel(const float* x, int n, float* out) {
  __shared__ float part[8];
  float sum = 0;
  for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[blockIdx.x * n + i];
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    sum = 0;
    for (unsigned w = 0; w < blockDim.x / 32; ++w) sum += part[w];
    out[blockIdx.x] = sum;
  }
}

template <class... P, class... A>
cudaError_t start(cudaStream_t stream, dim3 grid, dim3 block, size_t shared, void (*kernel)(P...),
                  A... arguments) {
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared;
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

template <class T>
struct Buffer {
  explicit Buffer(size_t count) : count(count) { cudaMalloc(&data, count * sizeof(T)); }
  explicit Buffer(const std::vector<T>& values) : Buffer(values.size()) { put(values); }
  ~Buffer() { cudaFree(data); }
  void put(const std::vector<T>& values) {
    cudaMemcpy(data, values.data(), count * sizeof(T), cudaMemcpyHostToDevice);
  }
  std::vector<T> get() const {
    std::vector<T> out(count);
    cudaMemcpy(out.data(), data, count * sizeof(T), cudaMemcpyDeviceToHost);
    return out;
  }
  size_t count;
  T* data = nullptr;
};

class Emulator : public ::testing::Test {
 protected:
  void SetUp() override { cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking); }
  void TearDown() override {
    cudaStreamDestroy(stream);
    cudaDeviceReset();
  }
  cudaStream_t stream = nullptr;
};

TEST_F(Emulator, ReducesOverWarpsAndBlocks) {
  std::vector<float> x(3 * 1000);
  std::vector<float> expected(3);
  for (int i = 0; i < 3000; ++i) expected[i / 1000] += x[i] = static_cast<float>(i % 17);
  const Buffer<float> in(x), out(3);
  ASSERT_EQ(start(stream, 3, 256, 0, sum_kernel, in.data, 1000, out.data), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(out.get(), expected);
}

}  // namespace
}  // namespace weft
