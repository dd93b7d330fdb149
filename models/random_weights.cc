#include "models/random_weights.h"

#include <list>

namespace weft {

WanConfig wan_1_3b(int layers) {
  WanConfig config;
  config.heads = 12;
  config.head_dim = 128;
  config.layers = layers;
  config.ffn_dim = 8960;
  config.in_channels = config.out_channels = 16;
  return config;
}

void write_random_wan(const std::string& path, const WanConfig& config) {
  std::list<Tensor> tensors;
  std::vector<std::pair<std::string, TensorView>> list;
  uint64_t state = 1;
  for (const TensorSpec& spec : wan_tensors(config)) {
    const Tensor& tensor = tensors.emplace_back(DType::kBF16, spec.shape);
    auto* bits = static_cast<uint16_t*>(tensor.view().data);
    for (int64_t i = 0; i < tensor.view().count(); ++i) {
      state = state * 6364136223846793005u + 1442695040888963407u;
      bits[i] = static_cast<uint16_t>((state >> 48 & 0x807f) | 0x3c80);  // sign and mantissa
    }
    list.emplace_back(spec.name, tensor.view());
  }
  write_safetensors(path, list);
}

}  // namespace weft
