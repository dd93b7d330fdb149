// A communicator of NCCL with one rank, which sends to itself: on a GPU where there is one.
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "kernels/device_graph.h"
#include "kernels/transfer.h"
#include "parallel/transport/local.h"
#include "parallel/transport/nccl.h"

namespace weft {
namespace {

// The host never waits, and a recorded graph moves the message again.
TEST(NcclDevice, OneRankSendsToItself) {
  int devices = 0;
  try {
    devices = cuda_device_count();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  if (devices == 0) GTEST_SKIP() << "no CUDA device";
  const Device device{Device::Kind::kCuda, 0};
  const auto nccl = make_nccl(make_local_transports(1)[0], device);
  const std::vector<int> ranks{0};
  constexpr int kGroup = 3;
  nccl->open_group(kGroup, ranks);
  Stream stream = stream_on(device, 1);
  constexpr int64_t kCount = 1000, kBytes = 4 * kCount;
  Tensor values(DType::kF32, {kCount});
  for (int64_t i = 0; i < kCount; ++i) values.as<float>()[i] = static_cast<float>(i);
  const Tensor from = on_device(stream, std::move(values)), to(DType::kF32, {kCount}, device);
  const std::vector<DeviceMessage> messages{
      {.receive = true, .bytes = kBytes, .data = to.view().data},
      {.bytes = kBytes, .data = from.view().data}};
  const auto move = [&] {
    const auto transfer = nccl->enqueue(stream, PostOrder::kGroup, kGroup, ranks, messages);
    ASSERT_TRUE(transfer);
    nccl->wait(*transfer);
  };
  const auto expect_arrived = [&] {
    const HostCopy there(stream, to);
    for (int64_t i = 0; i < kCount; ++i)
      ASSERT_EQ(there.view().as<float>()[i], static_cast<float>(i));
  };
  move();
  expect_arrived();
  DeviceGraph graph;
  ASSERT_TRUE(graph.record(stream, move));
  for (int launch = 0; launch < 2; ++launch) {
    const Tensor zeros(DType::kF32, {kCount}, device);
    cuda_copy_bytes(stream, zeros.view().data, to.view().data, kBytes);
    graph.launch(stream);
    expect_arrived();
  }
}

}  // namespace
}  // namespace weft
