// Data movement and conversion: views are reduced to as few dimensions as their strides allow,
// dense runs use memcpy or a vector conversion, transpositions use tiles.
#include <algorithm>
#include <cstring>

#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/copy_nest.h"
#include "kernels/cpu/bf16_rows.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/copy_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

void widen_run(const bf16* x, int64_t count, float* out) { convert_row(x, count, out); }
void narrow_run(const float* x, int64_t count, bf16* out) { convert_row(x, count, out); }

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(widen_run);
HWY_EXPORT(narrow_run);

void widen_bf16(const bf16* x, int64_t count, float* out) {
  HWY_DYNAMIC_DISPATCH(widen_run)(x, count, out);
}
void narrow_bf16(const float* x, int64_t count, bf16* out) {
  HWY_DYNAMIC_DISPATCH(narrow_run)(x, count, out);
}

namespace {

template <class From, class To>
void copy_run(const From* x, To* out, int64_t n) {
  if constexpr (std::is_same_v<From, To>)
    std::memcpy(out, x, static_cast<size_t>(n) * sizeof(To));
  else if constexpr (std::is_same_v<From, bf16> && std::is_same_v<To, float>)
    widen_bf16(x, n, out);
  else if constexpr (std::is_same_v<From, float> && std::is_same_v<To, bf16>)
    narrow_bf16(x, n, out);
  else
    for (int64_t i = 0; i < n; ++i) out[i] = convert<To>(x[i]);
}

// A square of this many elements a side is staged between reads along x and writes along out: each
// cache line of either side is touched once, for any power-of-two strides.
constexpr int64_t kTile = 64;

// Handles the two innermost loops, rows by columns: rows are dense in x, columns in out.
template <class From, class To>
void copy_plane(const From* x, To* out, const CopyNest& nest, int64_t row_begin, int64_t row_end) {
  const int row = nest.rank - 2, column = nest.rank - 1;
  const int64_t columns = nest.extent[column], x_row = nest.x[row], out_column = nest.out[column];
  const int64_t rows = row_end - row_begin;  // at most kTile
  To tile[kTile][kTile];
  for (int64_t c0 = 0; c0 < columns; c0 += kTile) {
    const int64_t n = std::min(kTile, columns - c0);
    for (int64_t c = 0; c < n; ++c) {
      const From* from = x + row_begin * x_row + (c0 + c) * nest.x[column];
      for (int64_t r = 0; r < rows; ++r) tile[r][c] = convert<To>(from[r * x_row]);
    }
    for (int64_t r = 0; r < rows; ++r) {
      To* to = out + (row_begin + r) * nest.out[row] + c0 * out_column;
      for (int64_t c = 0; c < n; ++c) to[c * out_column] = tile[r][c];
    }
  }
}

// Computes the element offsets of outer iteration i over the first `dims` dimensions.
void outer_offsets(const CopyNest& nest, int dims, int64_t i, int64_t& x, int64_t& out) {
  x = out = 0;
  for (int dim = dims - 1; dim >= 0; --dim) {
    x += i % nest.extent[dim] * nest.x[dim];
    out += i % nest.extent[dim] * nest.out[dim];
    i /= nest.extent[dim];
  }
}

template <class From, class To>
void copy_dense(Stream& stream, const CopyNest& nest, const From* x, To* out) {
  const int last = nest.rank - 1;
  const int64_t run = nest.extent[last];
  if (last == 0) {  // there is a single run: cut it among the threads
    parallel_for(stream, run, row_grain(1), [&](int64_t begin, int64_t end) {
      copy_run(x + begin, out + begin, end - begin);
    });
    return;
  }
  parallel_for(stream, nest.product(last), row_grain(run), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t from, to;
      outer_offsets(nest, last, i, from, to);
      copy_run(x + from, out + to, run);
    }
  });
}

