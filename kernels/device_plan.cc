#include "kernels/device_plan.h"

#include <algorithm>

#include "kernels/cuda/flash.h"
#include "kernels/cuda/gemv.h"

namespace weft {

namespace {

constexpr int64_t kLeastRows = 128;  // smallest block of rows
// Source rows that wait to be packed to 8 bits take at most this much.
constexpr int64_t kPackingBytes = int64_t{32} << 20;

size_t with_gemm(const LinearPlaces& places) { return places.used + kGemmWorkspace; }

int64_t whole(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

}  // namespace

RowBlocks row_blocks(int64_t rows, int64_t row_bytes) {
  const int64_t most = std::max(kLeastRows, linear_block_bytes / row_bytes);
  const int64_t count = (rows + most - 1) / most;
  return {count, count > 0 ? (rows + count - 1) / count : 0};
}

int64_t rows_in_waves(int64_t rows, std::span<const MatrixExtents> matrices, int multiprocessors) {
  constexpr int64_t kTileRows = 128, kTileColumns = 256, kLeast = 2048, kMost = 8192;
  constexpr double kGain = 0.995;         // less of a gain is not worth more launches
  const auto time = [&](int64_t piece) {  // of a tile with one column of inputs
    double waves = 0;
    const auto add = [&](int64_t count, int64_t of) {
      for (const MatrixExtents& matrix : matrices) {
        const int64_t tiles =
            whole(of, kTileRows) / kTileRows * (whole(matrix.out, kTileColumns) / kTileColumns);
        waves += static_cast<double>(count * matrix.in *
                                     (whole(tiles, multiprocessors) / multiprocessors));
      }
    };
    add(rows / piece, piece);
    add(rows % piece > 0, rows % piece);
    return waves;
  };
  int64_t best = std::min(rows, kMost);
  for (int64_t piece = whole(best, kTileRows) - kTileRows; piece >= kLeast; piece -= kTileRows)
    if (time(piece) < kGain * time(best)) best = piece;
  return best;
}

LinearPlaces places_of_sums(int64_t rows, int64_t stride) {
  ScratchPlaces places;
  LinearPlaces made;
  made.sums = places.take(rows * stride * 4);
  made.used = places.used();
  return made;
}

LinearPlaces places_of_quantized(int64_t rows, int64_t stride, int64_t columns) {
  ScratchPlaces places;
  LinearPlaces made;
  made.quantized = places.take(rows * stride);
  made.scales = places.take(rows * 4);
  made.sums = places.take(rows * columns * 4);
  made.used = places.used();
  return made;
}

LinearPlaces places_of_gemv(int64_t rows, int64_t stride) {
  ScratchPlaces places;
  LinearPlaces made;
  made.quantized = places.take(rows * stride * 2);
  made.scales = places.take(rows * 4);
  made.used = places.used();
  return made;
}

LinearPlaces places_of_widened(int64_t rows, int64_t stride, int64_t columns) {
  ScratchPlaces places;
  LinearPlaces made;
  made.weight = places.take(columns * stride * 2);
  made.quantized = places.take(rows * stride * 2);
  made.scales = places.take(rows * 4);
  made.sums = places.take(rows * columns * 4);
  made.used = places.used();
  return made;
}

bool library_takes_rows(int64_t rows, DType dtype) {
  return rows > (dtype == DType::kF32 ? cuda::kGemvDotRows : cuda::kGemvRows);
}

size_t linear_scratch_bytes(const LinearShape& shape, const DeviceTraits& device) {
  const auto [columns, stride] = packed_extents(shape.out, shape.in, shape.dtype, shape.format);
  if (shape.format == WeightFormat::kInt8) {
    const int64_t rows = row_blocks(shape.rows, stride + columns * 4).largest;
    return with_gemm(places_of_quantized(rows, stride, columns));
  }
  if (is_fp8(shape.format)) {
    const int64_t rows = row_blocks(shape.rows, 2 * stride + columns * 4).largest;
    const size_t gemv = places_of_gemv(rows, stride).used;
    if (rows <= cuda::kGemvRows) return gemv;
    return std::max(gemv,
                    with_gemm(device.multiplies_e4m3() ? places_of_quantized(rows, stride, columns)
                                                       : places_of_widened(rows, stride, columns)));
  }
  if (!library_takes_rows(shape.rows, shape.dtype)) return 0;
  if (shape.result == DType::kF32 || shape.activation != LinearActivation::kSilu)
    return kGemmWorkspace;
  const int64_t sums = whole(shape.out, 4);
  return with_gemm(places_of_sums(row_blocks(shape.rows, sums * 4).largest, sums));
}

PackedExtents packed_extents(int64_t out, int64_t in, DType dtype, WeightFormat format) {
  const bool numbers = format != WeightFormat::kCompute;
  const int64_t piece = 16 / static_cast<int64_t>(numbers ? 1 : size_of(dtype));
  return {numbers ? whole(out, 16) : out, whole(in, piece)};
}

int64_t packing_rows(int64_t out, int64_t in, DType dtype) {
  const int64_t row = in * static_cast<int64_t>(size_of(dtype));
  return std::min(out, std::max<int64_t>(1, kPackingBytes / row));
}

namespace {

bool large(const AttentionShape& s) {
  return s.dtype == DType::kBF16 && s.queries >= cuda::kLibraryRows &&
         s.queries * s.keys * s.heads * s.size >= cuda::kLargeAttention;
}

// True if cuda/attention.cu chooses flash_sm90 for this shape.
bool takes_sm90(const AttentionShape& s, const DeviceTraits& device) {
  if (s.format == AttentionFormat::kFp8) return true;
  return large(s) && !s.bias && device.has_warpgroups() && s.size <= cuda::kFlashSm90LargestHead &&
         2 * s.size > cuda::kFlashSm90LargestHead;
}

}  // namespace

size_t attention_scratch_bytes(const AttentionShape& s, const DeviceTraits& device) {
  const int64_t chained = (s.segments - 1) / cuda::kFlashSegments;  // launches after the first
  const auto states = [&](int64_t count) {
    return static_cast<size_t>(count * cuda::flash_state_floats(s.queries, s.heads, s.size)) *
           sizeof(float);
  };
  if (s.size > cuda::kFlashLargest) {
    const int64_t columns =
        whole(s.keys, cuda::kAttentionGemmTile) + (s.segments - 1) * cuda::kAttentionGemmTile;
    return cuda::attention_gemm_places(s.queries,
                                       std::max<int64_t>(columns, cuda::kAttentionGemmTile), s.size,
                                       s.dtype, states(chained > 0 ? 2 : 0))
               .used +
           kGemmWorkspace;
  }
  const bool sm90 = takes_sm90(s, device);
  if (large(s) && s.plain && s.format == AttentionFormat::kCompute &&
      s.size <= cuda::kLibraryLargest && (s.segments == 1 || s.one_more) &&
      !(sm90 && s.keys >= cuda::kLongAttention))
    return kSdpaWorkspace + (s.one_more ? cuda::attention_lse_bytes(s.queries, s.heads) : 0);
  const int64_t rows = s.queries * (s.heads / s.kv_heads);
  const int block =
      sm90 ? 128 : cuda::flash_rows(s.dtype, rows, s.kv_heads, device.multiprocessors);
  const int64_t keys = sm90 ? cuda::kFlashSm90Tile : cuda::flash_tile_keys(s.dtype, block, s.size);
  const int64_t tiles = (s.keys + keys - 1) / keys + s.segments - 1;
  const int64_t parts =
      cuda::flash_parts((rows + block - 1) / block * s.kv_heads, tiles,
                        int64_t{device.multiprocessors} * cuda::flash_blocks(block, sm90));
  const size_t flash = parts > 1 || chained > 0 ? states(parts + (chained > 0 ? 1 : 0)) : 0;
  if (!sm90) return flash;
  return flash +
         cuda::flash_sm90_scratch_bytes(s.format == AttentionFormat::kFp8 ? 1 : sizeof(bf16), rows,
                                        tiles, static_cast<int>(s.kv_heads));
}

}  // namespace weft
