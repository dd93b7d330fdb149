#include "models/autoencoder_kl/layers.h"

#include <algorithm>
#include <cmath>

#include "kernels/norm.h"
#include "kernels/pointwise.h"

namespace weft::kl {

namespace {

FrameShape with_channels(FrameShape shape, int64_t channels) {
  shape.channels = channels;
  return shape;
}

TensorView alloc_like(Context& context, const TensorView& x) {
  return context.arena.alloc(x.dtype, x.shape());
}

GroupNorm take_norm(const VaeWeightSource& source, const std::string& name, int64_t groups,
                    int64_t width) {
  return {.weight = take_vector(source, name + ".weight", {width}),
          .bias = take_vector(source, name + ".bias", {width}),
          .groups = groups};
}

size_t bytes(const GroupNorm& norm) {
  return norm.weight ? norm.weight.view().bytes() + norm.bias.view().bytes() : 0;
}

// Writes act(norm(x)) to out, which may be x.
void normalise(Context& context, const TensorView& x, const GroupNorm& norm, Activation activation,
               const TensorView& out) {
  const Arena::Scope scope(context.arena);
  const TensorView sums = context.arena.alloc(DType::kF32, {norm.groups + 1});
  const TensorView squares = context.arena.alloc(DType::kF32, {norm.groups});
  const auto pixels = [](const TensorView& picture) {
    return picture.reshape({picture.count() / picture[-1], picture[-1]});
  };
  group_sums(context.stream, pixels(x), sums);
  context.reducer.sum(context, sums);
  group_squares(context.stream, pixels(x), sums, squares);
  context.reducer.sum(context, squares);
  group_norm(context.stream, pixels(x), sums, squares, norm.weight, norm.bias, kGroupNormEps,
             activation, pixels(out));
}

class Conv final : public VaeLayer {
 public:
  Conv(const VaeWeightSource& source, const std::string& name, const std::string& norm,
       int64_t groups, int64_t in, int64_t out)
      : VaeLayer(name), normed_(!norm.empty()), out_(out) {
    if (normed_) norm_ = take_norm(source, norm, groups, in);
    conv_ = pack_convolution(source, name, out, {out, in, 3, 3});
  }

  FrameShape output(const FrameShape& in, Chunk) const override { return with_channels(in, out_); }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor>,
               const TensorView& out) const override {
    const Arena::Scope scope(context.arena);
    TensorView x = in;
    if (normed_) {
      x = alloc_like(context, in);
      normalise(context, in, norm_, Activation::kSilu, x);
    }
    convolve(context, x, conv_, {}, {1, 1, 1}, out);
  }
  size_t weight_bytes() const override { return conv_.bytes() + bytes(norm_); }

 private:
  bool normed_;
  int64_t out_;
  GroupNorm norm_;
  PackedConv conv_;
};

class Resnet final : public VaeLayer {
 public:
  Resnet(const VaeWeightSource& source, const std::string& name, int64_t groups, int64_t in,
         int64_t out)
      : VaeLayer(name), in_(in), out_(out) {
    norm1_ = take_norm(source, name + ".norm1", groups, in);
    conv1_ = pack_convolution(source, name + ".conv1", out, {out, in, 3, 3});
    norm2_ = take_norm(source, name + ".norm2", groups, out);
    conv2_ = pack_convolution(source, name + ".conv2", out, {out, out, 3, 3});
    if (in != out)
      shortcut_ = pack_pointwise(source, name + ".conv_shortcut", in, out, out, {out, in, 1, 1});
  }

  FrameShape output(const FrameShape& in, Chunk) const override { return with_channels(in, out_); }
  bool in_place() const override { return in_ == out_; }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor>,
               const TensorView& out) const override {
    const Arena::Scope scope(context.arena);
    const TensorView y = alloc_like(context, out);
    {
      const Arena::Scope first(context.arena);
      const TensorView h = alloc_like(context, in);
      normalise(context, in, norm1_, Activation::kSilu, h);
      convolve(context, h, conv1_, {}, {1, 1, 1}, y);
    }
    const TensorView h = alloc_like(context, out);
    normalise(context, y, norm2_, Activation::kSilu, h);
    convolve(context, h, conv2_, {}, {1, 1, 1}, y);
    if (in_ != out_) linear(context.stream, in, shortcut_, LinearActivation::kNone, out);
    add(context.stream, out, y, out);
  }
  size_t weight_bytes() const override {
    return conv1_.bytes() + conv2_.bytes() + shortcut_.bytes() + bytes(norm1_) + bytes(norm2_);
  }

 private:
  int64_t in_, out_;
  GroupNorm norm1_, norm2_;
  PackedConv conv1_, conv2_;
  PackedLinear shortcut_;
};

