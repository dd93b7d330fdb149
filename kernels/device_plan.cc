#include "kernels/device_plan.h"

#include <algorithm>

#include "kernels/cuda/flash.h"
#include "kernels/cuda/gemv.h"

namespace weft {

namespace {

constexpr int64_t kLeastRows = 128;  // smallest block of rows
// The logits of a strip of queries take at most this much, which a large L2 holds.
constexpr int64_t kLogitBytes = int64_t{64} << 20;
// Source rows that wait to be packed to 8 bits take at most this much.
constexpr int64_t kPackingBytes = int64_t{32} << 20;

class Places {
 public:
  explicit Places(size_t before = 0) : used_(before) {}
  size_t take(int64_t bytes) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(bytes) + 255) / 256 * 256;
    return at;
  }
  size_t used() const { return used_; }

 private:
  size_t used_;
};

size_t with_gemm(const LinearPlaces& places) { return places.used + kGemmWorkspace; }

int64_t whole(int64_t count, int64_t of) { return (count + of - 1) / of * of; }

}  // namespace

DeviceTraits assumed_device() {
  return {.name = "NVIDIA H200",
          .multiprocessors = 132,
          .major = 9,
          .minor = 0,
          .bytes = size_t{143156} << 20};  // 139.8 GiB, as the driver reports it
}

RowBlocks row_blocks(int64_t rows, int64_t row_bytes) {
  const int64_t most = std::max(kLeastRows, linear_block_bytes / row_bytes);
  const int64_t count = (rows + most - 1) / most;
  return {count, count > 0 ? (rows + count - 1) / count : 0};
}

LinearPlaces places_of_sums(int64_t rows, int64_t stride) {
  Places places;
  LinearPlaces made;
  made.sums = places.take(rows * stride * 4);
  made.used = places.used();
  return made;
}

LinearPlaces places_of_quantized(int64_t rows, int64_t stride, int64_t columns) {
  Places places;
  LinearPlaces made;
  made.quantized = places.take(rows * stride);
  made.scales = places.take(rows * 4);
  made.sums = places.take(rows * columns * 4);
  made.used = places.used();
  return made;
}

LinearPlaces places_of_gemv(int64_t rows, int64_t stride) {
  Places places;
  LinearPlaces made;
  made.quantized = places.take(rows * stride * 2);
  made.scales = places.take(rows * 4);
  made.used = places.used();
  return made;
}

LinearPlaces places_of_widened(int64_t rows, int64_t stride, int64_t columns) {
  Places places;
  LinearPlaces made;
  made.weight = places.take(columns * stride * 2);
  made.quantized = places.take(rows * stride * 2);
  made.scales = places.take(rows * 4);
  made.sums = places.take(rows * columns * 4);
  made.used = places.used();
  return made;
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
  if (shape.dtype == DType::kF32) return shape.rows > cuda::kGemvDotRows ? kGemmWorkspace : 0;
  if (shape.rows <= cuda::kGemvRows) return 0;
  if (shape.result == DType::kF32 ||
      (shape.activation != LinearActivation::kSilu && shape.bias != Bias::kInF32))
    return kGemmWorkspace;
  const int64_t sums = whole(shape.out, 4);
  return with_gemm(places_of_sums(row_blocks(shape.rows, sums * 4).largest, sums));
}

PackedExtents packed_extents(int64_t out, int64_t in, DType dtype, WeightFormat format) {
  const bool numbers = format != WeightFormat::kCompute;
  const int64_t piece = 16 / static_cast<int64_t>(numbers ? 1 : size_of(dtype));
  return {numbers ? whole(out, 16) : out, whole(in, piece)};
}

size_t packed_bytes(int64_t out, int64_t in, DType dtype, WeightFormat format, Bias bias) {
  const auto [rows, stride] = packed_extents(out, in, dtype, format);
  const bool numbers = format != WeightFormat::kCompute;
  int64_t bytes = rows * stride * static_cast<int64_t>(numbers ? 1 : size_of(dtype));
  if (numbers) bytes += rows * 4;  // scales
  if (bias != Bias::kNone) bytes += out * 4;
  if (bias == Bias::kInBf16 && dtype == DType::kBF16) bytes += out * 2;
  return static_cast<size_t>(bytes);
}

