#pragma once
// The linear family computes out = act(x * weight^T + bias); weights are packed once at load.
#include <memory>
#include <vector>

#include "kernels/stream.h"

namespace weft {

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
enum class WeightFormat : uint8_t { kCompute, kInt8, kFp8, kFp8Tensor };
constexpr bool is_fp8(WeightFormat format) { return format >= WeightFormat::kFp8; }

// A PackedLinear is one packed weight matrix: owned memory in the layout of the op table that
// packed it. It holds the only anonymous copy of the weights; the view it was packed from may go
// away.
class PackedLinear {
 public:
  PackedLinear() = default;
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  DType dtype() const { return dtype_; }  // dtype of x and out; of the weights too in kCompute
  WeightFormat format() const { return format_; }
  bool has_bias() const { return static_cast<bool>(bias_); }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return out_ > 0; }

  // The members below are for implementations of LinearOps.
  struct Storage {
    void* data = nullptr;
    void (*destroy)(void*) = nullptr;
  };
  int64_t in_ = 0, out_ = 0;
  DType dtype_ = DType::kF32;
  WeightFormat format_ = WeightFormat::kCompute;
  size_t bytes_ = 0;
  Tensor bias_;  // [out] f32
  std::unique_ptr<void, void (*)(void*)> storage_{nullptr, [](void*) {}};
  // On a device, pieces_ lists the memory above in a fixed order, without what is kept twice for
  // speed (let_go_ frees that). Matrices packed alike have the same pieces, so one's memory can
  // take the other's values.
  std::vector<TensorView> pieces_;
  void (*let_go_)(void* storage) = nullptr;
};

// weight [out, in] and bias [out] (or empty) have any float dtype and lie on the stream's device or
// the host. `dtype`, f32 or bf16, is the compute dtype: weight values are rounded to it once; the
// bias stays f32.
PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format = WeightFormat::kCompute);

// x [.., in] and out [.., out] need rows_collapse; both have packed.dtype(), or out is f32 where x
// is bf16 (partial sums for Reducer). Accumulation, bias and activation are f32, with one rounding.
// out may not alias x.
void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out);

// True if this machine multiplies 8-bit integers in hardware (AVX512-VNNI, AMX) and WEFT_CPU allows
// it.
bool cpu_has_int8();

}  // namespace weft
