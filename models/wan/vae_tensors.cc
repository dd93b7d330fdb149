// The configuration of a Wan VAE from the names and shapes of a file's tensors.
#include <algorithm>

#include "models/files/tensor_sizes.h"
#include "models/wan/vae.h"

namespace weft {

namespace {

// Far beyond any model: levels, or residual blocks of one, and the extents of a tensor.
constexpr int64_t kMost = 64, kWidest = 1 << 16;

// The statistics of the latents of Wan 2.2's VAE, published with it.
constexpr float kMean22[] = {-0.2289f, -0.0052f, -0.1323f, -0.2339f, -0.2799f, 0.0174f,  0.1838f,
                             0.1557f,  -0.1382f, 0.0542f,  0.2813f,  0.0891f,  0.1570f,  -0.0098f,
                             0.0375f,  -0.1825f, -0.2246f, -0.1207f, -0.0698f, 0.5109f,  0.2665f,
                             -0.2108f, -0.2158f, 0.2502f,  -0.2055f, -0.0322f, 0.1109f,  0.1567f,
                             -0.0729f, 0.0899f,  -0.2799f, -0.1230f, -0.0313f, -0.1649f, 0.0117f,
                             0.0723f,  -0.2839f, -0.2083f, -0.0520f, 0.3748f,  0.0152f,  0.1957f,
                             0.1433f,  -0.2944f, 0.3573f,  -0.0548f, -0.1681f, -0.0667f};
constexpr float kStd22[] = {0.4765f, 1.0364f, 0.4514f, 1.1677f, 0.5313f, 0.4990f, 0.4818f, 0.5013f,
                            0.8158f, 1.0344f, 0.5894f, 1.0901f, 0.6885f, 0.6165f, 0.8454f, 0.4978f,
                            0.5759f, 0.3523f, 0.7135f, 0.6804f, 0.5833f, 1.4146f, 0.8986f, 0.5659f,
                            0.7069f, 0.5338f, 0.4889f, 0.4917f, 0.4069f, 0.4999f, 0.6866f, 0.4093f,
                            0.5709f, 0.6065f, 0.6415f, 0.4944f, 0.5726f, 1.2042f, 0.5458f, 1.6887f,
                            0.3971f, 1.0600f, 0.3943f, 0.5537f, 0.5444f, 0.4089f, 0.7468f, 0.7744f};
static_assert(std::size(kMean22) == 48 && std::size(kStd22) == 48);

class Reader {
 public:
  explicit Reader(const TensorFile& file)
      : file_(file),
        sizes_(
            file, [](const std::string& name) { return name; }, kWidest),
        original_(wan_vae_has_original_names(file)) {}

  WanVaeConfig read() {
    residual_ = has(item(0, 0), kConv);
    const TensorView first = tensor(original_ ? "encoder.conv1" : "encoder.conv_in");
    config_.residual = residual_;
    config_.base_dim = first[0];
    config_.in_channels = first[1];
    config_.z_dim = tensor(original_ ? "conv2" : "post_quant_conv")[0];
    config_.out_channels = tensor(original_ ? "decoder.head.2" : "decoder.conv_out")[0];
    while (3 * config_.patch_size * config_.patch_size < config_.in_channels) ++config_.patch_size;
    read_levels();
    const int64_t widest = tensor(original_ ? "decoder.conv1" : "decoder.conv_in")[0];
    config_.decoder_base_dim = quotient(widest, config_.dim_mult.back(), "the decoder's width");
    read_statistics();
    config_.check(shown_name(file_));
    return config_;
  }

 private:
  enum Part : uint8_t { kConv, kResample, kTime };

