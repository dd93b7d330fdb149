#pragma once
// Transfers between the host and a stream's device. On a CPU both are the same and nothing is
// copied.
#include <functional>
#include <string>

#include "kernels/stream.h"

namespace weft {

bool of_host(Device device);  // true for a CPU, and for what stands for it in a dry run
std::string to_string(Device::Kind kind);  // "cpu", "cuda"
std::string to_string(Device device);      // "cpu", "cuda:1"

// Makes a stream on `device`: Stream::cpu() or cuda_stream(), with `ops` in place of its own table
// if given.
Stream stream_on(Device device, int threads = 0, Determinism determinism = Determinism::kFast,
                 const Ops* ops = nullptr);

// Returns a stream for work on the host: `stream` itself on a CPU, else a CPU stream with the same
// options.
Stream host_stream(const Stream& stream);

// Calls `fill` with a host view shaped like `out` (`out` itself on a CPU), and copies the result to
// `out`. Values that a pass makes on the host (timesteps, tables of positions) reach a device this
// way. In a dry run nothing is made.
void make_on_host(Stream& stream, const TensorView& out,
                  const std::function<void(const TensorView& to)>& fill);

// on_device() moves the tensor to where the stream's ops need it; on_host() moves it to where the
// host can read it, and waits.
Tensor on_device(Stream& stream, Tensor tensor);
Tensor on_host(Stream& stream, Tensor tensor);

// A HostCopy makes x readable on the host: it views x itself if x lies there, else a copy that has
// been waited for.
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
