#include "models/qwen_image/names.h"

#include "kernels/check.h"
#include "models/files/tensor_sizes.h"

namespace weft {

namespace {

constexpr const char* kPrefixes[] = {"model.diffusion_model.", "diffusion_model.", ""};
constexpr const char* kMarks[] = {"txt_norm.weight", "transformer_blocks.0.img_mod.1.weight"};

}  // namespace

std::optional<std::string> find_qwen_image_prefix(const TensorFile& file) {
  for (const std::string prefix : kPrefixes) {
    bool all = true;
    for (const char* mark : kMarks) all &= file.contains(prefix + mark);
    if (all) return prefix;
  }
  return std::nullopt;
}

bool holds_qwen_image(const TensorFile& file) { return find_qwen_image_prefix(file).has_value(); }

std::string qwen_image_prefix(const TensorFile& file) {
  if (const std::optional<std::string> prefix = find_qwen_image_prefix(file)) return *prefix;
  throw Error(ErrorKind::kModel, shown_name(file) +
                                     ": no tensors have the names of a Qwen-Image transformer (" +
                                     kMarks[0] + " and " + kMarks[1] + ")");
}

}  // namespace weft
