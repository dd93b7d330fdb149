#pragma once
// The op tables hold function pointers per family. Each CPU table starts as a copy of the slower
// one: reference, Highway SIMD, oneDNN; the CUDA table has every entry of its own. Callers never
// branch on the machine; tests and benches iterate over tables. Entries get arguments that the
// family's .cc file has checked, and never see empty tensors.
#include <string>
#include <vector>

#include "kernels/attention.h"
#include "kernels/conv.h"
#include "kernels/copy.h"
#include "kernels/linear.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/rope.h"
#include "kernels/row_code.h"
#include "kernels/stream.h"

namespace weft {

struct NormOps {
  decltype(&weft::layer_norm) layer_norm;
  decltype(&weft::modulated_layer_norm) modulated_layer_norm;
  decltype(&weft::rms_norm) rms_norm;
  decltype(&weft::sum_squares) sum_squares;
  decltype(&weft::rms_scale) rms_scale;
  decltype(&weft::channel_rms_norm) channel_rms_norm;
  decltype(&weft::group_sums) group_sums;
  decltype(&weft::group_squares) group_squares;
  decltype(&weft::group_norm) group_norm;
};

struct LinearOps {
  decltype(&weft::pack_linear) pack_linear;
  decltype(&weft::pack_stored) pack_stored;
  decltype(&weft::linear) linear;
};

// Ops that a device computes in one pass. The CPU's tables have none of them: the functions that
// call run the parts one after the other.
struct FusedOps {
  decltype(&weft::linear_add) linear_add;
  decltype(&weft::gated_add_norm) gated_add_norm;
  decltype(&weft::rms_norm_rope) rms_norm_rope;
};

struct AttentionOps {
  decltype(&weft::attention) attention;
  decltype(&weft::merge_attention) merge_attention;
};

struct RopeOps {
  decltype(&weft::apply_rope) apply_rope;
};

struct PointwiseOps {
  decltype(&weft::add) add;
  decltype(&weft::gated_add) gated_add;
  decltype(&weft::add_bias) add_bias;
  decltype(&weft::silu) silu;
  decltype(&weft::tanh) tanh;
  decltype(&weft::gelu_tanh) gelu_tanh;
  decltype(&weft::gelu_erf) gelu_erf;
  decltype(&weft::gelu_quick) gelu_quick;
  decltype(&weft::gelu_tanh_mul) gelu_tanh_mul;
  decltype(&weft::silu_mul) silu_mul;
  decltype(&weft::sigmoid_mul) sigmoid_mul;
  decltype(&weft::axpby) axpby;
  decltype(&weft::combine) combine;
  decltype(&weft::clamp) clamp;
  decltype(&weft::first_non_finite) first_non_finite;
  decltype(&weft::note_non_finite) note_non_finite;
};

struct ConvOps {
  decltype(&weft::pack_conv) pack_conv;
  decltype(&weft::conv3d) conv3d;
  decltype(&weft::upsample_nearest2) upsample_nearest2;
};

struct CopyOps {
  decltype(&weft::copy) copy;
  decltype(&weft::fill_zero) fill_zero;
  decltype(&weft::gather_rows) gather_rows;
  decltype(&weft::frames_to_rgb8) frames_to_rgb8;
};

struct RowCodeOps {
  decltype(&weft::encode_rows) encode_rows;
  decltype(&weft::decode_rows) decode_rows;
};

struct Ops {
  std::string name;  // "reference", "simd", "cpu"
  NormOps norm;
  LinearOps linear;
  FusedOps fused{};
  AttentionOps attention;
  RopeOps rope;
  PointwiseOps pointwise;
  ConvOps conv;
  CopyOps copy;
  RowCodeOps row_code;
};

// Plain loops with f64 sums where order matters; every other table is tested against them.
const Ops& reference_ops();
// The reference table with Highway SIMD versions in place of most ops; no vendor library.
const Ops& simd_ops();
// The fastest table this machine allows: the simd table with oneDNN in place of some ops.
// WEFT_CPU=ref|avx2|avx512|amx in the environment caps it; it is read once.
const Ops& cpu_ops();
// Returns every table that can run here, for tests and benches.
std::vector<const Ops*> all_ops();

// Names what cpu_ops() uses, for run headers: "avx2", "avx512", "avx512_bf16", "amx", ...
std::string cpu_isa();
// True if the hardware multiplies bf16 (AVX512-BF16 or AMX); the default compute dtype follows.
bool cpu_has_bf16();

}  // namespace weft
