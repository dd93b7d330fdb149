#pragma once
// A GemmLimit runs one plain GEMM of the library alone (oneDNN's matmul, cuBLASLt), with nothing
// before or after it. Its rate is the limit that benchmarks divide the engine's rates by.
#include <memory>
#include <string>

#include "kernels/stream.h"

namespace weft {

class GemmLimit {
 public:
  GemmLimit(DType dtype, int64_t rows, int64_t in, int64_t out)
      : dtype_(dtype), rows_(rows), in_(in), out_(out) {}
  virtual ~GemmLimit() = default;

  virtual double run() = 0;                        // returns when the GEMM is done; its seconds
  virtual std::string implementation() const = 0;  // the library's name, "brg:avx512_core"
  DType dtype() const { return dtype_; }           // the dtype of the operands
  double flop() const {
    return 2.0 * static_cast<double>(rows_) * static_cast<double>(in_) * static_cast<double>(out_);
  }

 protected:
  DType dtype_;
  int64_t rows_, in_, out_;
};

// The GEMM is x [rows, in] times weights [in, out] on the stream's device, packed as its library
// prefers. On a CPU it runs in bf16 if the machine multiplies bf16 in hardware, else in f32, which
// is then faster.
std::unique_ptr<GemmLimit> make_gemm_limit(Stream& stream, DType dtype, int64_t rows, int64_t in,
                                           int64_t out);

// Fills host memory (f32 or bf16) with values of magnitude 1 to 2. Zeros draw less power, so a GEMM
// of them may run at a higher clock.
void fill_for_limit(void* data, DType dtype, int64_t count);

}  // namespace weft
