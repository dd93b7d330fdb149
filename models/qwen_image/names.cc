#include "models/qwen_image/names.h"

namespace weft {

bool holds_qwen_image(const TensorNames& names) {
  return names.contains("txt_norm.weight") &&
         names.contains("transformer_blocks.0.img_mod.1.weight");
}

}  // namespace weft
