// The hash of a matrix's bits changes with every bit, every place and nothing else.
#include "kernels/cuda/bits_sum.h"

#include <set>

#include "kernels/cuda/device.h"
#include "tests/cuda/first_device.h"
#include "tests/kernels/row_ops.h"

namespace weft::cuda {
namespace {

constexpr int64_t kBatch = 2, kRows = 5, kColumns = 300, kStride = 304;

// The hash of [kBatch, kRows, kColumns] whose rows are kStride elements apart.
uint64_t hash_of(Stream& stream, const Tensor& host) {
  const Tensor x(host.view().dtype, host.view().shape(), stream.device());
  const Tensor sum(DType::kI32, {2}, stream.device()), result(DType::kI32, {2});
  copy(stream, host, x);
  sum_bits(stream,
           {.m = kRows,
            .n = kColumns,
            .batch = kBatch,
            .out = {.data = x.view().data,
                    .dtype = host.view().dtype,
                    .row_stride = kStride,
                    .batch_stride = kRows * kStride}},
           reinterpret_cast<uint64_t*>(sum.view().data));
  copy(stream, sum, result);
  stream.sync();
  return *reinterpret_cast<const uint64_t*>(result.view().data);
}

TEST(BitsSum, ChangesWithEveryBitAndPlaceInTheMatrix) {
  Stream stream = cuda_stream(0, Determinism::kFixed, 1);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kI32}) {
    const int64_t size = dtype == DType::kBF16 ? 2 : 4;
    Tensor x(dtype, {kBatch * kRows, kStride});
    auto* const bytes = static_cast<uint8_t*>(x.view().data);
    for (int64_t i = 0; i < x.view().count() * size; ++i)
      bytes[i] = static_cast<uint8_t>(i * i % 251);
    const uint64_t first = hash_of(stream, x);
    EXPECT_EQ(hash_of(stream, x), first);
    std::set<uint64_t> found{first};
    const auto with_bit = [&](int64_t row, int64_t column, int bit) {
      uint8_t& byte = bytes[(row * kStride + column) * size + bit / 8];
      byte ^= 1 << bit % 8;
      const uint64_t hash = hash_of(stream, x);
      byte ^= 1 << bit % 8;
      return hash;
    };
    for (const int64_t row : {0, 4, 5, 9})
      for (const int64_t column : {0, 1, 255, 256, 299})
        for (const int bit : {0, 7, 15})
          EXPECT_TRUE(found.insert(with_bit(row, column, bit)).second);
    for (const int64_t row : {0, 9}) EXPECT_EQ(with_bit(row, kColumns, 0), first);  // beside it
    std::swap_ranges(bytes, bytes + size, bytes + size);
    EXPECT_TRUE(found.insert(hash_of(stream, x)).second);
  }
}

}  // namespace
}  // namespace weft::cuda
