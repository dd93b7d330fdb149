#pragma once
// Dual-scope attention (clip parallelism): a frame sees the frames near it, and a few of the whole
// video. It approximates full attention; how many clips there are changes nothing.
//
// Split: the latent frames, in clips of whole frames (uneven).
// Talk: every rank sends each other rank of its group the frames that are near a frame of that one,
//   and its global frames. All messages of a layer are posted at once.
// Bytes sent by rank r per layer: 2 e Akv E S [sum over s != r of the frames of r that are near a
//   frame of s, + (P - 1) times the global frames of r], S tokens per frame. With clips of at least
//   `window` p frames: 2 e Akv E S p to each neighbour.
// Past, replicated rows: none.
// Memory: the keys and values of the clip, of the near frames of others and of the global frames;
//   a copy of the queries; two attention states in f32, one of them of a frame. Staleness 1: per
//   layer and branch, two versions of what is sent and received (FeatureCache).
// Exact: the same for every number of clips. A frame's keys lie in the order of their positions,
//   and every frame is attended to on its own, so that bits are the same, too. Staleness 1: frames
//   of other ranks are those of the step before; the first `warmup` steps, the first step of a run
//   and the first one of an expert take the present ones.
// Divisibility: none; every clip needs a frame.
// Overlap: frames that see none of another rank are attended to while messages travel.
// Paper: Video-Infinity (Tan et al. 2024, arXiv 2406.16260), section 4. There attention is along
//   time alone; here a query sees whole frames, and the global part has positions within the
//   trained length.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/feature_cache.h"
#include "parallel/sequence_map.h"
#include "parallel/token_mixer.h"

namespace weft {

struct DualScope {
  // Frame a of F sees frames a - window ... a + window that exist, at their positions. At least 0.
  int64_t window = 8;
  // It also sees frames floor(j F / global), a second time where they are near: 0 ... F of them.
  int64_t global = 4;
  // For these, frame f of queries and keys has the position f (trained - 1) / (F - 1). The latent
  // frames that the model was trained with, at least 1.
  int64_t trained = 21;
  // Added to the logits of the global frames in the first `global_steps` steps, to those of the
  // near frames in the others. Finite.
  double bias = 10;
  int global_steps = 0;
  int stale = 0;   // by how many steps the frames of other ranks are older: 0 or 1
  int warmup = 0;  // stale 1: in so many first steps they are not. At least 0.
  bool operator==(const DualScope&) const = default;
};
// The reason why the settings cannot work for `frames` latent frames, or "".
std::string refuse(const DualScope& scope, int64_t frames);

// The frames that every clip sees and exchanges. Index math alone.
class ClipFrames {
 public:
  // Index i of `clips` holds whole frames of `video`.
  ClipFrames(const SequenceMap& clips, const Sequence& video, const DualScope& scope);

  const DualScope& scope() const { return scope_; }
  int clips() const { return static_cast<int>(clips_.size()); }
  int64_t frame_tokens() const { return video_.frame_tokens(); }
  Range clip(int index) const { return clips_[index]; }
  // The frames near a frame, and those near any frame of a clip.
  Range near(int64_t frame) const { return near({frame, frame + 1}); }
  Range seen(int index) const { return near(clips_[index]); }
  // The frames of clip `from` that clip `to` sees as near.
  Range shared(int from, int to) const;
  // Global frame j, and the j of a clip's.
  int64_t global(int64_t j) const { return j * video_.frames / scope_.global; }
  Range globals(int index) const;
  std::vector<double> positions() const;  // of all frames, for the global part

 private:
  Range near(const Range& frames) const;

  std::vector<Range> clips_;
  Sequence video_;
  DualScope scope_;
};

class DualScopeMixer final : public TokenMixer {
 public:
  // Rank i of `group` holds clip i. A single clip has no group.
  DualScopeMixer(std::optional<Communicator> group, const ClipFrames& frames);

  void begin(const Pass& pass) override;
  void attend(Context& context, const Attend& attend) override;
  void finish() override;

 private:
  struct Keys;
  void prepare_global(Stream& stream, const Rope& rope);
  void place_own(Context& context, const Attend& attend, const Keys& keys);
  void post(Stream& stream, const AttendTags& tags, const Keys& keys);
  void receive(Stream& stream, int layer, const Keys& keys);
  void post_to_cache(Stream& stream, int layer, const Keys& keys);

  std::optional<Communicator> group_;
  const int own_;
  const ClipFrames frames_;
  Rope global_rope_;
  Tensor bias_row_;  // the bias for each token of a frame
  Communicator::Pending pending_;
  std::unique_ptr<FeatureCache> cache_;
  int version_ = 0;         // of other ranks' frames in this attend: a step
  Pass pass_{}, before_{};  // the present pass, and the last one of the step before
};

}  // namespace weft
