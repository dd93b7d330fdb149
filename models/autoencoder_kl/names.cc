// AutoencoderKL in files without a config: the names of Black Forest Labs' repository, and the
// configuration from names and shapes of tensors.
#include <algorithm>

#include "models/autoencoder_kl/vae.h"
#include "models/files/tensor_sizes.h"

namespace weft {

namespace {

// Far beyond any model: levels, or residual blocks of one, and the extents of a tensor.
constexpr int64_t kMost = 64, kWidest = 1 << 16;
// The scale and shift of the latents of FLUX.1's VAE, which Z-Image uses too.
constexpr int64_t kFluxChannels = 16;
constexpr float kFluxScale = 0.3611f, kFluxShift = 0.1159f;

// Pairs of (diffusers, original) spellings. All that occur anywhere in a name are applied.
constexpr std::pair<const char*, const char*> kSpellings[] = {
    {".down_blocks.", ".down."},
    {".up_blocks.", ".up."},
    {".mid_block.resnets.0.", ".mid.block_1."},
    {".mid_block.resnets.1.", ".mid.block_2."},
    {".mid_block.attentions.0.", ".mid.attn_1."},
    {".resnets.", ".block."},
    {".downsamplers.0.", ".downsample."},
    {".upsamplers.0.", ".upsample."},
    {".conv_shortcut.", ".nin_shortcut."},
    {".group_norm.", ".norm."},
    {".to_q.", ".q."},
    {".to_k.", ".k."},
    {".to_v.", ".v."},
    {".to_out.0.", ".proj_out."},
    {".conv_norm_out.", ".norm_out."}};
constexpr const char kStatistics[] = "bn.running_mean";  // of packed latents
constexpr const char kMiddle[] = "decoder.mid_block.resnets.0.conv1.weight";

bool has_original_names(const TensorNames& names) {
  return names.contains(kl_vae_original_name(kMiddle, 1));
}

}  // namespace

std::string kl_vae_original_name(const std::string& name, int64_t levels) {
  std::string out = name;
  for (const auto& [ours, theirs] : kSpellings)
    if (const size_t at = out.find(ours); at != std::string::npos)
      out.replace(at, std::string(ours).size(), theirs);
  // The original counts the decoder's levels from the pixels inwards.
  if (const std::string up = "decoder.up."; out.starts_with(up)) {
    const size_t end = out.find('.', up.size());
    const int64_t level = std::stoll(out.substr(up.size(), end - up.size()));
    out = up + std::to_string(levels - 1 - level) + out.substr(end);
  }
  return out;
}

std::string kl_vae_name(const TensorFile& file, const std::string& name, int64_t levels) {
  if (!has_original_names(file)) return name;
  // Files of FLUX.2 count these convolutions among the networks.
  for (const auto& [start, network] :
       {std::pair{"quant_conv.", "encoder."}, {"post_quant_conv.", "decoder."}})
    if (name.starts_with(start) && file.contains(network + name)) return network + name;
  return kl_vae_original_name(name, levels);
}

bool holds_packed_kl_vae(const TensorNames& names) {
  return (names.contains(kMiddle) || has_original_names(names)) && names.contains(kStatistics);
}

bool holds_kl_vae(const TensorNames& names) {
  return (names.contains(kMiddle) || has_original_names(names)) && !names.contains(kStatistics);
}

namespace {

// Reads the sizes of the networks.
template <class Config>
Config networks_of(const TensorSizes& sizes) {
  const auto block = [&](int64_t level, int64_t index) {
    return "encoder.down_blocks." + std::to_string(level) + ".resnets." + std::to_string(index) +
           ".conv1.weight";
  };
  const auto kernel = [&](const std::string& name) { return sizes.shape(name, 4); };
  Config config;
  config.channels.clear();
  config.channels.push_back(kernel(block(0, 0))[0]);
  for (int64_t level = 1; level < 8 && sizes.has(block(level, 0)); ++level)
    config.channels.push_back(kernel(block(level, 0))[0]);
  config.resnets = 1;
  while (config.resnets < kMost && sizes.has(block(0, config.resnets))) ++config.resnets;
  config.in_channels = kernel("encoder.conv_in.weight")[1];
  config.out_channels = kernel("decoder.conv_out.weight")[0];
  config.latent_channels = kernel("decoder.conv_in.weight")[1];
  config.mid_attention = sizes.has("decoder.mid_block.attentions.0.to_q.weight");
  config.quant_conv = sizes.has("quant_conv.weight");
  config.post_quant_conv = sizes.has("post_quant_conv.weight");
  if (config.in_channels != 3 || config.out_channels != 3)
    sizes.refuse("its pictures have ", config.in_channels, " and ", config.out_channels,
                 " channels (legal: 3)");
  return config;
}

void check_groups_of(const TensorSizes& sizes, const std::vector<int64_t>& widths, int64_t groups) {
  for (const int64_t width : widths)
    if (width % groups)
      sizes.refuse("a width of ", width, " is no multiple of ", groups,
                   ", the groups of its norms");
}

}  // namespace

KlVaeConfig KlVaeConfig::from_tensors(const TensorFile& file) {
  // Names of the encoder do not depend on the number of levels.
  const TensorSizes sizes(
      file, [&](const std::string& name) { return kl_vae_name(file, name, 1); }, kWidest);
  KlVaeConfig config = networks_of<KlVaeConfig>(sizes);
  if (config.latent_channels != kFluxChannels)
    sizes.refuse("the scale of its ", config.latent_channels,
                 " latent channels is not known (legal without one: 16, as FLUX.1's VAE has)");
  check_groups_of(sizes, config.channels, config.groups);
  config.scaling_factor = kFluxScale;
  config.shift_factor = kFluxShift;
  return config;
}

PackedKlVaeConfig PackedKlVaeConfig::from_tensors(const TensorFile& file) {
  const TensorSizes encoder(
      file, [&](const std::string& name) { return kl_vae_name(file, name, 1); }, kWidest);
  auto config = networks_of<PackedKlVaeConfig>(encoder);
  const auto levels = std::ssize(config.channels);
  const TensorSizes sizes(
      file, [&](const std::string& name) { return kl_vae_name(file, name, levels); }, kWidest);
  for (int64_t level = 0; level < levels; ++level)
    config.decoder_channels.push_back(sizes.shape(
        "decoder.up_blocks." + std::to_string(levels - 1 - level) + ".resnets.0.conv1.weight",
        4)[0]);
  check_groups_of(sizes, config.channels, config.groups);
  check_groups_of(sizes, config.decoder_channels, config.groups);
  return config;
}

std::string to_string(const PackedKlVaeConfig& config) {
  return "AutoencoderKLFlux2, packed " + to_string(static_cast<const KlVaeConfig&>(config));
}

std::string to_string(const KlVaeConfig& config) {
  std::string widths;
  for (const int64_t width : config.channels)
    widths += (widths.empty() ? "" : ", ") + std::to_string(width);
  const int64_t side = config.spatial_factor();
  return text_of("AutoencoderKL: ", config.latent_channels, " latent channels, ", side, "x", side,
                 ", widths ", widths);
}

}  // namespace weft
