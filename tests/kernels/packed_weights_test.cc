#include "kernels/packed_weights.h"

#include <cstring>

#include "kernels/conv.h"
#include "kernels/linear.h"
#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

std::vector<TensorView> buffers_of(const PackedWeights& packed) {
  std::vector<TensorView> all;
  packed.for_buffers([&](Tensor& buffer) { all.push_back(buffer); });
  return all;
}

// Copies every buffer of `from` to the same buffer of `to`.
void move_values(const PackedWeights& from, const PackedWeights& to) {
  const std::vector<TensorView> source = buffers_of(from), target = buffers_of(to);
  ASSERT_EQ(source.size(), target.size());
  size_t bytes = 0;
  for (size_t i = 0; i < source.size(); ++i) {
    ASSERT_EQ(source[i].bytes(), target[i].bytes());
    std::memcpy(target[i].data, source[i].data, source[i].bytes());
    bytes += source[i].bytes();
  }
  EXPECT_EQ(from.bytes(), bytes);
}

template <class F>
void for_host_tables(F&& f) {
  for (const Ops* ops : all_ops())
    if (ops->name != "cuda") {
      SCOPED_TRACE(ops->name);
      Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
      f(stream);
    }
}

TEST(PackedWeights, ALinearTakesTheBuffersOfAnother) {
  const Tensor bias = make_normal(DType::kF32, {40}, 3),
               other_bias = make_normal(DType::kF32, {40}, 4);
  for_host_tables([&](Stream& stream) {
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const WeightFormat format : {WeightFormat::kCompute, WeightFormat::kInt8,
                                        WeightFormat::kFp8, WeightFormat::kFp8Tensor}) {
        const Tensor x = make_normal(dtype, {17, 70}, 1);
        const auto pack = [&](int seed, const Tensor& b) {
          return pack_linear(stream, make_normal(dtype, {40, 70}, seed), b, dtype, format);
        };
        const PackedLinear one = pack(5, bias), other = pack(6, other_bias);
        const Tensor expected(dtype, {17, 40}), before(dtype, {17, 40}), after(dtype, {17, 40});
        linear(stream, x, one, LinearActivation::kNone, expected);
        linear(stream, x, other, LinearActivation::kNone, before);
        move_values(one, other);
        linear(stream, x, other, LinearActivation::kNone, after);
        EXPECT_FALSE(bitwise_equal(before, expected));
        EXPECT_TRUE(bitwise_equal(after, expected)) << static_cast<int>(format);
      }
  });
}

TEST(PackedWeights, AConvolutionTakesTheBuffersOfAnother) {
  for_host_tables([&](Stream& stream) {
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const int64_t side : {1, 3}) {
        const Tensor x = make_normal(dtype, {2, 5, 6, 16}, 1);
        const auto pack = [&](int seed) {
          return pack_conv(stream, make_normal(dtype, {24, 16, 1, side, side}, seed),
                           make_normal(DType::kF32, {24}, seed + 10), dtype);
        };
        const PackedConv one = pack(5), other = pack(6);
        const ConvArgs args{.pad_h = {side / 2, side / 2}, .pad_w = {side / 2, side / 2}};
        const Tensor expected(dtype, {2, 5, 6, 24}), after(dtype, {2, 5, 6, 24});
        conv3d(stream, x, one, args, expected);
        move_values(one, other);
        conv3d(stream, x, other, args, after);
        EXPECT_TRUE(bitwise_equal(after, expected)) << side;
      }
  });
}

}  // namespace
}  // namespace weft::test
