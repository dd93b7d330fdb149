#pragma once
// The layers of AutoencoderKL, which work on pictures [1, H, W, C]. They run through the same
// network and seams as those of the video VAE: rows may be a band of the picture.
#include "models/wan/vae_layers.h"

namespace weft::kl {

// A group norm. Its statistics are those of the whole picture: Reducer::sum adds the bands' parts.
struct GroupNorm {
  Tensor weight, bias;  // [C] f32
  int64_t groups = 0;
};
inline constexpr float kGroupNormEps = 1e-6f;

// Makes a 3x3 convolution. `norm` names the group norm with SiLU before it, or is "".
std::unique_ptr<VaeLayer> make_conv(const VaeWeightSource& source, const std::string& name,
                                    const std::string& norm, int64_t groups, int64_t in,
                                    int64_t out);
std::unique_ptr<VaeLayer> make_resnet(const VaeWeightSource& source, const std::string& name,
                                      int64_t groups, int64_t in, int64_t out);
// Makes attention with one head over all pixels.
std::unique_ptr<VaeLayer> make_attention(const VaeWeightSource& source, const std::string& name,
                                         int64_t groups, int64_t width);
std::unique_ptr<VaeLayer> make_upsample(const VaeWeightSource& source, const std::string& name,
                                        int64_t width);
std::unique_ptr<VaeLayer> make_downsample(const VaeWeightSource& source, const std::string& name,
                                          int64_t width);
// Makes a 1x1 convolution that computes only the first `keep` output channels.
std::unique_ptr<VaeLayer> make_pointwise(const VaeWeightSource& source, const std::string& name,
                                         int64_t in, int64_t out, int64_t keep);

}  // namespace weft::kl
