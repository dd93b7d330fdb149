// Tests the emulator itself: kernels with known answers, and faults it must report.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "kernels/cuda/hopper.cuh"
#include "tests/cuda/emulator.h"

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
    cudaStreamSynchronize(nullptr);
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

std::vector<float> ramp(int n) {
  std::vector<float> x(n);
  for (int i = 0; i < n; ++i) x[i] = static_cast<float>(i);
  return x;
}

TEST_F(Emulator, ReducesOverWarpsAndBlocks) {
  std::vector<float> x(3 * 1000);
  std::vector<float> expected(3);
  for (int i = 0; i < 3000; ++i) expected[i / 1000] += x[i] = static_cast<float>(i % 17);
  const Buffer<float> in(x), out(3);
  ASSERT_EQ(start(stream, 3, 256, 0, sum_kernel, in.data, 1000, out.data), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(out.get(), expected);
}

__global__ void shuffle_kernel(int* out) {
  const int lane = static_cast<int>(threadIdx.x);
  int* to = out + lane * 7;
  to[0] = __shfl_sync(0xffffffffu, lane, 5);
  to[1] = __shfl_sync(0xffffffffu, lane, 5, 8);
  to[2] = __shfl_xor_sync(0xffffffffu, lane, 3);
  to[3] = __shfl_down_sync(0xffffffffu, lane, 4);
  to[4] = __shfl_up_sync(0xffffffffu, lane, 4, 16);
  to[5] = static_cast<int>(__ballot_sync(0xffffffffu, lane % 3 == 0));
  if (lane < 16)  // each half of the warp for itself
    to[6] = __any_sync(0x0000ffffu, lane == 20);
  else
    to[6] = __any_sync(0xffff0000u, lane == 20);
}

TEST_F(Emulator, ShufflesAndVotes) {
  const Buffer<int> out(32 * 7);
  ASSERT_EQ(start(stream, 1, 32, 0, shuffle_kernel, out.data), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const std::vector<int> got = out.get();
  for (int lane = 0; lane < 32; ++lane) {
    const int* row = got.data() + lane * 7;
    EXPECT_EQ(row[0], 5);
    EXPECT_EQ(row[1], lane / 8 * 8 + 5);
    EXPECT_EQ(row[2], lane ^ 3);
    EXPECT_EQ(row[3], lane < 28 ? lane + 4 : lane);
    EXPECT_EQ(row[4], lane % 16 < 4 ? lane : lane - 4);
    EXPECT_EQ(row[5], 0x49249249);
    EXPECT_EQ(row[6], lane >= 16);
  }
}

// out [16, 8] = a [16, 16] b [16, 8], both row-major, through shared memory as in real kernels.
__global__ void product_kernel(const bf16* a, const bf16* b, float* out) {
  bf16* const tile = cuda::dynamic_shared<bf16>();  // a, then b
  const int t = static_cast<int>(threadIdx.x), g = t / 4, i = t % 4;
  cuda::copy_async16(tile + t * 8, a + t * 8);
  if (t < 16) cuda::copy_async16(tile + 256 + t * 8, b + t * 8);
  cuda::copy_async_commit();
  cuda::copy_async_wait<0>();
  __syncwarp();
  uint32_t left[4], right[4];
  // Matrices 0 ... 3 are rows 0-7 and 8-15 of columns 0-7, then of columns 8-15.
  cuda::load_matrices(left, tile + (t % 16) * 16 + t / 16 * 8);
  // Lanes 16-31 give the same addresses again.
  cuda::load_matrices_transposed(right, tile + 256 + t % 16 * 8);
  float sum[4] = {};
  cuda::multiply_bf16(sum, left, {right[0], right[1]});
  out[g * 8 + 2 * i] = sum[0];
  out[g * 8 + 2 * i + 1] = sum[1];
  out[(g + 8) * 8 + 2 * i] = sum[2];
  out[(g + 8) * 8 + 2 * i + 1] = sum[3];
}

TEST_F(Emulator, MultipliesMatricesOfAWarp) {
  std::vector<bf16> a(256), b(128);
  for (int i = 0; i < 256; ++i) a[i] = to_bf16(static_cast<float>(i * 7 % 23 - 11));
  for (int i = 0; i < 128; ++i) b[i] = to_bf16(static_cast<float>(i * 5 % 19 - 9));
  std::vector<float> expected(128);
  for (int row = 0; row < 16; ++row)
    for (int column = 0; column < 8; ++column)
      for (int k = 0; k < 16; ++k)
        expected[row * 8 + column] += to_float(a[row * 16 + k]) * to_float(b[k * 8 + column]);
  const Buffer<bf16> left(a), right(b);
  const Buffer<float> out(128);
  ASSERT_EQ(start(stream, 1, 32, 768, product_kernel, left.data, right.data, out.data),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(out.get(), expected);
}

__global__ void late_wait_kernel(const float* x, float* out, bool wait) {
  float* const tile = cuda::dynamic_shared<float>();
  cuda::copy_async16(tile, x);
  cuda::copy_async_commit();
  cuda::copy_async16(tile + 4, x + 4, false);
  cuda::copy_async_commit();
  if (wait)
    cuda::copy_async_wait<0>();
  else
    cuda::copy_async_wait<1>();
  out[0] = tile[3];
  out[1] = tile[7];
}

TEST_F(Emulator, AMissingWaitForACopyShows) {
  const Buffer<float> x(ramp(8)), out(2);
  for (const bool wait : {true, false}) {
    ASSERT_EQ(start(stream, 1, 1, 32, late_wait_kernel, x.data, out.data, wait), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(out.get()[0], 3);
    EXPECT_EQ(std::isnan(out.get()[1]), !wait);
  }
}

// The operands are rows of 128 bytes in wgmma's layout: 64 rows of a and 128 of b.
constexpr int kRowBytes = 128, kLeftBytes = 64 * kRowBytes, kRightBytes = 128 * kRowBytes;

// out [3, 64, 128]: a b^T over bytes 32 to 63 with a from registers, over bytes 64 to 127 with a
// from shared memory, and the contents of the first accumulators before the wait.
__global__ void wgmma_kernel(const uint8_t* left, const uint8_t* right, float* out, int arrivals) {
  uint8_t* const shared = cuda::dynamic_shared<uint8_t>();  // aligned to 1024 bytes
  auto* const barrier = reinterpret_cast<uint64_t*>(shared + kLeftBytes + kRightBytes);
  if (threadIdx.x == 0) {
    cuda::barrier_init(barrier, arrivals);
    cuda::barrier_init_fence();
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    cuda::barrier_expect(barrier, kLeftBytes + kRightBytes);
    cuda::copy_bulk(shared, left, kLeftBytes, barrier);
    cuda::copy_bulk(shared + kLeftBytes, right, kRightBytes, barrier);
  }
  cuda::barrier_wait(barrier, 0);
  const int lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
  uint32_t a[4];
  for (int part = 0; part < 4; ++part) {
    const int r = row + part % 2 * 8, piece = 2 + part / 2;
    memcpy(&a[part], shared + r * kRowBytes + (piece ^ (r % 8)) * 16 + lane % 4 * 4, 4);
  }
  float sum[2][64], early[64];
  cuda::wgmma_fence();
  cuda::wgmma_multiply<uint8_t>(sum[0], a, cuda::wgmma_descriptor(shared + kLeftBytes, 32));
  memcpy(early, sum[0], sizeof early);
  cuda::wgmma_multiply<uint8_t>(sum[1], cuda::wgmma_descriptor(shared, 64),
                                cuda::wgmma_descriptor(shared + kLeftBytes, 64));
  cuda::wgmma_add<uint8_t>(sum[1], cuda::wgmma_descriptor(shared, 96),
                           cuda::wgmma_descriptor(shared + kLeftBytes, 96));
  cuda::wgmma_commit();
  cuda::wgmma_wait<0>();
  for (int n = 0; n < 16; ++n)
    for (int at = 0; at < 4; ++at) {
      const int to = (row + at / 2 * 8) * 128 + 8 * n + lane % 4 * 2 + at % 2;
      out[to] = sum[0][4 * n + at];
      out[64 * 128 + to] = sum[1][4 * n + at];
      out[2 * 64 * 128 + to] = early[4 * n + at];
    }
}

// Returns rows x 128 values, and their e4m3 bytes with every piece c of 16 bytes of row r at c xor
// r % 8.
std::pair<std::vector<float>, std::vector<uint8_t>> swizzled_rows(int rows, int seed) {
  std::vector<float> values(rows * kRowBytes);
  std::vector<uint8_t> bytes(values.size());
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < kRowBytes; ++c) {
      const float value = static_cast<float>((r * 7 + c * seed) % 15 - 7);
      values[r * kRowBytes + c] = value;
      bytes[r * kRowBytes + (c / 16 ^ r % 8) * 16 + c % 16] = to_e4m3(value);
    }
  return {values, bytes};
}

TEST_F(Emulator, MultipliesRowsOfAWarpgroup) {
  const auto [a, left] = swizzled_rows(64, 11);
  const auto [b, right] = swizzled_rows(128, 5);
  const Buffer<uint8_t> left_rows(left), right_rows(right);
  const Buffer<float> out(3 * 64 * 128);
  ASSERT_EQ(start(stream, 1, 128, kLeftBytes + kRightBytes + 1024, wgmma_kernel, left_rows.data,
                  right_rows.data, out.data, 1),
            cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  const std::vector<float> measured = out.get();
  for (int row = 0; row < 64; ++row)
    for (int column = 0; column < 128; ++column) {
      float sums[2] = {};
      for (int k = 32; k < 128; ++k) sums[k >= 64] += a[row * 128 + k] * b[column * 128 + k];
      const int at = row * 128 + column;
      ASSERT_EQ(measured[at], sums[0]) << row << " " << column;
      ASSERT_EQ(measured[64 * 128 + at], sums[1]) << row << " " << column;
      ASSERT_TRUE(std::isnan(measured[2 * 64 * 128 + at])) << "before the wait";
    }
}

TEST_F(Emulator, ABarrierThatNeverEndsAPhaseIsAFault) {
  const Buffer<uint8_t> left(kLeftBytes), right(kRightBytes);
  const Buffer<float> out(3 * 64 * 128);
  ASSERT_EQ(start(stream, 1, 128, kLeftBytes + kRightBytes + 1024, wgmma_kernel, left.data,
                  right.data, out.data, 2),
            cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
  EXPECT_NE(emulated::device_error().find("128 threads at barrier_wait"), std::string::npos)
      << emulated::device_error();
}

__global__ void reverse_kernel(float* x, bool barrier) {
  __shared__ float tile[64];
  const int i = static_cast<int>(threadIdx.x);
  tile[i] = x[i];
  if (barrier) __syncthreads();
  x[i] = tile[63 - i];
}

TEST_F(Emulator, AMissingBarrierShows) {
  std::vector<float> expected = ramp(64);
  std::ranges::reverse(expected);
  for (const bool barrier : {true, false, false}) {
    const Buffer<float> x(ramp(64));
    ASSERT_EQ(start(stream, 1, 64, 0, reverse_kernel, x.data, barrier), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(x.get() == expected, barrier);
  }
}

__global__ void divergent_kernel(int how) {
  const unsigned i = threadIdx.x;
  if (how == 0 && i == 7) return;
  if (how == 1 && i >= 32) {
    __shfl_xor_sync(0xffffffffu, 1, i == 40 ? 1 : 2);
    if (i == 40) return;
    __shfl_xor_sync(1u << 8, 1, 1);
  }
  if (how == 2 && i == 3) __ballot_sync(0xffffffffu, 1);
  __syncthreads();
}

TEST_F(Emulator, BarriersThatNotAllReachAreFaults) {
  const char* const expected[] = {
      "63 threads at __syncthreads, the first is (0, 0, 0); "
      "1 threads exited, the first is (7, 0, 0)",
      "the mask of a warp instruction lacks the calling lane",
      "1 threads at a vote of lanes ffffffff, the first is (3, 0, 0)"};
  for (int how = 0; how < 3; ++how) {
    ASSERT_EQ(start(stream, 1, 64, 0, divergent_kernel, how), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorLaunchFailure);
    EXPECT_NE(emulated::device_error().find(expected[how]), std::string::npos)
        << emulated::device_error();
    EXPECT_EQ(start(stream, 1, 64, 0, divergent_kernel, 3), cudaErrorLaunchFailure) << "sticky";
    cudaDeviceReset();
  }
  ASSERT_EQ(start(stream, 1, 64, 0, divergent_kernel, 3), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
}

__global__ void add_kernel(float* x, float value) { x[threadIdx.x] += value; }

TEST_F(Emulator, LaunchLimits) {
  const Buffer<float> x(ramp(4));
  const auto with = [&](dim3 grid, dim3 block, size_t shared) {
    return start(stream, grid, block, shared, add_kernel, x.data, 0.f);
  };
  EXPECT_EQ(with(1, 1025, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(0, 1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(dim3(1, 65536), 1, 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(1, dim3(1, 1, 65), 0), cudaErrorInvalidConfiguration);
  EXPECT_EQ(with(1, 4, 48 << 10), cudaSuccess);
  EXPECT_EQ(with(1, 4, (48 << 10) + 1), cudaErrorInvalidValue);
  const auto allow = [](int bytes) {
    return cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  };
  EXPECT_EQ(allow((227 << 10) + 1), cudaErrorInvalidValue);
  EXPECT_EQ(allow(227 << 10), cudaSuccess);
  EXPECT_EQ(with(1, 4, 227 << 10), cudaSuccess);
}

TEST_F(Emulator, StreamsRunWhenSomebodyWaitsAndEventsOrderThem) {
  cudaStream_t other = nullptr;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  const Buffer<float> x(std::vector<float>{1});
  float* pinned = nullptr;
  cudaHostAlloc(reinterpret_cast<void**>(&pinned), 4, 0);
  *pinned = 10;
  const auto add_to = [&](cudaStream_t to, float value) {
    ASSERT_EQ(start(to, 1, 1, 0, add_kernel, x.data, value), cudaSuccess);
  };
  cudaMemcpyAsync(x.data, pinned, 4, cudaMemcpyHostToDevice, stream);
  *pinned = 20;  // too early: the copy has not run
  cudaEventRecord(event, stream);
  cudaStreamWaitEvent(other, event);
  add_to(other, 1);
  add_to(stream, 100);  // nothing waits for this work
  EXPECT_EQ(cudaEventQuery(event), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
  EXPECT_EQ(x.get()[0], 21);
  EXPECT_EQ(cudaEventQuery(event), cudaSuccess);
  float pageable = 5;
  cudaMemcpyAsync(x.data, &pageable, 4, cudaMemcpyHostToDevice, stream);  // runs after the 100
  pageable = 6;
  EXPECT_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
  EXPECT_EQ(cudaStreamQuery(stream), cudaSuccess);
  EXPECT_EQ(x.get()[0], 5);
  cudaFreeHost(pinned);
  cudaEventDestroy(event);
  cudaStreamDestroy(other);
}

class EmulatedGraph : public Emulator {
 protected:
  void SetUp() override {
    Emulator::SetUp();
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    for (cudaEvent_t& event : events) cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  }
  void TearDown() override {
    cudaStreamDestroy(side);
    for (const cudaEvent_t event : events) cudaEventDestroy(event);
    Emulator::TearDown();
  }
  // Enqueues x + 1 on the stream, then y + 2 on a side stream and x + 4 on the stream.
  void forked_work(float* x, float* y, bool join) {
    start(stream, 1, 1, 0, add_kernel, x, 1.f);
    cudaEventRecord(events[0], stream);
    cudaStreamWaitEvent(side, events[0]);
    start(side, 1, 1, 0, add_kernel, y, 2.f);
    cudaEventRecord(events[1], side);
    start(stream, 1, 1, 0, add_kernel, x, 4.f);
    if (join) cudaStreamWaitEvent(stream, events[1]);
    cudaMemcpyAsync(x, y, 4, cudaMemcpyDeviceToDevice, stream);
  }
  cudaStream_t side = nullptr;
  cudaEvent_t events[2] = {};
};

TEST_F(EmulatedGraph, ReplaysWithChangedInputs) {
  const Buffer<float> x(std::vector<float>{0}), y(std::vector<float>{0});
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  forked_work(x.data, y.data, true);
  cudaStreamCaptureStatus status{};
  cudaStreamIsCapturing(side, &status);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive) << "the side stream is part of it";
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&exec, graph), cudaSuccess);
  cudaGraphDestroy(graph);
  EXPECT_EQ(y.get()[0], 0) << "a capture runs nothing";
  for (const float value : {10.f, 20.f}) {
    cudaMemcpyAsync(y.data, &value, 4, cudaMemcpyHostToDevice, stream);
    ASSERT_EQ(cudaGraphLaunch(exec, stream), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    EXPECT_EQ(x.get()[0], value + 2);
  }
  cudaGraphExecDestroy(exec);
}

TEST_F(EmulatedGraph, CapturesRefuseWhatCannotBeReplayed) {
  const Buffer<float> x(std::vector<float>{0}), y(std::vector<float>{0});
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  forked_work(x.data, y.data, false);
  EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureUnjoined);
  float host = 0;
  void* memory = nullptr;
  const std::function<cudaError_t()> calls[] = {
      [&] { return cudaStreamSynchronize(stream); }, [&] { return cudaDeviceSynchronize(); },
      [&] { return cudaMalloc(&memory, 4); },
      [&] { return cudaMemcpyAsync(x.data, &host, 4, cudaMemcpyHostToDevice, stream); },
      [&] { return cudaMemcpyAsync(&host, x.data, 4, cudaMemcpyDeviceToHost, stream); }};
  for (const auto& call : calls) {
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(call(), cudaErrorStreamCaptureUnsupported);
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaErrorStreamCaptureInvalidated);
  }
}

// Only a wait for the default stream ends what cudaMemcpy from pageable memory leaves under way.
TEST_F(Emulator, SmallPageableCopiesLandLate) {
  for (const size_t count : {size_t{4}, size_t{16} << 10, (size_t{16} << 10) + 1}) {
    const Buffer<float> x(std::vector<float>(count, 1)), y(count);
    const std::vector<float> values(count, 2);
    cudaMemcpy(x.data, values.data(), count * 4, cudaMemcpyHostToDevice);
    cudaMemcpyAsync(y.data, x.data, count * 4, cudaMemcpyDeviceToDevice, stream);
    cudaStreamSynchronize(stream);
    EXPECT_EQ(y.get()[count - 1], count > size_t{16} << 10 ? 2 : 1);
    EXPECT_EQ(x.get()[count - 1], 2);
  }
}

TEST_F(Emulator, DevicesHaveTheirOwnMemoryAndStreams) {
  emulated::set_device_count(2);
  const size_t before = emulated::device_bytes_used(1);
  const Buffer<float> x(ramp(4));
  cudaStream_t there = nullptr;
  cudaEvent_t event = nullptr;
  cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  cudaStreamCreateWithFlags(&there, cudaStreamNonBlocking);
  {
    const Buffer<float> y(4);
    EXPECT_EQ(emulated::device_bytes_used(1), before + 256);
    EXPECT_EQ(cudaEventRecord(event, there), cudaErrorInvalidResourceHandle);
    start(stream, 1, 4, 0, add_kernel, x.data, 1.f);
    cudaEventRecord(event, stream);
    cudaStreamWaitEvent(there, event);
    const uint64_t staged = emulated::copies_through_host();
    cudaMemcpyPeerAsync(y.data, 1, x.data, 0, 16, there);
    EXPECT_EQ(cudaStreamSynchronize(there), cudaSuccess);
    EXPECT_EQ(emulated::copies_through_host() - staged, 1u) << "device 1 does not reach device 0";
    EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaSuccess);
    EXPECT_EQ(cudaDeviceEnablePeerAccess(0, 0), cudaErrorPeerAccessAlreadyEnabled);
    cudaMemcpyPeerAsync(y.data, 1, x.data, 0, 16, there);
    EXPECT_EQ(emulated::copies_through_host() - staged, 1u);
    EXPECT_EQ(y.get(), (std::vector<float>{1, 2, 3, 4}));
    cudaPointerAttributes attributes{};
    cudaPointerGetAttributes(&attributes, y.data);
    EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
    EXPECT_EQ(attributes.device, 1);
  }
  cudaEventDestroy(event);
  cudaStreamDestroy(there);
  cudaSetDevice(0);
  emulated::set_device_count(1);
}

using EmulatorDeathTest = Emulator;

TEST_F(EmulatorDeathTest, HostCodeThatTouchesDeviceMemory) {
  const Buffer<float> x(ramp(4));
  EXPECT_DEATH(x.data[1] = 1, "host code touched device memory");
}

TEST_F(EmulatorDeathTest, KernelsThatAccessOtherMemory) {
  const Buffer<float> x(ramp(64));
  EXPECT_DEATH(
      {
        start(stream, 1, 2, 0, add_kernel, x.data + 63, 1.f);
        cudaStreamSynchronize(stream);
      },
      "add_kernel.*, block \\(0, 0, 0\\), thread \\(1, 0, 0\\) touched device memory that is not "
      "there, 256 bytes behind the start of 256");
}

__global__ void wide_load_kernel(const float* x, float4* out) {
  *out = *reinterpret_cast<const float4*>(x);
}

TEST_F(EmulatorDeathTest, VectorLoadsOfAddressesThatAreNotAligned) {
  const Buffer<float> x(ramp(8));
  const Buffer<float4> out(1);
  start(stream, 1, 1, 0, wide_load_kernel, x.data + 4, out.data);
  cudaStreamSynchronize(stream);
  EXPECT_EQ(out.get()[0].y, 5);
  EXPECT_DEATH(
      {
        start(stream, 1, 1, 0, wide_load_kernel, x.data + 2, out.data);
        cudaStreamSynchronize(stream);
      },
      "misaligned address");
}

TEST_F(Emulator, WritesAroundAnAllocationAreFound) {
  auto x = std::make_unique<Buffer<float>>(ramp(3));
  ASSERT_EQ(cudaMemsetAsync(x->data, 0, 13, stream), cudaSuccess);
  x.reset();
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
  EXPECT_NE(emulated::device_error().find("around an allocation of 12 bytes"), std::string::npos);
}

}  // namespace
}  // namespace weft
