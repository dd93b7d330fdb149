// Implements sdpa.h in plain loops, in a stream of the emulated device. It refuses what cuDNN's
// engines refuse: heads that are not a whole number of 16 bytes.
#include <cmath>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/cuda/queue.h"
#include "kernels/cuda/sdpa.h"
#include "kernels/device_plan.h"
#include "tests/cuda/emulated_libraries.h"
#include "tests/cuda/emulator.h"

namespace weft::cuda {

namespace {

const bf16* row_of(const void* x, int64_t offset) { return static_cast<const bf16*>(x) + offset; }

void attend(const Sdpa& p, int64_t query, int64_t head) {
  const int64_t kv_head = head / (p.heads / p.kv_heads);
  const bf16* q = row_of(p.q, query * p.q_row + head * p.q_head);
  std::vector<double> logits(p.keys), sum(p.size);
  double top = -INFINITY, total = 0;
  for (int64_t j = 0; j < p.keys; ++j) {
    const bf16* k = row_of(p.k, j * p.k_row + kv_head * p.k_head);
    for (int64_t e = 0; e < p.size; ++e) logits[j] += to_float(q[e]) * to_float(k[e]);
    logits[j] *= p.scale;
    top = std::max(top, logits[j]);
  }
  for (int64_t j = 0; j < p.keys; ++j) {
    const bf16* v = row_of(p.v, j * p.v_row + kv_head * p.v_head);
    const double power = std::exp(logits[j] - top);
    total += power;
    for (int64_t e = 0; e < p.size; ++e) sum[e] += power * to_float(v[e]);
  }
  bf16* out = static_cast<bf16*>(p.out) + query * p.out_row + head * p.out_head;
  for (int64_t e = 0; e < p.size; ++e) out[e] = to_bf16(static_cast<float>(sum[e] / total));
  if (p.lse) p.lse[head * p.queries + query] = static_cast<float>(top + std::log(total));
}

}  // namespace

bool sdpa(const Stream& stream, const Sdpa& problem) {
  test::EmulatedLibraries& libraries = test::emulated_libraries();
  if (problem.size % 8 != 0 || libraries.refuse_sdpa) return false;
  test::count(libraries.sdpas);
  cuda_queue(stream).scratch(problem.scratch_used + kSdpaWorkspace);
  WEFT_CUDA_CHECK(emulated::submit(cuda_queue(stream).stream(), [problem] {
    for (int64_t head = 0; head < problem.heads; ++head)
      for (int64_t query = 0; query < problem.queries; ++query) attend(problem, query, head);
  }));
  return true;
}

std::string sdpa_refusal(const Stream&) {
  return test::emulated_libraries().refuse_sdpa ? "no engine, says the test" : "";
}

}  // namespace weft::cuda

void weft::keep_cuda_plans(const std::string&) {}
