#pragma once
// weft bench llm: a language model of random weights, or --model's: a prompt's prefill beside the
// library's rate at its shapes, decoding beside the rate at which memory is read (a device's:
// copied), and, with part of the blocks resident, beside the file they come from.
#include "apps/command_line/flags.h"
#include "kernels/dtype.h"

namespace weft {

int bench_llm(const Flags& flags, DType dtype, int repeat);

}  // namespace weft
