#include "models/wan/vae_layers.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"

namespace weft {

namespace {

// The frames of history that a kernel of three frames needs.
constexpr int64_t kHistory = 2;

FrameShape shape_of(const TensorView& x) { return {x[0], x[1], x[2], x[3]}; }

TensorView alloc(Context& context, DType dtype, const FrameShape& shape) {
  return context.arena.alloc(dtype, {shape.frames, shape.height, shape.width, shape.channels});
}

// Returns a buffer that holds the remembered frames followed by space for `frames` more.
TensorView behind_history(Context& context, const TensorView& history, int64_t frames) {
  FrameShape shape = shape_of(history);
  shape.frames += frames;
  const TensorView buffer = alloc(context, history.dtype, shape);
  copy(context.stream, history, buffer.slice(0, 0, history[0]));
  return buffer;
}

void remember(Context& context, const TensorView& buffer, const TensorView& history) {
  copy(context.stream, buffer.slice(0, buffer[0] - history[0], history[0]), history);
}

FrameShape with_frames(FrameShape shape, int64_t frames) {
  shape.frames = frames;
  return shape;
}

FrameShape with_channels(FrameShape shape, int64_t channels) {
  shape.channels = channels;
  return shape;
}

// Writes the causal convolution of act(norm(x)) to out. If gamma is empty, x is used as it is.
void norm_convolve(Context& context, const TensorView& x, const Tensor& gamma,
                   const PackedConv& conv, const TensorView& history, const TensorView& out) {
  const Arena::Scope scope(context.arena);
  const TensorView buffer = behind_history(context, history, x[0]);
  const TensorView now = buffer.slice(0, history[0], x[0]);
  if (gamma)
    channel_rms_norm(context.stream, x, gamma, Activation::kSilu, now);
  else
    copy(context.stream, x, now);
  convolve(context, buffer, conv, {}, {1, 1, 1}, out);
  remember(context, buffer, history);
}

class CausalConv final : public VaeLayer {
 public:
  CausalConv(const VaeWeightSource& source, const std::string& name, const std::string& norm,
             int64_t in, int64_t out)
      : VaeLayer(name), out_(out) {
    if (!norm.empty()) gamma_ = take_vector(source, norm + ".gamma", {in, 1, 1, 1});
    conv_ = pack_convolution(source, name, out, {out, in, 3, 3, 3});
  }

  FrameShape output(const FrameShape& in, Chunk) const override { return with_channels(in, out_); }
  std::vector<FrameShape> history(const FrameShape& in) const override {
    return {with_frames(in, kHistory)};
  }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor> history,
               const TensorView& out) const override {
    norm_convolve(context, in, gamma_, conv_, history[0], out);
  }
  size_t weight_bytes() const override { return conv_.bytes(); }

 private:
  int64_t out_;
  Tensor gamma_;
  PackedConv conv_;
};

class Resnet final : public VaeLayer {
 public:
  Resnet(const VaeWeightSource& source, const std::string& name, int64_t in, int64_t out)
      : VaeLayer(name), in_(in), out_(out) {
    gamma1_ = take_vector(source, name + ".norm1.gamma", {in, 1, 1, 1});
    conv1_ = pack_convolution(source, name + ".conv1", out, {out, in, 3, 3, 3});
    gamma2_ = take_vector(source, name + ".norm2.gamma", {out, 1, 1, 1});
    conv2_ = pack_convolution(source, name + ".conv2", out, {out, out, 3, 3, 3});
    if (in != out)
      shortcut_ = pack_pointwise(source, name + ".conv_shortcut", in, out, out, {out, in, 1, 1, 1});
  }

