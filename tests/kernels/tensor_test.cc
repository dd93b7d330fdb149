#include "kernels/tensor.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft::test {
namespace {

TEST(TensorView, ShapeCountAndStrides) {
  float data[24];
  const TensorView view(data, DType::kF32, {2, 3, 4});
  EXPECT_EQ(view.count(), 24);
  EXPECT_EQ(view.bytes(), 96u);
  EXPECT_EQ(view[-1], 4);
  EXPECT_EQ(view.stride[0], 12);
  EXPECT_EQ(view.rows(), 6);
  EXPECT_EQ(view.row_stride(), 4);
  EXPECT_TRUE(view.contiguous());
  EXPECT_EQ(view.to_string_shape(), "[2, 3, 4] f32");
  EXPECT_FALSE(TensorView());
}

TEST(TensorView, SlicesShareTheData) {
  float data[24] = {};
  const TensorView view(data, DType::kF32, {2, 3, 4});
  const TensorView part = view.slice(1, 1, 2).slice(-1, 3, 1);
  EXPECT_EQ(part.as<float>(), data + 4 + 3);
  EXPECT_EQ(part[1], 2);
  EXPECT_FALSE(part.contiguous());
  const TensorView picked = view.select(1, 2);
  EXPECT_EQ(picked.rank, 2);
  EXPECT_EQ(picked.as<float>(), data + 8);
  EXPECT_EQ(picked.stride[0], 12);
  EXPECT_EQ(view.permute({2, 0, 1}).stride[0], 1);
  EXPECT_EQ(view.reshape({6, 4}).as<float>(), data);
}

TEST(TensorView, RowsCollapseWithAConstantStrideOnly) {
  float data[120];
  const TensorView view(data, DType::kF32, {4, 5, 6});
  EXPECT_TRUE(view.slice(2, 0, 3).rows_collapse());
  EXPECT_EQ(view.slice(2, 0, 3).row_stride(), 6);
  EXPECT_FALSE(view.slice(1, 0, 3).rows_collapse());
  EXPECT_TRUE(view.slice(1, 0, 1).rows_collapse());
  EXPECT_EQ(view.slice(1, 0, 1).row_stride(), 30);
  EXPECT_FALSE(view.permute({0, 2, 1}).rows_collapse());
  EXPECT_TRUE(TensorView(data, DType::kF32, {7}).rows_collapse());
}

TEST(TensorViewDeathTest, MisuseIsABug) {
  float data[24];
  const TensorView view(data, DType::kF32, {2, 3, 4});
  EXPECT_DEATH(view.as<bf16>(), "dtype");
  EXPECT_DEATH(view.slice(1, 2, 2), "dim");
  EXPECT_DEATH(view.reshape({5, 5}), "from");
  EXPECT_DEATH(view.slice(2, 0, 2).reshape({2, 6}), "contiguous");
  EXPECT_DEATH(view.permute({0, 0, 1}), "dim");
}

TEST(Tensor, FreshMemoryIsZeroAlignedAndCounted) {
  const size_t before = tensor_bytes_live();
  for (int64_t n : {0, 1, 1000, 1 << 20}) {
    Tensor tensor(DType::kF32, {n});
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.view().data) % 64, 0u);
    for (int64_t i = 0; i < n; i += 97) ASSERT_EQ(tensor.as<float>()[i], 0);
    EXPECT_GE(tensor_bytes_live(), before + static_cast<size_t>(4 * n));
    EXPECT_GE(tensor_bytes_peak(), tensor_bytes_live());
  }
  EXPECT_EQ(tensor_bytes_live(), before);
}

// Only memory from a 2 MiB boundary on can be a huge page.
TEST(Tensor, LargeMemoryBeginsAtAHugePage) {
  constexpr size_t kHugePage = size_t{2} << 20;
  for (int64_t bytes : {int64_t{2} << 20, (int64_t{5} << 20) + 1, int64_t{8} << 20}) {
    const Tensor first(DType::kU8, {bytes}), second(DType::kU8, {bytes});
    for (const Tensor* tensor : {&first, &second}) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor->view().data) % kHugePage, 0u);
      auto* data = static_cast<uint8_t*>(tensor->view().data);
      EXPECT_EQ(data[0], 0);
      data[bytes - 1] = 1;  // the last byte is writable
    }
  }
}

TEST(Tensor, MovesLeaveOneOwner) {
  Tensor a(DType::kF32, {3});
  a.as<float>()[0] = 5;
  Tensor b = std::move(a);
  EXPECT_EQ(b.as<float>()[0], 5);
  a = std::move(b);
  EXPECT_EQ(a.as<float>()[0], 5);
}

TEST(Bf16, RoundsToNearestEven) {
  EXPECT_EQ(to_bf16(1.0f).bits, 0x3f80);
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f).bits, 0x3f80);             // a tie goes to the even
  EXPECT_EQ(to_bf16(1.0f + 3 * 0x1p-8f).bits, 0x3f82);         // the other way
  EXPECT_EQ(to_bf16(1.0f + 0x1p-8f + 0x1p-20f).bits, 0x3f81);  // above the tie
  EXPECT_EQ(to_bf16(std::numeric_limits<float>::max()).bits, 0x7f80);
  EXPECT_EQ(to_bf16(-std::numeric_limits<float>::infinity()).bits, 0xff80);
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::quiet_NaN()))));
  EXPECT_TRUE(std::isnan(to_float(to_bf16(std::numeric_limits<float>::signaling_NaN()))));
  for (uint32_t bits = 0; bits < 0x7f80; ++bits) {
    const bf16 value{static_cast<uint16_t>(bits)};
    ASSERT_EQ(to_bf16(to_float(value)).bits, bits);
  }
}

TEST(DType, SizesAndNames) {
  EXPECT_EQ(size_of(DType::kBF16), 2u);
  EXPECT_EQ(size_of(DType::kF64), 8u);
  EXPECT_EQ(size_of(DType::kF8E5M2), 1u);
  EXPECT_EQ(to_string(DType::kI32), "i32");
}

}  // namespace
}  // namespace weft::test
