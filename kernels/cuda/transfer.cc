#include "kernels/cuda/transfer.h"

#include <array>

#include "kernels/cuda/queue.h"
#include "kernels/device_plan.h"
#include "kernels/ops.h"

namespace weft::cuda {

namespace {

// Staging is a queue's pinned memory in a few slots: the host fills one while the device reads
// others.
class Staging {
 public:
  explicit Staging(CudaQueue&) {}

  struct Slot {
    PinnedMemory memory;
    DeviceEvent used;  // recorded after the last transfer from or to the slot
  };
  // Returns the next slot, after waiting for its transfer.
  Slot& next() {
    Slot& slot = slots_[at_++ % slots_.size()];
    if (slot.memory.bytes() == 0) slot.memory = PinnedMemory(kTransferPiece);
    slot.used.sync();
    return slot;
  }

 private:
  std::array<Slot, kTransferSlots> slots_;
  size_t at_ = 0;
};

bool is_pinned(const void* data) {
  cudaPointerAttributes attributes{};
  WEFT_CUDA_CHECK(cudaPointerGetAttributes(&attributes, data));
  return attributes.type == cudaMemoryTypeHost;
}

TensorView dense(void* data, DType dtype, const TensorView& like, Device device) {
  return {data, dtype, like.shape(), device};
}

// Makes a CPU stream with as many threads.
Stream host_stream(const Stream& stream) {
  return Stream::cpu(stream.threads(), Determinism::kFast, &cpu_ops());
}

// Calls run(piece of x, piece of out) for pieces of at most kTransferPiece bytes.
template <class Run>
void in_pieces(const TensorView& x, const TensorView& out, Run&& run) {
  int dim = 0;
  while (dim < x.rank && x[dim] == 1) ++dim;
  const size_t wide = std::max(size_of(x.dtype), size_of(out.dtype));
  if (dim == x.rank || static_cast<size_t>(x.count()) * wide <= kTransferPiece) return run(x, out);
  const int64_t rest = x.count() / x[dim];
  const int64_t step = std::max<int64_t>(
      1, static_cast<int64_t>(kTransferPiece / wide) / std::max<int64_t>(rest, 1));
  for (int64_t begin = 0; begin < x[dim]; begin += step) {
    const int64_t count = std::min(step, x[dim] - begin);
    in_pieces(x.slice(dim, begin, count), out.slice(dim, begin, count), run);
  }
}

void transfer(Stream& stream, void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  WEFT_CUDA_CHECK(cudaMemcpyAsync(to, from, bytes, kind, cuda_queue(stream).stream()));
}

bool moves(const TensorView& x, const TensorView& out) {
  return x.dtype == out.dtype && out.contiguous();
}

// Copies the dense values at `data`, in pinned memory, of dtype `dtype`, to out.
void deliver(Stream& stream, void* data, DType dtype, const TensorView& out) {
  const TensorView from = dense(data, dtype, out, {});
  if (moves(from, out))
    return transfer(stream, out.data, data, from.bytes(), cudaMemcpyHostToDevice);
  const TensorView landed =
      dense(cuda_queue(stream).scratch(kTransferPiece), dtype, out, stream.device());
  transfer(stream, landed.data, data, from.bytes(), cudaMemcpyHostToDevice);
  copy_on_device(stream, landed, out);
}

// Returns the piece x as a dense view in out's dtype on the device: x itself, or a copy in scratch.
TensorView gathered(Stream& stream, const TensorView& x, DType dtype) {
  if (x.dtype == dtype && x.contiguous()) return x;
  const TensorView there =
      dense(cuda_queue(stream).scratch(kTransferPiece), dtype, x, stream.device());
  copy_on_device(stream, x, there);
  return there;
}

}  // namespace

void copy_up(Stream& stream, const TensorView& x, const TensorView& out) {
  CudaQueue& queue = cuda_queue(stream);
  if (is_pinned(x.data)) {
    if (x.contiguous()) {
      if (moves(x, out))
        return transfer(stream, out.data, x.data, x.bytes(), cudaMemcpyHostToDevice);
      return in_pieces(x, out, [&](const TensorView& from, const TensorView& to) {
        deliver(stream, from.data, from.dtype, to);
      });
    }
    queue.sync();  // the stream may still be writing it
  }
  Stream host = host_stream(stream);
  in_pieces(x, out, [&](const TensorView& from, const TensorView& to) {
    Staging::Slot& slot = queue.part<Staging>().next();
    copy(host, from, dense(slot.memory.data(), from.dtype, from, {}));
    deliver(stream, slot.memory.data(), from.dtype, to);
    slot.used.record(stream);
  });
}

void copy_down(Stream& stream, const TensorView& x, const TensorView& out) {
  CudaQueue& queue = cuda_queue(stream);
  if (out.contiguous()) {
    if (moves(x, out) && x.contiguous())
      transfer(stream, out.data, x.data, x.bytes(), cudaMemcpyDeviceToHost);
    else
      in_pieces(x, out, [&](const TensorView& from, const TensorView& to) {
        transfer(stream, to.data, gathered(stream, from, to.dtype).data, to.bytes(),
                 cudaMemcpyDeviceToHost);
      });
    if (!is_pinned(out.data)) queue.sync();
    return;
  }
  Stream host = host_stream(stream);
  in_pieces(x, out, [&](const TensorView& from, const TensorView& to) {
    Staging::Slot& slot = queue.part<Staging>().next();
    transfer(stream, slot.memory.data(), gathered(stream, from, to.dtype).data, to.bytes(),
             cudaMemcpyDeviceToHost);
    queue.sync();
    copy(host, dense(slot.memory.data(), to.dtype, to, {}), to);
  });
}

void gather_up(Stream& stream, const TensorView& table, const TensorView& ids,
               const TensorView& out) {
  CudaQueue& queue = cuda_queue(stream);
  Stream host = host_stream(stream);
  const size_t row = static_cast<size_t>(out[1]) * size_of(out.dtype);
  CHECK(row <= kTransferPiece, "a row of", row, "bytes");
  const auto step = static_cast<int64_t>(kTransferPiece / row);
  for (int64_t begin = 0; begin < out[0]; begin += step) {
    const TensorView to = out.slice(0, begin, std::min(step, out[0] - begin));
    Staging::Slot& slot = queue.part<Staging>().next();
    gather_rows(host, table, ids.slice(0, begin, to[0]),
                dense(slot.memory.data(), to.dtype, to, {}));
    deliver(stream, slot.memory.data(), to.dtype, to);
    slot.used.record(stream);
  }
}

}  // namespace weft::cuda
