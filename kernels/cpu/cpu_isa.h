#pragma once
// Instruction sets of this machine, capped by WEFT_CPU.
#include <cstdint>
#include <string>

namespace weft::cpu {

// WEFT_CPU=ref|avx2|avx512|amx is the highest level the op tables may use; unset means no cap.
// WEFT_CPU=bf16 acts as if the machine multiplied bf16 in hardware, using oneDNN's emulation where
// it does not. That is slow; it lets those paths be tested everywhere.
enum class CpuCap : uint8_t { kReference, kAvx2, kAvx512, kNone, kEmulatedBf16 };

// Parses a value of WEFT_CPU; null means not set. An unknown value is an Error (kUsage).
CpuCap parse_cpu_cap(const char* value);

// Returns the cap of this process, read from the environment once. The first call passes it to
// oneDNN and Highway.
CpuCap cpu_cap();

// These are oneDNN's view of the machine under the cap.
bool has_avx512();             // AVX-512 with BW, DQ, VL
bool has_bf16_dot_products();  // AVX512-BF16 or AMX
bool has_bf16_tiles();         // AMX
bool has_int8_dot_products();  // AVX512-VNNI or AMX

std::string isa_name();

}  // namespace weft::cpu
