// The layers of Wan's VAE and the networks that they form.

#include <algorithm>
#include <array>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "models/wan/vae.h"
#include "models/wan/vae_residual.h"

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
    conv_ = pack_convolution(source, name, {out, in, 3, 3, 3});
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
    conv1_ = pack_convolution(source, name + ".conv1", {out, in, 3, 3, 3});
    gamma2_ = take_vector(source, name + ".norm2.gamma", {out, 1, 1, 1});
    conv2_ = pack_convolution(source, name + ".conv2", {out, out, 3, 3, 3});
    if (in != out)
      shortcut_ = pack_pointwise(source, name + ".conv_shortcut", {out, in, 1, 1, 1}, out);
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
    qkv_ = pack_pointwise(source, name + ".to_qkv", {3 * width, width, 1, 1}, 3 * width);
    proj_ = pack_pointwise(source, name + ".proj", {width, width, 1, 1}, width);
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
           bool temporal)
      : VaeLayer(name), out_(out), temporal_(temporal) {
    conv_ = pack_convolution(source, name + ".resample.1", {out, in, 3, 3});
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
  Downsample(const VaeWeightSource& source, const std::string& name, int64_t width, bool temporal)
      : VaeLayer(name), temporal_(temporal) {
    conv_ = pack_convolution(source, name + ".resample.1", {width, width, 3, 3});
    if (temporal_) time_ = pack_convolution(source, name + ".time_conv", {width, width, 3, 1, 1});
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

void add_mid_block(VaeNetwork& network, const VaeWeightSource& source, const std::string& name,
                   int64_t width) {
  network.push_back(std::make_unique<Resnet>(source, name + ".resnets.0", width, width));
  network.push_back(std::make_unique<Attention>(source, name + ".attentions.0", width));
  network.push_back(std::make_unique<Resnet>(source, name + ".resnets.1", width, width));
}

std::string numbered(const std::string& name, int64_t index) {
  return name + "." + std::to_string(index);
}

// Appends the levels of the encoder: residual blocks, and a halving after each but the last.
void add_down_levels(const WanVaeConfig& config, const VaeWeightSource& source,
                     VaeNetwork& network) {
  const size_t levels = config.dim_mult.size();
  const std::string all = "encoder.down_blocks";
  int64_t width = config.base_dim, index = 0;
  for (size_t level = 0; level < levels; ++level) {
    const int64_t out = config.base_dim * config.dim_mult[level];
    const bool halves = level + 1 < levels, temporal = halves && config.temporal_downsample[level];
    const std::string own = numbered(all, static_cast<int64_t>(level));
    VaeNetwork layers;
    for (int64_t i = 0; i < config.num_res_blocks; ++i) {
      const std::string name =
          config.residual ? numbered(own + ".resnets", i) : numbered(all, index++);
      layers.push_back(std::make_unique<Resnet>(source, name, width, out));
      width = out;
    }
    if (halves)
      layers.push_back(std::make_unique<Downsample>(
          source, config.residual ? own + ".downsampler" : numbered(all, index++), width,
          temporal));
    if (config.residual)
      network.push_back(make_residual_level(
          own, std::move(layers), {.frames = temporal ? 2 : 1, .pixels = halves ? 2 : 1}));
    else
      for (auto& layer : layers) network.push_back(std::move(layer));
  }
}

// Appends the levels of the decoder: residual blocks, and a doubling after each but the last.
void add_up_levels(const WanVaeConfig& config, const VaeWeightSource& source, VaeNetwork& network) {
  const size_t levels = config.dim_mult.size();
  int64_t width = config.decoder_base_dim * config.dim_mult.back();
  for (size_t block = 0; block < levels; ++block) {
    const size_t level = levels - 1 - block;
    const int64_t out = config.decoder_base_dim * config.dim_mult[level];
    const bool doubles = level > 0, temporal = doubles && config.temporal_downsample[level - 1];
    const std::string own = numbered("decoder.up_blocks", static_cast<int64_t>(block));
    VaeNetwork layers;
    for (int64_t i = 0; i <= config.num_res_blocks; ++i) {
      layers.push_back(std::make_unique<Resnet>(source, numbered(own + ".resnets", i), width, out));
      width = out;
    }
    const int64_t up = config.residual ? width : width / 2;
    if (doubles) {
      layers.push_back(std::make_unique<Upsample>(
          source, own + (config.residual ? ".upsampler" : ".upsamplers.0"), width, up, temporal));
      width = up;
    }
    if (config.residual && doubles)
      network.push_back(make_residual_level(
          own, std::move(layers),
          {.way = VaeShortcut::Way::kUp, .frames = temporal ? 2 : 1, .pixels = 2}));
    else
      for (auto& layer : layers) network.push_back(std::move(layer));
  }
}

VaeNetwork make_encoder(const WanVaeConfig& config, const VaeWeightSource& source) {
  const int64_t width = config.base_dim * config.dim_mult.back();
  VaeNetwork network;
  network.push_back(std::make_unique<CausalConv>(source, "encoder.conv_in", "", config.in_channels,
                                                 config.base_dim));
  add_down_levels(config, source, network);
  add_mid_block(network, source, "encoder.mid_block", width);
  network.push_back(std::make_unique<CausalConv>(source, "encoder.conv_out", "encoder.norm_out",
                                                 width, 2 * config.z_dim));
  // quant_conv gives mean and log-variance. Inference uses only the mean.
  network.push_back(make_pointwise(source, "quant_conv",
                                   {2 * config.z_dim, 2 * config.z_dim, 1, 1, 1}, config.z_dim));
  return network;
}

VaeNetwork make_decoder(const WanVaeConfig& config, const VaeWeightSource& source) {
  const int64_t width = config.decoder_base_dim * config.dim_mult.back();
  VaeNetwork network;
  network.push_back(make_pointwise(source, "post_quant_conv", {config.z_dim, config.z_dim, 1, 1, 1},
                                   config.z_dim));
  network.push_back(
      std::make_unique<CausalConv>(source, "decoder.conv_in", "", config.z_dim, width));
  add_mid_block(network, source, "decoder.mid_block", width);
  add_up_levels(config, source, network);
  network.push_back(std::make_unique<CausalConv>(source, "decoder.conv_out", "decoder.norm_out",
                                                 config.decoder_base_dim * config.dim_mult.front(),
                                                 config.out_channels));
  return network;
}

}  // namespace

VaeModel make_wan_vae_model(const WanVaeConfig& config) {
  VaeModel model{
      .traits = config.traits(),
      .encoder = [config](const VaeWeightSource& source) { return make_encoder(config, source); },
      .decoder = [config](const VaeWeightSource& source) { return make_decoder(config, source); },
      .scales = {},
      .patch = config.patch_size,
      .clamps = true,
      .spelled =
          [config](const TensorFile& file, const std::string& name) {
            return wan_vae_has_original_names(file) ? wan_vae_original_name(config, name) : name;
          }};
  for (int64_t c = 0; c < config.z_dim; ++c)
    model.scales.push_back({.factor = config.latents_std[c], .shift = config.latents_mean[c]});
  return model;
}

}  // namespace weft
