#pragma once
// The convolution family works channels last ([F, H, W, C]); weights are packed once at load. Time
// is causal: the caller puts the history frames in front of x; nothing is padded after them.
#include <array>

#include "kernels/packed_weights.h"

namespace weft {

class PackedConv : public PackedWeights {
 public:
  PackedConv() = default;
  // An empty kernel for weight [Cout, Cin, kt, kh, kw].
  PackedConv(const TensorView& weight, DType dtype)
      : PackedWeights(weight[1], weight[0], dtype), kernel_{weight[2], weight[3], weight[4]} {}
  std::array<int64_t, 3> kernel() const { return kernel_; }  // time, height, width

 private:
  std::array<int64_t, 3> kernel_{1, 1, 1};
};

// weight [Cout, Cin, kt, kh, kw] (or [Cout, Cin, kh, kw]: kt = 1) has any float dtype; bias [Cout]
// may be empty; both lie on the stream's device or the host.
PackedConv pack_conv(Stream& stream, const TensorView& weight, const TensorView& bias, DType dtype);

struct ConvArgs {
  std::array<int64_t, 3> stride{1, 1, 1};  // time, height, width
  int64_t pad_front = 0;                   // zero frames before x
  std::array<int64_t, 2> pad_h{0, 0};      // zero rows above and below
  std::array<int64_t, 2> pad_w{0, 0};      // zero columns left and right
};

// The extents conv3d writes for an input [F, H, W, C].
std::array<int64_t, 4> conv_output_shape(const TensorView& x, const PackedConv& packed,
                                         const ConvArgs& args);

// x [F, H, W, Cin] and out [F', H', W', Cout] are contiguous, of packed.dtype(), and may not alias;
// accumulation is f32. With kt = 1 frames are independent pictures (2D convolution).
void conv3d(Stream& stream, const TensorView& x, const PackedConv& packed, const ConvArgs& args,
            const TensorView& out);

// out [F, 2H, 2W, C] = x [F, H, W, C] with every pixel doubled both ways (nearest).
void upsample_nearest2(Stream& stream, const TensorView& x, const TensorView& out);

}  // namespace weft