template <class From, class To>
void copy_nest(Stream& stream, CopyNest nest, const From* x, To* out) {
  const int last = nest.rank - 1;
  if (nest.x[last] == 1 && nest.out[last] == 1) return copy_dense(stream, nest, x, out);
  if (nest.rank == 1) {
    for (int64_t i = 0; i < nest.extent[0]; ++i)
      out[i * nest.out[0]] = convert<To>(x[i * nest.x[0]]);
    return;
  }
  // The rows of a tile run along the dimension in which x is densest.
  int row = 0;
  for (int i = 1; i < last; ++i)
    if (nest.x[i] < nest.x[row]) row = i;
  std::swap(nest.extent[row], nest.extent[last - 1]);
  std::swap(nest.x[row], nest.x[last - 1]);
  std::swap(nest.out[row], nest.out[last - 1]);
  const int64_t rows = nest.extent[last - 1], strips = (rows + kTile - 1) / kTile;
  const int64_t tasks = nest.product(last - 1) * strips;
  parallel_for(stream, tasks, row_grain(kTile * nest.extent[last]),
               [&](int64_t begin, int64_t end) {
                 for (int64_t task = begin; task < end; ++task) {
                   int64_t from, to;
                   outer_offsets(nest, last - 1, task / strips, from, to);
                   const int64_t first = task % strips * kTile;
                   copy_plane(x + from, out + to, nest, first, std::min(first + kTile, rows));
                 }
               });
}

// Equal dtypes are moved as plain bits of their size.
template <class Bits>
void move_bits(Stream& stream, const CopyNest& nest, const TensorView& x, const TensorView& out) {
  copy_nest(stream, nest, static_cast<const Bits*>(x.data), static_cast<Bits*>(out.data));
}

void copy(Stream& stream, const TensorView& x, const TensorView& out) {
  const CopyNest nest = make_copy_nest(x, out);
  if (x.dtype == out.dtype) {
    switch (size_of(x.dtype)) {
      case 1:
        return move_bits<uint8_t>(stream, nest, x, out);
      case 2:
        return move_bits<uint16_t>(stream, nest, x, out);
      case 4:
        return move_bits<uint32_t>(stream, nest, x, out);
      default:
        return move_bits<uint64_t>(stream, nest, x, out);
    }
  }
  visit_float(x.dtype, [&](auto x_tag) {
    visit_float(out.dtype, [&](auto out_tag) {
      copy_nest(stream, nest, static_cast<const decltype(x_tag)*>(x.data),
                static_cast<decltype(out_tag)*>(out.data));
    });
  });
}

void fill_zero(Stream& stream, const TensorView& out) {
  const CopyNest nest = make_copy_nest(out, out);
  const int last = nest.rank - 1;
  const int64_t size = static_cast<int64_t>(size_of(out.dtype));
  char* data = static_cast<char*>(out.data);
  if (last == 0 && nest.out[0] == 1) {
    parallel_for(stream, nest.extent[0], row_grain(1), [&](int64_t begin, int64_t end) {
      std::memset(data + begin * size, 0, static_cast<size_t>((end - begin) * size));
    });
    return;
  }
  const int64_t run = nest.extent[last], step = nest.out[last] * size;
  parallel_for(stream, nest.product(last), row_grain(run), [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      int64_t from, to;
      outer_offsets(nest, last, i, from, to);
      if (step == size)
        std::memset(data + to * size, 0, static_cast<size_t>(run * size));
      else
        for (int64_t j = 0; j < run; ++j)
          std::memset(data + to * size + j * step, 0, static_cast<size_t>(size));
    }
  });
}

void gather_rows(Stream& stream, const TensorView& table, const TensorView& ids,
                 const TensorView& out) {
  const int32_t* id = ids.as<int32_t>();
  visit_float(table.dtype, [&](auto table_tag) {
    visit_float(out.dtype, [&](auto out_tag) {
      using From = decltype(table_tag);
      using To = decltype(out_tag);
      parallel_for(stream, ids[0], row_grain(out[1]), [&](int64_t begin, int64_t end) {
        for (int64_t i = begin; i < end; ++i)
          copy_run(static_cast<const From*>(table.data) + id[i] * table.stride[0],
                   static_cast<To*>(out.data) + i * out.stride[0], out[1]);
      });
    });
  });
}

}  // namespace

void fill_copy_simd(Ops& ops) {
  ops.copy.copy = copy;
  ops.copy.fill_zero = fill_zero;
  ops.copy.gather_rows = gather_rows;
}

}  // namespace weft::cpu
#endif
