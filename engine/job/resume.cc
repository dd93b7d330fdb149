#include "engine/job/resume.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/job/job_spec.h"
#include "kernels/copy.h"
#include "kernels/transfer.h"

namespace weft {

void check_resumable(const Checkpoint& checkpoint, const std::string& record,
                     const Sampler& sampler, std::array<int64_t, 4> shape) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kUsage, checkpoint.path + " cannot be resumed: " + why);
  };
  const std::string differs = difference(checkpoint.job, record);
  if (!differs.empty()) refuse("it belongs to another job: " + differs);
  const int64_t count =
      std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>());
  if (checkpoint.total != sampler.steps() || checkpoint.step < 1 ||
      checkpoint.step > checkpoint.total)
    refuse("it was written after step " + std::to_string(checkpoint.step) + " of " +
           std::to_string(checkpoint.total) + ", the job has " + std::to_string(sampler.steps()));
  if (!std::ranges::equal(checkpoint.latent.view().shape(), shape))
    refuse("its latent is " + checkpoint.latent.view().to_string_shape());
  const auto needed = checkpoint.final() ? decltype(sampler.history(SamplerState(0))){}
                                         : sampler.history(SamplerState(0));
  bool whole = needed.size() == checkpoint.history.size();
  for (const auto& entry : needed)
    whole &= std::ranges::any_of(checkpoint.history, [&](const auto& kept) {
      return kept.first == entry.first && kept.second.count() == count;
    });
  if (!whole)
    refuse("it does not hold the history that " + sampler.config().to_string() + " needs");
}

namespace {

// Gives every rank its frames of a tensor that the root has whole.
Tensor shared(Stream& stream, RankPlacement& placement, Tensor* kept, const LatentSplit& split,
              const Tag& tag) {
  Stream host = host_stream(stream);
  const auto part = [&](int rank) {
    Tensor out(DType::kF32, split.held(rank));
    const Range frames = split.frames[rank];
    const auto [channels, all, height, width] = split.shape;
    copy(host,
         kept->view().reshape({channels, all, height, width}).slice(1, frames.begin, frames.size()),
         out);
    return out;
  };
  const bool parts = placement.has_clips();
  Tensor own = !kept   ? Tensor(DType::kF32, split.held(placement.rank()))
               : parts ? part(placement.rank())
                       : std::move(*kept);
  if (placement.alone()) return on_device(stream, std::move(own));
  Communicator& communicator = placement.communicator();
  if (!parts)
    communicator.broadcast(stream, tag, own, 0);
  else if (!placement.root())
    communicator.receive(stream, 0, tag, own);
  for (int rank = 1; parts && placement.root() && rank < placement.ranks(); ++rank)
    communicator.send(stream, rank, tag, part(rank));
  if (parts && kept) *kept = {};
  return on_device(stream, std::move(own));
}

}  // namespace

Start agreed_start(Stream& stream, RankPlacement& placement, Checkpoint* from,
                   const Sampler& sampler, const LatentSplit& split,
                   const std::atomic<bool>* stop) {
  constexpr int kStopped = -1;
  Start start{.step = from ? from->step : 0};
  if (stop) {
    if (stop->load()) start.step = kStopped;
    const Tag tag{.kind = Payload::kControl, .hop = kStartDecision};
    start.step = static_cast<int>(placement.agreed(stream, tag, start.step));
  }
  if (start.step == kStopped) throw Error(ErrorKind::kStopped, "stopped before the first step");
  if (start.step == 0) return start;
  const auto share = [&](Tensor* kept, int hop) {
    const Tag tag{.kind = Payload::kLatent, .pass = {.step = start.step}, .hop = hop};
    return shared(stream, placement, kept, split, tag);
  };
  start.latent = share(from ? &from->latent : nullptr, 0);
  if (start.step == sampler.steps()) return start;
  for (const auto& entry : sampler.history(SamplerState(0))) {
    Tensor* kept = nullptr;
    if (from)
      for (auto& [name, tensor] : from->history)
        if (name == entry.first) kept = &tensor;
    start.history.push_back(share(kept, static_cast<int>(start.history.size()) + 1));
  }
  return start;
}

}  // namespace weft
