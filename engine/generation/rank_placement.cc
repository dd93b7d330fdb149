#include "engine/generation/rank_placement.h"

#include <algorithm>

#include "kernels/check.h"
#include "parallel/methods/bands.h"
#include "parallel/methods/tensor_parallel.h"

namespace weft {

namespace {
// The sums over a short prompt are small: a star takes two hops where a ring takes 2 (P - 1).
constexpr AllReduce kTextSums = AllReduce::kBySize;
}  // namespace

// The seams in use. Each is made when it is first needed and kept until its size changes.
struct RankPlacement::Seams {
  // Communicator group ids, one per kind of exchange.
  FullMixer full;
  IdentityReducer whole;
  IdentityHalo one_band;
  std::unique_ptr<TokenMixer> mixer;
  std::function<std::unique_ptr<TokenMixer>()> inner;
  std::unique_ptr<TensorReducer> tensor, text, band_sums;
  std::unique_ptr<BandHalo> halo;
  std::unique_ptr<BandMixer> band_mixer;
  Sequence mixer_tokens{0};
  int64_t band_rows = -1;
  int text_ranks = 0;
};

RankPlacement::RankPlacement() : seams_(std::make_unique<Seams>()) {}

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
  communicator_ = communicator.group(std::move(all), kReplicaGroup);
}

RankPlacement RankPlacement::of(const Communicator& world, const Layout& layout) {
  Layout one = layout;
  one[Axis::kData] = 1;
  const int ranks = one.ranks(), first = world.rank() / ranks * ranks;
  std::vector<int> members;
  for (int rank = first; rank < first + ranks; ++rank) members.push_back(world.world_rank(rank));
  return RankPlacement(world.group(std::move(members), kReplicaGroup), one);
}

RankPlacement::~RankPlacement() = default;
RankPlacement::RankPlacement(RankPlacement&&) noexcept = default;
RankPlacement& RankPlacement::operator=(RankPlacement&&) noexcept = default;

Communicator RankPlacement::group(const std::vector<int>& ranks, int id) const {
  std::vector<int> world;
  for (int rank : ranks) world.push_back(communicator_->world_rank(rank));
  return communicator_->group(std::move(world), id);
}

