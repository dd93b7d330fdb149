#pragma once
// Segment context: a segment of a video sees, as keys alone, the first frames of the segment after
// it, whose pass has left them on this rank (parallel/schedule/segment_queue.h).
//
// Split: none; this mixer sees all tokens of its heads, as a FullMixer does, alone or inside
//   Ulysses. It does not serve a ring.
// Talk: none; bytes sent: 0.
// Past keys, replicated rows: refused.
// Memory: 2 n Akv E elements per layer, branch and set for n kept tokens, which outlive the
//   pass; n Akv E of the arena.
// Exact. Every key is read in the version that the pass names.
// Keys are kept after their norm and before rope: who reads them gives them their positions.
// Paper: DualParal (Wang et al. 2025, arXiv 2505.21070).
#include <optional>

#include "parallel/feature_cache.h"
#include "parallel/token_mixer.h"

namespace weft {

// The keys and values that a rank keeps. The mixers that RankPlacement makes share them.
class SegmentContext {
 public:
  // Keeps the keys of `rows` for the layers [begin, end) of each of the branches: in one set, or in
  // as many as there are forwards whose keys outlive the next one.
  SegmentContext(const BlockRange& layers, std::vector<int> branches, const Range& rows,
                 int sets = 1)
      : layers_(layers), branches_(std::move(branches)), rows_(rows), sets_(sets) {}

  // Says what the next forward does. The versions of a set and branch ascend; none: it reads or
  // keeps nothing.
  struct Use {
    std::optional<int> reads{}, keeps{};
    const Rope* rope = nullptr;  // the positions of the tokens that are read
    int reads_set = 0, keeps_set = 0;
  };
  void begin(const Use& use) { use_ = use; }

  size_t bytes() const { return cache_ ? cache_->bytes() : 0; }

 private:
  friend class SegmentContextMixer;
  FeatureCache& cache(const TensorView& keys);

  BlockRange layers_;
  std::vector<int> branches_;
  Range rows_;
  int sets_;
  Use use_;
  std::optional<FeatureCache> cache_;  // made when the first keys are kept
};

class SegmentContextMixer final : public TokenMixer {
 public:
  explicit SegmentContextMixer(SegmentContext& context) : context_(context) {}
  void attend(Context& context, const Attend& attend) override;

 private:
  SegmentContext& context_;
};

}  // namespace weft
