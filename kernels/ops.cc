#include "kernels/ops.h"

#include <cstdlib>
#include <string_view>

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
}

void fill_simd(Ops& ops) {}

void fill_onednn(Ops& ops) {}

}  // namespace cpu

namespace {

Ops make_ops(const char* name, bool simd, bool vendor) {
  Ops ops{};
  ops.name = name;
  cpu::fill_reference(ops);
  if (simd) cpu::fill_simd(ops);
  if (vendor) cpu::fill_onednn(ops);
  return ops;
}

bool capped_to_reference() {
  const char* cap = std::getenv("WEFT_CPU");
  return cap && std::string_view(cap) == "ref";
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
  static const bool reference = capped_to_reference();
  static const Ops ops = make_ops("cpu", true, true);
  return reference ? reference_ops() : ops;
}

std::vector<const Ops*> all_ops() {
  std::vector<const Ops*> all{&reference_ops(), &simd_ops()};
  if (&cpu_ops() != &reference_ops()) all.push_back(&cpu_ops());
  return all;
}

std::string cpu_isa() {
  if (&cpu_ops() == &reference_ops()) return "reference";
  return __builtin_cpu_supports("avx512bf16") ? "avx512_bf16"
         : __builtin_cpu_supports("avx512bw") ? "avx512"
         : __builtin_cpu_supports("avx2")     ? "avx2"
                                              : "baseline";
}

bool cpu_has_bf16() {
  return &cpu_ops() != &reference_ops() && __builtin_cpu_supports("avx512bf16");
}

}  // namespace weft
