#pragma once
// PipeFusion: the tokens are cut into patches, and the stages of a layer pipeline compute them one
// after the other. A patch sees its own keys and values and those of the patches before it of the
// present step, and those of the patches after it of the step before.
//
// Split: the blocks, over stages; the rows of a patch, over Ulysses and ring inside a stage.
// Talk: none of its own. Patches travel between stages (parallel/schedule/denoise_plan.h). With
//   Ulysses a rank keeps the rows of its group for its heads; a ring sends what is kept around.
// Bytes sent by a rank per layer and displaced step: Ulysses as ever; a ring M times its bytes, for
//   M patches, because all keys go around for each.
// Past: none. Replicated rows: every patch has its own, which it alone sees.
// Memory: 2 n Akv E elements per layer and branch, n the rows of all patches that a ring's block
//   has: 2 L / N hidden states for L layers on N stages.
// Exact: the patches belong to the result, the stages do not (the same bits). The first `warmup`
//   steps, every resync-th, the first step of a run and the first one of an expert see the present
//   keys of all tokens.
// Divisibility: none; a patch has a token for every rank that shares it.
// Overlap: none in a layer; stages compute different patches at the same time.
// Paper: PipeFusion (Fang et al. 2024, arXiv 2405.14430), section 4; the rows that sequence
//   parallel ranks keep: xDiT (Fang et al. 2024, arXiv 2411.01738), section 4.1.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "parallel/sequence_map.h"
#include "parallel/token_mixer.h"

namespace weft {

struct PipeFusion {
  std::vector<int64_t> patches{};  // the tokens of each, in order
  int warmup = 1;                  // the first steps are exact: 0 or more
  int resync = 0;                  // every resync-th step is exact, too; 0: none
  bool operator==(const PipeFusion&) const = default;
};
// The reason why the settings cannot work for a sequence of `tokens`, or "".
std::string refuse(const PipeFusion& method, int64_t tokens);

// A forward of one patch has its number, counted from 1, in Pass::micro. A forward of all tokens
// has this number.
inline constexpr int kAllPatches = 0;

// The tokens of each patch, cut among the ranks that share them. Index math alone.
class PatchParts {
 public:
  PatchParts(const PipeFusion& method, int parts);

  int patches() const { return static_cast<int>(patches_.size()); }
  int parts() const { return parts_; }
  // The tokens of patch 1 ... patches() that a part holds.
  Range tokens(int patch, int part) const;
  // The tokens of every part: of a patch, or of all of them, one patch after the other.
  SequenceMap map(int patch) const;

 private:
  std::vector<Range> patches_;
  int parts_;
};

// The keys and values that a rank keeps of its layers, after rope, patch by patch. The mixers of
// all patches share them.
class PatchKeys {
 public:
  // pieces[p - 1] are the rows of patch p, as the ranks of the Ulysses group hold them in turn.
  explicit PatchKeys(std::vector<std::vector<int64_t>> pieces) : pieces_(std::move(pieces)) {}

  // Returns what a forward of the patch sees beside its own rows, and where it writes those. CHECKs
  // that others are of the steps that the method says.
  ContextKV begin(const Pass& pass, const Attend& attend);

 private:
  struct Layer {
    Tensor k, v;
    std::vector<int> steps;  // of each patch
  };
  Layer& layer(const Pass& pass, const Attend& attend);

  std::vector<std::vector<int64_t>> pieces_;
  std::map<std::pair<int, int>, Layer> layers_;  // by branch and layer
};

// Sees the kept keys beside the present ones. `inner` attends: a FullMixer, or a ring whose block
// holds them.
class PatchKeysMixer final : public TokenMixer {
 public:
  PatchKeysMixer(std::shared_ptr<PatchKeys> keys, std::unique_ptr<TokenMixer> inner)
      : keys_(std::move(keys)), inner_(std::move(inner)) {}

  void begin(const Pass& pass) override;
  void attend(Context& context, const Attend& attend) override;
  void finish() override { inner_->finish(); }

 private:
  std::shared_ptr<PatchKeys> keys_;
  std::unique_ptr<TokenMixer> inner_;
  Pass pass_{};
};

// Hands every forward to the mixer of its patch.
class PatchMixer final : public TokenMixer {
 public:
  // mixers[Pass::micro]
  explicit PatchMixer(std::vector<std::unique_ptr<TokenMixer>> mixers)
      : mixers_(std::move(mixers)) {}

  void begin(const Pass& pass) override;
  void attend(Context& context, const Attend& attend) override {
    mixers_.at(patch_)->attend(context, attend);
  }
  void finish() override;

 private:
  std::vector<std::unique_ptr<TokenMixer>> mixers_;
  int patch_ = kAllPatches;
};

}  // namespace weft
