// Proves, without a device, that cuDNN has engines for our attention graphs on an H200: its
// heuristics propose configurations from a description of the device, and its checks accept them.
// The plan's code is generated too; only loading it needs a driver, so only that step may fail
// here.
#include <cstdio>
#include <string>

#include "kernels/cuda/sdpa_graph.h"
#include "tests/cuda/described_device.h"

namespace weft::cuda {
namespace {

SdpaShape sdpa_shape_of(int64_t queries, int64_t keys, int64_t heads, int64_t kv_heads,
                        int64_t size, bool lse) {
  const int64_t row = heads * size, kv_row = kv_heads * size;
  return {queries, keys, heads,  kv_heads, size, row,  size,
          kv_row,  size, kv_row, size,     row,  size, lse};
}

bool check_sdpa_graph(const SdpaShape& shape, const CudnnTarget& target) {
  size_t engines = 0;
  bool made = false;
  std::string reason;
  try {
    const std::vector<CudnnDescriptor> configurations = propose_sdpa(shape, target);
    engines = configurations.size();
    if (engines > 0) make_cudnn_plan(configurations[0], target);
    made = engines > 0;
  } catch (const CudnnRefusal& refusal) {
    made = refusal.status == CUDNN_STATUS_EXECUTION_FAILED_CUDA_DRIVER;
    reason = refusal.text;
  }
  std::printf("%s queries %ld keys %ld heads %ld/%ld size %ld%s: %zu engines %s\n",
              made ? "ok  " : "FAIL", static_cast<long>(shape.queries),
              static_cast<long>(shape.keys), static_cast<long>(shape.heads),
              static_cast<long>(shape.kv_heads), static_cast<long>(shape.size),
              shape.lse ? " lse" : "", engines, made ? "" : reason.c_str());
  return made;
}

int run_sdpa_checks() {
  const CudnnDescriptor device = describe_h200();
  const CudnnTarget target{.device = &device};
  bool all = true;
  for (bool lse : {false, true})
    for (int64_t heads : {12, 40}) {
      for (int64_t queries : {1560, 32760, 75600})
        for (int64_t keys : {queries, int64_t{512}})
          all &= check_sdpa_graph(sdpa_shape_of(queries, keys, heads, heads, 128, lse), target);
    }
  all &= check_sdpa_graph(sdpa_shape_of(4096, 4096, 12, 2, 128, false), target);
  all &= check_sdpa_graph(sdpa_shape_of(257, 257, 16, 16, 80, false), target);
  return all ? 0 : 1;
}

}  // namespace
}  // namespace weft::cuda

int main() { return weft::cuda::exit_code_of(weft::cuda::run_sdpa_checks); }
