#pragma once
// The levels of the residual Wan VAE (Wan 2.2): the layers of a level, and beside them a path
// without parameters from what the level reads to what it writes.
#include <memory>
#include <string>

#include "models/vae_network.h"

namespace weft {

// Resamples rows and columns by `pixels` and frames by `frames`. Downward, values of a cell and of
// neighbouring channels are averaged; upward, they are repeated.
struct VaeShortcut {
  enum class Way : uint8_t { kDown, kUp } way = Way::kDown;
  int64_t frames = 1, pixels = 1;
  int64_t cell() const { return frames * pixels * pixels; }
};

// A level whose output is the sum of its layers' output and the shortcut's. The layers' output has
// the shape that the shortcut's has.
std::unique_ptr<VaeLayer> make_residual_level(const std::string& name, VaeNetwork layers,
                                              const VaeShortcut& shortcut);

}  // namespace weft