  FrameShape output(const FrameShape& in, Chunk) const override { return with_channels(in, out_); }
  bool in_place() const override { return in_ == out_; }
  std::vector<FrameShape> history(const FrameShape& in) const override {
    const FrameShape frames = with_frames(in, kHistory);
    return {frames, with_channels(frames, out_)};
  }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor> history,
               const TensorView& out) const override {
    const Arena::Scope scope(context.arena);
    const TensorView y = alloc(context, in.dtype, shape_of(out));
    norm_convolve(context, in, gamma1_, conv1_, history[0], y);
    norm_convolve(context, y, gamma2_, conv2_, history[1], y);
    if (in_ != out_) linear(context.stream, in, shortcut_, LinearActivation::kNone, out);
    add(context.stream, out, y, out);
  }
  size_t weight_bytes() const override {
    return conv1_.bytes() + conv2_.bytes() + shortcut_.bytes();
  }

 private:
  int64_t in_, out_;
  Tensor gamma1_, gamma2_;
  PackedConv conv1_, conv2_;
  PackedLinear shortcut_;
};

class Attention final : public VaeLayer {
 public:
  Attention(const VaeWeightSource& source, const std::string& name, int64_t width)
      : VaeLayer(name), width_(width) {
    gamma_ = take_vector(source, name + ".norm.gamma", {width, 1, 1});
    qkv_ = pack_pointwise(source, name + ".to_qkv", width, 3 * width, 3 * width,
                          {3 * width, width, 1, 1});
    proj_ = pack_pointwise(source, name + ".proj", width, width, width, {width, width, 1, 1});
  }

  FrameShape output(const FrameShape& in, Chunk) const override { return in; }
  bool in_place() const override { return true; }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor>,
               const TensorView& out) const override {
    const Arena::Scope scope(context.arena);
    const int64_t n = in[1] * in[2];
    const TensorView h = context.arena.alloc(in.dtype, {n, width_});
    const TensorView qkv = context.arena.alloc(in.dtype, {n, 3, width_});
    const TensorView projected(qkv.data, in.dtype, {n, width_},
                               qkv.device);  // q, k and v are no longer needed
    for (int64_t frame = 0; frame < in[0]; ++frame) {
      const TensorView x = in.select(0, frame).reshape({n, width_});
      channel_rms_norm(context.stream, x, gamma_, Activation::kNone, h);
      linear(context.stream, h, qkv_, LinearActivation::kNone, qkv.reshape({n, 3 * width_}));
      context.mixer.attend(context, {.layer = 0,
                                     .q = qkv.slice(1, 0, 1),
                                     .k = qkv.slice(1, 1, 1),
                                     .v = qkv.slice(1, 2, 1),
                                     .out = h.reshape({n, 1, width_}),
                                     .rope = nullptr,
                                     .mask = Mask::kFull,
                                     .scale = 1.0f / std::sqrt(static_cast<float>(width_)),
                                     .past = nullptr});
      linear(context.stream, h, proj_, LinearActivation::kNone, projected);
      add(context.stream, x, projected, out.select(0, frame).reshape({n, width_}));
    }
  }
  size_t weight_bytes() const override { return qkv_.bytes() + proj_.bytes(); }

 private:
  int64_t width_;
  Tensor gamma_;
  PackedLinear qkv_, proj_;
};

// Doubles rows and columns. A temporal one doubles frames, too, except in the first chunk: its time
// convolution gives two pictures per frame, the first from output channels [0, C), the second from
// [C, 2C). The two halves are packed separately, so that each picture is written where the next
// step reads it.
class Upsample final : public VaeLayer {
 public:
  Upsample(const VaeWeightSource& source, const std::string& name, int64_t in, int64_t out,
           Resample kind)
      : VaeLayer(name), out_(out), temporal_(kind == Resample::kSpatialAndTime) {
    conv_ = pack_convolution(source, name + ".resample.1", out, {out, in, 3, 3});
    if (!temporal_) return;
    const TensorView weight = source.take(name + ".time_conv.weight", {2 * in, in, 3, 1, 1});
    const TensorView bias = source.take(name + ".time_conv.bias", {2 * in});
    if (!weight || !bias) return;
    for (int half = 0; half < 2; ++half)
      time_[half] = pack_conv(*source.stream, weight.slice(0, half * in, in),
                              bias.slice(0, half * in, in), source.dtype);
  }