size_t movable_bytes(int64_t out, int64_t in, DType dtype, WeightFormat format, Bias bias) {
  const auto [rows, stride] = packed_extents(out, in, dtype, format);
  const bool numbers = format != WeightFormat::kCompute;
  return movable_piece(static_cast<size_t>(rows * stride) * (numbers ? 1 : size_of(dtype))) +
         (numbers ? movable_piece(static_cast<size_t>(rows) * 4) : 0) +
         (bias != Bias::kNone ? movable_piece(static_cast<size_t>(out) * 4) : 0);
}

int64_t packing_rows(int64_t out, int64_t in, DType dtype) {
  const int64_t row = in * static_cast<int64_t>(size_of(dtype));
  return std::min(out, std::max<int64_t>(1, kPackingBytes / row));
}

int flash_rows(DType dtype, int64_t rows, int64_t kv_heads, int multiprocessors) {
  if (dtype == DType::kF32) return 64;
  if (rows <= 16) return 16;
  return (rows + 127) / 128 * kv_heads >= 2 * multiprocessors ? 128 : 64;
}

int flash_tile_keys(DType dtype, int rows, int64_t size) {
  return size > 128 || (dtype == DType::kBF16 && rows == 128) ? 32 : 64;
}

int flash_blocks(int rows, bool sm90) { return rows == 16 ? 8 : sm90 ? 1 : 2; }

int64_t flash_parts(int64_t blocks, int64_t tiles, int64_t resident_blocks) {
  constexpr int64_t kMostParts = 64, kTilesOfPart = 2;
  return std::max<int64_t>(std::min({resident_blocks / blocks, tiles / kTilesOfPart, kMostParts}),
                           1);
}

int64_t flash_state_floats(int64_t queries, int64_t heads, int64_t size) {
  return whole(queries * heads * size + queries * heads, 64);
}

AttentionGemmPlaces attention_gemm_places(int64_t queries, int64_t columns, int64_t size,
                                          DType dtype, size_t before) {
  const int64_t fit = kLogitBytes / (columns * 4) / 64 * 64;
  AttentionGemmPlaces made;
  made.strip = std::min(std::max<int64_t>(fit, 64), queries);
  Places places(before);
  made.logits = places.take(made.strip * columns * 4);
  // In f32 the probabilities overwrite the logits.
  made.powers = dtype == DType::kF32 ? made.logits : places.take(made.strip * columns * 2);
  made.values = places.take(size * columns * static_cast<int64_t>(size_of(dtype)));
  made.used = places.used();
  return made;
}

namespace {

bool large(const AttentionShape& s) {
  return s.dtype == DType::kBF16 && s.queries >= kLibraryRows &&
         s.queries * s.keys * s.heads * s.size >= kLargeAttention;
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
    return static_cast<size_t>(count * flash_state_floats(s.queries, s.heads, s.size)) *
           sizeof(float);
  };
  if (s.size > kFlashLargest) {
    const int64_t columns =
        whole(s.keys, kAttentionGemmTile) + (s.segments - 1) * kAttentionGemmTile;
    return attention_gemm_places(s.queries, std::max<int64_t>(columns, kAttentionGemmTile), s.size,
                                 s.dtype, states(chained > 0 ? 2 : 0))
               .used +
           kGemmWorkspace;
  }
  if (large(s) && s.plain && s.format == AttentionFormat::kCompute && s.segments == 1)
    return kSdpaWorkspace;
  const bool sm90 = takes_sm90(s, device);
  const int64_t rows = s.queries * (s.heads / s.kv_heads);
  const int block = sm90 ? 128 : flash_rows(s.dtype, rows, s.kv_heads, device.multiprocessors);
  const int64_t keys = sm90 ? cuda::kFlashSm90Tile : flash_tile_keys(s.dtype, block, s.size);
  const int64_t tiles = (s.keys + keys - 1) / keys + s.segments - 1;
  const int64_t parts = flash_parts((rows + block - 1) / block * s.kv_heads, tiles,
                                    int64_t{device.multiprocessors} * flash_blocks(block, sm90));
  const size_t flash = parts > 1 || chained > 0 ? states(parts + (chained > 0 ? 1 : 0)) : 0;
  if (!sm90) return flash;
  return flash +
         cuda::flash_sm90_scratch_bytes(s.format == AttentionFormat::kFp8 ? 1 : sizeof(bf16), rows,
                                        tiles, static_cast<int>(s.kv_heads));
}

}  // namespace weft
