#include "models/offload/device_window.h"

#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "kernels/pointwise.h"

namespace weft::device_window {
namespace {

constexpr int kLayers = 7;
constexpr int64_t kWidth = 300;

// A layer that adds its values to a row. Its pieces have odd sizes.
struct Adder {
  Tensor row;   // [kWidth] f32
  Tensor mark;  // [3] f32: its index, to be read
};

Adder load(Stream& stream, int index) {
  const Tensor row(DType::kF32, {kWidth}), mark(DType::kF32, {3});
  for (int64_t i = 0; i < kWidth; ++i) row.as<float>()[i] = static_cast<float>(index * 1000 + i);
  mark.as<float>()[0] = static_cast<float>(index);
  Adder adder{Tensor(DType::kF32, {kWidth}, stream.device()),
              Tensor(DType::kF32, {3}, stream.device())};
  copy(stream, row, adder.row);
  copy(stream, mark, adder.mark);
  return adder;
}

std::vector<TensorView> pieces(const Adder& adder) { return {adder.row, adder.mark}; }

class Device : public testing::Test {
 protected:
  Stream stream = cuda_stream(0);
  Tensor sum{DType::kF32, {kWidth}, stream.device()};

  void expect_sum(const std::vector<int>& layers) {
    const Tensor host(DType::kF32, {kWidth});
    copy(stream, sum, host);
    for (int64_t i = 0; i < kWidth; ++i) {
      float expected = 0;
      for (int layer : layers) expected += static_cast<float>(layer * 1000 + i);
      ASSERT_EQ(host.as<float>()[i], expected) << i;
    }
  }
  void use(DeviceWindow<Adder>& window, int index) {
    window.use(stream, index, [&](const Adder& adder) { add(stream, sum, adder.row, sum); });
  }
};

TEST_F(Device, EveryLayerHasItsOwnWeightsForEverySize) {
  for (int resident = 2; resident < kLayers; ++resident) {
    SCOPED_TRACE(resident);
    fill_zero(stream, sum);
    DeviceWindow<Adder> window(cuda_stream(0), kLayers, resident, load, pieces);
    std::vector<int> used;
    for (int pass = 0; pass < 3; ++pass)
      for (int i = 0; i < kLayers; ++i) {
        use(window, i);  // the host waits for nothing
        used.push_back(i);
      }
    expect_sum(used);
    const int streamed = kLayers - (resident - 2);
    // The first two are in their slots at the beginning; two more than were used are in flight.
    EXPECT_EQ(window.copies(), 3 * streamed);
    int on_device = 0;
    window.for_resident([&](const Adder&, bool) { ++on_device; });
    EXPECT_EQ(on_device, resident);
  }
}

TEST_F(Device, CopiesWaitForTheWorkThatReadsTheirSlot) {
  Stream copies = cuda_stream(0);
  DeviceWindow<Adder> window(copies, kLayers, 2, load, pieces);
  fill_zero(stream, sum);
  for (int i = 0; i < kLayers; ++i) {
    use(window, i);
    copies.sync();  // the layer after next is in its slot before anything waited for the work
  }
  expect_sum({0, 1, 2, 3, 4, 5, 6});
}

TEST_F(Device, AnyOrderIsServed) {
  DeviceWindow<Adder> window(cuda_stream(0), kLayers, 3, load, pieces);
  const std::vector<int> order{3, 3, 0, 6, 5, 1, 2, 0, 4, 4, 6};
  for (int index : order) use(window, index);
  expect_sum(order);
}

TEST_F(Device, AnErrorOfTheWorkLeavesTheWindowUsable) {
  DeviceWindow<Adder> window(cuda_stream(0), kLayers, 2, load, pieces);
  EXPECT_THROW(
      window.use(stream, 1, [&](const Adder&) { throw Error(ErrorKind::kNonFinite, "as asked"); }),
      Error);
  for (int i = 0; i < kLayers; ++i) use(window, i);
  expect_sum({0, 1, 2, 3, 4, 5, 6});
}

}  // namespace
}  // namespace weft::device_window