  FrameShape output(const FrameShape& in, Chunk chunk) const override {
    return {doubles(chunk) ? 2 * in.frames : in.frames, 2 * in.height, 2 * in.width, out_};
  }
  std::vector<FrameShape> history(const FrameShape& in) const override {
    if (!temporal_) return {};
    return {with_frames(in, kHistory)};
  }
  // Works frame by frame, so that only one enlarged picture of the wide input exists at a time.
  void forward(Context& context, const TensorView& in, Chunk chunk, std::span<const Tensor> history,
               const TensorView& out) const override {
    const Arena::Scope scope(context.arena);
    const FrameShape picture = with_frames(shape_of(in), 1);
    const TensorView large =
        alloc(context, in.dtype, {1, 2 * picture.height, 2 * picture.width, picture.channels});
    TensorView buffer, small;
    if (doubles(chunk)) {
      buffer = behind_history(context, history[0], in[0]);
      copy(context.stream, in, buffer.slice(0, kHistory, in[0]));
      small = alloc(context, in.dtype, picture);
    }
    for (int64_t frame = 0; frame < out[0]; ++frame) {
      if (doubles(chunk))
        conv3d(context.stream, buffer.slice(0, frame / 2, 1 + kHistory), time_[frame % 2], {},
               small);
      else
        small = in.slice(0, frame, 1);
      upsample_nearest2(context.stream, small, large);
      convolve(context, large, conv_, {}, {1, 1, 1}, out.slice(0, frame, 1));
    }
    if (doubles(chunk)) remember(context, buffer, history[0]);
  }
  size_t weight_bytes() const override {
    return conv_.bytes() + time_[0].bytes() + time_[1].bytes();
  }

 private:
  // The first chunk is not doubled, nor is it remembered: the second chunk's history is zeros.
  bool doubles(Chunk chunk) const { return temporal_ && chunk == Chunk::kLater; }

  int64_t out_;
  bool temporal_;
  PackedConv conv_, time_[2];
};

// Halves rows and columns. A temporal one halves frames, too, except in the first chunk.
class Downsample final : public VaeLayer {
 public:
  Downsample(const VaeWeightSource& source, const std::string& name, int64_t width, Resample kind)
      : VaeLayer(name), temporal_(kind == Resample::kSpatialAndTime) {
    conv_ = pack_convolution(source, name + ".resample.1", width, {width, width, 3, 3});
    if (temporal_)
      time_ = pack_convolution(source, name + ".time_conv", width, {width, width, 3, 1, 1});
  }

  FrameShape output(const FrameShape& in, Chunk chunk) const override {
    return {halves(chunk) ? in.frames / 2 : in.frames, in.height / 2, in.width / 2, in.channels};
  }
  std::vector<FrameShape> history(const FrameShape& in) const override {
    if (!temporal_) return {};
    return {{1, in.height / 2, in.width / 2, in.channels}};
  }
  void forward(Context& context, const TensorView& in, Chunk chunk, std::span<const Tensor> history,
               const TensorView& out) const override {
    const Arena::Scope scope(context.arena);
    const VaeBorder below_and_right{.above = 0, .below = 1, .left = 0, .right = 1};
    if (!halves(chunk)) {
      convolve(context, in, conv_, below_and_right, {1, 2, 2}, out);
      if (temporal_) remember(context, out, history[0]);
      return;
    }
    const TensorView buffer = behind_history(context, history[0], in[0]);
    convolve(context, in, conv_, below_and_right, {1, 2, 2}, buffer.slice(0, 1, in[0]));
    conv3d(context.stream, buffer, time_, {.stride = {2, 1, 1}}, out);
    remember(context, buffer, history[0]);
  }
  size_t weight_bytes() const override { return conv_.bytes() + time_.bytes(); }

 private:
  bool halves(Chunk chunk) const { return temporal_ && chunk == Chunk::kLater; }

