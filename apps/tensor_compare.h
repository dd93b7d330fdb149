#pragma once
// Compares a produced tensor with the expected one, in the numbers that `weft verify` and
// `weft compare` print.
#include <string>

#include "kernels/tensor.h"

namespace weft {

struct Comparison {
  double rel_l2 = 0;  // |a - b| / |b|, or |a - b| where b is all zero
  double cosine = 1;
  double max_abs = 0;
  std::string worst;   // coordinate of max_abs, "[1, 2, 3]"
  bool finite = true;  // no NaN or infinity in `actual`
};

// Shapes must be equal; any float or integer dtype is fine. `offset` is subtracted from both first.
Comparison compare(const TensorView& actual, const TensorView& expected, double offset = 0);

}  // namespace weft
