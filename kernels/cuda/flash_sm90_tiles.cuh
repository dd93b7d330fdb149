#pragma once
// The tiles of flash_sm90.cu: queries, keys and values are copied into the layout of wgmma (values
// transposed), in bf16 or as e4m3.
#include "kernels/cuda/common.cuh"
#include "kernels/cuda/flash_tiles.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/fp8.h"

namespace weft::cuda {

namespace {

constexpr int kRows = 128, kKeys = kFlashSm90Tile, kColumns = 128;
constexpr int kThreads = 256;           // of the passes over tiles
constexpr int kPanelBytes = 128 * 128;  // 128 rows of 128 bytes
constexpr int kSwizzled = 1024;         // the first panel begins at a multiple of this

// An element is e4m3 (1 byte) or bf16 (2 bytes). A tile has one panel of 128 bytes a row for each
// byte of an element: queries and keys are cut by columns, transposed values by keys.
template <class Element>
struct Tiles {
  static constexpr bool kEightBits = sizeof(Element) == 1;
  static constexpr int kBytes = kPanelBytes * static_cast<int>(sizeof(Element));
  // A depth of 128 takes this many wgmmas.
  static constexpr int kInstructions = 4 * static_cast<int>(sizeof(Element));
  static constexpr int kStages = kEightBits ? 6 : 3;
  static constexpr int kOfShared = 1 + 2 * kStages;
  static constexpr size_t kSharedBytes = kOfShared * kBytes + kSwizzled + 2 * kStages * 8;
  // Probability 1 is stored as 2 to this power.
  static constexpr float kOneBits = kEightBits ? 8 : 0;
};

// A launch's packed operands, in scratch. Tile t of key/value head h is number h x tiles + t.
struct Packed {
  uint32_t* most = nullptr;  // [q, k, v][kv_heads] bits of the largest magnitudes; e4m3 only
  uint8_t *q = nullptr, *k = nullptr, *v = nullptr;
  int kv_heads = 0, row_blocks = 0;
  // The softmax scale is |scale|, and queries are multiplied by this: 1 or -1, or the scale itself
  // where that is 0 or NaN; then the softmax scale is 1.
  float sign = 1;
};
enum Operand { kQ, kK, kV };

// Returns the largest magnitude, which may be NaN or infinite.
__device__ __forceinline__ float largest(const Packed& packed, Operand operand, int kv_head) {
  return __uint_as_float(packed.most[operand * packed.kv_heads + kv_head]);
}

// The existing rows of a tile: row r begins at data + r x stride.
template <class T>
struct TileRows {
  const T* data = nullptr;
  int64_t stride = 0;
  int count = 0;
};

template <class T>
__device__ __forceinline__ TileRows<T> tile_rows(const FlashArgs& args, bool values, int tile,
                                                 int kv_head) {
  int s = 0;
  while (s + 1 < args.segments && args.segment[s + 1].first_tile <= tile) ++s;
  const FlashSegment& segment = args.segment[s];
  const int key = (tile - segment.first_tile) * kKeys;
  const T* const data = static_cast<const T*>(values ? segment.v : segment.k);
  const int64_t stride = values ? segment.v_row : segment.k_row,
                head = values ? segment.v_head : segment.k_head;
  return {data + kv_head * head + key * stride, stride, min(segment.keys - key, kKeys)};
}

// Loads eight columns of one row from `column` on, with zeros after the last.
template <class T>
__device__ __forceinline__ void load_columns(const FlashArgs& args, const T* row, int column,
                                             float (&x)[8]) {
  const int valid = args.size - column;
  if (args.aligned && valid >= 8) {
#pragma unroll
    for (int half = 0; half < 8; half += 16 / static_cast<int>(sizeof(T))) {
      constexpr int kLanes = 16 / static_cast<int>(sizeof(T));
      float lanes[kLanes];
      load_lanes<kLanes>(row + column + half, lanes);
#pragma unroll
      for (int i = 0; i < kLanes; ++i) x[half + i] = lanes[i];
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = i < valid ? to_float(row[column + i]) : 0.0f;
}

// Returns the address of a row of q; rows are those of FlashArgs.
template <class T>
__device__ __forceinline__ const T* query_row(const FlashArgs& args, int row, int kv_head) {
  return static_cast<const T*>(args.q) + row / args.share * args.q_row +
         (kv_head * args.share + row % args.share) * args.q_head;
}

// Returns row r of tile `tile` of an operand, or null after the last row.
template <class T>
__device__ __forceinline__ const T* operand_row(const FlashArgs& args, Operand operand, int tile,
                                                int kv_head, int r) {
  if (operand == kQ) {
    const int row = tile * kRows + r;
    return row < args.queries * args.share ? query_row<T>(args, row, kv_head) : nullptr;
  }
  const TileRows<T> rows = tile_rows<T>(args, operand == kV, tile, kv_head);
  return r < rows.count ? rows.data + r * rows.stride : nullptr;
}

// In a pass over all operands, block (x, kv head) takes one tile of one of them.
__device__ __forceinline__ Operand operand_of(const FlashArgs& args, const Packed& packed,
                                              int& tile) {
  tile = blockIdx.x;
  if (tile < packed.row_blocks) return kQ;
  tile -= packed.row_blocks;
  if (tile < args.tiles) return kK;
  tile -= args.tiles;
  return kV;
}

__global__ void clear(uint32_t* most, int count) {
  for (int i = threadIdx.x; i < count; i += blockDim.x) most[i] = 0;
}

// Computes the largest magnitudes. Compared as integers, the bits of NaN are larger than those of
// infinity.
template <class T>
__global__ void __launch_bounds__(kThreads)
    measure(const __grid_constant__ FlashArgs args, const Packed packed) {
  int tile = 0;
  const Operand operand = operand_of(args, packed, tile);
  const int kv_head = blockIdx.y, column = threadIdx.x % 16 * 8;
  uint32_t most = 0;
  for (int r = threadIdx.x / 16; r < 128; r += kThreads / 16) {
    const T* const row = operand_row<T>(args, operand, tile, kv_head, r);
    if (!row) break;
    float x[8];
    load_columns(args, row, column, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) most = max(most, __float_as_uint(x[i]) & 0x7fffffffu);
  }
  __syncwarp();
#pragma unroll
  for (int step = 16; step > 0; step /= 2)
    most = max(most, __shfl_xor_sync(0xffffffffu, most, step));
  if (threadIdx.x % 32 == 0) atomicMax(&packed.most[operand * packed.kv_heads + kv_head], most);
}

// Returns the place of byte `at` of row `row` of a tile: the 128-byte swizzle permutes pieces of 16
// bytes within groups of eight.
__device__ __forceinline__ int place_in_tile(int row, int at) {
  return at / 128 * kPanelBytes + row * 128 + ((at / 16 % 8) ^ (row % 8)) * 16 + at % 16;
}

// Returns the column of `key` in a row of transposed values. Probabilities stay in registers in the
// order of the wgmma that computed the logits; for e4m3, groups of four keys follow the order in
// which the next wgmma reads them.
template <class Element>
__device__ __forceinline__ int value_column(int key) {
  return Tiles<Element>::kEightBits ? key / 16 * 16 + key % 8 / 2 * 4 + key % 16 / 8 * 2 + key % 2
                                    : key;
}

// Packs eight columns into registers, lower columns first.
__device__ __forceinline__ void pack_columns(const float (&x)[8], float scale,
                                             uint32_t (&registers)[2]) {
#pragma unroll
  for (int w = 0; w < 2; ++w)
    registers[w] = e4m3_quad(x[4 * w] * scale, x[4 * w + 1] * scale, x[4 * w + 2] * scale,
                             x[4 * w + 3] * scale);
}
__device__ __forceinline__ void pack_columns(const float (&x)[8], float scale,
                                             uint32_t (&registers)[4]) {
#pragma unroll
  for (int w = 0; w < 4; ++w) registers[w] = bf16_pair(x[2 * w] * scale, x[2 * w + 1] * scale);
}

// Writes the tiles as they will lie in shared memory, values transposed.
template <class Element, class T>
__global__ void __launch_bounds__(kThreads)
    pack(const __grid_constant__ FlashArgs args, const Packed packed) {
  using Of = Tiles<Element>;
  constexpr int kBytes = static_cast<int>(sizeof(Element)), kPerRegister = 4 / kBytes;
  uint8_t* const image = dynamic_shared<uint8_t>();
  int tile = 0;
  const Operand operand = operand_of(args, packed, tile);
  const int kv_head = blockIdx.y, column = threadIdx.x % 16 * 8;
  float scale = operand == kQ ? packed.sign : 1;
  if constexpr (Of::kEightBits)
    scale *= power_of_two(-e4m3_exponent(largest(packed, operand, kv_head)));
  for (int r = threadIdx.x / 16; r < 128; r += kThreads / 16) {
    const T* const row = operand_row<T>(args, operand, tile, kv_head, r);
    float x[8] = {};
    if (row) load_columns(args, row, column, x);
    uint32_t registers[2 * kBytes];
    pack_columns(x, scale, registers);
    if (operand != kV) {
#pragma unroll
      for (int w = 0; w < 2 * kBytes; w += 2)
        *reinterpret_cast<uint2*>(image + place_in_tile(r, column * kBytes + 4 * w)) =
            make_uint2(registers[w], registers[w + 1]);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      const uint32_t value = registers[i / kPerRegister] >> i % kPerRegister * 8 * kBytes;
      uint8_t* const to = image + place_in_tile(column + i, value_column<Element>(r) * kBytes);
      if constexpr (Of::kEightBits)
        *to = static_cast<uint8_t>(value);
      else
        *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(value);
    }
  }
  __syncthreads();
  uint8_t* const all = operand == kQ ? packed.q : operand == kK ? packed.k : packed.v;
  const int tiles = operand == kQ ? packed.row_blocks : args.tiles;
  uint8_t* const to = all + (static_cast<int64_t>(kv_head) * tiles + tile) * Of::kBytes;
  for (int at = threadIdx.x * 16; at < Of::kBytes; at += kThreads * 16)
    *reinterpret_cast<uint4*>(to + at) = *reinterpret_cast<const uint4*>(image + at);
}

}  // namespace

}  // namespace weft::cuda
