#pragma once
// GemmLimit: one plain product by oneDNN's matmul, with nothing before or behind it: the rate of
// this machine that the engine's own figures are shares of.
#include <memory>
#include <string>

#include "kernels/stream.h"

namespace weft {

class GemmLimit {
 public:
  // x [rows, in] times weights [in, out], packed as oneDNN likes best. bf16 where the machine
  // multiplies it in hardware, else f32, which is then the faster one.
  GemmLimit(const Stream& stream, DType dtype, int64_t rows, int64_t in, int64_t out);
  ~GemmLimit();
  GemmLimit(GemmLimit&&) noexcept;

  void run();
  double flop() const;
  DType dtype() const;                 // of the operands
  std::string implementation() const;  // oneDNN's name, "brg:avx512_core"

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
