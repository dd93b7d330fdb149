#pragma once
// What ops hold and take of a device beyond their arguments, by formulas of their shapes: for plans
// made where no such device need be. The device's own kernels lay out their scratch by the same
// functions. A queue holds the largest scratch of its ops (Stream's queue, trimmed between stages).
#include <cstdint>
#include <string>

#include "kernels/attention.h"
#include "kernels/linear.h"

namespace weft {

// What of a device decides how its ops are done.
struct DeviceTraits {
  std::string name;
  int multiprocessors = 0;
  int major = 0, minor = 0;  // compute capability
  size_t bytes = 0;

  bool multiplies_e4m3() const { return major > 8 || (major == 8 && minor == 9); }
  bool has_warpgroups() const { return major == 9; }
};
DeviceTraits device_traits(Device device);  // of one that is here
DeviceTraits assumed_device();              // an H200, where none is

// Ranges (Arena, scratch) get their memory in pieces: a multiple of every device's granularity.
inline constexpr size_t kDevicePiece = size_t{32} << 20;
inline size_t committed_bytes(size_t bytes) {
  return (bytes + kDevicePiece - 1) / kDevicePiece * kDevicePiece;
}
// What a stream may hold of small tensors that no formula names; the driver gives them slabs.
inline constexpr size_t kDeviceSlab = size_t{2} << 20;

// What libraries may take behind the caller's own scratch: a product, an attention, a convolution.
// They are asked for ways that need no more.
inline constexpr size_t kGemmWorkspace = size_t{64} << 20;
inline constexpr size_t kSdpaWorkspace = size_t{64} << 20;
inline constexpr size_t kConvWorkspace = size_t{256} << 20;
// The most that goes in one piece between host and device, where it is converted on the way.
inline constexpr size_t kTransferPiece = size_t{4} << 20;
inline constexpr int kTransferSlots = 4;  // of pinned memory, with each queue that copies

// Scratch for the sums and numbers of a block of rows; no result depends on it. Tests make it
// small.
inline int64_t linear_block_bytes = int64_t{256} << 20;

// Rows of the largest of the equal blocks that a product over `rows` is cut in, where a row takes
// `row_bytes` of scratch; and how many blocks.
struct RowBlocks {
  int64_t count, largest;
};
RowBlocks row_blocks(int64_t rows, int64_t row_bytes);

// Places in a queue's scratch, each a multiple of 256 bytes; `used` is behind the last.
struct LinearPlaces {
  size_t weight = 0, numbers = 0, scales = 0, sums = 0, used = 0;
};
// Of `rows` rows: f32 sums alone; 8-bit numbers of x, their scales and 4-byte sums; numbers as
// bf16 and scales; the same with sums and the weight
// as bf16. `stride` and `columns`: of the weight's rows and their number, as packed.
LinearPlaces places_of_sums(int64_t rows, int64_t stride);
LinearPlaces places_of_numbers(int64_t rows, int64_t stride, int64_t columns);
LinearPlaces places_of_gemv(int64_t rows, int64_t stride);
LinearPlaces places_of_widened(int64_t rows, int64_t stride, int64_t columns);

// Whether a linear has a bias, and whether bf16 holds its values: the library adds it then.
enum class Bias : uint8_t { kNone, kInBf16, kInF32 };

struct LinearShape {
  int64_t rows = 0, in = 0, out = 0;
  DType dtype = DType::kBF16;
  WeightFormat format = WeightFormat::kCompute;
  DType result = DType::kBF16;
  LinearActivation activation = LinearActivation::kNone;
  Bias bias = Bias::kInF32;
};
size_t linear_scratch_bytes(const LinearShape& shape, const DeviceTraits& device);

// Extents as packed: rows of whole 16 bytes; of 8-bit numbers a multiple of 16 rows.
struct PackedExtents {
  int64_t rows, stride;
};
PackedExtents packed_extents(int64_t out, int64_t in, DType dtype, WeightFormat format);
// Bytes of a packed matrix as it computes; `movable`: without what is kept twice for speed, as it
// passes through a device (DeviceWindow), where each piece begins at a multiple of 256 bytes.
size_t packed_bytes(int64_t out, int64_t in, DType dtype, WeightFormat format, Bias bias);
size_t movable_bytes(int64_t out, int64_t in, DType dtype, WeightFormat format, Bias bias);
inline size_t movable_piece(size_t bytes) { return (bytes + 255) / 256 * 256; }
// On top of that while it is packed to 8 bits: so many rows that wait to become numbers.
int64_t packing_rows(int64_t out, int64_t in, DType dtype);

struct AttentionShape {
  int64_t queries = 0, keys = 0;
  int64_t heads = 0, kv_heads = 0, size = 0;
  int64_t segments = 1;
  DType dtype = DType::kBF16;
  AttentionFormat format = AttentionFormat::kCompute;
  bool bias = false;
  bool plain = true;  // no bias, no mask, no f32 state: the library takes it
};
// Where the library is asked first it is taken to do the call (doctor says what it refuses).
size_t attention_scratch_bytes(const AttentionShape& shape, const DeviceTraits& device);

// How the flash kernels cut a call (kernels/cuda/attention.cu): rows of a block, of `rows` queries
// of all the query heads that share keys; keys of a tile; in how many parts the tiles are done.
int flash_rows(DType dtype, int64_t rows, int64_t kv_heads, int multiprocessors);
int flash_tile_keys(DType dtype, int rows, int64_t size);
int flash_blocks(int rows, bool sm90);  // of a multiprocessor at once
int64_t flash_parts(int64_t blocks, int64_t tiles, int64_t resident_blocks);
inline constexpr int64_t kLibraryRows = 64;  // fewer queries only read keys and values
// Multiplications of q k^T from which on a call is the library's: 17 Gflop in all, some 45 us by
// our kernels; preparing a shape takes it about half a second of the host, once. The same for
// products of warpgroups, whose operands are copied into tiles first.
inline constexpr int64_t kLargeAttention = int64_t{1} << 32;
// Floats of one state: [N, A, E] and lse [A, N].
int64_t flash_state_floats(int64_t queries, int64_t heads, int64_t size);
inline constexpr int kFlashLargest = 256;      // the largest head size; larger ones by products:
inline constexpr int kAttentionGemmTile = 64;  // keys
struct AttentionGemmPlaces {
  int64_t strip = 0;  // queries at a time
  size_t logits = 0, powers = 0, values = 0, used = 0;
};
// Behind the caller's `before` bytes; `columns`: keys, each segment's rounded up to tiles.
AttentionGemmPlaces attention_gemm_places(int64_t queries, int64_t columns, int64_t size,
                                          DType dtype, size_t before);

}  // namespace weft
