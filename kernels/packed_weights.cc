#include "kernels/packed_weights.h"

#include "kernels/copy.h"

namespace weft {

void PackedWeights::for_buffers(const BufferVisitor& visit) const {
  if (!storage_) return;
  storage_->for_buffers([&](Tensor& buffer) {
    if (buffer) visit(buffer);
  });
  if (storage_->bias) visit(storage_->bias);
}

size_t PackedWeights::bytes() const {
  size_t total = 0;
  for_buffers([&](Tensor& buffer) { total += buffer.view().bytes(); });
  return total;
}

void PackedWeights::set_bias(Stream& stream, const TensorView& bias) {
  if (!bias) return;
  storage_->bias = Tensor(DType::kF32, bias.shape(), stream.device());
  copy(stream, bias, storage_->bias);
}

}  // namespace weft
