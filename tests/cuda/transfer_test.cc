// Copies and gathers with one end on the host, on a device's stream.
#include <array>
#include <cstring>

#include "kernels/cuda/device.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

constexpr unsigned char kMark = 0x5a;

void mark(const TensorView& contiguous) {
  if (contiguous.count() > 0) std::memset(contiguous.data, kMark, contiguous.bytes());
}

DType any_float(Draw& draw) {
  return draw.one_of({DType::kF32, DType::kBF16, DType::kF16, DType::kF64});
}

// The layout of a view in its storage: gaps around every dimension, and a permutation of them.
struct Layout5 {
  std::vector<int64_t> outer, begin, shape;
  std::array<int, kMaxRank> order{0, 1, 2, 3, 4};

  Layout5(Draw& draw, const std::vector<int64_t>& wanted, bool dense) {
    const int rank = static_cast<int>(wanted.size());
    if (!dense)
      for (int i = rank; i > 1; --i) std::swap(order[i - 1], order[draw.below(i)]);
    shape.resize(rank);
    for (int dim = 0; dim < rank; ++dim) shape[order[dim]] = wanted[dim];
    for (int dim = 0; dim < rank; ++dim) {
      begin.push_back(dense ? 0 : draw.below(3));
      outer.push_back(shape[dim] + begin[dim] + (dense ? 0 : draw.below(3)));
    }
  }
  TensorView view(const TensorView& storage) const {
    TensorView inner = storage, out = storage;
    for (int dim = 0; dim < storage.rank; ++dim) inner = inner.slice(dim, begin[dim], shape[dim]);
    out.data = inner.data;
    for (int dim = 0; dim < storage.rank; ++dim) {
      out.extent[dim] = inner.extent[order[dim]];
      out.stride[dim] = inner.stride[order[dim]];
    }
    return out;
  }
};

Tensor copied_to_device(Stream& stream, const TensorView& host) {
  Tensor out(host.dtype, host.shape(), stream.device());
  copy(stream, host, out);
  return out;
}

Tensor to_host(Stream& stream, const TensorView& there) {
  Tensor out(there.dtype, there.shape());
  copy(stream, there, out);
  return out;
}

struct TransferCase {
  DType from, to;
  std::vector<int64_t> shape;
  bool dense_x, dense_out;
};

// Copies a case up and down, and compares it with the reference's result, gaps included.
void check_both_ways(Draw& draw, Stream& stream, const TransferCase& c) {
  const Layout5 x_layout(draw, c.shape, c.dense_x), out_layout(draw, c.shape, c.dense_out);
  Stream reference = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  Tensor x(c.from, x_layout.outer), expected(c.to, out_layout.outer);
  Tensor values(DType::kF32, x_layout.outer);
  fill_normal(values, draw, 100);
  if (c.from != c.to)
    copy(reference, values, x);
  else
    for (size_t i = 0; i < x.view().bytes(); ++i)
      static_cast<unsigned char*>(x.view().data)[i] = static_cast<unsigned char>(draw.below(256));
  mark(expected);
  copy(reference, x_layout.view(x), out_layout.view(expected));

  Tensor start(c.to, out_layout.outer);
  mark(start);
  const Tensor up = copied_to_device(stream, start), there = copied_to_device(stream, x);
  Tensor kept = clone(x);
  copy(stream, x_layout.view(x), out_layout.view(up));
  mark(x);  // pageable memory has been read when copy() returns
  EXPECT_TRUE(bitwise_equal(to_host(stream, up), expected)) << "up";

  Tensor down = clone(start);
  copy(stream, x_layout.view(there), out_layout.view(down));
  EXPECT_TRUE(bitwise_equal(down, expected)) << "down";
  EXPECT_TRUE(bitwise_equal(to_host(stream, there), kept));
}

