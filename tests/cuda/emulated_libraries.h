#pragma once
// Hooks of the plain loops that stand in for cuBLASLt and cuDNN.
#include <atomic>
#include <cstdint>

namespace weft::test {

struct EmulatedLibraries {
  bool refuse_gemm = false;    // every product
  bool refuse_fp8 = false;     // as a device without such products
  bool refuse_scales = false;  // as a library without vectors of scales
  bool refuse_conv = false;
  bool refuse_sdpa = false;
  int64_t gemms = 0, convs = 0, sdpas = 0;  // done, not refused
};
EmulatedLibraries& emulated_libraries();
// Ranks that are threads share the counters.
inline void count(int64_t& done) { std::atomic_ref(done).fetch_add(1); }

}  // namespace weft::test
