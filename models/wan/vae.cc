#include "models/wan/vae.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/pointwise.h"

namespace weft {

namespace {

void add_mid_block(VaeNetwork& network, const VaeWeightSource& source, const std::string& name,
                   int64_t width) {
  network.push_back(make_resnet(source, name + ".resnets.0", width, width));
  network.push_back(make_attention(source, name + ".attentions.0", width));
  network.push_back(make_resnet(source, name + ".resnets.1", width, width));
}

Resample resample(const WanVaeConfig& config, size_t level) {
  return config.temporal_downsample[level] ? Resample::kSpatialAndTime : Resample::kSpatial;
}

VaeNetwork make_encoder(const WanVaeConfig& config, const VaeWeightSource& source) {
  const size_t levels = config.dim_mult.size();
  VaeNetwork network;
  int64_t width = config.base_dim;
  network.push_back(make_causal_conv(source, "encoder.conv_in", "", config.in_channels, width));
  int index = 0;
  const auto next_name = [&] { return "encoder.down_blocks." + std::to_string(index++); };
  for (size_t level = 0; level < levels; ++level) {
    const int64_t out = config.base_dim * config.dim_mult[level];
    for (int64_t i = 0; i < config.num_res_blocks; ++i) {
      network.push_back(make_resnet(source, next_name(), width, out));
      width = out;
    }
    if (level + 1 < levels)
      network.push_back(make_downsample(source, next_name(), width, resample(config, level)));
  }
  add_mid_block(network, source, "encoder.mid_block", width);
  network.push_back(
      make_causal_conv(source, "encoder.conv_out", "encoder.norm_out", width, 2 * config.z_dim));
  // quant_conv gives mean and log-variance. Inference uses only the mean.
  network.push_back(
      make_pointwise(source, "quant_conv", 2 * config.z_dim, 2 * config.z_dim, config.z_dim));
  return network;
}

VaeNetwork make_decoder(const WanVaeConfig& config, const VaeWeightSource& source) {
  const size_t levels = config.dim_mult.size();
  VaeNetwork network;
  int64_t width = config.decoder_base_dim * config.dim_mult.back();
  network.push_back(
      make_pointwise(source, "post_quant_conv", config.z_dim, config.z_dim, config.z_dim));
  network.push_back(make_causal_conv(source, "decoder.conv_in", "", config.z_dim, width));
  add_mid_block(network, source, "decoder.mid_block", width);
  for (size_t block = 0; block < levels; ++block) {
    const size_t level = levels - 1 - block;
    const int64_t out = config.decoder_base_dim * config.dim_mult[level];
    const std::string name = "decoder.up_blocks." + std::to_string(block);
    for (int64_t i = 0; i <= config.num_res_blocks; ++i) {
      network.push_back(make_resnet(source, name + ".resnets." + std::to_string(i), width, out));
      width = out;
    }
    if (level == 0) continue;
    network.push_back(make_upsample(source, name + ".upsamplers.0", width, width / 2,
                                    resample(config, level - 1)));
    width /= 2;
  }
  network.push_back(
      make_causal_conv(source, "decoder.conv_out", "decoder.norm_out", width, config.out_channels));
  return network;
}

FrameShape decoder_input(const WanVaeConfig& config, int64_t h, int64_t w) {
  return {1, h, w, config.z_dim};
}

FrameShape encoder_input(const WanVaeConfig& config, int64_t h, int64_t w, Chunk chunk) {
  const int64_t scale = config.spatial_factor() / config.patch_size;
  return {chunk == Chunk::kFirst ? 1 : config.temporal_factor(), h * scale, w * scale,
          config.in_channels};
}

// The pixels of a p x p cell become channels c p p + dw p + dh (column before row). `pixels` views
// a frame [C, H, W], and `cells` its cells [H / p, W / p, C p p], as [C, dw, dh, H / p, W / p].
TensorView pixels(const TensorView& frame, int64_t p) {
  return frame.reshape({frame[0], frame[1] / p, p, frame[2] / p, p}).permute({0, 4, 2, 1, 3});
}

TensorView cells(const TensorView& x, int64_t p) {
  return x.reshape({x[0], x[1], x[2] / (p * p), p, p}).permute({2, 3, 4, 0, 1});
}

}  // namespace

int64_t WanVaeConfig::spatial_factor() const { return patch_size << (dim_mult.size() - 1); }

int64_t WanVaeConfig::temporal_factor() const {
  return int64_t{1} << std::count(temporal_downsample.begin(), temporal_downsample.end(), true);
}

VaeTraits WanVaeConfig::traits() const {
  return {
      .channels = z_dim, .spatial_factor = spatial_factor(), .temporal_factor = temporal_factor()};
}

std::vector<TensorSpec> wan_vae_tensors(const WanVaeConfig& config) {
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

void normalize_latents(const WanVaeConfig& config, const TensorView& latents,
                       const TensorView& out) {
  CHECK(latents[0] == config.z_dim && latents.contiguous() && out.contiguous() &&
            latents.count() == out.count(),
        latents.to_string_shape(), out.to_string_shape());
  const int64_t n = latents.count() / config.z_dim;
  for (int64_t c = 0; c < config.z_dim; ++c)
    for (int64_t i = c * n; i < (c + 1) * n; ++i)
      out.as<float>()[i] =
          (latents.as<float>()[i] - config.latents_mean[c]) / config.latents_std[c];
}

void denormalize_latents(const WanVaeConfig& config, const TensorView& latents,
                         const TensorView& out) {
  CHECK(latents[0] == config.z_dim && latents.contiguous() && out.contiguous() &&
            latents.count() == out.count(),
        latents.to_string_shape(), out.to_string_shape());
  const int64_t n = latents.count() / config.z_dim;
  for (int64_t c = 0; c < config.z_dim; ++c)
    for (int64_t i = c * n; i < (c + 1) * n; ++i)
      out.as<float>()[i] = latents.as<float>()[i] * config.latents_std[c] + config.latents_mean[c];
}

WanVae WanVae::load(const TensorFile& file, const WanVaeConfig& config, Stream& stream, DType dtype,
                    VaeParts parts) {
  const bool original = file.contains("decoder.middle.0.residual.0.gamma") ||
                        file.contains("encoder.middle.0.residual.0.gamma");
  const auto spell = [&](const std::string& name) {
    return original ? wan_vae_original_name(config, name) : name;
  };
  WeightBinder binder(file, "vae", spell);
  VaeWeightSource check;
  check.take = [&](const std::string& name, std::initializer_list<int64_t> shape) {
    binder.take(name, shape);
    return TensorView();
  };
  make_encoder(config, check);
  make_decoder(config, check);
  binder.finish();

  const VaeWeightSource source{
      .take = [&](const std::string& name,
                  std::initializer_list<int64_t>) { return file.view(spell(name)); },
      .stream = &stream,
      .dtype = dtype};
  WanVae vae;
  vae.config_ = config;
  vae.traits_ = config.traits();
  vae.dtype_ = dtype;
  vae.device_ = stream.device();
  if (parts != VaeParts::kDecoder) vae.encoder_ = make_encoder(config, source);
  if (parts != VaeParts::kEncoder) vae.decoder_ = make_decoder(config, source);
  for (const std::string& name : file.names()) file.drop_pages(file.view(name));
  return vae;
}

size_t WanVae::bytes() const {
  size_t total = 0;
  for (const VaeNetwork* network : {&encoder_, &decoder_})
    for (const auto& layer : *network) total += layer->weight_bytes();
  return total;
}

WanVaeDecoder::WanVaeDecoder(const WanVae& vae, int64_t h, int64_t w)
    : vae_(vae),
      state_(vae.decoder_network(), VaeOrder::kGrowing, decoder_input(vae.config(), h, w),
             decoder_input(vae.config(), h, w), vae.dtype(), vae.device()) {}

int64_t WanVaeDecoder::height() const { return state_.output().height * vae_.config().patch_size; }
int64_t WanVaeDecoder::width() const { return state_.output().width * vae_.config().patch_size; }
int64_t WanVaeDecoder::next_frames() const { return state_.output().frames; }

void WanVaeDecoder::decode_chunk(Context& context, const TensorView& latent,
                                 const TensorView& frames) {
  CHECK(frames.rank == 4 && frames[0] == next_frames() && frames.contiguous(),
        frames.to_string_shape());
  const int64_t patch = vae_.config().patch_size;
  state_.run(
      context,
      [&](const TensorView& in) {
        copy(context.stream, latent.permute({1, 2, 0}), in.select(0, 0));
      },
      [&](const TensorView& out) {
        for (int64_t f = 0; f < out[0]; ++f)
          copy(context.stream, cells(out.select(0, f), patch), pixels(frames.select(0, f), patch));
      });
  clamp(context.stream, frames, -1, 1, frames);
}

WanVaeEncoder::WanVaeEncoder(const WanVae& vae, int64_t h, int64_t w)
    : vae_(vae),
      state_(vae.encoder_network(), VaeOrder::kShrinking,
             encoder_input(vae.config(), h, w, Chunk::kFirst),
             encoder_input(vae.config(), h, w, Chunk::kLater), vae.dtype(), vae.device()) {}

int64_t WanVaeEncoder::next_frames() const { return state_.input().frames; }

void WanVaeEncoder::encode_chunk(Context& context, const TensorView& frames,
                                 const TensorView& mean) {
  CHECK(frames.rank == 4 && frames[0] == next_frames() && frames.contiguous(),
        frames.to_string_shape());
  const int64_t patch = vae_.config().patch_size;
  state_.run(
      context,
      [&](const TensorView& in) {
        for (int64_t f = 0; f < in[0]; ++f)
          copy(context.stream, pixels(frames.select(0, f), patch), cells(in.select(0, f), patch));
      },
      [&](const TensorView& out) {
        copy(context.stream, out.select(0, 0), mean.permute({1, 2, 0}));
      });
}

std::unique_ptr<VaeDecoder> WanVae::decoder(int64_t h, int64_t w) const {
  return std::make_unique<WanVaeDecoder>(*this, h, w);
}
std::unique_ptr<VaeEncoder> WanVae::encoder(int64_t h, int64_t w) const {
  return std::make_unique<WanVaeEncoder>(*this, h, w);
}

}  // namespace weft
