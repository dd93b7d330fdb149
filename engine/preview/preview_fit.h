#pragma once
// PreviewFit: colours as a linear function of a latent, for previews. It is fitted by least squares
// to what a VAE decodes, and lies beside the VAE's weights as preview.json.
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace weft {

// A latent value l[c] per channel, as the transformer sees it (normalised), gives the colour
// constant + sum over c of l[c] * rgb[c], in [-1, 1] as the VAE's frames. It is the mean of the
// pixels that the VAE decodes at that place.
struct ColourMap {
  std::vector<std::array<float, 3>> rgb{};  // per channel
  std::array<float, 3> constant{};
};

// A causal VAE encodes the first frame of a video alone and later ones in groups, so the latents of
// the first frame mean other colours.
struct PreviewFit {
  ColourMap map{};                   // of every latent frame, or of those behind the first
  std::optional<ColourMap> first{};  // of the first latent frame, where it has one of its own
};

// Root mean squares of a fit's errors, relative to that of the colours around their mean.
struct PreviewErrors {
  double all = 0;
  double first = 0, later = 0;  // of the latent frames with a map of their own; 0 without one
};

// The file of a fit in the VAE's folder.
std::string preview_fit_path(const std::string& vae_folder);

// Reads a fit for latents of so many channels. A faulty file is an Error(kModel) that names field,
// value and what is legal.
PreviewFit read_preview_fit(const std::string& path, int64_t channels);
// The text of such a file.
std::string preview_fit_text(const PreviewFit& fit, const PreviewErrors& errors);

// Finds the fit with the least squared error. Its first latent frame has a map of its own where
// the clips have later ones.
class PreviewFitter {
 public:
  explicit PreviewFitter(int64_t channels);

  // Adds a clip: latents [C, F, h, w] f32, normalised, and the frames that the VAE makes of them,
  // [3, 1 + (F - 1) t, H, W] f32 in [-1, 1], where t and H / h are whole numbers.
  void add(const TensorView& latents, const TensorView& video);
  // Throws Error(kUsage) where the clips do not determine a fit.
  PreviewFit fit();
  const PreviewErrors& errors() const { return errors_; }  // of the last fit

 private:
  // The sums over pixels of which a map is the least squares solution.
  struct Sums {
    explicit Sums(size_t terms) : products(terms * terms), colours(3 * terms) {}
    void add(const std::vector<double>& values, const std::array<double, 3>& colour);

    double count = 0;
    std::vector<double> products;  // [terms, terms]: of latents; the last term is constant
    std::vector<double> colours;   // [terms, 3]: of latents times colours
    std::array<double, 3> squares{};
  };
  // Squares of the errors, and of the distances from a mean.
  struct Missed {
    double error = 0, spread = 0;
    double relative() const;
  };
  static ColourMap solved(const Sums& sums, Missed& missed);
  static double spread_of(const std::vector<const Sums*>& sums);

  const int64_t channels_;
  Sums first_, later_;  // of first latent frames, and of those behind them
  PreviewErrors errors_{};
};

}  // namespace weft
