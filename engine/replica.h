#pragma once
// Replica: the ranks that make one result together, seen from one of them. It answers which
// weights, tokens, branches and rows are this rank's, and gives the seams that join them. A rank
// alone is a replica too.
#include <memory>
#include <optional>
#include <vector>

#include "models/umt5.h"
#include "models/wan.h"
#include "parallel/context.h"
#include "parallel/denoise_plan.h"
#include "parallel/mesh.h"

namespace weft {

// Branch of the root's words (Traffic::kControl), so that none is taken for another.
enum Word : int { kStepWord = 0, kStartWord = 1, kDecodeWord = 2, kJobWord = 3 };

class Replica {
 public:
  Replica();  // alone
  // `communicator` holds the ranks of the replica, layout.ranks() of them; layout[kData] = 1.
  Replica(const Communicator& communicator, const Layout& layout);
  // The replica that rank of `world` belongs to: layout[kData] of them share the world.
  static Replica of(const Communicator& world, const Layout& layout);
  // A rank's place for plans: nothing may be sent.
  Replica(const Layout& layout, int rank);
  ~Replica();
  Replica(Replica&&) noexcept;
  Replica& operator=(Replica&&) noexcept;

  const Mesh& mesh() const { return mesh_; }
  const Layout& layout() const { return mesh_.layout(); }
  int rank() const { return rank_; }
  int ranks() const { return layout().ranks(); }
  bool root() const { return rank() == 0; }  // holds what leaves the replica: frames, reports
  bool alone() const { return ranks() == 1; }
  Communicator& communicator() { return *communicator_; }  // not where alone

  // The communicator of some of its ranks; ids as Communicator::group has them, those below 32 are
  // the replica's own.
  Communicator group(const std::vector<int>& ranks, int id) const;

  // Which weights: this rank's blocks, and of them its heads and feed-forward columns.
  BlockRange blocks(int layers) const;
  WanLoad load(const WanConfig& config, WanLoad how) const;  // `how` with these
  // The text encoder's width is split over the first ranks (Layout::text_ranks), at most one per
  // head; the others get the rows it makes. {} = whole.
  int text_parts(const Umt5Config& config) const;
  bool encodes_text(const Umt5Config& config) const { return rank() < text_parts(config); }
  WidthSlice text_width(const Umt5Config& config) const;

  // The root's word on all ranks, which call it with the same tag: 8 bytes to each from the root.
  int64_t agreed(Stream& stream, const Tag& tag, int64_t word);

  // The rank that stands `stages` further along the layers and as this one elsewhere.
  int stage_peer(int stages) const;
  // The rank of a stage that holds a sequence index; coordinate 0 along every other axis.
  int rank_of(int stage, int sequence) const;

  // Which of a forward's tokens are this rank's, and how many each sequence index has.
  TokenRanges tokens(int64_t total) const { return tokens_of(rank_, total); }
  TokenRanges tokens_of(int rank, int64_t total) const;
  std::vector<int64_t> token_counts(int64_t total) const;
  // Whether this rank computes the branch.
  bool computes(int branch) const;

  // What the seams of a forward over `tokens` tokens, and of the text encoder, take of the arena.
  SeamBytes seam_bytes(const WanConfig& config, int64_t tokens, DType dtype) const;
  SeamBytes text_seam_bytes(const Umt5Config& config) const;

  // Which rows of a picture's latent this rank decodes or encodes: the first ranks
  // (Layout::vae_ranks) have a band each, at most one per latent row; the others are idle (empty).
  int bands(int64_t latent_rows) const;
  Range band(int64_t latent_rows) const { return band_of(rank(), latent_rows); }
  Range band_of(int rank, int64_t latent_rows) const;

  // The seams of a DiT forward over `tokens` tokens, of the text encoder over `rows`, and of the
  // VAE over bands of `latent_rows`. Each is valid until the next call of its kind.
  Context context(Stream& stream, Arena& arena, const Pass& pass, int64_t tokens,
                  Observer* observer = nullptr);
  Context text_context(Stream& stream, Arena& arena, const Pass& pass, const Umt5Config& config,
                       int64_t rows);
  Context vae_context(Stream& stream, Arena& arena, const Pass& pass, int64_t latent_rows);

 private:
  struct Seams;
  static constexpr int kReplicaGroup = 255;
  std::unique_ptr<TokenMixer> make_mixer(int64_t tokens) const;

  std::optional<Communicator> communicator_;
  Mesh mesh_{Layout{}};
  int rank_ = 0;
  std::unique_ptr<Seams> seams_;
};

}  // namespace weft