class Attention final : public VaeLayer {
 public:
  Attention(const VaeWeightSource& source, const std::string& name, int64_t groups, int64_t width)
      : VaeLayer(name), width_(width) {
    norm_ = take_norm(source, name + ".group_norm", groups, width);
    const auto take = [&](const char* part) {
      return pack_pointwise(source, name + part, width, width, width, {width, width});
    };
    to_q_ = take(".to_q");
    to_k_ = take(".to_k");
    to_v_ = take(".to_v");
    to_out_ = take(".to_out.0");
  }

  FrameShape output(const FrameShape& in, Chunk) const override { return in; }
  bool in_place() const override { return true; }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor>,
               const TensorView& out) const override {
    const Arena::Scope scope(context.arena);
    const TensorView h = alloc_like(context, in);
    normalise(context, in, norm_, Activation::kNone, h);
    const auto project = [&](const PackedLinear& weight) {
      const TensorView to = alloc_like(context, in);
      linear(context.stream, h, weight, LinearActivation::kNone, to);
      return to;
    };
    const TensorView q = project(to_q_), k = project(to_k_), v = project(to_v_);
    const auto one_head = [&](const TensorView& x) {
      return x.reshape({x.count() / width_, 1, width_});
    };
    context.mixer.attend(context, {.layer = 0,
                                   .q = one_head(q),
                                   .k = one_head(k),
                                   .v = one_head(v),
                                   .out = one_head(h),
                                   .rope = nullptr,
                                   .scale = 1.0f / std::sqrt(static_cast<float>(width_))});
    linear(context.stream, h, to_out_, LinearActivation::kNone, q);  // q is no longer needed
    add(context.stream, in, q, out);
  }
  size_t weight_bytes() const override {
    return to_q_.bytes() + to_k_.bytes() + to_v_.bytes() + to_out_.bytes() + bytes(norm_);
  }

 private:
  int64_t width_;
  GroupNorm norm_;
  PackedLinear to_q_, to_k_, to_v_, to_out_;
};

// Doubles rows and columns.
class Upsample final : public VaeLayer {
 public:
  Upsample(const VaeWeightSource& source, const std::string& name, int64_t width) : VaeLayer(name) {
    conv_ = pack_convolution(source, name + ".conv", width, {width, width, 3, 3});
  }

  FrameShape output(const FrameShape& in, Chunk) const override {
    return {in.frames, 2 * in.height, 2 * in.width, in.channels};
  }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor>,
               const TensorView& out) const override {
    const Arena::Scope scope(context.arena);
    const TensorView large = alloc_like(context, out);
    upsample_nearest2(context.stream, in, large);
    convolve(context, large, conv_, {}, {1, 1, 1}, out);
  }
  size_t weight_bytes() const override { return conv_.bytes(); }

 private:
  PackedConv conv_;
};

// Halves rows and columns.
class Downsample final : public VaeLayer {
 public:
  Downsample(const VaeWeightSource& source, const std::string& name, int64_t width)
      : VaeLayer(name) {
    conv_ = pack_convolution(source, name + ".conv", width, {width, width, 3, 3});
  }

  FrameShape output(const FrameShape& in, Chunk) const override {
    return {in.frames, in.height / 2, in.width / 2, in.channels};
  }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor>,
               const TensorView& out) const override {
    convolve(context, in, conv_, {.above = 0, .below = 1, .left = 0, .right = 1}, {1, 2, 2}, out);
  }
  size_t weight_bytes() const override { return conv_.bytes(); }

 private:
  PackedConv conv_;
};

class Pointwise final : public VaeLayer {
 public:
  Pointwise(const VaeWeightSource& source, const std::string& name, int64_t in, int64_t out,
            int64_t keep)
      : VaeLayer(name), keep_(keep) {
    linear_ = pack_pointwise(source, name, in, out, keep, {out, in, 1, 1});
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

std::unique_ptr<VaeLayer> make_conv(const VaeWeightSource& source, const std::string& name,
                                    const std::string& norm, int64_t groups, int64_t in,
                                    int64_t out) {
  return std::make_unique<Conv>(source, name, norm, groups, in, out);
}

std::unique_ptr<VaeLayer> make_resnet(const VaeWeightSource& source, const std::string& name,
                                      int64_t groups, int64_t in, int64_t out) {
  return std::make_unique<Resnet>(source, name, groups, in, out);
}

std::unique_ptr<VaeLayer> make_attention(const VaeWeightSource& source, const std::string& name,
                                         int64_t groups, int64_t width) {
  return std::make_unique<Attention>(source, name, groups, width);
}

std::unique_ptr<VaeLayer> make_upsample(const VaeWeightSource& source, const std::string& name,
                                        int64_t width) {
  return std::make_unique<Upsample>(source, name, width);
}

std::unique_ptr<VaeLayer> make_downsample(const VaeWeightSource& source, const std::string& name,
                                          int64_t width) {
  return std::make_unique<Downsample>(source, name, width);
}

std::unique_ptr<VaeLayer> make_pointwise(const VaeWeightSource& source, const std::string& name,
                                         int64_t in, int64_t out, int64_t keep) {
  return std::make_unique<Pointwise>(source, name, in, out, keep);
}

}  // namespace weft::kl
