#pragma once
// Runs every op family once on this machine and compares it with the reference ops.
#include <string>
#include <vector>

#include "kernels/ops.h"

namespace weft {

struct OpCheck {
  std::string family, op;
  DType dtype = DType::kF32;
  double error = 0, bound = 0;                  // relative L2
  bool pass() const { return error <= bound; }  // false where the error is NaN
};

// Takes milliseconds. Bounds: f32 4.5e-5, some 750 roundings of 2^-24 that all point one way;
// bf16 4.5e-3, about one rounding of 2^-8 each; copies 0.
std::vector<OpCheck> self_test(const Ops& ops, const Ops& reference);

}  // namespace weft
