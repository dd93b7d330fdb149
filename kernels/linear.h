#pragma once
// The linear family computes out = act(x * weight^T + bias); weights are packed once at load.
#include <initializer_list>
#include <memory>
#include <span>

#include "kernels/packed_weights.h"
#include "kernels/shared_scratch.h"
#include "kernels/stored_matrix.h"

namespace weft {

// kGeluTanh is gelu_tanh (pointwise.h) in f32. Where results are bf16, a device leaves bias and
// GELU to its GEMM library, as PyTorch does. That may round x * weight^T to bf16 before it adds a
// bias or computes GELU, and its tanh is known to 2^-10.9: an error of up to |x * weight^T + bias|
// * 2^-11.9.
enum class LinearActivation : uint8_t { kNone, kGeluTanh, kSilu };

// Weights are kept in the compute dtype, or in 8 bits with one f32 scale per output. In the 8-bit
// formats each call also rounds every row of x to 8 bits, and
// out = act(sum * (scale of x * scale of the output) + bias). A scale is the row's largest
// magnitude divided by the format's largest value. NaN or Inf in a row makes that row's outputs
// non-finite.
//   kInt8       integers from -127 to 127; dot products are exact
//   kFp8        f8_e4m3 (fp8.h), at most 448; products are exact and are added in f32. Tensor cores
//               keep about 14 bits of each sum of 128 products before it is added in f32
//   kFp8Tensor  the same with one scale for the whole matrix and one for all of x. Both are powers
//               of two (e4m3_exponent), so the rows that share a call only affect the rounding of
//               values below 2^-14 of the largest
// kFile keeps the values as a file stores them (pack_stored). Each call expands the matrix to the
// compute dtype, with the results of kCompute bit for bit.
enum class WeightFormat : uint8_t { kCompute, kInt8, kFp8, kFp8Tensor, kFile };
constexpr bool is_fp8(WeightFormat format) {
  return format == WeightFormat::kFp8 || format == WeightFormat::kFp8Tensor;
}

struct LowRankTerm;

// A PackedLinear is one packed weight matrix. It holds the only anonymous copy of the weights; the
// view it was packed from may go away.
class PackedLinear : public PackedWeights {
 public:
  PackedLinear() = default;
  // An empty matrix [out, in] for weight [out, ...], whose other dimensions are one.
  PackedLinear(const TensorView& weight, DType dtype, WeightFormat format = WeightFormat::kCompute)
      : PackedLinear(weight[0], weight.count() / weight[0], dtype, format) {}
  PackedLinear(int64_t out, int64_t in, DType dtype, WeightFormat format)
      : PackedWeights(in, out, dtype), format_(format) {}
  PackedLinear(PackedLinear&&) noexcept;
  PackedLinear& operator=(PackedLinear&&) noexcept;
  ~PackedLinear();
  WeightFormat format() const { return format_; }
  bool has_bias() const { return bias() != nullptr; }

  // Adds x * down^T * up^T to every result, before the activation: down [rank, in], up [out, rank]
  // in the dtype of x. `scratch` holds intermediate results of a call.
  void add_term(Device device, PackedLinear down, PackedLinear up,
                std::shared_ptr<SharedScratch> scratch);
  const LowRankTerm* term() const { return term_.get(); }

  // Appends the outputs of matrices that are packed alike, with a row of every buffer per output.
  void append(Stream& stream, std::span<const PackedLinear> more);

  // These do the same as in PackedWeights, and count the term.
  void for_buffers(const BufferVisitor& visit) const;
  size_t bytes() const;

 private:
  WeightFormat format_ = WeightFormat::kCompute;
  std::unique_ptr<LowRankTerm> term_;
};

struct LowRankTerm {
  PackedLinear down, up;
  std::shared_ptr<SharedScratch> scratch;
};

// weight [out, in] and bias [out] (or empty) have any float dtype and lie on the stream's device or
// the host. `dtype`, f32 or bf16, is the compute dtype: the values of both are rounded to it once.
PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format = WeightFormat::kCompute);

// Returns the bias that a matrix is packed with: f32 on the stream's device, of values that `dtype`
// holds.
Tensor rounded_bias(Stream& stream, const TensorView& bias, DType dtype);

// Packs a matrix in the format kFile. `scratch` holds an expanded matrix during a call; the
// matrices of a model share one. Where the table has no fast layout for the expanded values, the
// result is packed as kCompute.
PackedLinear pack_stored(Stream& stream, StoredMatrix matrix, const TensorView& bias, DType dtype,
                         std::shared_ptr<SharedScratch> scratch);

// x [.., in] and out [.., out] need rows_collapse; both have packed.dtype(), or out is f32 where x
// is bf16 (partial sums for Reducer). Accumulation, bias and activation are f32, with one rounding.
// out may not alias x.
void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out);

// True if linear_add() takes `rows` rows of x: matrices in the compute dtype without a low-rank
// term, on a device, where the library's GEMM takes them.
bool adds_in_place(const Stream& stream, const PackedLinear& packed, int64_t rows);
// sum += x * weight^T + bias in f32, without the product going through memory. x is as for
// linear(); sum [.., out] is f32 and may not alias x.
void linear_add(Stream& stream, const TensorView& x, const PackedLinear& packed,
                const TensorView& sum);

// Joins matrices that are applied to the same rows to one [sum of out, in], which a device computes
// faster than several. Returns an empty matrix and leaves the parts as they are on a host, and
// where their formats or inputs differ, or they have low-rank terms or one scale for a whole
// matrix.
PackedLinear join_linears(Stream& stream, std::span<PackedLinear> parts);

// Returns how many of `rows` rows to give these matrices at a time, one after the other, where the
// values between them would take much memory for all: 4096, or, on a device, the number up to 8192
// whose tiles leave the fewest multiprocessors idle. No result depends on it.
int64_t rows_at_once(const Stream& stream, int64_t rows,
                     std::initializer_list<const PackedLinear*> matrices);

// True if this machine multiplies 8-bit integers in hardware (AVX512-VNNI, AMX) and WEFT_CPU allows
// it.
bool cpu_has_int8();

}  // namespace weft