TEST(CudaTransfer, AnyViewGoesUpAndDown) {
  Stream stream = cuda_stream(0, Determinism::kFixed, 2);
  for_cases(120, [&](Draw& draw) {
    const bool converts = draw.maybe(0.5);
    TransferCase c{.from = converts
                               ? any_float(draw)
                               : static_cast<DType>(draw.below(static_cast<int>(DType::kCount))),
                   .to = DType::kF32,
                   .shape = {},
                   .dense_x = draw.maybe(0.4),
                   .dense_out = draw.maybe(0.4)};
    c.to = converts ? any_float(draw) : c.from;
    for (int64_t rank = draw.below(kMaxRank + 1); rank > 0; --rank)
      c.shape.push_back(draw.maybe(0.03) ? 0 : draw.size(draw.maybe(0.2) ? 70 : 9));
    SCOPED_TRACE(std::string(to_string(c.from)) + " to " + std::string(to_string(c.to)));
    check_both_ways(draw, stream, c);
  });
}

// The view takes more than one piece of pinned memory, cut along one dimension and along two.
TEST(CudaTransfer, LargeViewsGoInPieces) {
  Stream stream = cuda_stream(0, Determinism::kFixed, 2);
  Draw draw(1);
  check_both_ways(draw, stream, {DType::kBF16, DType::kBF16, {2200, 1001}, true, true});
  check_both_ways(draw, stream, {DType::kF32, DType::kBF16, {2, 1060000}, false, false});
}

TEST(CudaTransfer, PinnedMemoryIsReadAndWrittenInTheStreamsOrder) {
  Stream stream = cuda_stream(0, Determinism::kFixed, 1);
  constexpr int64_t kCount = 1000;
  const PinnedMemory in(kCount * sizeof(float)), out(kCount * sizeof(bf16));
  const TensorView x(in.data(), DType::kF32, {kCount}), y(out.data(), DType::kBF16, {kCount});
  const Tensor values = make_normal(DType::kF32, {kCount}, 3);
  std::memcpy(in.data(), values.view().data, x.bytes());
  const Tensor there(DType::kF32, {kCount}, stream.device());
  copy(stream, x, there);
  copy(stream, there, y);  // converted
  copy(stream, there, x.slice(0, 0, kCount));
  stream.sync();
  Tensor expected(DType::kBF16, {kCount});
  Stream host = Stream::cpu(1);
  copy(host, values, expected);
  EXPECT_TRUE(bitwise_equal(y, expected));
  EXPECT_TRUE(bitwise_equal(x, values));
}

TEST(CudaTransfer, RowsAreGatheredFromTheHostAndTheDevice) {
  Stream stream = cuda_stream(0, Determinism::kFixed, 2);
  Stream reference = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  for (const auto& [vocabulary, rows, width] : {std::array<int64_t, 3>{9, 5, 37}, {20, 270, 4096}})
    for (const DType from : {DType::kBF16, DType::kF16})
      for (const DType to : {DType::kF32, DType::kBF16}) {
        if (rows > 5 && from != DType::kF16) continue;
        SCOPED_TRACE(std::string(to_string(from)) + " to " + std::string(to_string(to)));
        Tensor table(from, {vocabulary, width}), ids(DType::kI32, {rows}),
            expected(to, {rows, width});
        copy(reference, make_normal(DType::kF32, {vocabulary, width}, 5), table);
        for (int64_t i = 0; i < rows; ++i)
          ids.as<int32_t>()[i] = static_cast<int32_t>(i * 7 % vocabulary);
        gather_rows(reference, table, ids, expected);
        const Tensor table_there = copied_to_device(stream, table),
                     ids_there = copied_to_device(stream, ids);
        const Tensor wider(to, {rows, width + 3}, stream.device());
        const Tensor out(to, {rows, width}, stream.device());
        const auto check = [&](const TensorView& from_table, const TensorView& by) {
          for (const TensorView& target : {out.view(), wider.view().slice(1, 3, width)}) {
            fill_zero(stream, target);
            gather_rows(stream, from_table, by, target);
            EXPECT_TRUE(bitwise_equal(to_host(stream, target), expected));
          }
        };
        check(table, ids);
        check(table_there, ids);
        check(table_there, ids_there);
      }
}

}  // namespace
}  // namespace weft::test
