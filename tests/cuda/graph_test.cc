// Tests recorded work (kernels/device_graph.h).
#include <gtest/gtest.h>

#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/device_graph.h"
#include "kernels/pointwise.h"

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

}  // namespace
}  // namespace weft
