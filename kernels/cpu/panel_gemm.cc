#include "kernels/cpu/panel_gemm.h"

#include <algorithm>
#include <cstring>

#include "kernels/convert.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/panel_gemm.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/exponential-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

// The extent of one task: the left chunk (96 x 256 f32, 96 KiB) and the sums (96 x 256) stay in L2,
// a slice of weights (256 x 32 f32, 32 KiB) in L1.
constexpr int64_t kTaskRows = 96, kTaskColumns = 256, kDepth = 256, kSlice = 32;
constexpr int64_t kCopyRows = 24;
constexpr int64_t kMostGemvRows = 16;

struct Range {
  int64_t begin, count;
};

// Adds the bias to the sums, applies the activation and stores the results.
void finish_block(const PanelGemm& gemm, Range rows, Range columns, float* sums, int64_t sums_row) {
  const TileTag d;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  for (int64_t r = 0; r < rows.count; ++r) {
    float* sum = sums + r * sums_row;
    // The rows of the sums are padded to whole vectors; the bias is not.
    if (gemm.bias)
      for (int64_t j = 0; j < columns.count; ++j) sum[j] += gemm.bias[columns.begin + j];
    if (gemm.activation != LinearActivation::kNone)
      for (int64_t j = 0; j < columns.count; j += lanes)
        hn::StoreU(activate(gemm.activation, hn::LoadU(d, sum + j)), d, sum + j);
    const int64_t at = (rows.begin + r) * gemm.out_stride + columns.begin;
    if (gemm.out_dtype == DType::kF32)
      std::memcpy(static_cast<float*>(gemm.out) + at, sum, columns.count * sizeof(float));
    else
      convert_row(sum, columns.count, static_cast<bf16*>(gemm.out) + at);
  }
}

// Multiplies rows [row, row + rows) by panels [panel, panel + panels).
void run_task(const PanelGemm& gemm, int64_t row, int64_t rows, int64_t panel, int64_t panels) {
  const Panels& w = gemm.weight;
  const int64_t sums_row = panels * w.block;
  float* chunk = thread_scratch<float>(Scratch::kLeft, kTaskRows * kDepth);
  float* slice = thread_scratch<float>(Scratch::kRight, kDepth * kSlice);
  float* sums = thread_scratch<float>(Scratch::kSums, rows * sums_row);
  for (int64_t k = 0; k < w.in; k += kDepth) {
    const int64_t depth = std::min(kDepth, w.in - k);
    TileLeft left{gemm.left + row * gemm.left_stride + k, gemm.left_stride, 1};
    if (!gemm.left) {
      gemm.gather(gemm.context, row, rows, k, depth, chunk);
      left = {chunk, depth, 1};
    }
    for (int64_t p = 0; p < panels; ++p) {
      const int64_t origin = (panel + p) * w.stride + k * w.block;
      const bool dense = w.dtype == DType::kF32 && rows < kCopyRows;
      const int64_t width = dense ? w.block : std::min(kSlice, w.block);
      for (int64_t j = 0; j < w.block; j += width) {
        const int64_t columns = std::min(width, w.block - j);
        // bf16 weights are widened into the slice. f32 weights are copied if enough rows pay for
        // it: a slice read in place at the panel's stride uses only half the sets of L1.
        TileRight<float> right{static_cast<const float*>(w.data) + origin + j, w.block};
        if (!dense) {
          for (int64_t i = 0; i < depth; ++i) {
            const int64_t at = origin + i * w.block + j;
            if (w.dtype == DType::kBF16)
              convert_row(static_cast<const bf16*>(w.data) + at, columns, slice + i * kSlice);
            else
              std::memcpy(slice + i * kSlice, static_cast<const float*>(w.data) + at,
                          columns * sizeof(float));
          }
          right = {slice, kSlice};
        }
        tile_gemm(left, rows, columns, depth, right, {sums + p * w.block + j, sums_row, k > 0});
      }
    }
  }
  const int64_t column = panel * w.block;
  finish_block(gemm, {row, rows}, {column, std::min(sums_row, w.out - column)}, sums, sums_row);
}

