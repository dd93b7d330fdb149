#include "kernels/device_memory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <set>

#include "kernels/arena.h"
#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/reasons.h"
#include "kernels/device_graph.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/first_device.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

constexpr size_t kPiece = size_t{32} << 20;

// This file only belongs to the emulated build.
[[maybe_unused]] const bool kResizable = (resize_device = emulated::set_device_bytes) != nullptr;

std::vector<unsigned char> on_host(const void* data, size_t bytes) {
  std::vector<unsigned char> out(bytes, 0x55);
  WEFT_CUDA_CHECK(cudaMemcpy(out.data(), data, bytes, cudaMemcpyDeviceToHost));
  return out;
}

Tensor make_ramp() {
  Tensor ramp(DType::kF32, {100});
  for (int i = 0; i < 100; ++i) ramp.as<float>()[i] = static_cast<float>(i);
  return ramp;
}

TEST(CudaMemory, TensorsAreZeroAndCounted) {
  const size_t before = emulated::device_bytes_used(0);
  {
    const Tensor tensor(DType::kF32, {3, 100}, kCuda);
    EXPECT_EQ(on_host(tensor.view().data, 1200), std::vector<unsigned char>(1200, 0));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data) % 256, 0u);
    EXPECT_GE(emulated::device_bytes_used(0), before + 1200);
  }
  EXPECT_EQ(emulated::device_bytes_used(0), before);
}

TEST(CudaMemory, RangesCommitAndTrim) {
  const size_t before = emulated::device_bytes_used(0);
  {
    DeviceRange range(kCuda, 10 * kPiece);
    EXPECT_EQ(emulated::device_bytes_used(0), before);
    range.commit(1);
    EXPECT_EQ(range.committed(), kPiece);
    range.commit(2 * kPiece + 1);
    EXPECT_EQ(range.committed(), 3 * kPiece);
    EXPECT_EQ(emulated::device_bytes_used(0), before + 3 * kPiece);
    WEFT_CUDA_CHECK(cudaMemset(range.base(), 7, 3 * kPiece));
    EXPECT_EQ(on_host(range.base() + 3 * kPiece - 2, 2), std::vector<unsigned char>(2, 7));
    range.trim(kPiece + 1);
    EXPECT_EQ(range.committed(), 2 * kPiece);
    range.commit(3 * kPiece);  // gives fresh memory, not the old contents
    EXPECT_EQ(on_host(range.base() + 3 * kPiece - 2, 2), std::vector<unsigned char>(2, 0xff));
    EXPECT_EQ(on_host(range.base() + kPiece - 2, 2), std::vector<unsigned char>(2, 7));
    EXPECT_THROW(range.commit(10 * kPiece + 1), Error);
  }
  EXPECT_EQ(emulated::device_bytes_used(0), before);
}

TEST(CudaMemory, DevicesCopyDirectly) {
  emulated::set_device_count(2);
  {
    Stream streams[] = {cuda_stream(0), cuda_stream(1)};
    const uint64_t before = emulated::copies_through_host();
    for (Stream& stream : streams)
      for (const int from : {0, 1}) {
        const Tensor host = make_ramp(), back(DType::kF32, {100});
        const Device here = streams[from].device(), there = streams[1 - from].device();
        Arena arena(size_t{1} << 30, there);
        const Tensor x(DType::kF32, {100}, here), y(DType::kF32, {100}, there);
        const TensorView z = arena.alloc(DType::kF32, {100});
        copy(streams[from], host, x);
        streams[from].sync();
        cuda_copy_bytes(stream, x.view().data, y.view().data, 400);
        stream.sync();
        fill_zero(streams[from], x);
        cuda_copy_bytes(stream, y.view().data, z.data, 400);
        streams[from].sync();
        cuda_copy_bytes(stream, z.data, x.view().data, 400);
        stream.sync();
        copy(streams[from], x, back);
        EXPECT_EQ(std::memcmp(back.view().data, host.view().data, 400), 0);
      }
    EXPECT_EQ(emulated::copies_through_host(), before);
  }
  emulated::set_device_count(1);
}

