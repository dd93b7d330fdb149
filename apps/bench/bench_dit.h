#pragma once
// weft bench dit, weft bench attention: one forward of a transformer with random weights, and its
// attention alone, beside what this machine's oneDNN reaches in the same run.
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

int bench_dit(const Flags& flags, DType dtype, int repeat);
int bench_dit(const Flags& flags, DType dtype, int repeat, const StoredWeights& stored);
int bench_attention(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
