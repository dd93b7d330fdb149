#pragma once
// GEMM with weights packed in panels, for every machine. The oneDNN paths fall back to it where
// oneDNN has no fast implementation (bf16 without hardware for it, no AVX-512, strided rows).
#include "kernels/cpu/bf16_rows.h"
#include "kernels/linear.h"
#include "kernels/packed_weights.h"
#include "kernels/stream.h"

namespace weft::cpu {

// Panels store weights [in, out] as [ceil(out / block)][stride / block >= in][block], f32 or bf16;
// columns past `out` are zero. With f32 and block 64 this is oneDNN's layout BA16a64b, and with
// `in` split into taps and channels its Odhwi<block>o, so both libraries read one copy. Panels of
// bf16 pairs, [ceil(out / 64)][stride / 128][64][2], are oneDNN's BA16a64b2a; panel_gemm reads them
// for up to 16 rows.
struct Panels {
  const void* data = nullptr;
  DType dtype = DType::kF32;
  int64_t in = 0, out = 0;
  int64_t block = 64;  // multiple of 16
  int64_t stride = 0;  // elements from one panel to the next
  bool pairs = false;  // two inputs lie side by side; `in` is even
};

// Packs weight [out, taps.., in] (rank 2 to 5, any strides, any float dtype, any alignment) into
// zeroed `data`, which holds ceil(out / block) * stride elements of `dtype`. Each value is rounded
// once. On a measured device it does nothing.
void pack_panels(Stream& stream, const TensorView& weight, DType dtype, int64_t block,
                 int64_t stride, void* data);

// Fills out[i * depth + j] with the left operand's element (row + i, k + j) in f32.
using GatherRows = void (*)(const void* context, int64_t row, int64_t rows, int64_t k,
                            int64_t depth, float* out);

struct PanelGemm {
  Panels weight;
  int64_t rows = 0;
  const float* left = nullptr;  // [rows, in], or null where `gather` makes it
  int64_t left_stride = 0;
  GatherRows gather = nullptr;
  const void* context = nullptr;
  const float* bias = nullptr;  // [out] or null
  LinearActivation activation = LinearActivation::kNone;
  void* out = nullptr;  // [rows, out]
  DType out_dtype = DType::kF32;
  int64_t out_stride = 0;
};

// Sums run over `in` in ascending order for any number of threads and rows, so the bits of an
// output depend on its own row and column alone. With up to 16 rows each weight is read from memory
// once. Each thread keeps at most 0.5 MiB of scratch; with up to 16 gathered rows, scratch holds
// all of them in f32.
void panel_gemm(Stream& stream, const PanelGemm& gemm);

// The storage of weights that are panels alone.
template <class Panels>
struct PanelWeights : PackedStorage {
  Panels panels;
  void for_buffers(const BufferVisitor& visit) override { visit(panels.buffer()); }
};

}  // namespace weft::cpu
