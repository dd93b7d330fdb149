#include "kernels/cpu/linear_stored.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/linear_panels.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

constexpr int64_t kPanel = LinearPanels::kBlock;
// Values of a row that are expanded at a time: a panel's rows of them fit L2.
constexpr int64_t kDepth = 1024;
static_assert(kDepth % kLargestBlock == 0);
constexpr int64_t kPairDepth = 32;  // `in` is rounded up to this in kPairs

int64_t whole(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

// The values of `in` that the layout has room for.
int64_t depth_of(ExpandedLayout layout, int64_t in) {
  if (layout == ExpandedLayout::kRows) return in;
  return layout == ExpandedLayout::kPairs ? whole(in, kPairDepth) : LinearPanels::depth(in);
}

// Writes the values [k, k + count) of a row as f32; k is a multiple of the block's values.
void expand_row(const StoredMatrix& matrix, int64_t row, int64_t k, int64_t count, bool reference,
                float* out) {
  const BlockShape& shape = shape_of(matrix.type);
  const uint8_t* from =
      matrix.blocks.as<uint8_t>() + row * matrix.row_bytes() + k / shape.values * shape.bytes;
  (reference ? expand_blocks_reference : expand_blocks)(matrix.type, from, count / shape.values,
                                                        out);
  if (!matrix.scales) return;
  const float scale = matrix.scales.as<float>()[matrix.scales.count() == 1 ? 0 : row];
  if (!reference) return scale_values(scale, count, out);
  for (int64_t i = 0; i < count; ++i) out[i] *= scale;
}

void expand_rows(const Stream& stream, const StoredMatrix& matrix, DType dtype, void* data) {
  const int64_t in = matrix.in;
  parallel_for(stream, matrix.out, row_grain(in), [&](int64_t begin, int64_t end) {
    float* wide = thread_scratch<float>(Scratch::kExpanded, in);
    for (int64_t row = begin; row < end; ++row) {
      expand_row(matrix, row, 0, in, true, wide);
      visit_dtype(dtype, [&](auto tag) {
        using T = decltype(tag);
        T* out = static_cast<T*>(data) + row * in;
        for (int64_t i = 0; i < in; ++i) out[i] = from_float<T>(wide[i]);
      });
    }
  });
}

// Expands a panel of up to kPanel rows into `data`, which has room for `depth` values of each.
// Pairs of bf16 values are moved like f32 values of half the number.
void expand_panel(const StoredMatrix& matrix, int64_t first, ExpandedLayout layout, DType dtype,
                  char* data) {
  Stream own = Stream::cpu(1);
  const int64_t rows = std::min(kPanel, matrix.out - first), in = matrix.in;
  const bool pairs = layout == ExpandedLayout::kPairs;
  float* wide = thread_scratch<float>(Scratch::kExpanded, (pairs ? 1 : kPanel) * kDepth);
  bf16* narrow = pairs ? thread_scratch<bf16>(Scratch::kExpandedPairs, kPanel * kDepth) : nullptr;
  const int64_t value_bytes = static_cast<int64_t>(size_of(dtype));
  for (int64_t k = 0; k < in; k += kDepth) {
    const int64_t count = std::min(kDepth, in - k), even = whole(count, 2);
    for (int64_t r = 0; r < rows; ++r) {
      float* row = pairs ? wide : wide + r * count;
      expand_row(matrix, first + r, k, count, false, row);
      if (!pairs) continue;
      narrow_bf16(row, count, narrow + r * even);
      if (even > count) narrow[r * even + count] = {};
    }
    const TensorView part = pairs ? TensorView(narrow, DType::kF32, {rows, even / 2})
                                  : TensorView(wide, DType::kF32, {rows, count});
    pack_panels(own, part, pairs ? DType::kF32 : dtype, kPanel, 0, data + k * kPanel * value_bytes);
  }
  const int64_t done = pairs ? whole(in, 2) : in, depth = depth_of(layout, in);
  std::memset(data + done * kPanel * value_bytes, 0,
              static_cast<size_t>((depth - done) * kPanel * value_bytes));
}

}  // namespace

void StoredWeights::hold(Stream& stream, StoredMatrix given, ExpandedLayout as, DType dtype,
                         std::shared_ptr<SharedScratch> shared) {
  matrix = std::move(given);
  layout = as;
  scratch = std::move(shared);
  const bool rows = layout == ExpandedLayout::kRows;
  scratch->reserve(stream.device(), (rows ? matrix.out : whole(matrix.out, kPanel)) *
                                        depth_of(layout, matrix.in) *
                                        static_cast<int64_t>(size_of(dtype)));
}

void StoredWeights::expand(const Stream& stream, DType dtype, void* data) const {
  if (layout == ExpandedLayout::kRows) return expand_rows(stream, matrix, dtype, data);
  const int64_t panel = depth_of(layout, matrix.in) * kPanel * static_cast<int64_t>(size_of(dtype));
  const int64_t panels = (matrix.out + kPanel - 1) / kPanel;
  const auto one = [&](int64_t p) {
    expand_panel(matrix, p * kPanel, layout, dtype, static_cast<char*>(data) + p * panel);
  };
  // A small matrix is not worth a second thread.
  if (matrix.out * matrix.in < int64_t{1} << 16)
    for (int64_t p = 0; p < panels; ++p) one(p);
  else
    parallel_tasks(stream, panels, one);
}

PackedLinear pack_expanded(Stream& stream, const StoredMatrix& matrix, const TensorView& bias,
                           DType dtype) {
  const Tensor values(dtype, {matrix.out, matrix.in}, stream.device());
  if (!stream.device().measured()) expand_rows(stream, matrix, dtype, values.view().data);
  return stream.ops().linear.pack_linear(stream, values, bias, dtype, WeightFormat::kCompute);
}

}  // namespace weft::cpu