// Multiplies few rows by one panel, in chunks, so that all passes over a chunk after the first find
// it in L1.
template <class W>
void run_gemv_panel(const PanelGemm& gemm, const TileLeft& left, int64_t panel) {
  constexpr int64_t kBlock = 64, kChunk = 128;
  alignas(64) float sums[kMostGemvRows * kBlock];
  const Panels& w = gemm.weight;
  const W* data = static_cast<const W*>(w.data) + panel * w.stride / kValuesOf<W>;
  for (int64_t k = 0; k < w.in; k += kChunk)
    tile_gemv<W>({left.data + k, left.row, 1}, gemm.rows, kBlock,
                 std::min(kChunk, w.in - k) / kValuesOf<W>,
                 {data + k * kBlock / kValuesOf<W>, kBlock}, {sums, kBlock, k > 0});
  const int64_t column = panel * kBlock;
  finish_block(gemm, {0, gemm.rows}, {column, std::min(kBlock, w.out - column)}, sums, kBlock);
}

// For so few rows that reading the weights is most of the work: panels are read one by one, each in
// the order of its memory.
void run_gemv(const Stream& stream, const PanelGemm& gemm) {
  const Panels& w = gemm.weight;
  TileLeft left{gemm.left, gemm.left_stride, 1};
  if (!gemm.left) {
    float* rows = thread_scratch<float>(Scratch::kLeft, gemm.rows * w.in);
    gemm.gather(gemm.context, 0, gemm.rows, 0, w.in, rows);
    left = {rows, w.in, 1};
  }
  const auto panel = [&](int64_t p) {
    if (w.pairs)
      run_gemv_panel<Bf16Pair>(gemm, left, p);
    else if (w.dtype == DType::kF32)
      run_gemv_panel<float>(gemm, left, p);
    else
      run_gemv_panel<bf16>(gemm, left, p);
  };
  const int64_t panels = (w.out + w.block - 1) / w.block;
  // One core takes about 20 us for 256 KiB of weights or 1 Mi multiplications.
  const auto bytes = w.in * w.out * static_cast<int64_t>(size_of(w.dtype));
  if (std::max(bytes * 4, gemm.rows * w.in * w.out) < int64_t{1} << 20)
    for (int64_t p = 0; p < panels; ++p) panel(p);
  else
    parallel_tasks(stream, panels, panel);
}

void run(const Stream& stream, const PanelGemm& gemm) {
  const Panels& w = gemm.weight;
  if (gemm.rows <= kMostGemvRows && w.block == 64) {
    run_gemv(stream, gemm);
    return;
  }
  CHECK(!w.pairs, "pairs for", gemm.rows, "rows");
  const int64_t all_panels = (w.out + w.block - 1) / w.block;
  const int64_t task_panels = std::max<int64_t>(1, kTaskColumns / w.block);
  const int64_t across = (all_panels + task_panels - 1) / task_panels;
  const int64_t down = (gemm.rows + kTaskRows - 1) / kTaskRows;
  const auto task = [&](int64_t i) {
    const int64_t row = i % down * kTaskRows, panel = i / down * task_panels;
    run_task(gemm, row, std::min(kTaskRows, gemm.rows - row), panel,
             std::min(task_panels, all_panels - panel));
  };
  // Below about 20 us of work a second thread costs more than it gains.
  if (gemm.rows * w.in * w.out < int64_t{1} << 20)
    for (int64_t i = 0; i < across * down; ++i) task(i);
  else
    parallel_tasks(stream, across * down, task);
}

