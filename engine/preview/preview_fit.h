#pragma once
// PreviewFit: colours as a linear function of a latent, for previews. It lies beside the VAE's
// weights as preview.json, which models/pocket/recipe/fit_preview.py makes by least squares.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

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
  ColourMap map{};                   // of every latent frame, or of those after the first
  std::optional<ColourMap> first{};  // of the first latent frame, where it has one of its own
};

// The file of a fit in the VAE's folder.
std::string preview_fit_path(const std::string& vae_folder);

// Reads a fit for latents of so many channels. A faulty file is an Error(kModel) that names field,
// value and what is legal.
PreviewFit read_preview_fit(const std::string& path, int64_t channels);

}  // namespace weft
