#include "apps/device.h"

#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace weft {

void require_one_rank(const Flags& flags) {
  const int64_t ranks = flags.integer("ranks", 1, 1 << 20).value_or(1);
  const std::string layout = flags.text("layout");
  if (ranks != 1)
    throw Error(ErrorKind::kUsage, "--ranks is " + std::to_string(ranks) +
                                       ", legal: 1 (this build has no communicator yet)");
  if (layout == "auto") return;
  // Every axis at 1 is the one-rank layout written out.
  for (size_t at = 0; at < layout.size();) {
    const size_t comma = std::min(layout.find(',', at), layout.size());
    const std::string pair = layout.substr(at, comma - at);
    const std::string key = pair.substr(0, pair.find('='));
    constexpr const char* kAxes[] = {"data",       "cfg",    "ulysses", "ring",
                                     "token_ring", "tensor", "layers"};
    bool known = false;
    for (const char* axis : kAxes) known |= key == axis;
    if (!known || pair.size() < key.size() + 2)
      throw Error(ErrorKind::kUsage,
                  "--layout is '" + layout + "', '" + pair +
                      "' is not legal: key=n with a key of data, cfg, ulysses, ring, token_ring, "
                      "tensor, layers");
    if (pair.substr(key.size() + 1) != "1")
      throw Error(ErrorKind::kUsage, "--layout " + pair + " needs more ranks than the 1 there is");
    at = comma + 1;
  }
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
