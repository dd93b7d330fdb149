#pragma once
// These functions predict the weight and scratch bytes of every op from its shapes, for memory
// plans. They need no device. The CUDA kernels lay out their scratch by the same functions. A queue
// holds the largest scratch of its ops (Stream's queue, trimmed between stages).
#include <cstdint>
#include <string>

#include "kernels/attention.h"
#include "kernels/linear.h"

namespace weft {

// DeviceTraits holds the properties of a device that decide which kernels an op uses.
struct DeviceTraits {
  std::string name;
  int multiprocessors = 0;
  int major = 0, minor = 0;  // compute capability
  size_t bytes = 0;

  bool multiplies_e4m3() const { return major > 8 || (major == 8 && minor == 9); }
  bool has_warpgroups() const { return major == 9; }
};
DeviceTraits device_traits(Device device);  // the traits of an installed device

// DeviceRanges (arenas, scratch) get their memory in pieces of this size, a multiple of every
// device's allocation granularity.
inline constexpr size_t kDevicePiece = size_t{32} << 20;
inline size_t committed_bytes(size_t bytes) {
  return (bytes + kDevicePiece - 1) / kDevicePiece * kDevicePiece;
}
// A stream may hold this much in small tensors that no formula counts; the driver allocates them
// from slabs.
inline constexpr size_t kDeviceSlab = size_t{2} << 20;

// Libraries may take this much scratch after the caller's own: for a GEMM, an attention, a
// convolution. They are only asked for algorithms that need no more.
inline constexpr size_t kGemmWorkspace = size_t{64} << 20;
inline constexpr size_t kSdpaWorkspace = size_t{64} << 20;
inline constexpr size_t kConvWorkspace = size_t{256} << 20;
// A copy between host and device that converts on the way goes in pieces of at most this size.
inline constexpr size_t kTransferPiece = size_t{4} << 20;
inline constexpr int kTransferSlots = 4;  // pinned buffers of each queue that copies

// Scratch for the sums and 8-bit operands of one block of rows. No result depends on its size;
// tests make it small.
inline int64_t linear_block_bytes = int64_t{256} << 20;

// A GEMM over `rows` rows is cut in `count` equal blocks of at most `largest` rows, where a row
// takes `row_bytes` of scratch.
struct RowBlocks {
  int64_t count, largest;
};
RowBlocks row_blocks(int64_t rows, int64_t row_bytes);

// The rows that rows_at_once() gives matrices on a device with so many multiprocessors. Each
// computes a tile of 128 x 256 results at a time, and the last wave of tiles of every piece of rows
// may leave some idle.
struct MatrixExtents {
  int64_t out, in;
};
int64_t rows_in_waves(int64_t rows, std::span<const MatrixExtents> matrices, int multiprocessors);

// Gives out offsets in a queue's scratch after the caller's `before` bytes; each is a multiple of
// 256 bytes.
class ScratchPlaces {
 public:
  explicit ScratchPlaces(size_t before = 0) : used_(before) {}
  size_t take(int64_t bytes) {
    const size_t at = used_;
    used_ += (static_cast<size_t>(bytes) + 255) / 256 * 256;
    return at;
  }
  size_t used() const { return used_; }

 private:
  size_t used_;
};

// `used` is the end of the last part.
struct LinearPlaces {
  size_t weight = 0, quantized = 0, scales = 0, sums = 0, used = 0;
};
// The scratch of a GEMM over `rows` rows. places_of_sums: the f32 sums. places_of_quantized: x in 8
// bits, its scales and the 4-byte sums. places_of_gemv: x in 8 bits widened to bf16, and its
// scales. places_of_widened: the same with the sums and the weight as bf16. `stride` and `columns`
// are the row stride and the number of rows of the packed weight.
LinearPlaces places_of_sums(int64_t rows, int64_t stride);
LinearPlaces places_of_quantized(int64_t rows, int64_t stride, int64_t columns);
LinearPlaces places_of_gemv(int64_t rows, int64_t stride);
LinearPlaces places_of_widened(int64_t rows, int64_t stride, int64_t columns);

struct LinearShape {
  int64_t rows = 0, in = 0, out = 0;
  DType dtype = DType::kBF16;
  WeightFormat format = WeightFormat::kCompute;
  DType result = DType::kBF16;
  LinearActivation activation = LinearActivation::kNone;
};
// True if a matrix in the compute dtype leaves so many rows to the GEMM library: fewer go to a
// GEMV.
bool library_takes_rows(int64_t rows, DType dtype);
size_t linear_scratch_bytes(const LinearShape& shape, const DeviceTraits& device);

// The extents of a packed weight: rows are padded to whole 16 bytes; in 8-bit formats their number
// is a multiple of 16.
struct PackedExtents {
  int64_t rows, stride;
};
PackedExtents packed_extents(int64_t out, int64_t in, DType dtype, WeightFormat format);
// In transit through a DeviceWindow, each piece begins at a multiple of 256 bytes.
inline size_t movable_piece(size_t bytes) { return (bytes + 255) / 256 * 256; }
// While a matrix is packed to 8 bits, so many source rows wait on the device in addition.
int64_t packing_rows(int64_t out, int64_t in, DType dtype);

struct AttentionShape {
  int64_t queries = 0, keys = 0;
  int64_t heads = 0, kv_heads = 0, size = 0;
  int64_t segments = 1;
  bool one_more = false;  // the second of two segments is a single key
  DType dtype = DType::kBF16;
  AttentionFormat format = AttentionFormat::kCompute;
  bool bias = false;
  bool plain = true;  // no bias, mask or f32 state, a positive scale: then the library takes it
};
// This assumes that the library accepts every call that it is asked first (doctor says what it
// refuses).
size_t attention_scratch_bytes(const AttentionShape& shape, const DeviceTraits& device);

}  // namespace weft