  // The name of a part of the encoder's levels without ".weight": a residual block, or what halves
  // the frames after the blocks of a level. Only residual VAEs number the levels.
  std::string item(int64_t level, int64_t index) const {
    const std::string blocks = original_ ? "encoder.downsamples." : "encoder.down_blocks.";
    if (!residual_) return blocks + std::to_string(index);
    return blocks + std::to_string(level) + (original_ ? ".downsamples." : ".resnets.") +
           std::to_string(index);
  }
  std::string name(const std::string& item, Part part) const {
    static constexpr const char* kNames[] = {".residual.2.weight", ".resample.1.weight",
                                             ".time_conv.weight"};
    std::string out = item;
    if (part != kConv && residual_ && !original_)  // it has no number there
      out = out.substr(0, out.find(".resnets.")) + ".downsampler";
    return out + (part == kConv && !original_ ? ".conv1.weight" : kNames[part]);
  }
  bool has(const std::string& item, Part part) const { return file_.contains(name(item, part)); }

  TensorView tensor(const std::string& name) const {
    return sizes_.shape(name + ".weight", kMaxRank);
  }
  int64_t quotient(int64_t width, int64_t part, const std::string& what) const {
    if (width < 1 || part < 1 || width % part)
      refuse_model(shown_name(file_), what, ", ", width, ", is no multiple of ", part);
    return width / part;
  }

  // Walks through the encoder: residual blocks, then what halves the frames, then the next level.
  void read_levels() {
    config_.dim_mult.clear();
    config_.temporal_downsample.clear();
    int64_t index = 0;
    for (int64_t level = 0; level < kMost; ++level) {
      if (residual_) index = 0;
      int64_t blocks = 0, width = 0;
      for (; blocks < kMost && has(item(level, index), kConv); ++blocks, ++index)
        width = sizes_.shape(name(item(level, index), kConv), kMaxRank)[0];
      if (blocks == 0) break;
      config_.dim_mult.push_back(quotient(width, config_.base_dim, "the width of a level"));
      if (config_.dim_mult.back() > kMost)
        refuse_model(shown_name(file_), "a level is ", config_.dim_mult.back(),
                     " times as wide as the first (legal: at most 64)");
      config_.num_res_blocks = level ? std::min(config_.num_res_blocks, blocks) : blocks;
      const std::string last = item(level, index);
      if (!has(last, kResample)) break;
      config_.temporal_downsample.push_back(has(last, kTime));
      ++index;
    }
    if (config_.dim_mult.empty())
      sizes_.refuse(name(item(0, 0), kConv) + ", from which sizes would follow, is missing");
  }

  void read_statistics() {
    if (config_.z_dim == std::ssize(config_.latents_mean)) return;  // the statistics of 2.1
    if (config_.z_dim != std::ssize(kMean22))
      sizes_.refuse("the mean of its ", config_.z_dim,
                    " latent channels is not known (legal without one: the 16 of Wan 2.1, the 48 "
                    "of Wan 2.2)");
    config_.latents_mean.assign(std::begin(kMean22), std::end(kMean22));
    config_.latents_std.assign(std::begin(kStd22), std::end(kStd22));
  }

  const TensorFile& file_;
  const TensorSizes sizes_;
  const bool original_;
  bool residual_ = true;  // until it is known
  WanVaeConfig config_;
};

}  // namespace

bool wan_vae_has_original_names(const TensorNames& names) {
  return names.contains("decoder.middle.0.residual.0.gamma") ||
         names.contains("encoder.middle.0.residual.0.gamma");
}

bool holds_wan_vae(const TensorNames& names) {
  return wan_vae_has_original_names(names) ||
         names.contains("decoder.mid_block.resnets.0.norm1.gamma");
}

WanVaeConfig WanVaeConfig::from_tensors(const TensorFile& file) { return Reader(file).read(); }

std::string to_string(const WanVaeConfig& config) {
  std::string widths;
  for (const int64_t factor : config.dim_mult)
    widths += (widths.empty() ? "" : ", ") + std::to_string(factor * config.base_dim);
  const int64_t side = config.spatial_factor();
  return text_of("Wan VAE ", config.residual ? "2.2" : "2.1", " form: ", config.z_dim,
                 " latent channels, ", config.temporal_factor(), "x", side, "x", side, ", widths ",
                 widths);
}

}  // namespace weft
