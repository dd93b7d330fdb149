#include "engine/job/resume.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "engine/generation/generator.h"
#include "engine/job/job_spec.h"
#include "engine/sampling/noise.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

constexpr const char* kSkips = "skipped_steps";  // a name of Checkpoint::written

bool decides_while_it_runs(const StepCache& cache) {
  return cache.kind == StepCacheKind::kFirstBlock && !cache.skipped;
}

}  // namespace

void check_resumable(const Checkpoint& checkpoint, const std::string& record,
                     const NeededState& needed, const std::string& solver) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kUsage, checkpoint.path + " cannot be resumed: " + why);
  };
  const std::string differs = difference(checkpoint.job, record);
  if (!differs.empty()) refuse("it belongs to another job: " + differs);
  if (checkpoint.total != needed.total || checkpoint.step < 1 || checkpoint.step > checkpoint.total)
    refuse("it was written after step " + std::to_string(checkpoint.step) + " of " +
           std::to_string(checkpoint.total) + ", the job has " + std::to_string(needed.total));
  if (!std::ranges::equal(checkpoint.latent.view().shape(), needed.latent))
    refuse("its latent is " + checkpoint.latent.view().to_string_shape());
  bool whole = needed.history.size() == checkpoint.history.size();
  for (const auto& [name, count] : needed.history)
    whole &= std::ranges::any_of(checkpoint.history, [&, &of = name, n = count](const auto& kept) {
      return kept.first == of && kept.second.count() == n;
    });
  if (!whole) refuse("it does not hold the history that " + solver + " needs");
}

Tensor initial_noise(const Rank& rank, const JobFacts& facts, int chunk, PipelineTap* tap) {
  const LatentSplit split = rank.placement.split(facts.latent, rank.experts.traits().patch[0]);
  const NoiseField field(facts.request.rng, facts.request.seed + static_cast<uint64_t>(chunk),
                         split.shape);
  const auto drawn = [&](const std::array<int64_t, 4>& shape, int64_t first) {
    Tensor latent(DType::kF32, shape);
    if (!is_dry_run(rank.stream)) field.fill(latent, first);
    return latent;
  };
  if (tap) tap->tap("latents_initial", drawn(split.shape, 0));
  const int own = rank.placement.rank();
  return drawn(split.held(own), split.frames[own].begin);
}

std::string why_not_between_steps(const Request& request) {
  return request.method->why_not_between_steps(request.cache);
}

void check_between_steps(const Checkpoint& checkpoint, const Request& request) {
  if (const std::string why_not = why_not_between_steps(request);
      !checkpoint.final() && !why_not.empty())
    throw Error(ErrorKind::kUsage,
                checkpoint.path + " cannot be resumed: " + why_not + "; legal: --resume never");
}

void check_resumable(const Checkpoint& checkpoint, const std::string& record,
                     const JobFacts& facts) {
  const Sampler& sampler = facts.sampler;
  NeededState needed{.total = sampler.steps(), .latent = facts.latent};
  const int64_t count =
      std::accumulate(facts.latent.begin(), facts.latent.end(), int64_t{1}, std::multiplies<>());
  if (!checkpoint.final())
    for (const auto& entry : sampler.history(SamplerState(0)))
      needed.history.emplace_back(entry.first, count);
  check_resumable(checkpoint, record, needed, sampler.config().to_string());
  check_between_steps(checkpoint, facts.request);
  if (decides_while_it_runs(facts.request.cache) && !checkpoint.written.contains(kSkips))
    throw Error(ErrorKind::kUsage, checkpoint.path + " cannot be resumed: it has no " + kSkips);
}

std::map<std::string, std::string> written_skips(const StepCache& cache) {
  if (cache.kind != StepCacheKind::kFirstBlock || !cache.skipped) return {};
  std::string text;
  for (const int step : *cache.skipped) text += (text.empty() ? "" : ",") + std::to_string(step);
  return {{kSkips, text}};
}

std::optional<std::vector<int>> read_skips(const Checkpoint& from) {
  const auto found = from.written.find(kSkips);
  if (found == from.written.end()) return std::nullopt;
  return parse_skipped_steps(found->second, from.path + ": " + kSkips);
}

std::vector<int>* agreed_skips(Stream& stream, const RankPlacement& placement,
                               const Checkpoint* from, const Start& start, Request& request) {
  if (!decides_while_it_runs(request.cache)) return nullptr;
  std::vector<int>& skips = request.cache.skipped.emplace();
  if (start.step == 0) return &skips;
  const Tensor skipped(DType::kU8, {start.step});
  std::fill_n(skipped.as<uint8_t>(), start.step, uint8_t{0});
  if (from)
    for (const int step : read_skips(*from).value_or(std::vector<int>{}))
      if (step < start.step) skipped.as<uint8_t>()[step] = 1;
  const Tag tag{.kind = Payload::kControl, .pass = {.step = start.step}, .topic = Topic::kStart};
  if (!placement.alone()) placement.communicator().broadcast(stream, tag, skipped, 0);
  for (int step = 0; step < start.step; ++step)
    if (skipped.as<uint8_t>()[step]) skips.push_back(step);
  return &skips;
}

int agreed_step(Stream& stream, const RankPlacement& placement, int step,
                const std::atomic<bool>* stop) {
  constexpr int kStopped = -1;
  if (!stop) return step;
  const Tag tag{.kind = Payload::kControl, .topic = Topic::kStart};
  const int64_t own = stop->load() ? kStopped : step;
  const auto agreed = static_cast<int>(placement.agreed(stream, tag, own));
  if (agreed == kStopped) throw Error(ErrorKind::kStopped, "stopped before the first step");
  return agreed;
}

namespace {

// Gives every rank its frames of a tensor that the root has whole.
Tensor shared(Stream& stream, const RankPlacement& placement, Tensor* kept,
              const LatentSplit& split, const Tag& tag) {
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

Start agreed_start(Stream& stream, const RankPlacement& placement, Checkpoint* from,
                   const Sampler& sampler, const LatentSplit& split,
                   const std::atomic<bool>* stop) {
  Start start{.step = agreed_step(stream, placement, from ? from->step : 0, stop)};
  if (start.step == 0) return start;
  const auto share = [&](Tensor* kept, int number) {
    const Tag tag{.kind = Payload::kLatent,
                  .pass = {.step = start.step},
                  .topic = Topic::kStart,
                  .hop = number};
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
