#pragma once
// Displaced patches: a patch of the tokens sees its own keys and values, and those of other patches
// from the step before. Their messages travel during a whole step.
//
// Split: the tokens, in patches of consecutive tokens (uneven). A rank holds one patch or more.
// Talk: after a layer's attention every rank sends each other rank of its group the rows that the
//   patches of that one see. They are awaited before the same layer's attention of the next step.
// Bytes sent by rank r per layer: 2 e Akv E times the rows of r that patches of each other rank
//   see. N equal patches of S / N tokens: DistriFusion 2 e Akv E (N - 1) S /
//   N; PCPP 2 e Akv E ceil(p S / N) to each neighbour, p the window of the step after. In an exact
//   step 2 e Akv E (P - 1) n for the n rows of r among P ranks. With a code e Akv E of a displaced
//   step is Akv E + 1 (kernels/row_code.h).
// Past: none. Replicated rows: every patch has its own, which see and are seen by that patch alone;
//   a rank with replicated rows holds one patch.
// Memory: per layer and branch the keys and values of the rank's rows and of the rows that its
//   patches see of others (FeatureCache, one version), or their code. kResidualFp8 keeps both. In
//   an exact step those of all tokens.
// Exact: the patches belong to the result, the ranks do not (the same bits). The first `warmup`
//   steps, every resync-th, the first step of a run and the first one of an expert see the present
//   keys and values of all tokens. In every other step those of other patches are of exactly one
//   step before. With a code they have passed through it, on the rank of their own too.
// Divisibility: none.
// Overlap: messages of a layer travel while all other layers compute, into the next step.
// Paper: DistriFusion (Li et al. 2024, arXiv 2402.19481), section 4; PCPP (Zhang et al. 2024, arXiv
//   2412.02962) for windows. Both are of UNets; a DiT has no convolutions and no group norms, so
//   that keys and values are all that is exchanged. CompactFusion (Luo et al. 2025, arXiv
//   2507.17511) for residuals.
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/feature_cache.h"
#include "parallel/token_mixer.h"

namespace weft {

// The code of the keys and values of other patches in displaced steps: none, 8-bit floats, or 8-bit
// floats of the change since what was decoded in the step before. The first step after an exact one
// changes the exact values.
enum class WireCode : uint8_t { kNone, kFp8, kResidualFp8 };

struct Displaced {
  // The tokens of each patch, in order.
  std::vector<int64_t> patches{};
  // A patch sees the nearest ceil(window n) rows of the n of each of its two neighbours, 0 ... 1.
  // Without it a patch sees all patches.
  std::optional<double> window{};
  std::vector<double> windows{};    // in its place, one for each step
  int warmup = 1;                   // the first steps are exact: 0 or more
  int resync = 0;                   // steps 0, resync, 2 resync ... are exact, too; 0: none
  int steps = 0;                    // of the whole run, whose last one sends nothing; 0: not known
  WireCode code = WireCode::kNone;  // kResidualFp8 with windows that do not grow
  bool operator==(const Displaced&) const = default;

  bool exact(int step) const { return step < warmup || (resync > 0 && step % resync == 0); }
  std::optional<double> window_of(int step) const;
  std::optional<double> widest() const;
};
// The reason why the settings cannot work for a sequence of `tokens`, or "".
std::string refuse(const Displaced& method, int64_t tokens);

// The tokens of part `index` of `parts`, which hold as many patches each.
Range patches_of_part(const Displaced& method, int parts, int index);

// The rows that every patch and every rank holds and sees. Index math alone.
class PatchRows {
 public:
  // Rank i holds the tokens ranks[i]: whole patches, in order.
  PatchRows(const Displaced& method, const std::vector<Range>& ranks);

  const Displaced& method() const { return method_; }
  int ranks() const { return static_cast<int>(ranks_.size()); }
  Range rank(int index) const { return ranks_[index]; }
  int64_t tokens() const { return ranks_.back().end; }
  int patches() const { return static_cast<int>(patches_.size()); }
  Range patch(int index) const { return patches_[index]; }
  Range patches_of(int rank) const;  // their indices
  // The tokens that a patch sees in a displaced step, and those of rank `from` that patches of rank
  // `to` see, where the window is this.
  Range seen(int patch, std::optional<double> window) const;
  Range shared(int from, int to, std::optional<double> window) const;

 private:
  Displaced method_;
  std::vector<Range> ranks_, patches_;
};

class DisplacedMixer final : public TokenMixer {
 public:
  // Rank i of `group` holds rows.rank(i). A single rank has no group.
  DisplacedMixer(std::optional<Communicator> group, const PatchRows& rows);

  void begin(const Pass& pass) override;
  void attend(Context& context, const Attend& attend) override;
  void finish() override;

 private:
  struct Keys;
  // The decoded keys and values that the next code is a change of: this rank's own (piece 0),
  // then those of every link (piece 1 + link).
  struct Bases {
    int step = -1;
    std::vector<Tensor> pieces{};
  };
  bool coded() const { return rows_.method().code != WireCode::kNone; }
  void make_cache(const Attend& attend);
  bool exact(const FeatureKey& key);
  Keys gather(Context& context, const Attend& attend, const AttendTags& tags);
  Keys displaced(Context& context, const Attend& attend, const FeatureKey& key);
  std::vector<FeatureLink> links(std::optional<double> window) const;
  void keep(Context& context, const Attend& attend, const FeatureKey& key, const Keys* gathered);
  void encode(Stream& stream, const FeatureKey& key, size_t piece, const TensorView& rows,
              const TensorView& code, bool exact);
  TensorView decode(Context& context, const Attend& attend, const FeatureKey& key, size_t piece,
                    const TensorView& code);

  std::optional<Communicator> group_;
  const int own_;
  const PatchRows rows_;
  std::unique_ptr<FeatureCache> cache_;
  std::map<FeatureKey, Bases> bases_;  // of kResidualFp8
  Pass pass_{}, before_{};             // the present pass, and the last one of the step before
};

}  // namespace weft