// Packs one panel of a dense matrix: up to `block` rows from `first` on, side by side. A chunk of
// each row is widened into a square in L1, which is then gathered column by column; with scalar
// moves packing took four times as long as reading the file.
template <class From, class To>
void pack_dense(const TensorView& weight, int64_t first, int64_t block, To* to) {
  const int64_t in = weight[1], columns = std::min(block, weight[0] - first);
  const int64_t row_bytes = weight.stride[0] * static_cast<int64_t>(sizeof(From));
  const char* from = static_cast<const char*>(weight.data) + first * row_bytes;
  // The row length is odd, so that columns fall into different cache sets.
  constexpr int64_t kChunk = 64, kRow = kChunk + 1;
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  CHECK(block <= kChunk, "block", block);
  alignas(64) float square[kChunk * kRow] = {};
  alignas(64) float row[kChunk];
  alignas(64) From chunk[kChunk];
  const auto down = hn::Mul(hn::Iota(di, 0), hn::Set(di, static_cast<int32_t>(kRow)));
  for (int64_t begin = 0; begin < in; begin += kChunk) {
    const int64_t depth = std::min(kChunk, in - begin);
    for (int64_t j = 0; j < columns; ++j) {
      // The source may be mapped at any byte address.
      std::memcpy(chunk, from + j * row_bytes + begin * static_cast<int64_t>(sizeof(From)),
                  depth * sizeof(From));
      if constexpr (std::is_same_v<From, float>)
        std::memcpy(square + j * kRow, chunk, depth * sizeof(float));
      else
        convert_row(chunk, depth, square + j * kRow);
    }
    for (int64_t i = 0; i < depth; ++i, to += block) {
      for (int64_t j = 0; j < block; j += lanes) {
        const auto column = hn::GatherIndex(d, square + j * kRow + i, down);
        if constexpr (std::is_same_v<To, float>)
          hn::StoreU(column, d, to + j);
        else
          hn::StoreU(column, d, row + j);
      }
      if constexpr (!std::is_same_v<To, float>) convert_row(row, block, to);
    }
  }
}

void pack_dense_panel(const TensorView& weight, int64_t first, int64_t block, DType dtype,
                      void* to) {
  visit_dtype(weight.dtype, [&](auto source) {
    visit_dtype(dtype, [&](auto target) {
      pack_dense<decltype(source)>(weight, first, block, static_cast<decltype(target)*>(to));
    });
  });
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(run);
HWY_EXPORT(pack_dense_panel);

void panel_gemm(Stream& stream, const PanelGemm& gemm) { HWY_DYNAMIC_DISPATCH(run)(stream, gemm); }

namespace {

// Packs one panel: every (tap, channel) of `block` output columns side by side.
template <class From, class To>
void pack_panel(const TensorView& weight, int64_t first, int64_t block, To* to) {
  const int64_t columns = std::min(block, weight[0] - first), in = weight[-1];
  const int taps_rank = weight.rank - 2;
  int64_t taps = 1;
  for (int d = 1; d <= taps_rank; ++d) taps *= weight[d];
  for (int64_t tap = 0; tap < taps; ++tap) {
    int64_t offset = 0;
    for (int64_t d = taps_rank, rest = tap; d >= 1; rest /= weight[d], --d)
      offset += rest % weight[d] * weight.stride[d];
    for (int64_t i = 0; i < in; ++i, to += block)
      for (int64_t j = 0; j < columns; ++j) {
        const int64_t at =
            (first + j) * weight.stride[0] + offset + i * weight.stride[weight.rank - 1];
        From value;  // the source may be mapped at any byte address
        std::memcpy(&value, static_cast<const char*>(weight.data) + at * sizeof(From),
                    sizeof value);
        to[j] = convert<To>(value);
      }
  }
}

}  // namespace

void pack_panels(Stream& stream, const TensorView& weight, DType dtype, int64_t block,
                 int64_t stride, void* data) {
  if (stream.device().measured()) return;
  const bool dense = weight.rank == 2 && weight.stride[1] == 1 && block <= 64 &&
                     (weight.dtype == DType::kF32 || weight.dtype == DType::kBF16);
  if (dense) {
    const int64_t panel_bytes = stride * static_cast<int64_t>(size_of(dtype));
    parallel_for(stream, (weight[0] + block - 1) / block, row_grain(stride),
                 [&](int64_t begin, int64_t end) {
                   for (int64_t p = begin; p < end; ++p) HWY_DYNAMIC_DISPATCH(pack_dense_panel)
                   (weight, p * block, block, dtype, static_cast<char*>(data) + p * panel_bytes);
                 });
    return;
  }
  visit_float(weight.dtype, [&](auto from) {
    visit_dtype(dtype, [&](auto to) {
      using From = decltype(from);
      using To = decltype(to);
      parallel_for(stream, (weight[0] + block - 1) / block, row_grain(stride),
                   [&](int64_t begin, int64_t end) {
                     for (int64_t p = begin; p < end; ++p)
                       pack_panel<From>(weight, p * block, block,
                                        static_cast<To*>(data) + p * stride);
                   });
    });
  });
}

}  // namespace weft::cpu
#endif
