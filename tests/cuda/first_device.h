#pragma once
#include "kernels/tensor.h"

namespace weft {

inline constexpr Device kCuda{Device::Kind::kCuda, 0};

}  // namespace weft
