#pragma once
// Method: the tokens that attention sees, and how old they may be. A method other than full
// attention changes the result, so it is a fact of the job: sidecars and checkpoints record it with
// its numbers.
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/mesh.h"
#include "parallel/methods/dual_scope.h"
#include "parallel/methods/mixer_factory.h"

namespace weft {

enum class MethodKind : uint8_t {
  kAuto,   // full attention within the length that the model was trained with, the queue beyond
  kFull,   // every frame sees every frame
  kClips,  // dual-scope attention (Video-Infinity, arXiv 2406.16260): near frames, a few of all
  kQueue,  // blocks of frames that are denoised one step apart (DualParal, arXiv 2505.21070)
  // Displaced patches: a patch of the tokens sees others as they were in the step before.
  kDistrifusion,  // all others (DistriFusion, arXiv 2402.19481)
  kPcpp,          // the nearest rows of its neighbours (PCPP, arXiv 2412.02962)
  kPipefusion,    // those behind it, and those before it as they are (PipeFusion, arXiv 2405.14430)
  kCount
};
std::string_view to_string(MethodKind kind);

// Displaced patches are cut between rows of tokens, frame by frame, or between latent frames.
enum class PatchSplit : uint8_t { kRows, kFrames };

// A number that is not given means the model's default (resolve_method). Lengths are in latent
// frames.
struct Method {
  MethodKind kind = MethodKind::kAuto;
  // Under clips a frame sees `window` frames on either side, and `global` frames of the whole video
  // whose positions are remapped to `trained` ones. `bias` is added to the logits of the global
  // frames in steps of at least `global_sigma`, to those of the near frames in the others.
  std::optional<int64_t> window{}, global{}, trained{};
  std::optional<double> bias{}, global_sigma{};
  // The frames of other ranks are as old as `stale` steps. The first `warmup` steps see present
  // frames, or present patches.
  std::optional<int64_t> stale{}, warmup{};
  // The queue has `block` frames per block, which sees `context` frames of each neighbour.
  std::optional<int64_t> block{}, context{};
  // The tokens are cut into `patches` displaced patches. Of a neighbour's rows a patch sees the
  // share `near` in the first displaced step, `last_near` in the last one, and in between what lies
  // on the line between them.
  // Every resync-th step sees present patches, too.
  std::optional<int64_t> patches{}, resync{};
  std::optional<double> near{}, last_near{};
  std::optional<PatchSplit> split{};
  std::optional<WireCode> code{};

  bool operator==(const Method&) const = default;
};

// "clips:window=8,global=4"; numbers that are not given are left out.
std::string to_string(const Method& method);
// The inverse. Error(kUsage) that begins with `label` and names the fault and the legal values.
Method parse_method(const std::string& text, const std::string& label);

// The attention of clips; empty for other methods. `method` is resolved, and its first
// `global_steps` steps are of at least global_sigma.
std::optional<DualScope> dual_scope_of(const Method& method, int global_steps);

inline bool is_pipefusion(const Method& method) { return method.kind == MethodKind::kPipefusion; }
inline bool is_displaced(const Method& method) {
  return method.kind == MethodKind::kDistrifusion || method.kind == MethodKind::kPcpp ||
         is_pipefusion(method);
}
// The patches of a grid of tokens (frames, rows, columns) in a job of so many steps; none for other
// methods. `method` is resolved.
StalePatches stale_patches_of(const Method& method, const std::array<int64_t, 3>& grid, int steps);

// Sets what the patches of a method allow a layout.
void limit_patches(const Method& method, const std::array<int64_t, 3>& grid, LayoutLimits& limits);

// Jobs of fewer steps change too much from one to the next for displaced patches.
inline constexpr int kFewestDisplaced = 9;

// The facts that the defaults of a method depend on, and its limits.
struct MethodFacts {
  int64_t latents = 0;          // frames of the job's latent
  int64_t trained_latents = 0;  // that the model was trained with
  double flow_shift = 1;
  std::array<int64_t, 3> grid{};  // of the job's tokens: frames, rows, columns
};
// Chooses a method where it is kAuto, and fills in its numbers. Error(kUsage) for clips and
// patches that cannot work; those of the queue are checked by validate_method (request.h).
Method resolve_method(const Method& method, const MethodFacts& facts);

}  // namespace weft
