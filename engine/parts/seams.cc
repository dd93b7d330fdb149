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

Context ForwardSeams::context(Stream& stream, Arena& arena, const Pass& pass, const Sequence& all,
                              Observer* observer) {
  TokenMixer* mixer = &full_;
  Reducer* reducer = &whole_;
  const Layout& layout = placement_.layout();
  const auto& [dual_scope, patches, inner] = method_;
  if (layout.sequence() > 1 || dual_scope || patches || inner) {
    if (!mixer_ || mixer_tokens_ != all)
      mixer_ = make_mixer({.mesh = placement_.mesh(),
                           .rank = placement_.rank(),
                           .tokens = placement_.token_map(all, patches),
                           .dual_scope = dual_scope,
                           .frames = all.frames,
                           .patches = patches,
                           .inner = inner},
                          [this](const std::vector<int>& ranks, int number) {
                            return placement_.group(ranks, kMixerGroup + number);
                          });
    mixer_tokens_ = all;
    mixer = mixer_.get();
  }
  if (layout[Axis::kTensor] > 1) {
    if (!tensor_)
      tensor_ = std::make_unique<TensorReducer>(placement_.group(
          placement_.mesh().along({Axis::kTensor}, placement_.rank()), kTensorGroup));
    reducer = tensor_.get();
  }
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
