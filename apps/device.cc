#include "apps/device.h"

#include <algorithm>
#include <thread>

#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace weft {

int ranks_of(const Flags& flags) {
  return static_cast<int>(flags.integer("ranks", 1, 1024).value_or(1));
}

int threads_per_rank(const Flags& flags, int ranks) {
  if (const auto given = flags.integer("threads", 1, 4096)) return static_cast<int>(*given);
  if (ranks == 1) return 0;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()) / ranks);
}

void require_cpu(const Flags& flags) {
  const std::string device = flags.text("device");
  if (device == "cpu") return;
  if (device == "cuda" || device.starts_with("cuda:")) {
    int index = 0;
    if (device.size() > 5) {
      char* end = nullptr;
      index = static_cast<int>(std::strtol(device.c_str() + 5, &end, 10));
      if (*end) index = -1;
    }
    if (device.size() != 5 && index >= 0) cuda_stream(index);
  }
  throw Error(ErrorKind::kUsage, "--device is '" + device + "', legal: cpu, cuda, cuda:N");
}

DType compute_dtype(const Flags& flags) {
  const std::string dtype = flags.text("dtype");
  if (dtype == "auto") return cpu_has_bf16() ? DType::kBF16 : DType::kF32;
  return dtype == "bf16" ? DType::kBF16 : DType::kF32;
}

}  // namespace weft
