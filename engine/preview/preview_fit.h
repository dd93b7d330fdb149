#pragma once
// PreviewFit: colours as a linear function of a latent, for previews. It is fitted by least squares
// to what a VAE decodes, and lies beside the VAE's weights as preview.json.
#include <array>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace weft {

// A latent value l[c] per channel, as the transformer sees it (normalised), gives the colour
// constant + sum over c of l[c] * rgb[c], in [-1, 1] as the VAE's frames. It is the mean of the
// pixels that the VAE decodes at that place.
struct PreviewFit {
  std::vector<std::array<float, 3>> rgb;  // per channel
  std::array<float, 3> constant{};
};

// The file of a fit in the VAE's folder.
std::string preview_fit_path(const std::string& vae_folder);

// Reads a fit for latents of so many channels. A faulty file is an Error(kModel) that names field,
// value and what is legal.
PreviewFit read_preview_fit(const std::string& path, int64_t channels);
// The text of such a file. `error` is PreviewFitter::error().
std::string preview_fit_text(const PreviewFit& fit, double error);

// Finds the fit with the least squared error.
class PreviewFitter {
 public:
  explicit PreviewFitter(int64_t channels);

  // Adds a clip: latents [C, F, h, w] f32, normalised, and the frames that the VAE makes of them,
  // [3, 1 + (F - 1) t, H, W] f32 in [-1, 1], where t and H / h are whole numbers.
  void add(const TensorView& latents, const TensorView& video);
  // Throws Error(kUsage) where the clips do not determine a fit.
  PreviewFit fit();
  // Root mean square of the last fit's errors, relative to that of the colours around their mean.
  double error() const { return error_; }

 private:
  size_t terms() const { return static_cast<size_t>(channels_) + 1; }  // the last is constant
  void add_pixel(const std::vector<double>& values, const std::array<double, 3>& colour);

  const int64_t channels_;
  double count_ = 0, error_ = 0;
  std::vector<double> products_;  // [terms, terms]: sums of products of latents
  std::vector<double> colours_;   // [terms, 3]: sums of latents times colours
  std::array<double, 3> squares_{};
};

}  // namespace weft
