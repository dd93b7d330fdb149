#include "kernels/cpu/cpu_isa.h"

#include <cstdlib>
#include <dnnl.hpp>
#include <string_view>

#include "hwy/highway.h"
#include "kernels/check.h"
#include "kernels/linear.h"
#include "kernels/ops.h"

namespace weft {

namespace cpu {

namespace {

// "amx" is the highest level there is, so it caps nothing.
CpuCap read_cap() {
  const CpuCap cap = parse_cpu_cap(std::getenv("WEFT_CPU"));
  // Both libraries must be told before their first kernel is chosen; the op tables are made before
  // any op runs, and making them calls this function.
  if (cap == CpuCap::kAvx2 || cap == CpuCap::kReference) {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx2);
#if HWY_ARCH_X86
    hwy::DisableTargets(HWY_AVX3 | HWY_AVX3_DL);
#endif
  } else if (cap == CpuCap::kAvx512) {
    dnnl::set_max_cpu_isa(dnnl::cpu_isa::avx512_core);
  }
  return cap;
}

}  // namespace

CpuCap parse_cpu_cap(const char* value) {
  if (!value || !*value) return CpuCap::kNone;
  const std::string_view name = value;
  if (name == "ref") return CpuCap::kReference;
  if (name == "avx2") return CpuCap::kAvx2;
  if (name == "avx512") return CpuCap::kAvx512;
  if (name == "amx") return CpuCap::kNone;
  if (name == "bf16") return CpuCap::kEmulatedBf16;
  throw Error(ErrorKind::kUsage,
              "WEFT_CPU: '" + std::string(name) + "' is not one of ref, avx2, avx512, amx, bf16");
}

CpuCap cpu_cap() {
  static const CpuCap cap = read_cap();
  return cap;
}

namespace {

dnnl::cpu_isa effective_isa() {
  cpu_cap();
  static const dnnl::cpu_isa isa = dnnl::get_effective_cpu_isa();
  return isa;
}

// oneDNN's values are bit sets: a level holds every bit of the levels it contains.
bool contains(dnnl::cpu_isa level) {
  const auto bits = static_cast<unsigned>(level);
  return (static_cast<unsigned>(effective_isa()) & bits) == bits;
}

}  // namespace

bool has_avx512() { return contains(dnnl::cpu_isa::avx512_core); }

bool has_bf16_dot_products() {
  return contains(dnnl::cpu_isa::avx512_core_bf16) ||
         (cpu_cap() == CpuCap::kEmulatedBf16 && has_avx512());
}

bool has_bf16_tiles() {
  return contains(dnnl::cpu_isa::avx512_core_amx) || cpu_cap() == CpuCap::kEmulatedBf16;
}

bool has_int8_dot_products() { return contains(dnnl::cpu_isa::avx512_core_vnni); }

std::string isa_name() {
  if (cpu_cap() == CpuCap::kReference) return "reference";
  if (contains(dnnl::cpu_isa::avx512_core_amx)) return "amx";
  if (contains(dnnl::cpu_isa::avx512_core_bf16)) return "avx512_bf16";
  if (has_bf16_dot_products()) return "avx512, bf16 emulated";
  if (has_avx512()) return "avx512";
  if (contains(dnnl::cpu_isa::avx2)) return "avx2";
  return "baseline";
}

}  // namespace cpu

std::string cpu_isa() { return cpu::isa_name(); }

bool cpu_has_int8() {
  return cpu::cpu_cap() != cpu::CpuCap::kReference && cpu::has_int8_dot_products();
}

bool cpu_has_bf16() {
  return cpu::cpu_cap() != cpu::CpuCap::kReference && cpu::has_bf16_dot_products();
}

}  // namespace weft
