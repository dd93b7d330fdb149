// The layers of AutoencoderKL, which work on pictures [1, H, W, C], and the networks that they
// form.
#include <algorithm>
#include <cmath>

#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "models/autoencoder_kl/vae.h"

namespace weft {

namespace {

constexpr float kGroupNormEps = 1e-6f;

// A group norm. Its statistics are those of the whole picture: Reducer::sum adds the bands' parts.
struct GroupNorm {
  Tensor weight, bias;  // [C] f32
  int64_t groups = 0;
};

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
    conv_ = pack_convolution(source, name, {out, in, 3, 3});
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
    conv1_ = pack_convolution(source, name + ".conv1", {out, in, 3, 3});
    norm2_ = take_norm(source, name + ".norm2", groups, out);
    conv2_ = pack_convolution(source, name + ".conv2", {out, out, 3, 3});
    if (in != out)
      shortcut_ = pack_pointwise(source, name + ".conv_shortcut", {out, in, 1, 1}, out);
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
      return pack_pointwise(source, name + part, {width, width}, width);
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
    conv_ = pack_convolution(source, name + ".conv", {width, width, 3, 3});
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
    conv_ = pack_convolution(source, name + ".conv", {width, width, 3, 3});
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

void add_mid_block(VaeNetwork& network, const KlVaeConfig& config, const VaeWeightSource& source,
                   const std::string& name, int64_t width) {
  network.push_back(
      std::make_unique<Resnet>(source, name + ".resnets.0", config.groups, width, width));
  if (config.mid_attention)
    network.push_back(
        std::make_unique<Attention>(source, name + ".attentions.0", config.groups, width));
  network.push_back(
      std::make_unique<Resnet>(source, name + ".resnets.1", config.groups, width, width));
}

VaeNetwork make_encoder(const KlVaeConfig& config, const VaeWeightSource& source) {
  VaeNetwork network;
  int64_t width = config.channels.front();
  network.push_back(std::make_unique<Conv>(source, "encoder.conv_in", "", config.groups,
                                           config.in_channels, width));
  for (size_t level = 0; level < config.channels.size(); ++level) {
    const std::string name = "encoder.down_blocks." + std::to_string(level);
    for (int64_t i = 0; i < config.resnets; ++i) {
      network.push_back(std::make_unique<Resnet>(source, name + ".resnets." + std::to_string(i),
                                                 config.groups, width, config.channels[level]));
      width = config.channels[level];
    }
    if (level + 1 < config.channels.size())
      network.push_back(std::make_unique<Downsample>(source, name + ".downsamplers.0", width));
  }
  add_mid_block(network, config, source, "encoder.mid_block", width);
  const int64_t moments = 2 * config.latent_channels;  // mean and log-variance
  network.push_back(std::make_unique<Conv>(source, "encoder.conv_out", "encoder.conv_norm_out",
                                           config.groups, width, moments));
  if (config.quant_conv)  // only the mean is used
    network.push_back(
        make_pointwise(source, "quant_conv", {moments, moments, 1, 1}, config.latent_channels));
  return network;
}

VaeNetwork make_decoder(const KlVaeConfig& config, const VaeWeightSource& source) {
  VaeNetwork network;
  const std::vector<int64_t>& widths = config.decoder_widths();
  int64_t width = widths.back();
  if (config.post_quant_conv)
    network.push_back(make_pointwise(source, "post_quant_conv",
                                     {config.latent_channels, config.latent_channels, 1, 1},
                                     config.latent_channels));
  network.push_back(std::make_unique<Conv>(source, "decoder.conv_in", "", config.groups,
                                           config.latent_channels, width));
  add_mid_block(network, config, source, "decoder.mid_block", width);
  const size_t levels = widths.size();
  for (size_t block = 0; block < levels; ++block) {
    const int64_t out = widths[levels - 1 - block];
    const std::string name = "decoder.up_blocks." + std::to_string(block);
    for (int64_t i = 0; i <= config.resnets; ++i) {
      network.push_back(std::make_unique<Resnet>(source, name + ".resnets." + std::to_string(i),
                                                 config.groups, width, out));
      width = out;
    }
    if (block + 1 < levels)
      network.push_back(std::make_unique<Upsample>(source, name + ".upsamplers.0", width));
  }
  network.push_back(std::make_unique<Conv>(source, "decoder.conv_out", "decoder.conv_norm_out",
                                           config.groups, width, config.out_channels));
  return network;
}

}  // namespace

VaeModel make_kl_vae_model(const KlVaeConfig& config) {
  const LatentScale scale{.divisor = config.scaling_factor, .shift = config.shift_factor};
  return {
      .traits = config.traits(),
      .encoder = [config](const VaeWeightSource& source) { return make_encoder(config, source); },
      .decoder = [config](const VaeWeightSource& source) { return make_decoder(config, source); },
      .scales = std::vector<LatentScale>(static_cast<size_t>(config.latent_channels), scale),
      .spelled = [levels = static_cast<int64_t>(config.channels.size())](
                     const TensorFile& file,
                     const std::string& name) { return kl_vae_name(file, name, levels); }};
}

VaeModel make_packed_kl_vae_model(const PackedKlVaeConfig& config) {
  VaeModel model = make_kl_vae_model(config);
  model.traits = config.traits();
  model.scales.clear();
  model.stored_scales = StoredScales{.mean = "bn.running_mean",
                                     .variance = "bn.running_var",
                                     .unread = "bn.num_batches_tracked",
                                     .eps = config.statistics_eps};
  model.cell = config.cell;
  return model;
}

std::vector<TensorSpec> kl_vae_tensors(const KlVaeConfig& config) {
  return make_kl_vae_model(config).tensors();
}

}  // namespace weft
