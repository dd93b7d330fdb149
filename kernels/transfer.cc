#include "kernels/transfer.h"

#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/meter.h"

namespace weft {

bool of_host(Device device) {
  return device.kind == Device::Kind::kCpu || device.kind == Device::Kind::kMeasuredHost;
}

std::string to_string(Device::Kind kind) { return kind == Device::Kind::kCpu ? "cpu" : "cuda"; }

std::string to_string(Device device) {
  return to_string(device.kind) + (of_host(device) ? "" : ":" + std::to_string(device.index));
}

Stream stream_on(Device device, int threads, Determinism determinism, const Ops* ops) {
  if (device.measured()) return Stream::of_queue(device, nullptr, metered_ops(), 1, determinism);
  if (of_host(device)) return Stream::cpu(threads, determinism, ops);
  const Stream stream = cuda_stream(device.index, determinism, threads);
  return ops ? stream.with(*ops) : stream;
}

Stream host_stream(const Stream& stream) {
  if (of_host(stream.device())) return stream;
  if (stream.device().measured()) return stream_on({Device::Kind::kMeasuredHost});
  return Stream::cpu(stream.threads(),
                     stream.deterministic() ? Determinism::kFixed : Determinism::kFast);
}

void make_on_host(Stream& stream, const TensorView& out,
                  const std::function<void(const TensorView& to)>& fill) {
  if (is_dry_run(stream)) return;
  if (of_host(out.device)) return fill(out);
  const Tensor made(out.dtype, out.shape());
  fill(made);
  copy(stream, made, out);
}

Tensor on_device(Stream& stream, Tensor tensor) {
  if (!tensor || tensor.view().device == stream.device()) return tensor;
  Tensor out(tensor.view().dtype, tensor.view().shape(), stream.device());
  copy(stream, tensor, out);
  return out;
}

Tensor on_host(Stream& stream, Tensor tensor) {
  if (!tensor || of_host(tensor.view().device)) return tensor;
  Tensor out(tensor.view().dtype, tensor.view().shape());
  copy(stream, tensor, out);
  return out;
}

HostCopy::HostCopy(Stream& stream, const TensorView& x) : view_(x) {
  if (!x || of_host(x.device)) return;
  copy_ = Tensor(x.dtype, x.shape());
  copy(stream, x, copy_);
  view_ = copy_;
}

}  // namespace weft
