#include "models/wan_s2v/motion.h"

#include <algorithm>
#include <cstring>

namespace weft {

namespace {

// A stretch of the motion whose latents are cut into patches of one size.
struct Scale {
  const char* name;       // of its projection
  int64_t begin, frames;  // among the latents
  std::array<int64_t, 3> patch;
};
constexpr std::array<Scale, 3> kScales = {
    {{"proj", 18, 1, {1, 2, 2}}, {"proj_2x", 16, 2, {2, 4, 4}}, {"proj_4x", 0, 16, {4, 8, 8}}}};

// The clip's latent has two rows and columns per token.
constexpr int64_t kTokenSide = 2;

// Rows and columns that do not fill a patch are left out.
std::array<int64_t, 3> grid_of(const Scale& scale, int64_t height, int64_t width) {
  return {scale.frames / scale.patch[0], height / scale.patch[1], width / scale.patch[2]};
}

int64_t rows_of(const std::array<int64_t, 3>& grid) { return grid[0] * grid[1] * grid[2]; }

// Returns `count` numbers at even distances, rounded towards zero. The last one is `last`.
std::vector<int64_t> spread(int64_t first, int64_t last, int64_t count) {
  std::vector<int64_t> out(static_cast<size_t>(count), first);
  if (count < 2) return out;
  const double step = static_cast<double>(last - first) / static_cast<double>(count - 1);
  for (int64_t i = 0; i < count; ++i)
    out[i] = static_cast<int64_t>(static_cast<double>(i) * step + static_cast<double>(first));
  out.back() = last;
  return out;
}

void append(const std::vector<int64_t>& frames, const std::vector<int64_t>& rows,
            const std::vector<int64_t>& columns, std::vector<WanPosition>& out) {
  for (const int64_t frame : frames)
    for (const int64_t row : rows)
      for (const int64_t column : columns) out.push_back({frame, row, column});
}

}  // namespace

std::vector<WanPosition> wan_reference_positions(std::array<int64_t, 3> grid) {
  std::vector<WanPosition> out;
  append({kWanReferenceFrame}, spread(0, grid[1] - 1, grid[1]), spread(0, grid[2] - 1, grid[2]),
         out);
  return out;
}

std::vector<WanPosition> wan_motion_positions(std::array<int64_t, 3> grid) {
  std::vector<WanPosition> out;
  for (const Scale& scale : kScales) {
    const auto own = grid_of(scale, kTokenSide * grid[1], kTokenSide * grid[2]);
    // The distance of each latent to the clip's first one.
    std::vector<int64_t> frames = spread(kWanMotionFrames - scale.begin,
                                         kWanMotionFrames - scale.begin - scale.frames + 1, own[0]);
    for (int64_t& frame : frames) frame = -frame;
    append(frames, spread(0, grid[1] - 1, own[1]), spread(0, grid[2] - 1, own[2]), out);
  }
  return out;
}

Rope wan_positions_rope(const std::vector<WanPosition>& positions, int64_t frames, int head_dim) {
  WanPosition first{}, last{};
  for (const WanPosition& position : positions)
    for (int axis = 0; axis < 3; ++axis) {
      first[axis] = std::min(first[axis], position[axis]);
      last[axis] = std::max(last[axis], position[axis]);
    }
  const Rope all =
      make_rope({last[0] - first[0] + 1, last[1] - first[1] + 1, last[2] - first[2] + 1},
                {first[0] + frames, first[1], first[2]}, head_dim);
  Rope out;
  out.grid = {static_cast<int64_t>(positions.size()), 1, 1};
  out.pairs = {head_dim / 2, 0, 0};
  out.table[0] = Tensor(DType::kF32, {out.grid[0], head_dim / 2, 2});
  float* to = out.table[0].as<float>();
  for (const WanPosition& position : positions)
    for (int axis = 0; axis < 3; ++axis) {
      const int64_t values = 2 * all.pairs[axis];
      to = std::copy_n(all.table[axis].as<float>() + (position[axis] - first[axis]) * values,
                       values, to);
    }
  return out;
}

std::vector<TensorSpec> wan_packer_tensors(int64_t width, int64_t channels) {
  std::vector<TensorSpec> list;
  for (const Scale& scale : kScales) {
    const std::string name = std::string("frame_packer.") + scale.name;
    const auto [frames, rows, columns] = scale.patch;
    list.push_back({name + ".weight", {width, channels, frames, rows, columns}});
    list.push_back({name + ".bias", {width}});
  }
  return list;
}

WanFramePacker WanFramePacker::load(Stream& stream, const CheckpointPart& tensors) {
  WanFramePacker packer;
  for (size_t i = 0; i < kScales.size(); ++i)
    packer.scales[i] =
        tensors.linear(stream, std::string("frame_packer.") + kScales[i].name, DType::kF32);
  return packer;
}

size_t WanFramePacker::bytes() const {
  size_t bytes = 0;
  for (const PackedLinear& scale : scales) bytes += scale.bytes();
  return bytes;
}

void WanFramePacker::pack(Context& context, const TensorView& motion, int scales_read,
                          const TensorView& rows) const {
  const Arena::Scope scope(context.arena);
  Stream& stream = context.stream;
  const auto [channels, given, height, width] =
      std::array{motion[0], motion[1], motion[2], motion[3]};
  CHECK(motion.rank == 4 && given <= kWanMotionFrames && scales_read >= 0 && scales_read <= 2,
        motion.to_string_shape(), "scales", scales_read);
  // The newest scales whose latents are not read.
  int64_t unread = 0;
  for (int i = 0; i < 2 - scales_read; ++i) unread += kScales[i].frames;
  const int64_t zeros = kWanMotionFrames - given;
  const TensorView all =
      context.arena.alloc(DType::kF32, {channels, kWanMotionFrames, height, width});
  copy(stream, motion, all.slice(1, zeros, given));
  fill_zero(stream, all.slice(1, 0, zeros));
  fill_zero(stream, all.slice(1, kWanMotionFrames - unread, unread));

  int64_t done = 0;
  for (size_t i = 0; i < kScales.size(); ++i) {
    const Scale& scale = kScales[i];
    const auto grid = grid_of(scale, height, width);
    const int64_t n = rows_of(grid);
    if (n == 0) continue;
    const Arena::Scope patches_scope(context.arena);
    const TensorView patches = context.arena.alloc(DType::kF32, {n, scales[i].in()});
    const TensorView latents = all.slice(1, scale.begin, scale.frames)
                                   .slice(2, 0, grid[1] * scale.patch[1])
                                   .slice(3, 0, grid[2] * scale.patch[2]);
    patchify(stream, latents, scale.patch, TokenRanges::all(n), patches);
    linear(stream, patches, scales[i], LinearActivation::kNone, rows.slice(0, done, n));
    done += n;
  }
  CHECK(done == rows[0], "rows", done, "of", rows[0]);
}

}  // namespace weft
