#include "kernels/copy.h"

#include <algorithm>
#include <cstring>
#include <limits>

#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

int64_t offset_of(const TensorView& view, int64_t i) {
  int64_t offset = 0;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    offset += i % view.extent[dim] * view.stride[dim];
    i /= view.extent[dim];
  }
  return offset;
}

// Fills bytes 1, 2, 3, ... so that a misplaced element shows.
void fill_bytes(const TensorView& contiguous) {
  auto* data = static_cast<unsigned char*>(contiguous.data);
  for (size_t i = 0; i < contiguous.bytes(); ++i) data[i] = static_cast<unsigned char>(i * 7 + 1);
}

void expect_moved(const TensorView& x, const TensorView& out) {
  const size_t size = size_of(x.dtype);
  for (int64_t i = 0; i < x.count(); ++i)
    ASSERT_EQ(0,
              std::memcmp(static_cast<char*>(x.data) + offset_of(x, i) * int64_t(size),
                          static_cast<char*>(out.data) + offset_of(out, i) * int64_t(size), size))
        << "element " << coordinate(x, i) << " of " << x.to_string_shape();
}

TEST(Copy, MovesEveryDtypeOverPermutedAndSlicedViews) {
  for (const Ops* ops : all_ops()) {
    for (int kind = 0; kind < static_cast<int>(DType::kCount); ++kind) {
      const DType dtype = static_cast<DType>(kind);
      SCOPED_TRACE(ops->name + " " + std::string(to_string(dtype)));
      for (int threads : {1, 3}) {
        Stream stream = Stream::cpu(threads, Determinism::kFixed, ops);
        Tensor x(dtype, {3, 4, 5, 2, 33});
        fill_bytes(x);
        const std::initializer_list<int> orders[] = {
            {0, 1, 2, 3, 4}, {4, 3, 2, 1, 0}, {1, 0, 2, 4, 3}, {0, 2, 1, 3, 4}, {3, 4, 0, 1, 2}};
        for (const auto& order : orders) {
          const TensorView from = x.view().permute(order);
          Tensor dense(dtype, from.shape());
          copy(stream, from, dense);
          expect_moved(from, dense);
          Tensor back(dtype, x.view().shape());  // scatter into the permuted view
          copy(stream, dense, back.view().permute(order));
          expect_moved(x, back);
        }
        const TensorView part = x.view().slice(4, 3, 17).slice(1, 1, 2);
        Tensor dense(dtype, part.shape());
        copy(stream, part, dense);
        expect_moved(part, dense);
      }
    }
  }
}

TEST(Copy, DoesNotWriteBetweenStrides) {
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    for (DType dtype : {DType::kF32, DType::kBF16, DType::kU8})
      for (DType from : {dtype, dtype == DType::kU8 ? dtype : DType::kF64}) {
        Tensor target(dtype, {4, 40}), source(from, {4, 31});
        std::memset(target.view().data, 0x5a, target.view().bytes());
        copy(stream, source, target.view().slice(1, 4, 31));
        fill_zero(stream, target.view().slice(1, 4, 31));
        const auto* bytes = static_cast<const unsigned char*>(target.view().data);
        const int64_t size = static_cast<int64_t>(size_of(dtype));
        for (int64_t i = 0; i < 160 * size; ++i) {
          const int64_t column = i / size % 40;
          ASSERT_EQ(bytes[i], column >= 4 && column < 35 ? 0 : 0x5a) << ops->name << " byte " << i;
        }
      }
  }
}

TEST(Copy, SingleElementsAndEmptyViews) {
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    float from = 2.5f;
    bf16 to{};
    copy(stream, TensorView(&from, DType::kF32, {}), TensorView(&to, DType::kBF16, {}));
    EXPECT_EQ(to_float(to), 2.5f);
    Tensor empty(DType::kF32, {0, 3}), none(DType::kBF16, {0, 3});
    copy(stream, empty, none);
    fill_zero(stream, none);
  }
}

// Returns the value of a binary16 bit pattern by its definition.
double half_value(uint16_t bits) {
  const int exponent = bits >> 10 & 31, fraction = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31)
    return fraction ? std::numeric_limits<double>::quiet_NaN()
                    : sign * std::numeric_limits<double>::infinity();
  return sign * (exponent ? std::ldexp(1024 + fraction, exponent - 25) : std::ldexp(fraction, -24));
}

double value_of(DType dtype, uint16_t bits) {
  return dtype == DType::kF16 ? half_value(bits) : to_float(bf16{bits});
}

TEST(Copy, EverySixteenBitPatternWidensExactly) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF16, DType::kBF16})
      for (DType wide : {DType::kF32, DType::kF64}) {
        Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
        Tensor x(dtype, {65536}), out(wide, {65536}), back(dtype, {65536});
        auto* bits = static_cast<uint16_t*>(x.view().data);
        for (int i = 0; i < 65536; ++i) bits[i] = static_cast<uint16_t>(i);
        copy(stream, x, out);
        copy(stream, out, back);
        const auto* returned = static_cast<const uint16_t*>(back.view().data);
        for (int i = 0; i < 65536; ++i) {
          const double expected = value_of(dtype, bits[i]);
          const double value = wide == DType::kF32 ? out.as<float>()[i] : out.as<double>()[i];
          if (std::isnan(expected)) {
            ASSERT_TRUE(std::isnan(value) && std::isnan(value_of(dtype, returned[i]))) << i;
          } else {
            ASSERT_EQ(value, expected) << ops->name << " pattern " << i;
            ASSERT_EQ(returned[i], bits[i]) << ops->name;
          }
        }
      }
}

