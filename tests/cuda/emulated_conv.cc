// Implements kernels/cuda/conv_library.h in plain loops, in place of cuDNN.
#include "kernels/cuda/conv_library.h"
#include "kernels/cuda/queue.h"
#include "kernels/device_plan.h"
#include "tests/cuda/emulated_libraries.h"
#include "tests/cuda/emulator.h"

namespace weft::cuda {

namespace {

template <class T>
void compute_conv(const LibraryConv& conv, int64_t index) {
  const auto [of, oh, ow, out_channels] = conv.out_shape;
  const int64_t o = index % out_channels, w = index / out_channels % ow,
                h = index / out_channels / ow % oh, f = index / out_channels / ow / oh;
  const int64_t channels = conv.x_shape[3];
  const T* weight = static_cast<const T*>(conv.weight) +
                    o * conv.kernel[0] * conv.kernel[1] * conv.kernel[2] * channels;
  float sum = 0;
  for (int64_t kt = 0; kt < conv.kernel[0]; ++kt)
    for (int64_t kh = 0; kh < conv.kernel[1]; ++kh)
      for (int64_t kw = 0; kw < conv.kernel[2]; ++kw, weight += channels) {
        const int64_t frame = f * conv.args.stride[0] + kt - conv.args.pad_front;
        const int64_t row = h * conv.args.stride[1] + kh - conv.args.pad_h[0];
        const int64_t column = w * conv.args.stride[2] + kw - conv.args.pad_w[0];
        if (frame < 0 || frame >= conv.x_shape[0] || row < 0 || row >= conv.x_shape[1] ||
            column < 0 || column >= conv.x_shape[2])
          continue;
        const T* x = static_cast<const T*>(conv.x) +
                     ((frame * conv.x_shape[1] + row) * conv.x_shape[2] + column) * channels;
        for (int64_t c = 0; c < channels; ++c) sum += to_float(x[c]) * to_float(weight[c]);
      }
  static_cast<T*>(conv.out)[index] = from_float<T>(sum + (conv.bias ? conv.bias[o] : 0));
}

}  // namespace

bool library_conv(const Stream& stream, const LibraryConv& conv) {
  CHECK(conv.x_shape[3] % 8 == 0 && conv.out_shape[3] % 8 == 0, conv.x_shape[3], conv.out_shape[3]);
  test::EmulatedLibraries& libraries = test::emulated_libraries();
  if (libraries.refuse_conv) return false;
  cuda_queue(stream).scratch(conv.scratch_used + kConvWorkspace);
  WEFT_CUDA_CHECK(emulated::submit(cuda_queue(stream).stream(), [conv] {
    const auto [f, h, w, c] = conv.out_shape;
    const auto run = conv.dtype == DType::kF32 ? compute_conv<float> : compute_conv<bf16>;
    for (int64_t i = 0; i < f * h * w * c; ++i) run(conv, i);
  }));
  test::count(libraries.convs);
  return true;
}

std::string library_conv_refusal(const Stream&) {
  return test::emulated_libraries().refuse_conv ? "no engine, says the test" : "";
}

}  // namespace weft::cuda
