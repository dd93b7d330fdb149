#pragma once
// weft bench truth: what each approximation costs in quality, and what it saves in bytes and time.
#include "apps/command_line/flags.h"
#include "kernels/tensor.h"

namespace weft {

// Without --simulate it draws clips of the pocket model with every method, compares them with those
// of full attention, and reads them back. With --simulate it forecasts a step of --model on eight
// ranks. The operands are cases, METHOD@AXIS.
int bench_truth(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
