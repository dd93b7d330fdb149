#pragma once
// The one place that knows which sequence method a layout means: it makes a rank's mixer and states
// the bytes that the mixer sends.
#include <functional>
#include <memory>
#include <vector>

#include "parallel/mesh.h"
#include "parallel/methods/dual_scope.h"
#include "parallel/methods/patches/displaced.h"
#include "parallel/methods/patches/pipefusion.h"
#include "parallel/sequence_map.h"
#include "parallel/token_mixer.h"

namespace weft {

// The distribution of a causal ring's work. Zigzag and LightSeq give every rank equally many keys
// to attend to; contiguous does not.
enum class RingBalance : uint8_t { kZigzag, kContiguous, kLightSeq };

// Patches that see others as they were in the step before: of one method, or none.
struct StalePatches {
  std::optional<Displaced> displaced{};    // the patch axis splits them
  std::optional<PipeFusion> pipefusion{};  // they are computed one after the other
  explicit operator bool() const { return displaced || pipefusion; }
};

// Describes the mixer of one rank of a layout.
struct MixerDescription {
  Mesh mesh;
  int rank = 0;
  SequenceMap tokens;                              // of every sequence index (Mesh::sequence_index)
  RingBalance balance = RingBalance::kContiguous;  // kLightSeq: causal attention alone
  // The tokens of earlier passes whose keys each ring's block holds (Attend::past), or empty.
  std::vector<TokenRanges> held{};
  // Set where attention is dual-scope. The clip axis splits it, and the tokens are those of
  // `frames` latent frames.
  std::optional<DualScope> dual_scope{};
  int64_t frames = 1;
  // Under PipeFusion `tokens` are those of all patches (PatchParts::map).
  StalePatches patches{};
  // Makes the mixer that sees all tokens, inside Ulysses if there is such an axis. Empty: a
  // FullMixer. Such a mixer does not serve a ring.
  std::function<std::unique_ptr<TokenMixer>()> inner{};
};

// Makes the communicator of some ranks of the layout. `number` counts the mixer's groups from 0, so
// that each gets an id of its own.
using MakeGroup = std::function<Communicator(const std::vector<int>& ranks, int number)>;
inline constexpr int kMixerGroups = 2;  // the groups that a mixer asks for at most

// The answer of a rank that holds all tokens is a FullMixer.
std::unique_ptr<TokenMixer> make_mixer(const MixerDescription& description, const MakeGroup& group);

}  // namespace weft
