#include "kernels/cuda/conv_graph.h"

namespace weft::cuda {

namespace {

// A convolution's dimensions in cuDNN's order, [N, C, spatial...], with channels innermost in
// memory. If the kernel does not span time, frames are pictures of one batch; otherwise a clip is
// one volume.
CudnnTensor channels_last(int64_t id, cudnnDataType_t type, bool pictures,
                          const std::array<int64_t, 4>& shape) {
  const auto [f, h, w, c] = shape;
  if (pictures)
    return {.id = id, .type = type, .extents = {f, c, h, w}, .strides = {h * w * c, 1, w * c, c}};
  return {.id = id,
          .type = type,
          .extents = {1, c, f, h, w},
          .strides = {f * h * w * c, 1, h * w * c, w * c, c}};
}

CudnnTensor weights(const ConvShape& s, cudnnDataType_t type, bool pictures) {
  const auto [kt, kh, kw] = s.kernel;
  const int64_t in = s.x[3], out = s.out[3];
  if (pictures)
    return {.id = kConvWeight,
            .type = type,
            .extents = {out, in, kh, kw},
            .strides = {kh * kw * in, 1, kw * in, in}};
  return {.id = kConvWeight,
          .type = type,
          .extents = {out, in, kt, kh, kw},
          .strides = {kt * kh * kw * in, 1, kh * kw * in, kw * in, in}};
}

CudnnDescriptor window(const ConvShape& s, bool pictures) {
  CudnnDescriptor made(CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  const std::array<int64_t, 3> front{s.pad_front, s.pad_h[0], s.pad_w[0]},
      back{0, s.pad_h[1], s.pad_w[1]}, ones{1, 1, 1};
  const auto spatial = [&](const std::array<int64_t, 3>& values) {
    return std::span(values).subspan(pictures ? 1 : 0);
  };
  const cudnnConvolutionMode_t mode = CUDNN_CROSS_CORRELATION;
  made.set(CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, std::array{int64_t{pictures ? 2 : 3}});
  made.set(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_DATA_FLOAT);
  made.set(CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE, 1, &mode);
  made.set(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, spatial(front));
  made.set(CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, spatial(back));
  made.set(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, spatial(s.stride));
  made.set(CUDNN_ATTR_CONVOLUTION_DILATIONS, spatial(ones));
  made.finalize();
  return made;
}

CudnnDescriptor convolution(const CudnnDescriptor& window, const CudnnDescriptor& x,
                            const CudnnDescriptor& weight, const CudnnDescriptor& out) {
  CudnnDescriptor made(CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  const float alpha = 1, beta = 0;
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, window);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X, x);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, weight);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y, out);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA, CUDNN_TYPE_FLOAT, 1, &alpha);
  made.set(CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA, CUDNN_TYPE_FLOAT, 1, &beta);
  made.finalize();
  return made;
}

CudnnDescriptor addition(const CudnnDescriptor& sum, const CudnnDescriptor& bias,
                         const CudnnDescriptor& out) {
  CudnnDescriptor how(CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  const cudnnPointwiseMode_t mode = CUDNN_POINTWISE_ADD;
  how.set(CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &mode);
  how.set(CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_DATA_FLOAT);
  how.finalize();
  CudnnDescriptor made(CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, how);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_XDESC, sum);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_BDESC, bias);
  made.set(CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out);
  made.finalize();
  return made;
}

CudnnDescriptor make_graph(const ConvShape& s, const CudnnTarget& target) {
  const cudnnDataType_t type = s.dtype == DType::kF32 ? CUDNN_DATA_FLOAT : CUDNN_DATA_BFLOAT16;
  const bool pictures = s.kernel[0] == 1 && s.stride[0] == 1 && s.pad_front == 0;
  const CudnnDescriptor x = make_cudnn_tensor(channels_last(kConvX, type, pictures, s.x)),
                        weight = make_cudnn_tensor(weights(s, type, pictures)),
                        out = make_cudnn_tensor(channels_last(kConvOut, type, pictures, s.out)),
                        taps = window(s, pictures);
  std::vector<CudnnDescriptor> operations;
  if (!s.bias) {
    operations.push_back(convolution(taps, x, weight, out));
    return make_cudnn_graph(operations, target);
  }
  CudnnTensor between = channels_last(kConvSum, CUDNN_DATA_FLOAT, pictures, s.out);
  between.is_virtual = true;
  const int64_t channels = s.out[3];
  CudnnTensor vector = channels_last(kConvBias, CUDNN_DATA_FLOAT, pictures, {1, 1, 1, channels});
  const CudnnDescriptor sum = make_cudnn_tensor(between), bias = make_cudnn_tensor(vector);
  operations.push_back(convolution(taps, x, weight, sum));
  operations.push_back(addition(sum, bias, out));
  return make_cudnn_graph(operations, target);
}

// False for engines outside the contract: sums in fewer bits, transforms whose errors it does not
// bound, results that differ between runs, and for f32 the tensor cores, which would round it to
// TF32.
bool is_allowed(const CudnnDescriptor& configuration, DType dtype) {
  for (cudnnBackendNumericalNote_t note : cudnn_notes(configuration)) switch (note) {
      case CUDNN_NUMERICAL_NOTE_STRICT_NAN_PROP:
        break;
      case CUDNN_NUMERICAL_NOTE_TENSOR_CORE:
        if (dtype == DType::kF32) return false;
        break;
      default:
        return false;
    }
  return true;
}

}  // namespace

ConvShape ConvShape::of(const LibraryConv& conv) {
  return {conv.dtype,      conv.x_shape,     conv.out_shape,
          conv.kernel,     conv.args.stride, conv.args.pad_front,
          conv.args.pad_h, conv.args.pad_w,  conv.bias != nullptr};
}

std::vector<CudnnDescriptor> propose_conv(const ConvShape& shape, const CudnnTarget& target) {
  const CudnnDescriptor graph = make_graph(shape, target);
  std::vector<CudnnDescriptor> all;
  for (cudnnBackendHeurMode_t mode : {CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_FALLBACK}) try {
      for (CudnnDescriptor& configuration : propose_cudnn(graph, mode, target))
        if (is_allowed(configuration, shape.dtype)) all.push_back(std::move(configuration));
    } catch (const CudnnRefusal&) {
      if (mode == CUDNN_HEUR_MODE_FALLBACK && all.empty()) throw;
    }
  return all;
}

}  // namespace weft::cuda
