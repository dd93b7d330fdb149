// Tests recorded work (kernels/device_graph.h).
#include <gtest/gtest.h>

#include <thread>

#include "kernels/arena.h"
#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/device_graph.h"
#include "kernels/pointwise.h"
#include "tests/cuda/first_device.h"

namespace weft {
namespace {

constexpr int64_t kCount = 1000;

class Graph : public testing::Test {
 protected:
  float first(const Tensor& tensor) {
    const Tensor host(DType::kF32, {kCount});
    copy(stream, tensor, host);
    for (int64_t i = 1; i < kCount; ++i) EXPECT_EQ(host.as<float>()[i], host.as<float>()[0]);
    return host.as<float>()[0];
  }
  void fill(const Tensor& tensor, float value) {
    const Tensor host(DType::kF32, {kCount});
    for (int64_t i = 0; i < kCount; ++i) host.as<float>()[i] = value;
    copy(stream, host, tensor);
  }

  Stream stream = cuda_stream(0);
  Tensor x{DType::kF32, {kCount}, stream.device()}, y{DType::kF32, {kCount}, stream.device()};
};

TEST_F(Graph, RunsAtEveryLaunchOnWhatTheMemoryHoldsThen) {
  DeviceGraph graph;
  EXPECT_FALSE(graph);
  fill(x, 1);
  fill(y, 10);
  graph.record(stream, [&] { add(stream, x, y, y); });
  EXPECT_TRUE(graph);
  EXPECT_EQ(first(y), 10) << "recording runs nothing";
  graph.launch(stream);
  graph.launch(stream);
  EXPECT_EQ(first(y), 12);
  fill(x, 5);
  graph.launch(stream);
  EXPECT_EQ(first(y), 17);
}

TEST_F(Graph, ReadsPinnedMemoryAnew) {
  PinnedMemory pinned(kCount * sizeof(float));
  const TensorView host(pinned.data(), DType::kF32, {kCount});
  DeviceGraph graph;
  graph.record(stream, [&] { copy(stream, host, x); });
  for (float value : {3.0f, 4.0f}) {
    for (int64_t i = 0; i < kCount; ++i) host.as<float>()[i] = value;
    graph.launch(stream);
    EXPECT_EQ(first(x), value);
  }
}

TEST_F(Graph, AnErrorWhileRecordingRecordsNothing) {
  DeviceGraph graph;
  EXPECT_THROW(graph.record(stream,
                            [&] {
                              add(stream, x, y, y);
                              throw Error(ErrorKind::kUsage, "as asked");
                            }),
               Error);
  EXPECT_FALSE(graph);
  fill(x, 2);
  fill(y, 3);
  add(stream, x, y, y);  // the stream works again
  EXPECT_EQ(first(y), 5);
}

// Ranks that are threads share a device: while one records, another loads weights, ends a stage, or
// makes and drops streams.
TEST_F(Graph, OtherThreadsMayTakeAndFreeMemoryMeanwhile) {
  const std::function<void()> others[] = {[] { const Tensor zeros(DType::kF32, {kCount}, kCuda); },
                                          [] {
                                            Arena arena(size_t{1} << 30, kCuda);
                                            arena.alloc(DType::kF32, {kCount});
                                            arena.reset_high_water();
                                            arena.trim();
                                          },
                                          [] {
                                            Stream other = cuda_stream(0);
                                            const Tensor host(DType::kF32, {kCount}),
                                                device(DType::kF32, {kCount}, kCuda);
                                            copy(other, host, device);
                                            other.sync();
                                            cuda_queue(other).scratch(1 << 20);
                                            other.queue()->trim();
                                          },
                                          [] { const PinnedMemory pinned(1 << 12); }};
  for (const std::function<void()>& other : others) {
    SCOPED_TRACE(&other - others);
    fill(x, 1);
    fill(y, 10);
    DeviceGraph graph;
    int calls = 0;
    EXPECT_TRUE(graph.record(stream, [&] {
      ++calls;
      add(stream, x, y, y);
      std::thread(other).join();
      add(stream, x, y, y);
    }));
    EXPECT_EQ(calls, 1);
    graph.launch(stream);
    EXPECT_EQ(first(y), 12);
  }
}

// A library may wait for the whole device in another thread.
TEST_F(Graph, ALostRecordingIsMadeAgainOnceAndThenGivenUp) {
  for (const int losses : {1, 2, 3}) {
    SCOPED_TRACE(losses);
    fill(x, 1);
    fill(y, 10);
    DeviceGraph graph;
    int calls = 0;
    const auto work = [&] {
      add(stream, x, y, y);
      if (++calls <= losses) std::thread([] { cudaDeviceSynchronize(); }).join();
      add(stream, x, y, y);
    };
    EXPECT_EQ(graph.record(stream, work), losses == 1);
    EXPECT_EQ(calls, 2);
    EXPECT_EQ(static_cast<bool>(graph), losses == 1);
    EXPECT_EQ(first(y), 10);
    if (graph)
      graph.launch(stream);
    else
      add(stream, x, y, y);
    EXPECT_EQ(first(y), graph ? 12 : 11) << "the stream works again";
  }
}

}  // namespace
}  // namespace weft
