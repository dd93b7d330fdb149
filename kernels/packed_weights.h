#pragma once
// PackedWeights is what PackedLinear and PackedConv share: one weight tensor in the layout of the
// op table that packed it, with its bias. It owns that memory as a list of buffers.
#include <functional>
#include <memory>

#include "kernels/stream.h"

namespace weft {

using BufferVisitor = std::function<void(Tensor& buffer)>;

// Every op table derives its own layout.
struct PackedStorage {
  virtual ~PackedStorage() = default;
  // Calls visit for every buffer but the bias, always in the same order. Buffers may be empty.
  virtual void for_buffers(const BufferVisitor& visit) = 0;

  Tensor bias;  // [out] f32, or empty
};

class PackedWeights {
 public:
  int64_t in() const { return in_; }
  int64_t out() const { return out_; }
  DType dtype() const { return dtype_; }  // dtype of x and out
  explicit operator bool() const { return out_ > 0; }

  // Calls visit for every buffer. Weights that were packed alike have the same buffers in the same
  // order, so the memory of one can take the values of the other.
  void for_buffers(const BufferVisitor& visit) const;
  size_t bytes() const;

  // The members below are for implementations of LinearOps and ConvOps.
  template <class Storage>
  Storage& make_storage() {
    storage_ = std::make_unique<Storage>();
    return storage<Storage>();
  }
  template <class Storage>
  Storage& storage() const {
    return static_cast<Storage&>(*storage_);
  }
  // Copies the bias, if there is one, to the stream's device as f32.
  void set_bias(Stream& stream, const TensorView& bias);
  const float* bias() const {
    return storage_ && storage_->bias ? storage_->bias.as<float>() : nullptr;
  }
  std::unique_ptr<PackedStorage> storage_;

 protected:
  PackedWeights() = default;
  PackedWeights(int64_t in, int64_t out, DType dtype) : in_(in), out_(out), dtype_(dtype) {}

  int64_t in_ = 0, out_ = 0;

 private:
  DType dtype_ = DType::kF32;
};

}  // namespace weft
