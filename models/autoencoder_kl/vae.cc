#include "models/autoencoder_kl/vae.h"

#include <algorithm>

#include "kernels/copy.h"

namespace weft {

namespace {

void add_mid_block(VaeNetwork& network, const KlVaeConfig& config, const VaeWeightSource& source,
                   const std::string& name, int64_t width) {
  network.push_back(kl::make_resnet(source, name + ".resnets.0", config.groups, width, width));
  if (config.mid_attention)
    network.push_back(kl::make_attention(source, name + ".attentions.0", config.groups, width));
  network.push_back(kl::make_resnet(source, name + ".resnets.1", config.groups, width, width));
}

VaeNetwork make_encoder(const KlVaeConfig& config, const VaeWeightSource& source) {
  VaeNetwork network;
  int64_t width = config.channels.front();
  network.push_back(
      kl::make_conv(source, "encoder.conv_in", "", config.groups, config.in_channels, width));
  for (size_t level = 0; level < config.channels.size(); ++level) {
    const std::string name = "encoder.down_blocks." + std::to_string(level);
    for (int64_t i = 0; i < config.resnets; ++i) {
      network.push_back(kl::make_resnet(source, name + ".resnets." + std::to_string(i),
                                        config.groups, width, config.channels[level]));
      width = config.channels[level];
    }
    if (level + 1 < config.channels.size())
      network.push_back(kl::make_downsample(source, name + ".downsamplers.0", width));
  }
  add_mid_block(network, config, source, "encoder.mid_block", width);
  const int64_t moments = 2 * config.latent_channels;  // mean and log-variance
  network.push_back(kl::make_conv(source, "encoder.conv_out", "encoder.conv_norm_out",
                                  config.groups, width, moments));
  if (config.quant_conv)  // only the mean is used
    network.push_back(
        kl::make_pointwise(source, "quant_conv", moments, moments, config.latent_channels));
  return network;
}

VaeNetwork make_decoder(const KlVaeConfig& config, const VaeWeightSource& source) {
  VaeNetwork network;
  int64_t width = config.channels.back();
  if (config.post_quant_conv)
    network.push_back(kl::make_pointwise(source, "post_quant_conv", config.latent_channels,
                                         config.latent_channels, config.latent_channels));
  network.push_back(
      kl::make_conv(source, "decoder.conv_in", "", config.groups, config.latent_channels, width));
  add_mid_block(network, config, source, "decoder.mid_block", width);
  const size_t levels = config.channels.size();
  for (size_t block = 0; block < levels; ++block) {
    const int64_t out = config.channels[levels - 1 - block];
    const std::string name = "decoder.up_blocks." + std::to_string(block);
    for (int64_t i = 0; i <= config.resnets; ++i) {
      network.push_back(kl::make_resnet(source, name + ".resnets." + std::to_string(i),
                                        config.groups, width, out));
      width = out;
    }
    if (block + 1 < levels)
      network.push_back(kl::make_upsample(source, name + ".upsamplers.0", width));
  }
  network.push_back(kl::make_conv(source, "decoder.conv_out", "decoder.conv_norm_out",
                                  config.groups, width, config.out_channels));
  return network;
}

FrameShape decoder_input(const KlVaeConfig& config, int64_t h, int64_t w) {
  return {1, h, w, config.latent_channels};
}

FrameShape encoder_input(const KlVaeConfig& config, int64_t h, int64_t w) {
  const int64_t scale = config.spatial_factor();
  return {1, h * scale, w * scale, config.in_channels};
}

}  // namespace

std::vector<TensorSpec> kl_vae_tensors(const KlVaeConfig& config) {
  std::vector<TensorSpec> tensors;
  VaeWeightSource source;
  source.take = [&](const std::string& name, std::initializer_list<int64_t> shape) {
    tensors.push_back({name, shape});
    return TensorView();
  };
  make_encoder(config, source);
  make_decoder(config, source);
  return tensors;
}

KlVae KlVae::load(const TensorFile& file, const KlVaeConfig& config, Stream& stream, DType dtype,
                  VaeParts parts) {
  WeightBinder binder(file, "vae");
  for (const TensorSpec& tensor : kl_vae_tensors(config)) binder.take(tensor.name, tensor.shape);
  binder.finish();

  const VaeWeightSource source{
      .take = [&](const std::string& name,
                  std::initializer_list<int64_t>) { return file.view(name); },
      .stream = &stream,
      .dtype = dtype};
  KlVae vae;
  vae.config_ = config;
  vae.traits_ = config.traits();
  vae.dtype_ = dtype;
  vae.device_ = stream.device();
  if (parts != VaeParts::kDecoder) vae.encoder_ = make_encoder(config, source);
  if (parts != VaeParts::kEncoder) vae.decoder_ = make_decoder(config, source);
  for (const std::string& name : file.names()) file.drop_pages(file.view(name));
  return vae;
}

size_t KlVae::bytes() const {
  size_t total = 0;
  for (const VaeNetwork* network : {&encoder_, &decoder_})
    for (const auto& layer : *network) total += layer->weight_bytes();
  return total;
}

void KlVae::denormalize(const TensorView& latents, const TensorView& out) const {
  CHECK(latents.contiguous() && out.contiguous() && latents.count() == out.count(),
        latents.to_string_shape(), out.to_string_shape());
  for (int64_t i = 0; i < latents.count(); ++i)
    out.as<float>()[i] = latents.as<float>()[i] / config_.scaling_factor + config_.shift_factor;
}

namespace {

class KlVaeDecoder final : public VaeDecoder {
 public:
  KlVaeDecoder(const VaeNetwork& network, FrameShape in, DType dtype, Device device)
      : state_(network, VaeOrder::kGrowing, in, in, dtype, device) {}

