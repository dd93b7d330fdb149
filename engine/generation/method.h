#pragma once
// Method: the frames that attention sees. A method other than full attention changes the result, so
// it is a fact of the job: sidecars and checkpoints record it with its numbers.
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "parallel/methods/dual_scope.h"

namespace weft {

enum class MethodKind : uint8_t {
  kAuto,   // full attention within the length that the model was trained with, the queue beyond
  kFull,   // every frame sees every frame
  kClips,  // dual-scope attention (Video-Infinity, arXiv 2406.16260): near frames, a few of all
  kQueue,  // blocks of frames that are denoised one step apart (DualParal, arXiv 2505.21070)
  kCount
};
std::string_view to_string(MethodKind kind);

// A number that is not given means the model's default (resolve_method). Lengths are in latent
// frames.
struct Method {
  MethodKind kind = MethodKind::kAuto;
  // Under clips a frame sees `window` frames on either side, and `global` frames of the whole video
  // whose positions are remapped to `trained` ones. `bias` is added to the logits of the global
  // frames in steps of at least `global_sigma`, to those of the near frames in the others.
  std::optional<int64_t> window{}, global{}, trained{};
  std::optional<double> bias{}, global_sigma{};
  // The frames of other ranks are as old as `stale` steps, except in the first `warmup` steps.
  std::optional<int64_t> stale{}, warmup{};
  // The queue has `block` frames per block, which sees `context` frames of each neighbour.
  std::optional<int64_t> block{}, context{};

  bool operator==(const Method&) const = default;
};

// "clips:window=8,global=4"; numbers that are not given are left out.
std::string to_string(const Method& method);
// The inverse. Error(kUsage) that begins with `label` and names the fault and the legal values.
Method parse_method(const std::string& text, const std::string& label);

// The attention of clips; empty for other methods. `method` is resolved, and its first
// `global_steps` steps are of at least global_sigma.
std::optional<DualScope> dual_scope_of(const Method& method, int global_steps);

// The facts that the defaults of a method depend on.
struct MethodFacts {
  int64_t latents = 0;          // frames of the job's latent
  int64_t trained_latents = 0;  // that the model was trained with
  double flow_shift = 1;
};
// Chooses a method where it is kAuto, and fills in its numbers. Error(kUsage) for clips that cannot
// work; those of the queue are checked by validate_method (request.h).
Method resolve_method(const Method& method, const MethodFacts& facts);

}  // namespace weft
