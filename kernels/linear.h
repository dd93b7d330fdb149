#pragma once
// Linear family: out = act(x * weight^T + bias), weights packed once at load.
#include <memory>
#include <vector>

#include "kernels/stream.h"

namespace weft {

enum class LinearActivation : uint8_t { kNone, kGeluTanh, kSilu };

// How weights are kept: in the compute dtype, or as 8-bit numbers times one f32 per output. Of the
// latter every row of x is rounded to such numbers as well when it comes, and
// out = act(sum * (scale of x * scale of the output) + bias). Scales are a row's largest magnitude
// over the largest number; where a row holds a value that is not finite, all that comes of it is
// not.
//   kInt8       whole numbers -127 ... 127, products added exactly
//   kFp8        f8_e4m3 (fp8.h), at most 448: exact products, added in f32; tensor cores of e4m3
//   keep
//               about 14 bits of the 128 products that they add between two additions in f32
//   kFp8Tensor  the same with one scale for all of the matrix and one for all of x: powers of two
//               (e4m3_exponent), so that which rows come together moves only what is below 2^-14 of
//               the largest
enum class WeightFormat : uint8_t { kCompute, kInt8, kFp8, kFp8Tensor };
constexpr bool is_fp8(WeightFormat format) { return format >= WeightFormat::kFp8; }

// One packed weight matrix: owned memory in whatever layout the op table that packed it wants.
// It holds the only anonymous copy of the weights; the view it was packed from may go away.
class PackedLinear {
 public:
  PackedLinear() = default;
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  DType dtype() const { return dtype_; }  // of x and out; of the weights in kCompute
  WeightFormat format() const { return format_; }
  bool has_bias() const { return static_cast<bool>(bias_); }
  size_t bytes() const { return bytes_; }
  explicit operator bool() const { return out_ > 0; }

  // For implementations of LinearOps.
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
  // Of a device's: the memory above in an order of its own, but for what is kept twice for speed
  // and goes by let_go_. Then matrices packed alike have the same pieces, and one's place can take
  // the other's values.
  std::vector<TensorView> pieces_;
  void (*let_go_)(void* storage) = nullptr;
};

// weight [out, in] and bias [out] (or empty), any float dtype, on the stream's device or the host;
// `dtype` f32 or bf16 is the compute
// dtype. Weight values are rounded once to it; the bias stays f32.
PackedLinear pack_linear(Stream& stream, const TensorView& weight, const TensorView& bias,
                         DType dtype, WeightFormat format = WeightFormat::kCompute);

// x [.., in] rows_collapse, out [.., out] rows_collapse, both in packed.dtype(), or out f32 where x
// is bf16 (partial sums for Reducer). f32 accumulation, bias and activation in f32, one rounding.
// out may not alias x.
void linear(Stream& stream, const TensorView& x, const PackedLinear& packed,
            LinearActivation activation, const TensorView& out);

// Whether this machine multiplies 8-bit numbers fast (AVX512-VNNI, AMX) under WEFT_CPU.
bool cpu_has_int8();

}  // namespace weft
