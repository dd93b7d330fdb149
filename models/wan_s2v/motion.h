#pragma once
// FramePack (Zhang & Agrawala 2025, arXiv 2504.12626) as Wan 2.2 speech to video uses it: the older
// a latent before the clip, the larger the patch that becomes one row.
#include <array>
#include <tuple>
#include <vector>

#include "models/blocks.h"

namespace weft {

using WanPosition = std::array<int64_t, 3>;  // frame, row, column

inline constexpr int64_t kWanMotionFrames = 19;    // latents of 73 frames of video
inline constexpr int64_t kWanReferenceFrame = 30;  // the reference picture's position in time

// The positions of the rows of a reference picture, and of the motion, in the rows' order: the
// newest latent first. `grid` is the clip's.
std::vector<WanPosition> wan_reference_positions(std::array<int64_t, 3> grid);
std::vector<WanPosition> wan_motion_positions(std::array<int64_t, 3> grid);

// The rotary angles of rows at any positions, moved by `frames`.
Rope wan_positions_rope(const std::vector<WanPosition>& positions, int64_t frames, int head_dim);

std::vector<TensorSpec> wan_packer_tensors(int64_t width, int64_t channels);

struct WanFramePacker {
  std::array<PackedLinear, 3> scales;  // [D, C * patch] f32: of the newest latent, of 2, of 16

  static WanFramePacker load(Stream& stream, const CheckpointPart& tensors);
  size_t bytes() const;
  // Writes the rows [n, D] f32 of `motion` [C, up to 19, H, W] f32, the newest latent last. Earlier
  // latents are zeros, and so are those that `scales_read` (Conditions::motion_scales) leaves out.
  void pack(Context& context, const TensorView& motion, int scales_read,
            const TensorView& rows) const;
};

}  // namespace weft
