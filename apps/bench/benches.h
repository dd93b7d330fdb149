#pragma once
// The benches of `weft bench`, each described at the top of its file.
#include <functional>
#include <string>

#include "apps/command_line/flags.h"
#include "io/weights/tensor_file.h"
#include "kernels/dtype.h"

namespace weft {

// A quantisation of random weights before they are measured (tests/bench), empty for none.
struct StoredWeights {
  std::string name;
  std::function<TensorFile(TensorFile)> quantise;
};

// Each takes the median of `repeat` measurements and returns the exit code.
int bench_dit(const Flags& flags, DType dtype, int repeat);
int bench_dit(const Flags& flags, DType dtype, int repeat, const StoredWeights& stored);
int bench_attention(const Flags& flags, DType dtype, int repeat);
int bench_llm(const Flags& flags, DType dtype, int repeat);
int bench_load(const Flags& flags, DType dtype, int repeat);
int bench_stream(const Flags& flags, DType dtype, int repeat);
int bench_text(const Flags& flags, DType dtype, int repeat);
int bench_vae(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
