#pragma once
// The seams (mixer, reducer, halo) that connect a rank to the others of its replica: one class for
// each kind of forward. Each makes what it needs for a size when that size first comes. A context
// is valid until the next one of the same object.
#include <functional>
#include <memory>
#include <optional>

#include "engine/parts/rank_placement.h"
#include "parallel/methods/bands.h"
#include "parallel/methods/tensor_parallel.h"

namespace weft {

// A method's part in the forwards of a diffusion transformer.
struct ForwardMethod {
  std::optional<DualScope> dual_scope{};
  StalePatches patches{};
  // Makes the mixer that sees all tokens (MixerDescription::inner).
  std::function<std::unique_ptr<TokenMixer>()> inner{};
};

// Forwards of a diffusion transformer. It belongs to one job, so that no feature of an earlier one
// is seen.
class ForwardSeams {
 public:
  ForwardSeams(const RankPlacement& placement, ForwardMethod method);
  // The context of a forward over `all` tokens. With PipeFusion a forward of a patch (Pass::micro)
  // has the rank's part of that patch.
  Context context(Stream& stream, Arena& arena, const Pass& pass, const Sequence& all,
                  Observer* observer = nullptr);
  // Makes the groups of forwards over `all` tokens before their messages (RankPlacement::group).
  void meet(const Sequence& all);
  const ForwardMethod& method() const { return method_; }
  // Returns when no message of a forward is under way any more. Messages of a step may travel
  // while the next one computes.
  void finish();

 private:
  bool mixes() const;

  const RankPlacement& placement_;
  const ForwardMethod method_;
  FullMixer full_;
  IdentityReducer whole_;
  IdentityHalo no_halo_;
  std::unique_ptr<TokenMixer> mixer_;
  Sequence mixer_tokens_{0};
  std::unique_ptr<TensorReducer> tensor_;
};

// Text, picture and audio encoders, whose width is split over ranks.
class EncoderSeams {
 public:
  explicit EncoderSeams(const RankPlacement& placement) : placement_(placement) {}
  Context context(Stream& stream, Arena& arena, const Pass& pass, const EncoderTraits& traits,
                  int64_t rows);

 private:
  const RankPlacement& placement_;
  FullMixer full_;
  IdentityReducer whole_;
  IdentityHalo no_halo_;
  std::unique_ptr<TensorReducer> sums_;
  int ranks_ = 0;  // that they are of
};

// The VAE over bands of `latent_rows`.
class BandSeams {
 public:
  BandSeams(const RankPlacement& placement, int64_t latent_rows);
  Context context(Stream& stream, Arena& arena, const Pass& pass);
  void finish();  // as in ForwardSeams

 private:
  FullMixer full_;
  IdentityReducer whole_;
  IdentityHalo no_halo_;
  std::unique_ptr<BandHalo> halo_;  // these are null where one rank has all rows
  std::unique_ptr<BandMixer> mixer_;
  std::unique_ptr<TensorReducer> sums_;
};

}  // namespace weft
