#pragma once
// Conversion of any number of values between f32 and bf16, rounded to nearest even.
#include <cstdint>

#include "kernels/dtype.h"

namespace weft::cpu {

void widen_bf16(const bf16* x, int64_t count, float* out);
void narrow_bf16(const float* x, int64_t count, bf16* out);

}  // namespace weft::cpu