  int64_t height() const override { return state_.output().height; }
  int64_t width() const override { return state_.output().width; }
  int64_t next_frames() const override { return 1; }
  void decode_chunk(Context& context, const TensorView& latent, const TensorView& frames) override {
    CHECK(frames.rank == 4 && frames[0] == 1 && frames.contiguous(), frames.to_string_shape());
    state_.reset();  // pictures are independent
    state_.run(
        context,
        [&](const TensorView& in) {
          copy(context.stream, latent.permute({1, 2, 0}), in.select(0, 0));
        },
        [&](const TensorView& out) {
          copy(context.stream, out.select(0, 0), frames.select(0, 0).permute({1, 2, 0}));
        });
  }

 private:
  VaeState state_;
};

class KlVaeEncoder final : public VaeEncoder {
 public:
  KlVaeEncoder(const VaeNetwork& network, FrameShape in, DType dtype, Device device)
      : state_(network, VaeOrder::kShrinking, in, in, dtype, device) {}

  int64_t next_frames() const override { return 1; }
  void encode_chunk(Context& context, const TensorView& frames, const TensorView& mean) override {
    CHECK(frames.rank == 4 && frames[0] == 1 && frames.contiguous(), frames.to_string_shape());
    state_.reset();
    state_.run(
        context,
        [&](const TensorView& in) {
          copy(context.stream, frames.select(0, 0).permute({1, 2, 0}), in.select(0, 0));
        },
        [&](const TensorView& out) {
          copy(context.stream, out.select(0, 0).slice(2, 0, mean[0]), mean.permute({1, 2, 0}));
        });
  }

 private:
  VaeState state_;
};

class KlVaeModel final : public VaeModel {
 public:
  explicit KlVaeModel(const KlVaeConfig& config) : VaeModel(config.traits()), config_(config) {}

  std::vector<TensorSpec> tensors() const override { return kl_vae_tensors(config_); }
  std::unique_ptr<Vae> load(Stream& stream, const TensorFile& file, DType dtype,
                            VaeParts parts) const override {
    return std::make_unique<KlVae>(KlVae::load(file, config_, stream, dtype, parts));
  }

 private:
  KlVaeConfig config_;
};

}  // namespace

std::unique_ptr<VaeDecoder> KlVae::decoder(int64_t h, int64_t w) const {
  return std::make_unique<KlVaeDecoder>(decoder_, decoder_input(config_, h, w), dtype_, device_);
}

std::unique_ptr<VaeEncoder> KlVae::encoder(int64_t h, int64_t w) const {
  return std::make_unique<KlVaeEncoder>(encoder_, encoder_input(config_, h, w), dtype_, device_);
}

std::unique_ptr<VaeModel> make_kl_vae_model(const KlVaeConfig& config) {
  return std::make_unique<KlVaeModel>(config);
}

}  // namespace weft