int64_t RankPlacement::agreed(Stream& stream, const Tag& tag, int64_t value) {
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

MixerDescription RankPlacement::mixer(const Sequence& all) const {
  return {.mesh = mesh_,
          .rank = rank_,
          .tokens = token_map(all),
          .dual_scope = dual_scope_,
          .frames = all.frames,
          .patches = patches_,
          .inner = seams_->inner};
}

void RankPlacement::set_inner_mixer(std::function<std::unique_ptr<TokenMixer>()> make) {
  seams_->inner = std::move(make);
  seams_->mixer = nullptr;
}

Context RankPlacement::context(Stream& stream, Arena& arena, const Pass& pass, const Sequence& all,
                               Observer* observer) {
  Seams& seams = *seams_;
  TokenMixer* mixer = &seams.full;
  Reducer* reducer = &seams.whole;
  if (layout().sequence() > 1 || dual_scope_ || patches_ || seams.inner) {
    if (!seams.mixer || seams.mixer_tokens != all)
      seams.mixer = make_mixer(this->mixer(all), [this](const std::vector<int>& ranks, int number) {
        return group(ranks, kMixerGroup + number);
      });
    seams.mixer_tokens = all;
    mixer = seams.mixer.get();
  }
  if (layout()[Axis::kTensor] > 1) {
    if (!seams.tensor)
      seams.tensor = std::make_unique<TensorReducer>(
          group(mesh_.along({Axis::kTensor}, rank()), kTensorGroup));
    reducer = seams.tensor.get();
  }
  mixer->begin(pass);
  TokenRanges own = tokens(all);
  if (pipefusion() && pass.micro != kAllPatches)
    own.ranges = {PatchParts(*pipefusion(), layout().sequence())
                      .tokens(pass.micro, mesh_.sequence_index(rank_))};
  return {stream, arena, *mixer, *reducer, seams.one_band, pass, std::move(own), observer};
}

Context RankPlacement::text_context(Stream& stream, Arena& arena, const Pass& pass,
                                    const TextEncoderTraits& traits, int64_t rows) {
  Seams& seams = *seams_;
  const int parts = text_parts(traits);
  Reducer* reducer = &seams.whole;
  if (parts > 1) {
    std::vector<int> ranks;
    for (int rank = 0; rank < parts; ++rank) ranks.push_back(rank);
    if (seams.text_ranks != parts)
      seams.text = std::make_unique<TensorReducer>(group(ranks, kTextGroup), kTextSums);
    seams.text_ranks = parts;
    reducer = seams.text.get();
  }
  return {stream, arena, seams.full, *reducer, seams.one_band, pass, TokenRanges::all(rows)};
}

Context RankPlacement::vae_context(Stream& stream, Arena& arena, const Pass& pass,
                                   int64_t latent_rows) {
  Seams& seams = *seams_;
  const int count = bands(latent_rows);
  if (count == 1) return {stream, arena, seams.full, seams.whole, seams.one_band, pass, {}};
  if (seams.band_rows != latent_rows) {
    std::vector<int> ranks;
    std::vector<int64_t> rows;
    for (int rank = 0; rank < count; ++rank) {
      ranks.push_back(rank);
      rows.push_back(band_of(rank, latent_rows).size());
    }
    seams.halo = std::make_unique<BandHalo>(group(ranks, kBandsGroup));
    seams.band_mixer = std::make_unique<BandMixer>(group(ranks, kBandsGroup), std::move(rows));
    seams.band_sums =
        std::make_unique<TensorReducer>(group(ranks, kBandSumsGroup), AllReduce::kBySize);
    seams.band_rows = latent_rows;
  }
  seams.band_mixer->begin(pass);
  return {stream, arena, *seams.band_mixer, *seams.band_sums, *seams.halo, pass, {}};
}

JobScope::JobScope(RankPlacement& placement) : placement_(placement) {
  if (!placement_.alone()) placement_.communicator().begin_job();
}

JobScope::~JobScope() {
  if (!placement_.alone()) placement_.communicator().end_job();
}

void RankPlacement::set_dual_scope(const std::optional<DualScope>& scope) {
  dual_scope_ = scope;
  seams_->mixer.reset();
}

void RankPlacement::set_patches(const StalePatches& patches) {
  patches_ = patches;
  seams_->mixer.reset();
}

void RankPlacement::finish_messages() {
  if (seams_->mixer) seams_->mixer->finish();
  if (seams_->band_mixer) seams_->band_mixer->finish();
}

BlockRange RankPlacement::blocks(int layers) const {
  return stage_blocks(layers, layout()[Axis::kLayers], mesh_.at(Axis::kLayers, rank()));
}

TransformerLoad RankPlacement::load(const TransformerTraits& traits, TransformerLoad how) const {
  const int parts = layout()[Axis::kTensor], part = mesh_.at(Axis::kTensor, rank());
  how.blocks = blocks(traits.blocks);
  if (parts > 1)
    how.width = {partition(traits.heads, parts, part), partition(traits.ffn_columns, parts, part)};
  return how;
}

int RankPlacement::text_parts(const TextEncoderTraits& traits) const {
  const int64_t most = layout().text_ranks > 0 ? layout().text_ranks : ranks();
  return static_cast<int>(std::min({most, traits.heads, traits.ffn_columns}));
}

void RankPlacement::encode_on_root() {
  Layout layout = this->layout();
  layout.text_ranks = 1;
  mesh_ = Mesh(layout);
}

WidthSlice RankPlacement::text_width(const TextEncoderTraits& traits) const {
  const int parts = text_parts(traits);
  if (parts == 1 || !encodes_text(traits)) return {};
  return {partition(traits.heads, parts, rank()), partition(traits.ffn_columns, parts, rank())};
}

SequenceMap RankPlacement::token_map(const Sequence& all) const {
  const int parts = layout().sequence(), clips = layout()[Axis::kClip];
  if (pipefusion()) return PatchParts(*pipefusion(), parts).map(kAllPatches);
  if (clips > 1) return SequenceMap::clips(all, clips, parts / clips);
  if (!patches_.displaced) return SequenceMap::contiguous(all.tokens, parts);
  std::vector<Range> patches;
  for (int index = 0; index < parts; ++index)
    patches.push_back(patches_of_part(*patches_.displaced, parts, index));
  return SequenceMap(patches);
}

TokenRanges RankPlacement::tokens_of(int rank, const Sequence& all) const {
  return token_map(all)[mesh_.sequence_index(rank)];
}

std::vector<int64_t> RankPlacement::token_counts(const Sequence& all) const {
  const SequenceMap map = token_map(all);
  std::vector<int64_t> counts;
  for (int index = 0; index < map.size(); ++index) counts.push_back(map.rows(index));
  return counts;
}

LatentSplit RankPlacement::split(const std::array<int64_t, 4>& latent, int64_t per_token) const {
  LatentSplit split{latent, {}};
  for (int rank = 0; rank < ranks(); ++rank) {
    const Range tokens = clip_of(rank, latent[1] / per_token);
    split.frames.push_back({tokens.begin * per_token, tokens.end * per_token});
  }
  return split;
}

bool RankPlacement::computes(int branch) const {
  return layout()[Axis::kCfg] == 1 || mesh_.at(Axis::kCfg, rank()) == branch;
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
