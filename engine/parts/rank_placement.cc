#include "engine/parts/rank_placement.h"

#include <algorithm>

#include "kernels/check.h"

namespace weft {

namespace {

// The communicator of some ranks of a replica.
Communicator group_of(const Communicator& replica, const std::vector<int>& ranks, int id) {
  std::vector<int> world;
  for (const int rank : ranks) world.push_back(replica.world_rank(rank));
  return replica.group(std::move(world), id);
}

}  // namespace

RankPlacement::RankPlacement() = default;

RankPlacement::RankPlacement(const Layout& layout, int rank) : RankPlacement() {
  CHECK(layout[Axis::kData] == 1 && rank >= 0 && rank < layout.ranks(), to_string(layout), rank);
  mesh_ = Mesh(layout);
  rank_ = rank;
}

RankPlacement::RankPlacement(const Communicator& communicator, const Layout& layout)
    : RankPlacement(layout, communicator.rank()) {
  CHECK(layout.ranks() == communicator.size(), to_string(layout), "of", communicator.size());
  // Communicator::group takes ranks of the world, even for a group within a group.
  std::vector<int> all;
  for (int rank = 0; rank < communicator.size(); ++rank)
    all.push_back(communicator.world_rank(rank));
  communicator_ = std::make_shared<Communicator>(communicator.group(std::move(all), kReplicaGroup));
  communicator_->open_exchanges();
}

RankPlacement RankPlacement::of(const Communicator& world, const Layout& layout) {
  Layout one = layout;
  one[Axis::kData] = 1;
  const int ranks = one.ranks(), first = world.rank() / ranks * ranks;
  std::vector<int> members;
  for (int rank = first; rank < first + ranks; ++rank) members.push_back(world.world_rank(rank));
  return RankPlacement(world.group(std::move(members), kReplicaGroup), one);
}

RankPlacement RankPlacement::encoding_on_root() const {
  RankPlacement out = *this;
  Layout layout = this->layout();
  layout.text_ranks = 1;
  out.mesh_ = Mesh(layout);
  return out;
}

Communicator RankPlacement::group(const std::vector<int>& ranks, int id) const {
  Communicator group = group_of(*communicator_, ranks, id);
  group.open_exchanges();
  return group;
}

int64_t RankPlacement::broadcast_from_root(Stream& stream, const Tag& tag, int64_t value) const {
  if (alone()) return value;
  const TensorView view(&value, DType::kI64, {1});
  communicator_->broadcast(stream, tag, view, 0);
  return value;
}

int RankPlacement::stage_peer(int stages) const {
  std::array<int, kAxes> at{};
  for (int axis = 0; axis < kAxes; ++axis) at[axis] = mesh_.at(static_cast<Axis>(axis), rank());
  at[static_cast<int>(Axis::kLayers)] += stages;
  return mesh_.rank_at(at);
}

int RankPlacement::rank_of(int stage, int sequence) const {
  for (int rank = 0; rank < ranks(); ++rank)
    if (mesh_.at(Axis::kLayers, rank) == stage && mesh_.sequence_index(rank) == sequence)
      return rank;
  CHECK(false, "stage", stage, "sequence index", sequence);
  return -1;
}

JobScope::JobScope(const RankPlacement& placement) : placement_(placement) {
  if (!placement_.alone()) placement_.communicator().begin_job();
}

JobScope::~JobScope() {
  if (!placement_.alone()) placement_.communicator().end_job();
}

BlockRange RankPlacement::blocks(int layers) const {
  return stage_blocks(layers, layout()[Axis::kLayers], mesh_.at(Axis::kLayers, rank()));
}

TransformerLoad RankPlacement::load(const TransformerTraits& traits, TransformerLoad how) const {
  const int parts = layout()[Axis::kTensor], part = mesh_.at(Axis::kTensor, rank());
  how.blocks = blocks(traits.blocks);
  if (parts > 1) how.width = traits.width_part(parts, part);
  return how;
}

int RankPlacement::text_parts(const EncoderTraits& traits) const {
  const int64_t most = layout().text_ranks > 0 ? layout().text_ranks : ranks();
  return static_cast<int>(std::min({most, traits.heads, traits.ffn_columns}));
}

WidthSlice RankPlacement::text_width(const EncoderTraits& traits) const {
  const int parts = text_parts(traits);
  if (parts == 1 || !encodes_text(traits)) return {};
  return {partition(traits.heads, parts, rank()), partition(traits.ffn_columns, parts, rank())};
}

SequenceMap RankPlacement::token_map(const Sequence& all, const StalePatches& stale) const {
  const int parts = layout().sequence(), clips = layout()[Axis::kClip];
  CHECK(all.beside == 0 || (!stale && clips == 1), "tokens beside patches or clips", all.beside);
  if (stale.pipefusion) return PatchParts(*stale.pipefusion, parts).map(kAllPatches);
  if (clips > 1) return SequenceMap::clips(all, clips, parts / clips);
  if (!stale.displaced) return SequenceMap::contiguous(all.tokens, parts).with_beside(all.beside);
  std::vector<Range> patches;
  for (int index = 0; index < parts; ++index)
    patches.push_back(patches_of_part(*stale.displaced, parts, index));
  return SequenceMap(patches);
}

TokenRanges RankPlacement::tokens_of(int rank, const Sequence& all,
                                     const StalePatches& patches) const {
  return token_map(all, patches)[mesh_.sequence_index(rank)];
}

std::vector<int64_t> RankPlacement::token_counts(const Sequence& all,
                                                 const StalePatches& patches) const {
  const SequenceMap map = token_map(all, patches);
  std::vector<int64_t> counts;
  for (int index = 0; index < map.size(); ++index) counts.push_back(map.rows(index));
  return counts;
}

bool RankPlacement::computes(int branch) const {
  return layout()[Axis::kCfg] == 1 || mesh_.at(Axis::kCfg, rank()) == branch;
}

void RankPlacement::share(Stream& stream, int group, const std::function<bool(int rank)>& takes,
                          const Tag& tag, const TensorView& view) const {
  if (!root() && !takes(rank())) return;
  std::vector<int> members{0};
  for (int rank = 1; rank < ranks(); ++rank)
    if (takes(rank)) members.push_back(rank);
  if (members.size() > 1) group_of(*communicator_, members, group).broadcast(stream, tag, view, 0);
}

void RankPlacement::share_with_encoders(Stream& stream, const EncoderTraits& traits, const Tag& tag,
                                        const TensorView& view) const {
  const int parts = text_parts(traits);
  share(
      stream, kTextGroup, [&](int rank) { return rank < parts; }, tag, view);
}

void RankPlacement::share_encoded(Stream& stream, const EncoderTraits& traits, const Tag& tag,
                                  const TensorView& view) const {
  const int parts = text_parts(traits);
  share(
      stream, kTextReadersGroup, [&](int rank) { return rank >= parts; }, tag, view);
}

void RankPlacement::share_with_bands(Stream& stream, int64_t latent_rows, const Tag& tag,
                                     const TensorView& view) const {
  const auto encodes = [&](int rank) { return band_of(rank, latent_rows).size() > 0; };
  share(stream, kPicturesGroup, encodes, tag, view);
}

int RankPlacement::bands(int64_t latent_rows) const {
  if (layout().decode_rank >= 0) return 1;
  const int64_t most = layout().vae_ranks > 0 ? layout().vae_ranks : ranks();
  return static_cast<int>(std::min(most, latent_rows));
}

Range RankPlacement::band_of(int rank, int64_t latent_rows) const {
  const int parts = bands(latent_rows), index = rank - std::max(layout().decode_rank, 0);
  return index >= 0 && index < parts ? partition(latent_rows, parts, index)
                                     : Range{latent_rows, latent_rows};
}

}  // namespace weft
