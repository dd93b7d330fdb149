#include "kernels/ops.h"

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/tables.h"

namespace weft {

namespace cpu {

void fill_reference(Ops& ops) {
  fill_norm_reference(ops);
  fill_linear_reference(ops);
  fill_attention_reference(ops);
  fill_rope_reference(ops);
  fill_pointwise_reference(ops);
  fill_conv_reference(ops);
  fill_copy_reference(ops);
  fill_row_code_reference(ops);
}

void fill_simd(Ops& ops) {
  fill_norm_simd(ops);
  fill_rope_simd(ops);
  fill_pointwise_simd(ops);
  fill_copy_simd(ops);
  fill_linear_simd(ops);
  fill_conv_simd(ops);
  fill_attention_simd(ops);
  fill_merge_simd(ops);
}

void fill_onednn(Ops& ops) {
  fill_linear_onednn(ops);
  fill_attention_onednn(ops);
  fill_conv_onednn(ops);
}

}  // namespace cpu

namespace {

Ops make_ops(const char* name, bool simd, bool vendor) {
  Ops ops{};
  ops.name = name;
  cpu::cpu_cap();  // reads WEFT_CPU before any kernel is chosen
  cpu::fill_reference(ops);
  if (simd) cpu::fill_simd(ops);
  if (vendor) cpu::fill_onednn(ops);
  return ops;
}

}  // namespace

const Ops& reference_ops() {
  static const Ops ops = make_ops("reference", false, false);
  return ops;
}

const Ops& simd_ops() {
  static const Ops ops = make_ops("simd", true, false);
  return ops;
}

const Ops& cpu_ops() {
  if (cpu::cpu_cap() == cpu::CpuCap::kReference) return reference_ops();
  static const Ops ops = make_ops("cpu", true, true);
  return ops;
}

}  // namespace weft
