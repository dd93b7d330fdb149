#include "kernels/cuda/flash_bf16.cuh"

namespace weft::cuda {

void flash_bf16_96(const Stream& stream, FlashRows rows, int kv_heads, const FlashArgs& args) {
  switch (rows) {
    case FlashRows::k16:
      return launch_flash_bf16<FlashShape<96, 1, 1, 8>>(stream, kv_heads, args);
    case FlashRows::k64:
      return launch_flash_bf16<FlashShape<96, 4, 1, 3>>(stream, kv_heads, args);
    case FlashRows::k128:
      return launch_flash_bf16<FlashShape<96, 4, 2, 2>>(stream, kv_heads, args);
  }
}

}  // namespace weft::cuda
