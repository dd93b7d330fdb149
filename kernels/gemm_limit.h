#pragma once
// GemmLimit: one plain product by the library alone (oneDNN's matmul, cuBLASLt), with nothing
// before or behind it: the rate of this device that the engine's own figures are shares of.
#include <memory>
#include <string>

#include "kernels/stream.h"

namespace weft {

class GemmLimit {
 public:
  GemmLimit(DType dtype, int64_t rows, int64_t in, int64_t out)
      : dtype_(dtype), rows_(rows), in_(in), out_(out) {}
  virtual ~GemmLimit() = default;

  virtual double run() = 0;  // until the product is there; the seconds of one product
  virtual std::string implementation() const = 0;  // the library's name, "brg:avx512_core"
  DType dtype() const { return dtype_; }           // of the operands
  double flop() const {
    return 2.0 * static_cast<double>(rows_) * static_cast<double>(in_) * static_cast<double>(out_);
  }

 protected:
  DType dtype_;
  int64_t rows_, in_, out_;
};

// x [rows, in] times weights [in, out] on the stream's device, as its library likes them best. On a
// CPU bf16 where the machine multiplies it in hardware, else f32, which is then the faster one.
std::unique_ptr<GemmLimit> make_gemm_limit(Stream& stream, DType dtype, int64_t rows, int64_t in,
                                           int64_t out);

// Values of +-1 to 2 in host memory, f32 or bf16. Zeros draw less power, so a product of them may
// run at a higher clock.
void fill_for_limit(void* data, DType dtype, int64_t count);

}  // namespace weft
