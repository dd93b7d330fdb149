#pragma once
// RankPlacement: the ranks that make one result together, as seen from one of them. It says which
// weights, tokens, branches and picture rows belong to this rank, and never changes: a rank that is
// to work under another layout gets another one (Generator::place). The seams to the other ranks
// are made from it (seams.h). A single rank is a replica, too.
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "models/encoder.h"
#include "models/transformer.h"
#include "parallel/mesh.h"
#include "parallel/methods/mixer_factory.h"
#include "parallel/schedule/denoise_plan.h"

namespace weft {

// Ids of the groups of ranks. A mixer has as many as kMixerGroups.
enum Group : int {
  kMixerGroup = 1,
  kTensorGroup = kMixerGroup + kMixerGroups,
  kTextGroup,
  kTextReadersGroup,  // the root, and the ranks that do not encode text
  kPicturesGroup,     // the root, and the ranks that encode pictures
  kBandsGroup,
  kBandSumsGroup,
  kLanguageMixerGroup,  // and the next three: of a LanguageRank
  kWidthGroup = kLanguageMixerGroup + kMixerGroups,
  kStageGroup,
  kSequenceGroup,
  kUlyssesGroup,    // ranks that split the tokens of a stream
  kEnteringGroup,   // ranks that split the forwards of a stage of a stream
  kStreamGroup,     // the ranks of a stream, among all of the world
  kComputingGroup,  // the ranks before one that only decodes
  kReplicaGroup
};

class RankPlacement {
 public:
  RankPlacement();  // a single rank
  // `communicator` holds the ranks of the replica, layout.ranks() of them; layout[kData] = 1.
  RankPlacement(const Communicator& communicator, const Layout& layout);
  // The replica that this rank of `world` belongs to. The world holds layout[kData] replicas.
  static RankPlacement of(const Communicator& world, const Layout& layout);
  // One rank's position in a layout, for planning only: it has no communicator.
  RankPlacement(const Layout& layout, int rank);
  // The same position where the root alone encodes text (Layout::text_ranks).
  RankPlacement encoding_on_root() const;

  const Mesh& mesh() const { return mesh_; }
  const Layout& layout() const { return mesh_.layout(); }
  int rank() const { return rank_; }
  int ranks() const { return layout().ranks(); }
  bool root() const { return rank() == 0; }  // the root delivers frames and reports
  bool alone() const { return ranks() == 1; }
  // Only where there are several ranks.
  Communicator& communicator() const { return *communicator_; }
  // True if messages of device memory go through pinned host memory.
  bool stages_messages() const {
    return communicator_ && !communicator_->transport().takes_device_memory();
  }

  // True if devices move messages without the host.
  bool enqueues_messages() const { return communicator_ && communicator_->transport().enqueues(); }

  // The communicator of some of its ranks, opened for their exchanges, so all of them make it where
  // nothing is under way. `id` is as in Communicator::group; ids below 32 are reserved for the
  // replica.
  Communicator group(const std::vector<int>& ranks, int id) const;

  // The weights of this rank: its blocks, and its heads and feed-forward columns of them. `load`
  // returns `how` with these filled in.
  BlockRange blocks(int layers) const;
  TransformerLoad load(const TransformerTraits& traits, TransformerLoad how) const;
  // The text encoder's width is split over the first ranks (Layout::text_ranks), at most one rank
  // per head. The other ranks receive its output. {} means the whole width.
  int text_parts(const EncoderTraits& traits) const;
  bool encodes_text(const EncoderTraits& traits) const { return rank() < text_parts(traits); }
  WidthSlice text_width(const EncoderTraits& traits) const;
  // The root's view arrives on the other ranks that encode text, on those that do not, or on those
  // with a band of so many latent rows. All ranks call it.
  void share_with_encoders(Stream& stream, const EncoderTraits& traits, const Tag& tag,
                           const TensorView& view) const;
  void share_encoded(Stream& stream, const EncoderTraits& traits, const Tag& tag,
                     const TensorView& view) const;
  void share_with_bands(Stream& stream, int64_t latent_rows, const Tag& tag,
                        const TensorView& view) const;

  // Returns the root's value on all ranks: a broadcast of 8 bytes. All of them must call it with
  // the same tag.
  int64_t broadcast_from_root(Stream& stream, const Tag& tag, int64_t value) const;

  // The rank that is `stages` pipeline stages further and has the same coordinates on other axes.
  int stage_peer(int stages) const;
  // The rank with this stage and sequence index, and coordinate 0 along every other axis.
  int rank_of(int stage, int sequence) const;

  // This rank's tokens of a forward, those of another rank, and the count per sequence index. They
  // are whole patches where these are stale, or with PipeFusion a part of each.
  TokenRanges tokens(const Sequence& all, const StalePatches& patches = {}) const {
    return tokens_of(rank_, all, patches);
  }
  TokenRanges tokens_of(int rank, const Sequence& all, const StalePatches& patches = {}) const;
  std::vector<int64_t> token_counts(const Sequence& all, const StalePatches& patches = {}) const;
  // By sequence index.
  SequenceMap token_map(const Sequence& all, const StalePatches& patches = {}) const;
  // The frames of a video of so many that the rank's clip has: all of them without clips.
  Range clip_of(int rank, int64_t frames) const {
    return partition(frames, layout()[Axis::kClip], mesh_.at(Axis::kClip, rank));
  }
  // The same in latent frames, of which a token has `per_token`.
  Range clip_latents(int rank, int64_t latents, int64_t per_token) const {
    const Range clip = clip_of(rank, latents / per_token);
    return {clip.begin * per_token, clip.end * per_token};
  }
  bool has_clips() const { return layout()[Axis::kClip] > 1; }
  // Returns whether this rank computes the branch (0: conditional, 1: unconditional).
  bool computes(int branch) const;

  // The latent rows that this rank decodes or encodes. The first ranks (Layout::vae_ranks) have a
  // band each, at most one per latent row, or Layout::decode_rank has all rows; the others have an
  // empty band and do nothing.
  int bands(int64_t latent_rows) const;
  Range band(int64_t latent_rows) const { return band_of(rank(), latent_rows); }
  Range band_of(int rank, int64_t latent_rows) const;
  // False where this rank has no band of any latent.
  bool has_bands() const { return band(ranks()).size() > 0; }

 private:
  void share(Stream& stream, int group, const std::function<bool(int rank)>& takes, const Tag& tag,
             const TensorView& view) const;

  std::shared_ptr<Communicator> communicator_;
  Mesh mesh_{Layout{}};
  int rank_ = 0;
};

// A job of the placement's ranks, begun and ended on all of them (Communicator::begin_job).
class JobScope {
 public:
  explicit JobScope(const RankPlacement& placement);
  ~JobScope();
  JobScope(const JobScope&) = delete;

 private:
  const RankPlacement& placement_;
};

}  // namespace weft