TEST(CudaMemory, OutOfMemorySaysHowMuch) {
  const size_t used = emulated::device_bytes_used(0);
  emulated::set_device_bytes(used + 2 * kPiece);
  test::expect_error(ErrorKind::kMemory, "cuda:0: 128.00 MiB requested, 64.00 MiB of ", [&] {
    const Tensor tensor(DType::kF32, {static_cast<int64_t>(kPiece)}, kCuda);
  });
  DeviceRange range(kCuda, 4 * kPiece);
  EXPECT_THROW(range.commit(3 * kPiece), Error);
  range.trim(0);
  EXPECT_EQ(device_memory_info(kCuda).free, 2 * kPiece);
  const Tensor fits(DType::kF32, {static_cast<int64_t>(kPiece / 4)}, kCuda);
  EXPECT_LE(device_memory_info(kCuda).free, kPiece);
  emulated::set_device_bytes(size_t{8} << 30);
}

// A failed call of the runtime names the call in the same line.
TEST(CudaMemory, EveryCallSaysThatMemoryIsShort) {
  try {
    WEFT_CUDA_CHECK(cudaErrorMemoryAllocation);
    ADD_FAILURE() << "it was taken for success";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kMemory);
    for (const char* part : {"cuda:0: asked by cudaErrorMemoryAllocation, ", " free",
                             ". Try --resident-layers 2 or --weights fp8 or "})
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(CudaDevices, AStatusWithoutADeviceHasAReason) {
  std::set<std::string> reasons;
  for (const cudaError_t status :
       {cudaErrorStubLibrary, cudaErrorInsufficientDriver, cudaErrorDevicesUnavailable,
        cudaErrorNoDevice, cudaErrorSystemNotReady, cudaErrorSystemDriverMismatch,
        cudaErrorCompatNotSupportedOnDevice, cudaErrorUnknown})
    EXPECT_TRUE(reasons.insert(absence_of(status)).second) << status;
  EXPECT_FALSE(reasons.contains(""));
  for (const cudaError_t status : {cudaSuccess, cudaErrorMemoryAllocation, cudaErrorLaunchFailure})
    EXPECT_EQ(absence_of(status), "");
  EXPECT_EQ(cuda_absence(), "");
}

TEST(CudaMemory, ArenasOfADevice) {
  Arena arena(size_t{1} << 30, kCuda);
  TensorView first;
  {
    Arena::Scope scope(arena);
    first = arena.alloc(DType::kF32, {5});
    EXPECT_EQ(first.device, kCuda);
    EXPECT_EQ(on_host(first.data, 1), std::vector<unsigned char>(1, 0xff)) << "undefined, so NaN";
  }
  EXPECT_EQ(arena.alloc(DType::kF32, {5}).data, first.data);
  EXPECT_THROW(arena.alloc(DType::kF32, {int64_t{1} << 30}), Error);
}

TEST(CudaMemory, EventsAndPinnedMemory) {
  Stream stream = cuda_stream(0);
  DeviceEvent event;
  EXPECT_TRUE(event.done());
  const Tensor tensor(DType::kU8, {4}, kCuda);
  PinnedMemory pinned(4);
  auto* const bytes = static_cast<volatile unsigned char*>(pinned.data());
  const cudaStream_t raw = cuda_queue(stream).stream();
  WEFT_CUDA_CHECK(cudaMemsetAsync(tensor.view().data, 9, 4, raw));
  WEFT_CUDA_CHECK(
      cudaMemcpyAsync(pinned.data(), tensor.view().data, 4, cudaMemcpyDeviceToHost, raw));
  event.record(stream);
  EXPECT_NE(bytes[0], 9) << "nobody has waited";
  EXPECT_FALSE(event.done());
  event.sync();
  EXPECT_EQ(bytes[3], 9);
  EXPECT_TRUE(event.done());
}

TEST(CudaMemory, GraphsReplayAnOpsWork) {
  Stream stream = cuda_stream(0);
  const Tensor x(DType::kU8, {4}, kCuda), y(DType::kU8, {4}, kCuda);
  const cudaStream_t raw = cuda_queue(stream).stream();
  const auto work = [&] {
    WEFT_CUDA_CHECK(
        cudaMemcpyAsync(y.view().data, x.view().data, 4, cudaMemcpyDeviceToDevice, raw));
  };
  DeviceGraph graph;
  EXPECT_THROW(graph.record(stream,
                            [&] {
                              work();
                              stream.sync();
                            }),
               Error)
      << "waiting cannot be recorded";
  EXPECT_FALSE(graph);
  graph.record(stream, work);
  for (const unsigned char value : {3, 4}) {
    WEFT_CUDA_CHECK(cudaMemsetAsync(x.view().data, value, 4, raw));
    graph.launch(stream);
    stream.sync();
    EXPECT_EQ(on_host(y.view().data, 4), std::vector<unsigned char>(4, value));
  }
}

}  // namespace
}  // namespace weft
