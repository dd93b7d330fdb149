// Data movement and conversion on a device. Views are reduced to as few dimensions as their strides
// allow. Dense memory is copied by the driver, rows in accesses of up to 16 bytes, transpositions
// by tiles in shared memory.
#include <limits>

#include "kernels/convert.h"
#include "kernels/copy.h"
#include "kernels/copy_nest.h"
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/tables.h"
#include "kernels/cuda/transfer.h"

namespace weft::cuda {

namespace {

constexpr int kOuter = kMaxRank - 1;

// The dimensions outside those that a kernel copies at once; strides are in elements.
struct Outer {
  int dims = 0;
  uint32_t extent[kOuter] = {};
  int64_t x[kOuter] = {}, out[kOuter] = {};

  __device__ __forceinline__ void offsets(uint32_t index, int64_t& from, int64_t& to) const {
    from = to = 0;
    for (int dim = dims - 1; dim > 0; --dim) {
      const uint32_t rest = index / extent[dim], at = index - rest * extent[dim];
      from += at * x[dim];
      to += at * out[dim];
      index = rest;
    }
    from += index * x[0];
    to += index * out[0];
  }
};

Outer make_outer(const CopyNest& nest, int dims) {
  Outer outer{.dims = dims};
  for (int dim = 0; dim < dims; ++dim) {
    outer.extent[dim] = static_cast<uint32_t>(nest.extent[dim]);
    outer.x[dim] = nest.x[dim];
    outer.out[dim] = nest.out[dim];
  }
  return outer;
}

// Copies rows, the innermost dimension. x null writes zeros; with ids, x's outer dimension is
// indexed by them.
template <class From, class To>
struct RowCopy {
  const From* x;
  To* out;
  const int32_t* ids;
  Outer outer;
  int64_t rows, groups;  // of N elements
  int64_t x_step, out_step;
};

template <class From, class To, int N>
__global__ void __launch_bounds__(256, 6) copy_rows(RowCopy<From, To> p) {
  const int64_t group = column();
  if (group >= p.groups) return;
#pragma unroll 1  // otherwise its trip count takes a 64-bit division
  for (int64_t row = first_row(); row < p.rows; row += row_step()) {
    int64_t from = 0, to = 0;
    p.outer.offsets(static_cast<uint32_t>(row), from, to);
    if (p.ids) from = p.ids[row] * p.outer.x[0];
    from += group * p.x_step;
    to += group * p.out_step;
    if constexpr (N == 1) {
      p.out[to] = p.x ? convert<To>(p.x[from]) : To{};
    } else {
      float value[N];
      load_lanes<N>(p.x + from, value);
      store_lanes<N>(value, p.out + to);
    }
  }
}

constexpr int kTile = 32, kTileRows = 8;

// Copies tiles of `rows` (dense in x) by `columns` (dense in out).
template <class From, class To>
struct TileCopy {
  const From* x;
  To* out;
  Outer outer;
  int64_t rows, columns;
  int64_t x_row, x_column, out_row, out_column;
  uint32_t row_tiles, column_tiles;
};

template <int kBytes>
struct BitsOf;
template <>
struct BitsOf<1> {
  using Type = uint8_t;
};
template <>
struct BitsOf<2> {
  using Type = uint16_t;
};
template <>
struct BitsOf<4> {
  using Type = uint32_t;
};
template <>
struct BitsOf<8> {
  using Type = uint64_t;
};

template <class From, class To>
__global__ void __launch_bounds__(kTile* kTileRows) copy_tiles(TileCopy<From, To> p) {
  using Bits = typename BitsOf<sizeof(To)>::Type;
  __shared__ Bits tile[kTile][kTile + 1];  // [column][row]; one more against bank conflicts
  const uint32_t column_tile = blockIdx.x % p.column_tiles, rest = blockIdx.x / p.column_tiles;
  const int64_t row0 = int64_t{rest % p.row_tiles} * kTile, column0 = int64_t{column_tile} * kTile;
  int64_t from = 0, to = 0;
  p.outer.offsets(rest / p.row_tiles, from, to);
  const int x = static_cast<int>(threadIdx.x), y = static_cast<int>(threadIdx.y);
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    const int64_t row = row0 + x, column = column0 + y + i;
    if (row < p.rows && column < p.columns)
      tile[y + i][x] =
          std::bit_cast<Bits>(convert<To>(p.x[from + row * p.x_row + column * p.x_column]));
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kTile; i += kTileRows) {
    const int64_t row = row0 + y + i, column = column0 + x;
    if (row < p.rows && column < p.columns)
      p.out[to + row * p.out_row + column * p.out_column] = std::bit_cast<To>(tile[x][y + i]);
  }
}

// Block and row indices are 32 bits: larger nests are cut along their outermost loop.
constexpr int64_t kMostRows = int64_t{1} << 30;

template <class From, class To, class Run>
void cut(const CopyNest& nest, const From* x, To* out, int inner, Run&& run) {
  const int64_t outer = nest.product(nest.rank - inner);
  if (outer <= kMostRows) return run(nest, x, out);
  CHECK(nest.rank > inner && nest.extent[0] > 1, "a copy of", outer, "rows");
  CopyNest part = nest;
  const int64_t half = nest.extent[0] / 2;
  part.extent[0] = half;
  cut(part, x, out, inner, run);
  part.extent[0] = nest.extent[0] - half;
  cut(part, x ? x + half * nest.x[0] : x, out + half * nest.out[0], inner, run);
}

template <class From, class To, int N>
void launch_rows(Stream& stream, const CopyNest& nest, const From* x, To* out,
                 const int32_t* ids = nullptr) {
  cut(nest, x, out, 1, [&](const CopyNest& part, const From* from, To* to) {
    const int last = part.rank - 1;
    const RowCopy<From, To> p{.x = from,
                              .out = to,
                              .ids = ids,
                              .outer = make_outer(part, last),
                              .rows = part.product(last),
                              .groups = part.extent[last] / N,
                              .x_step = part.x[last] * N,
                              .out_step = part.out[last] * N};
    launch(stream, over_rows(stream, p.rows, p.groups), copy_rows<From, To, N>, p);
  });
}

// `row` is the dimension in which x is dense; out is dense in the last.
template <class From, class To>
void launch_tiles(Stream& stream, CopyNest nest, int row, const From* x, To* out) {
  const int last = nest.rank - 1;
  std::swap(nest.extent[row], nest.extent[last - 1]);
  std::swap(nest.x[row], nest.x[last - 1]);
  std::swap(nest.out[row], nest.out[last - 1]);
  const auto tiles = [](int64_t n) { return (n + kTile - 1) / kTile; };
  const int64_t row_tiles = tiles(nest.extent[last - 1]), column_tiles = tiles(nest.extent[last]);
  const int64_t blocks = nest.product(last - 1) * row_tiles * column_tiles;
  CHECK(blocks <= std::numeric_limits<int32_t>::max(), "a copy of", blocks, "tiles");
  const TileCopy<From, To> p{.x = x,
                             .out = out,
                             .outer = make_outer(nest, last - 1),
                             .rows = nest.extent[last - 1],
                             .columns = nest.extent[last],
                             .x_row = nest.x[last - 1],
                             .x_column = nest.x[last],
                             .out_row = nest.out[last - 1],
                             .out_column = nest.out[last],
                             .row_tiles = static_cast<uint32_t>(row_tiles),
                             .column_tiles = static_cast<uint32_t>(column_tiles)};
  launch(stream, {.grid = dim3(blocks_for(blocks, 1)), .block = dim3(kTile, kTileRows)},
         copy_tiles<From, To>, p);
}

bool multiples(const CopyNest& nest, int64_t of) {
  const int last = nest.rank - 1;
  if (nest.x[last] != 1 || nest.out[last] != 1 || nest.extent[last] % of != 0) return false;
  for (int dim = 0; dim < last; ++dim)
    if (nest.x[dim] % of != 0 || nest.out[dim] % of != 0) return false;
  return true;
}

// Returns the dimension that a copy by tiles reads along, or -1: tiles only pay for long sides.
int tile_row(const CopyNest& nest) {
  constexpr int64_t kWorthATile = 16;
  const int last = nest.rank - 1;
  if (nest.x[last] == 1 || nest.out[last] != 1 || nest.extent[last] < kWorthATile) return -1;
  for (int dim = 0; dim < last; ++dim)
    if (nest.x[dim] == 1 && nest.extent[dim] >= kWorthATile) return dim;
  return -1;
}

template <class From, class To>
void copy_nest(Stream& stream, const CopyNest& nest, const From* x, To* out,
               const int32_t* ids = nullptr) {
  constexpr bool kLanes =
      !std::is_same_v<From, To> && (std::is_same_v<From, float> || std::is_same_v<From, bf16>)&&(
                                       std::is_same_v<To, float> || std::is_same_v<To, bf16>);
  if constexpr (kLanes)
    if (aligned16(x) && aligned16(out) && multiples(nest, kBf16Lanes))
      return launch_rows<From, To, kBf16Lanes>(stream, nest, x, out, ids);
  if constexpr (sizeof(To) <= 8) {
    const int row = ids ? -1 : tile_row(nest);
    if (row >= 0) return launch_tiles(stream, nest, row, x, out);
  }
  launch_rows<From, To, 1>(stream, nest, x, out, ids);
}

// Moves bits in the largest units of which all addresses are multiples. x null writes zeros.
template <class Unit>
void move_units(Stream& stream, CopyNest nest, int64_t size, const void* x, void* out,
                const int32_t* ids) {
  const int64_t elements = static_cast<int64_t>(sizeof(Unit)) / size;
  const int last = nest.rank - 1;
  nest.extent[last] /= elements;
  for (int dim = 0; dim < last; ++dim) {
    nest.x[dim] /= elements;
    nest.out[dim] /= elements;
  }
  copy_nest(stream, nest, static_cast<const Unit*>(x), static_cast<Unit*>(out), ids);
}

void move(Stream& stream, const CopyNest& nest, int64_t size, const void* x, void* out,
          const int32_t* ids = nullptr) {
  const auto at = reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(out);
  int64_t unit = 16;
  while (unit > size && (at % unit != 0 || !multiples(nest, unit / size))) unit /= 2;
  switch (unit) {
    case 1:
      return move_units<uint8_t>(stream, nest, size, x, out, ids);
    case 2:
      return move_units<uint16_t>(stream, nest, size, x, out, ids);
    case 4:
      return move_units<uint32_t>(stream, nest, size, x, out, ids);
    case 8:
      return move_units<uint64_t>(stream, nest, size, x, out, ids);
    default:
      return move_units<uint4>(stream, nest, size, x, out, ids);
  }
}

void copy_or_gather(Stream& stream, const CopyNest& nest, const TensorView& x,
                    const TensorView& out, const int32_t* ids) {
  if (x.dtype == out.dtype)
    return move(stream, nest, static_cast<int64_t>(size_of(x.dtype)), x.data, out.data, ids);
  visit_float(x.dtype, [&](auto x_tag) {
    visit_float(out.dtype, [&](auto out_tag) {
      using From = decltype(x_tag);
      using To = decltype(out_tag);
      if constexpr (!std::is_same_v<From, To>)
        copy_nest(stream, nest, static_cast<const From*>(x.data), static_cast<To*>(out.data), ids);
    });
  });
}

void copy(Stream& stream, const TensorView& x, const TensorView& out) {
  if (x.device == Device{}) return copy_up(stream, x, out);
  if (out.device == Device{}) return copy_down(stream, x, out);
  copy_on_device(stream, x, out);
}

void fill_zero(Stream& stream, const TensorView& out) {
  if (out.contiguous()) {
    WEFT_CUDA_CHECK(cudaMemsetAsync(out.data, 0, out.bytes(), cuda_queue(stream).stream()));
    return;
  }
  move(stream, make_copy_nest(out, out), static_cast<int64_t>(size_of(out.dtype)), nullptr,
       out.data);
}

void gather_rows(Stream& stream, const TensorView& table, const TensorView& ids,
                 const TensorView& out) {
  if (table.device == Device{}) return gather_up(stream, table, ids, out);
  const int32_t* id = ids.as<int32_t>();
  if (ids.device == Device{}) {
    const TensorView there(cuda_queue(stream).scratch(ids.bytes()), DType::kI32, {ids[0]},
                           stream.device());
    copy_up(stream, ids, there);
    id = there.as<int32_t>();
  }
  const CopyNest nest{
      .rank = 2, .extent = {out[0], out[1]}, .x = {table.stride[0], 1}, .out = {out.stride[0], 1}};
  copy_or_gather(stream, nest, table, out, id);
}

// x [pixels, groups], out [pixels / width, 2, width, 2, groups].
template <class Unit>
__global__ void __launch_bounds__(256)
    double_pixels(const Unit* x, Unit* out, int64_t pixels, uint32_t width, int64_t groups) {
  const int64_t group = column();
  if (group >= groups) return;
#pragma unroll 1
  for (int64_t pixel = first_row(); pixel < pixels; pixel += row_step()) {
    const uint32_t line = static_cast<uint32_t>(pixel) / width;
    // `at` is 2 line width + the place in the line.
    const int64_t at = pixel + static_cast<int64_t>(line) * width;
    const Unit value = x[pixel * groups + group];
    Unit* to = out + 2 * at * groups + group;
    to[0] = to[groups] = value;
    to += 2 * int64_t{width} * groups;
    to[0] = to[groups] = value;
  }
}

void upsample_nearest2(Stream& stream, const TensorView& x, const TensorView& out) {
  const int64_t pixels = x[0] * x[1] * x[2], bytes = x[3] * static_cast<int64_t>(size_of(x.dtype));
  CHECK(pixels <= std::numeric_limits<int32_t>::max(), "x", x.to_string_shape());
  const auto run = [&](auto unit) {
    using Unit = decltype(unit);
    const int64_t groups = bytes / static_cast<int64_t>(sizeof(Unit));
    launch(stream, over_rows(stream, pixels, groups), double_pixels<Unit>,
           static_cast<const Unit*>(x.data), static_cast<Unit*>(out.data), pixels,
           static_cast<uint32_t>(x[2]), groups);
  };
  if (bytes % 16 == 0 && aligned16(x.data) && aligned16(out.data)) return run(uint4{});
  if (x.dtype == DType::kF32) return run(uint32_t{});
  run(uint16_t{});
}

// N pixels of one frame: x [n, 3, pixels], out [n, pixels, 3].
template <int N>
__global__ void __launch_bounds__(256)
    rgb_of(const float* x, uint8_t* out, int64_t frames, int64_t pixels) {
  const int64_t first = column() * N;
  if (first >= pixels) return;
#pragma unroll 1
  for (int64_t frame = first_row(); frame < frames; frame += row_step()) {
    uint32_t packed[(3 * N + 3) / 4] = {};
#pragma unroll
    for (int c = 0; c < 3; ++c) {
      float value[N];
      load_lanes<N>(x + (frame * 3 + c) * pixels + first, value);
#pragma unroll
      for (int k = 0; k < N; ++k) {
        const float unit = fminf(fmaxf(value[k] * 0.5f + 0.5f, 0.0f), 1.0f);
        const int byte = 3 * k + c;
        packed[byte / 4] |= static_cast<uint32_t>(nearbyintf(unit * 255.0f)) << 8 * (byte % 4);
      }
    }
    uint8_t* rgb = out + (frame * pixels + first) * 3;
    if constexpr (N == 4) {
#pragma unroll
      for (int w = 0; w < 3; ++w) reinterpret_cast<uint32_t*>(rgb)[w] = packed[w];
    } else {
#pragma unroll
      for (int c = 0; c < 3; ++c) rgb[c] = static_cast<uint8_t>(packed[0] >> 8 * c);
    }
  }
}

void frames_to_rgb8(Stream& stream, const TensorView& x, const TensorView& out) {
  const int64_t frames = x[0], pixels = x[2] * x[3];
  const bool wide = pixels % kF32Lanes == 0 && aligned16(x.data) && aligned16(out.data);
  const Launch how = over_rows(stream, frames, wide ? pixels / kF32Lanes : pixels);
  launch(stream, how, wide ? rgb_of<kF32Lanes> : rgb_of<1>, x.as<float>(), out.as<uint8_t>(),
         frames, pixels);
}

}  // namespace

cudaError_t code_status() {
  cudaFuncAttributes attributes{};
  return cudaFuncGetAttributes(&attributes, double_pixels<uint32_t>);
}

void copy_on_device(Stream& stream, const TensorView& x, const TensorView& out) {
  if (x.dtype == out.dtype && x.contiguous() && out.contiguous()) {
    WEFT_CUDA_CHECK(cudaMemcpyAsync(out.data, x.data, x.bytes(), cudaMemcpyDeviceToDevice,
                                    cuda_queue(stream).stream()));
    return;
  }
  copy_or_gather(stream, make_copy_nest(x, out), x, out, nullptr);
}

void fill_copy(Ops& ops) {
  ops.copy = {.copy = copy,
              .fill_zero = fill_zero,
              .gather_rows = gather_rows,
              .frames_to_rgb8 = frames_to_rgb8};
  ops.conv.upsample_nearest2 = upsample_nearest2;
}

}  // namespace weft::cuda
