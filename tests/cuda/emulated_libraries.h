#pragma once
// Hooks into the plain loops that stand in for cuBLASLt and cuDNN.
#include <atomic>
#include <cstdint>

namespace weft::test {

struct EmulatedLibraries {
  bool refuse_gemm = false;    // refuses every GEMM
  bool refuse_fp8 = false;     // like a device without e4m3 tensor cores
  bool refuse_scales = false;  // like a library without vectors of scales
  bool refuse_conv = false;
  bool refuse_sdpa = false;
  int64_t gemms = 0, convs = 0, sdpas = 0;  // calls done, without refused ones
  int64_t biases = 0;                       // GEMMs that added a bias
};
EmulatedLibraries& emulated_libraries();
// Ranks are threads and share the counters.
inline void count(int64_t& done) { std::atomic_ref(done).fetch_add(1); }

}  // namespace weft::test