// Returns values on, just beside and between the representable values of a 16-bit format.
std::vector<double> rounding_values(DType dtype) {
  std::vector<double> values;
  for (uint32_t bits = 0; bits + 1 < 65536; bits += 1 + bits % 13) {
    const double low = value_of(dtype, static_cast<uint16_t>(bits));
    const double high = value_of(dtype, static_cast<uint16_t>(bits + 1));
    if (!std::isfinite(low) || !std::isfinite(high)) continue;
    const double middle = (low + high) / 2;
    for (double value : {low, middle, middle * (1 + 0x1p-40), middle * (1 - 0x1p-40),
                         middle * (1 + 0x1p-20), middle * (1 - 0x1p-20)})
      values.push_back(value);
  }
  return values;
}

TEST(Copy, NarrowingRoundsOnceToNearestEven) {
  for (const Ops* ops : all_ops())
    for (DType narrow : {DType::kF16, DType::kBF16})
      for (DType wide : {DType::kF32, DType::kF64}) {
        SCOPED_TRACE(ops->name + " " + std::string(to_string(wide)) + " to " +
                     std::string(to_string(narrow)));
        const std::vector<double> values = rounding_values(narrow);
        const int64_t n = static_cast<int64_t>(values.size());
        Tensor x(wide, {n}), out(narrow, {n});
        for (int64_t i = 0; i < n; ++i)
          if (wide == DType::kF32)
            x.as<float>()[i] = static_cast<float>(values[i]);
          else
            x.as<double>()[i] = values[i];
        Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
        copy(stream, x, out);
        const auto* bits = static_cast<const uint16_t*>(out.view().data);
        for (int64_t i = 0; i < n; ++i) {
          const double exact = wide == DType::kF32 ? x.as<float>()[i] : x.as<double>()[i];
          const double error = std::fabs(value_of(narrow, bits[i]) - exact);
          // No neighbour is nearer; of two equally near ones, the even one wins.
          for (int step : {-1, 1}) {
            const double neighbour = value_of(narrow, static_cast<uint16_t>(bits[i] + step));
            if (!std::isfinite(neighbour) || (bits[i] == 0 && step < 0)) continue;
            const double other = std::fabs(neighbour - exact);
            ASSERT_TRUE(error < other || (error == other && bits[i] % 2 == 0))
                << exact << " became " << value_of(narrow, bits[i]);
          }
        }
      }
}

TEST(Copy, NarrowingOverflowsToInfinity) {
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    Tensor x(DType::kF32, {4}), out(DType::kF16, {4});
    const float values[4] = {65519.0f, 65520.0f, -1e30f, std::numeric_limits<float>::infinity()};
    std::copy(values, values + 4, x.as<float>());
    copy(stream, x, out);
    const auto* bits = static_cast<const uint16_t*>(out.view().data);
    EXPECT_EQ(bits[0], 0x7bff);
    EXPECT_EQ(bits[1], 0x7c00);
    EXPECT_EQ(bits[2], 0xfc00);
    EXPECT_EQ(bits[3], 0x7c00);
  }
}

TEST(Copy, GatherRowsConverts) {
  for (const Ops* ops : all_ops())
    for (DType from : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64})
      for (DType to : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(ops->name + " " + std::string(to_string(from)));
        Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
        Tensor exact = make_normal(DType::kBF16, {9, 37}, 14), table(from, {9, 37});
        copy(stream, exact, table);
        const int32_t chosen[5] = {8, 0, 3, 3, 1};
        Tensor ids(DType::kI32, {5}), out(to, {5, 37}), expected(to, {9, 37});
        std::copy(chosen, chosen + 5, ids.as<int32_t>());
        copy(stream, table, expected);
        gather_rows(stream, table, ids, out);
        for (int64_t i = 0; i < 5; ++i)
          EXPECT_TRUE(bitwise_equal(out.view().select(0, i), expected.view().select(0, chosen[i])));
      }
}

// The values lie on and around every step of 8 bits, and far outside.
TEST(Copy, FramesBecomeBytesByTheNearest) {
  for (const Ops* ops : all_ops())
    for (const auto& [frames, height, width] :
         {std::array<int64_t, 3>{1, 1, 1}, {2, 3, 5}, {3, 8, 12}, {0, 4, 4}}) {
      SCOPED_TRACE(ops->name + " width " + std::to_string(width));
      Tensor x(DType::kF32, {frames, 3, height, width}),
          out(DType::kU8, {frames, height, width, 3});
      const int64_t pixels = height * width;
      for (int64_t i = 0; i < x.count(); ++i) {
        const double step = static_cast<double>(i * 37 % 540 - 15) / 2;  // -7.5, -7, .. 262
        x.as<float>()[i] = static_cast<float>(2 * step / 255 - 1 + (i % 3 - 1) * 1e-6);
      }
      Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
      frames_to_rgb8(stream, x, out);
      for (int64_t i = 0; i < x.count(); ++i) {
        const int64_t frame = i / (3 * pixels), channel = i / pixels % 3, pixel = i % pixels;
        const float unit = std::clamp(x.as<float>()[i] * 0.5f + 0.5f, 0.0f, 1.0f);
        ASSERT_EQ(out.as<uint8_t>()[(frame * pixels + pixel) * 3 + channel],
                  static_cast<uint8_t>(std::nearbyint(unit * 255.0f)))
            << i;
      }
    }
}

TEST(CopyDeathTest, GatherRefusesAnIdOutsideTheTable) {
  Stream stream = Stream::cpu(1);
  Tensor table(DType::kF32, {3, 2}), ids(DType::kI32, {1}), out(DType::kF32, {1, 2});
  ids.as<int32_t>()[0] = 3;
  EXPECT_DEATH(gather_rows(stream, table, ids, out), "id");
}

}  // namespace
}  // namespace weft::test
