#include "engine/parts/seams.h"

namespace weft {
namespace {

// The sums over a short prompt are small: a star takes two hops where a ring takes 2 (P - 1).
constexpr AllReduce kTextSums = AllReduce::kBySize;

std::vector<int> first_ranks(int count) {
  std::vector<int> ranks;
  for (int rank = 0; rank < count; ++rank) ranks.push_back(rank);
  return ranks;
}

}  // namespace

ForwardSeams::ForwardSeams(const RankPlacement& placement, ForwardMethod method)
    : placement_(placement), method_(std::move(method)) {}

// True where a forward's attention sees more or other keys than those of its own tokens.
bool ForwardSeams::mixes() const {
  return placement_.layout().sequence() > 1 || method_.dual_scope || method_.patches ||
         method_.inner;
}

void ForwardSeams::meet(const Sequence& all) {
  const Layout& layout = placement_.layout();
  if (mixes() && (!mixer_ || mixer_tokens_ != all)) {
    mixer_ = make_mixer({.mesh = placement_.mesh(),
                         .rank = placement_.rank(),
                         .tokens = placement_.token_map(all, method_.patches),
                         .dual_scope = method_.dual_scope,
                         .frames = all.frames,
                         .patches = method_.patches,
                         .inner = method_.inner},
                        [this](const std::vector<int>& ranks, int number) {
                          return placement_.group(ranks, kMixerGroup + number);
                        });
    mixer_tokens_ = all;
  }
  if (layout[Axis::kTensor] > 1 && !tensor_)
    tensor_ = std::make_unique<TensorReducer>(placement_.group(
        placement_.mesh().along({Axis::kTensor}, placement_.rank()), kTensorGroup));
}

Context ForwardSeams::context(Stream& stream, Arena& arena, const Pass& pass, const Sequence& all,
                              Observer* observer) {
  meet(all);
  TokenMixer* mixer = mixes() ? mixer_.get() : &full_;
  Reducer* reducer = &whole_;
  if (tensor_) reducer = tensor_.get();
  const Layout& layout = placement_.layout();
  const StalePatches& patches = method_.patches;
  mixer->begin(pass);
  TokenRanges own = placement_.tokens(all, patches);
  if (patches.pipefusion && pass.micro != kAllPatches)
    own.ranges = {PatchParts(*patches.pipefusion, layout.sequence())
                      .tokens(pass.micro, placement_.mesh().sequence_index(placement_.rank()))};
  return {stream, arena, *mixer, *reducer, no_halo_, pass, std::move(own), observer};
}

void ForwardSeams::finish() {
  if (mixer_) mixer_->finish();
}

Context EncoderSeams::context(Stream& stream, Arena& arena, const Pass& pass,
                              const EncoderTraits& traits, int64_t rows) {
  const int parts = placement_.text_parts(traits);
  Reducer* reducer = &whole_;
  if (parts > 1) {
    if (ranks_ != parts)
      sums_ = std::make_unique<TensorReducer>(placement_.group(first_ranks(parts), kTextGroup),
                                              kTextSums);
    ranks_ = parts;
    reducer = sums_.get();
  }
  return {stream, arena, full_, *reducer, no_halo_, pass, TokenRanges::all(rows)};
}

BandSeams::BandSeams(const RankPlacement& placement, int64_t latent_rows) {
  const int count = placement.bands(latent_rows);
  if (count == 1 || placement.band(latent_rows).size() == 0) return;
  std::vector<int64_t> rows;
  for (int rank = 0; rank < count; ++rank)
    rows.push_back(placement.band_of(rank, latent_rows).size());
  const std::vector<int> ranks = first_ranks(count);
  halo_ = std::make_unique<BandHalo>(placement.group(ranks, kBandsGroup));
  mixer_ = std::make_unique<BandMixer>(placement.group(ranks, kBandsGroup), std::move(rows));
  sums_ =
      std::make_unique<TensorReducer>(placement.group(ranks, kBandSumsGroup), AllReduce::kBySize);
}

Context BandSeams::context(Stream& stream, Arena& arena, const Pass& pass) {
  if (!halo_) return {stream, arena, full_, whole_, no_halo_, pass, {}};
  mixer_->begin(pass);
  return {stream, arena, *mixer_, *sums_, *halo_, pass, {}};
}

void BandSeams::finish() {
  if (mixer_) mixer_->finish();
}

}  // namespace weft
