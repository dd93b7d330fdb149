#pragma once
// Between the host and a stream's device. On a CPU both are one and nothing is copied.
#include <functional>
#include <string>

#include "kernels/stream.h"

namespace weft {

std::string to_string(Device::Kind kind);  // "cpu", "cuda"
std::string to_string(Device device);      // "cpu", "cuda:1"

// A stream on `device`, of Stream::cpu() or cuda_stream(), with `ops` in place of its own where
// given.
Stream stream_on(Device device, int threads = 0, Determinism determinism = Determinism::kFast,
                 const Ops* ops = nullptr);

// For what is made on the host: `stream` itself on a CPU, else a CPU stream like it.
Stream host_stream(const Stream& stream);

// out = what `fill` writes to a view of the host like it: `out` itself on a CPU. What a pass makes
// on the host (its timesteps, tables of positions) reaches a device through here.
void make_on_host(Stream& stream, const TensorView& out,
                  const std::function<void(const TensorView& to)>& fill);

// The tensor where the stream's ops take it, and where the host reads it (waited for).
Tensor on_device(Stream& stream, Tensor tensor);
Tensor on_host(Stream& stream, Tensor tensor);

// x for the host to read: x itself where it lies there, else a copy that has been waited for.
class HostCopy {
 public:
  HostCopy(Stream& stream, const TensorView& x);
  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }

 private:
  Tensor copy_;
  TensorView view_;
};

}  // namespace weft