  bool temporal_;
  PackedConv conv_, time_;
};

class Pointwise final : public VaeLayer {
 public:
  Pointwise(const VaeWeightSource& source, const std::string& name, int64_t in, int64_t out,
            int64_t keep)
      : VaeLayer(name), keep_(keep) {
    linear_ = pack_pointwise(source, name, in, out, keep, {out, in, 1, 1, 1});
  }

  FrameShape output(const FrameShape& in, Chunk) const override { return with_channels(in, keep_); }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor>,
               const TensorView& out) const override {
    linear(context.stream, in, linear_, LinearActivation::kNone, out);
  }
  size_t weight_bytes() const override { return linear_.bytes(); }

 private:
  int64_t keep_;
  PackedLinear linear_;
};

}  // namespace

PackedConv pack_convolution(const VaeWeightSource& source, const std::string& name, int64_t out,
                            std::initializer_list<int64_t> shape) {
  const TensorView weight = source.take(name + ".weight", shape);
  const TensorView bias = source.take(name + ".bias", {out});
  if (!weight || !bias) return {};
  return pack_conv(*source.stream, weight, bias, source.dtype);
}

PackedLinear pack_pointwise(const VaeWeightSource& source, const std::string& name, int64_t in,
                            int64_t out, int64_t keep, std::initializer_list<int64_t> shape) {
  const TensorView weight = source.take(name + ".weight", shape);
  const TensorView bias = source.take(name + ".bias", {out});
  if (!weight || !bias) return {};
  return pack_linear(*source.stream, weight.reshape({out, in}).slice(0, 0, keep),
                     bias.slice(0, 0, keep), source.dtype);
}

Tensor take_vector(const VaeWeightSource& source, const std::string& name,
                   std::initializer_list<int64_t> shape) {
  const TensorView view = source.take(name, shape);
  if (!view) return {};
  Tensor gamma(DType::kF32, {view.count()}, source.stream->device());
  copy(*source.stream, view.reshape({view.count()}), gamma);
  return gamma;
}

void convolve(Context& context, const TensorView& x, const PackedConv& conv,
              const VaeBorder& border, std::array<int64_t, 3> stride, const TensorView& out) {
  const Arena::Scope scope(context.arena);
  const HaloView halo = context.halo.exchange(context, x, 1, border.above, border.below);
  const ConvArgs args{.stride = stride,
                      .pad_front = 0,
                      .pad_h = {border.above - halo.before, border.below - halo.after},
                      .pad_w = {border.left, border.right}};
  conv3d(context.stream, halo.view, conv, args, out);
}

std::unique_ptr<VaeLayer> make_causal_conv(const VaeWeightSource& source, const std::string& name,
                                           const std::string& norm, int64_t in, int64_t out) {
  return std::make_unique<CausalConv>(source, name, norm, in, out);
}

std::unique_ptr<VaeLayer> make_resnet(const VaeWeightSource& source, const std::string& name,
                                      int64_t in, int64_t out) {
  return std::make_unique<Resnet>(source, name, in, out);
}

std::unique_ptr<VaeLayer> make_attention(const VaeWeightSource& source, const std::string& name,
                                         int64_t width) {
  return std::make_unique<Attention>(source, name, width);
}

std::unique_ptr<VaeLayer> make_upsample(const VaeWeightSource& source, const std::string& name,
                                        int64_t in, int64_t out, Resample kind) {
  return std::make_unique<Upsample>(source, name, in, out, kind);
}

std::unique_ptr<VaeLayer> make_downsample(const VaeWeightSource& source, const std::string& name,
                                          int64_t width, Resample kind) {
  return std::make_unique<Downsample>(source, name, width, kind);
}

std::unique_ptr<VaeLayer> make_pointwise(const VaeWeightSource& source, const std::string& name,
                                         int64_t in, int64_t out, int64_t keep) {
  return std::make_unique<Pointwise>(source, name, in, out, keep);
}

}  // namespace weft
