// Tests that gated_add_norm and rms_norm_rope, which a device fuses, have the bits of the ops that
// they stand for, on a CPU and on a device.
#include <gtest/gtest.h>

#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/meter.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/rope.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

// A stream of the CPU, and one of a device where there is one.
std::vector<Stream> all_streams() {
  std::vector<Stream> streams;
  streams.push_back(Stream::cpu(1));
  if (cuda_absence().empty()) streams.push_back(cuda_stream(0));
  return streams;
}

Tensor on_the_device(Stream& stream, const Tensor& host) {
  Tensor out(host.view().dtype, host.view().shape(), stream.device());
  copy(stream, host, out);
  return out;
}

Tensor on_the_host(Stream& stream, const TensorView& x) {
  Tensor out(x.dtype, x.shape());
  copy(stream, x, out);
  stream.sync();
  return out;
}

// The widths are one group, several per thread, a block's, unaligned, and too long for registers.
void check_gated_sums(Stream& stream) {
  for (int64_t width : {4, 36, 256, 1000, 1536, 2050, 5120, 8200})
    for (DType dtype : {DType::kF32, DType::kBF16})
      for (bool modulated : {false, true})
        for (int64_t pad : {0, 3}) {
          SCOPED_TRACE(std::to_string(width) + " " + std::string(to_string(dtype)) + " modulated " +
                       std::to_string(modulated) + " pad " + std::to_string(pad));
          constexpr int64_t kRows = 5;
          const Tensor x = on_the_device(stream, make_normal(DType::kF32, {kRows, width}, 1)),
                       y = on_the_device(stream, make_normal(DType::kF32, {kRows, width + pad}, 2)),
                       gate = on_the_device(stream, make_normal(DType::kF32, {width}, 3)),
                       weight = on_the_device(stream, make_normal(DType::kF32, {width}, 4)),
                       bias = on_the_device(stream, make_normal(DType::kF32, {width}, 5));
          const Tensor sum(DType::kF32, {kRows, width}, stream.device()),
              apart(DType::kF32, {kRows, width}, stream.device()),
              out(dtype, {kRows, width}, stream.device()),
              expected(dtype, {kRows, width}, stream.device());
          const TensorView added = y.view().slice(1, 0, width);
          copy(stream, x, sum);
          gated_add_norm(stream, sum, added, gate,
                         {.weight = weight, .bias = bias, .eps = 1e-6f, .modulated = modulated},
                         out);
          gated_add(stream, x, added, gate, apart);
          if (modulated)
            modulated_layer_norm(stream, apart, weight, bias, 1e-6f, expected);
          else
            layer_norm(stream, apart, weight, bias, 1e-6f, expected);
          EXPECT_TRUE(bitwise_equal(on_the_host(stream, sum), on_the_host(stream, apart)));
          EXPECT_TRUE(bitwise_equal(on_the_host(stream, out), on_the_host(stream, expected)));
        }
}

struct HeadsCase {
  int64_t heads, size;
  bool whole;          // the norm is that of all heads
  int64_t others = 0;  // heads beside them in a row
  RopePairs order = RopePairs::kNeighbours;
};

TEST(FusedOps, AGatedSumAndItsNormHaveTheBitsOfBoth) {
  for (Stream& stream : all_streams()) check_gated_sums(stream);
}

void check_heads(Stream& stream) {
  for (const HeadsCase& c : {HeadsCase{2, 16, false},
                             {3, 128, false},
                             {24, 128, false, 48},
                             {12, 128, true},
                             {40, 128, true},
                             {1, 40, true},
                             {2, 6, false},
                             {5, 10, true},
                             {160, 128, true},
                             {4, 64, false, 0, RopePairs::kHalves}})
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(std::to_string(c.heads) + "x" + std::to_string(c.size) + " whole " +
                   std::to_string(c.whole) + " " + std::string(to_string(dtype)));
      const std::array<int64_t, 3> grid{2, 3, 5};
      constexpr int64_t kRows = 17, kFirst = 7;
      const int size = static_cast<int>(c.size);
      const Rope host = c.order == RopePairs::kHalves ? make_line_rope(30, 4, size, 1e4, c.order)
                                                      : make_rope(grid, {1, 2, 3}, size);
      const Rope rope = on_device(stream, host);
      const Tensor all =
          on_the_device(stream, make_normal(dtype, {kRows, c.heads + c.others, c.size}, 1));
      const Tensor weight =
          on_the_device(stream, make_normal(DType::kF32, {c.whole ? c.heads * c.size : c.size}, 2));
      const TensorView x = all.view().slice(1, 0, c.heads);
      const HeadNorm norm{.weight = weight, .eps = 1e-6f};
      const Tensor expected(dtype, {kRows, c.heads, c.size}, stream.device());
      copy(stream, x, expected);
      norm_heads(stream, expected, norm);
      apply_rope(stream, expected, rope, kFirst, expected);
      const Tensor before = on_the_host(stream, all);
      rms_norm_rope(stream, x, norm, rope, kFirst, x);
      EXPECT_TRUE(bitwise_equal(on_the_host(stream, x), on_the_host(stream, expected)));
      if (c.others == 0) continue;
      const Tensor after = on_the_host(stream, all);
      EXPECT_TRUE(bitwise_equal(before.view().slice(1, c.heads, c.others),
                                after.view().slice(1, c.heads, c.others)));
    }
}

TEST(FusedOps, ANormOfHeadsAndRopeHaveTheBitsOfBoth) {
  for (Stream& stream : all_streams()) check_heads(stream);
}

}  // namespace
}  // namespace weft::test
