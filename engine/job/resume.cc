#include "engine/job/resume.h"

#include <algorithm>

#include "engine/job/job_spec.h"
#include "engine/sampling/noise.h"
#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/transfer.h"
#include "parallel/schedule/segment_queue.h"

namespace weft {
namespace {

constexpr const char* kSkips = "skipped_steps";  // a name of Checkpoint::written

bool decides_while_it_runs(const StepCache& cache) {
  return cache.kind == StepCacheKind::kFirstBlock && !cache.skipped;
}

// The latent frames that a job holds between two steps, or turns of the queue: of segments that are
// under way or wait, of those among them that are stepped, and of those that a decoder needs.
struct HeldFrames {
  int total = 0;  // steps or turns
  int64_t latents = 0, stepped = 0, decoded = 0;
};

HeldFrames held_frames(const JobFacts& facts, const VaeTraits& vae, int done) {
  const int steps = facts.sampler.steps();
  const auto at = [&](int total) { return std::clamp(done, 1, total); };
  if (facts.segments() == 0) {
    HeldFrames held{.total = facts.chunks * steps};
    const int step = at(held.total);
    held.latents = (step + steps - 1) / steps * facts.latent[1];
    held.stepped = step % steps > 0 ? facts.latent[1] : 0;
    return held;
  }
  const SegmentFrames frames = std::get<Queue>(facts.request.method).frames();
  const QueuePlanConfig queue{.steps = facts.steps, .segments = facts.segments()};
  const auto total = static_cast<int>(queue.turns().end);
  const int turn = at(total);
  const auto count = [&](const Range& segments) {
    return frames.first(static_cast<int>(segments.end)) -
           frames.first(static_cast<int>(segments.begin));
  };
  return {total, count(queue.kept_segments(turn)), count(queue.stepped_segments(turn)),
          std::min(frames.first(std::max(0, turn - steps)), vae.history)};
}

}  // namespace

void check_resumable(const Checkpoint& checkpoint, const std::string& record, const JobFacts& facts,
                     const VaeTraits& vae) {
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kUsage, checkpoint.path + " cannot be resumed: " + why);
  };
  const std::string differs = difference(checkpoint.job, record);
  if (!differs.empty()) refuse("it belongs to another job: " + differs);
  const HeldFrames held = held_frames(facts, vae, checkpoint.step);
  if (checkpoint.total != held.total || checkpoint.step < 1 || checkpoint.step > checkpoint.total)
    refuse("it was written after step " + std::to_string(checkpoint.step) + " of " +
           std::to_string(checkpoint.total) + ", the job has " + std::to_string(held.total));
  const auto [channels, frames, height, width] = facts.latent;
  if (!std::ranges::equal(checkpoint.latent.view().shape(),
                          std::array{channels, held.latents, height, width}))
    refuse("its latent is " + checkpoint.latent.view().to_string_shape());
  std::vector<std::pair<std::string, int64_t>> needed;
  const int64_t frame = channels * height * width;
  if (held.stepped > 0)
    for (const auto& entry : facts.sampler.history(SamplerState(0)))
      needed.emplace_back(entry.first, held.stepped * frame);
  if (held.decoded > 0) needed.emplace_back(kDecoded, held.decoded * frame);
  bool whole = needed.size() == checkpoint.history.size();
  for (const auto& [name, count] : needed)
    whole &= std::ranges::any_of(checkpoint.history, [&, &of = name, n = count](const auto& kept) {
      return kept.first == of && kept.second.count() == n;
    });
  if (!whole)
    refuse("it does not hold the history that " + facts.sampler.config().to_string() + " needs");
  if (const std::string why_not = why_not_between_steps(facts.request);
      !checkpoint.final() && !why_not.empty())
    refuse(why_not + "; legal: --resume never");
  std::vector<const char*> facts_needed;
  if (facts.segments() > 0) facts_needed = {kFrames, kFrameHash, kLatentHash};
  if (decides_while_it_runs(facts.request.cache)) facts_needed.push_back(kSkips);
  for (const char* name : facts_needed)
    if (!checkpoint.written.contains(name)) refuse(std::string("it has no ") + name);
}

void initial_noise(const JobFacts& facts, int chunk, int64_t first, const TensorView& frames,
                   PipelineTap* tap) {
  const NoiseField field(facts.request.rng, facts.request.seed + static_cast<uint64_t>(chunk),
                         facts.latent);
  if (tap) {
    const Tensor all(DType::kF32, facts.latent);
    field.fill(all, 0);
    tap->tap("latents_initial", all);
  }
  field.fill(frames, first);
}

std::string why_not_between_steps(const Request& request) {
  return request.method->why_not_between_steps(request.cache);
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
                               const Checkpoint* from, int start, Request& request) {
  if (!decides_while_it_runs(request.cache)) return nullptr;
  std::vector<int>& skips = request.cache.skipped.emplace();
  if (start == 0) return &skips;
  const Tensor skipped(DType::kU8, {start});
  std::fill_n(skipped.as<uint8_t>(), start, uint8_t{0});
  if (from)
    for (const int step : read_skips(*from).value_or(std::vector<int>{}))
      if (step < start) skipped.as<uint8_t>()[step] = 1;
  const Tag tag{.kind = Payload::kControl, .pass = {.step = start}, .topic = Topic::kStart};
  if (!placement.alone()) placement.communicator().broadcast(stream, tag, skipped, 0);
  for (int step = 0; step < start; ++step)
    if (skipped.as<uint8_t>()[step]) skips.push_back(step);
  return &skips;
}

int agreed_step(Stream& stream, const RankPlacement& placement, int step,
                const std::atomic<bool>* stop) {
  constexpr int kStopped = -1;
  if (!stop) return step;
  const Tag tag{.kind = Payload::kControl, .topic = Topic::kStart};
  const int64_t own = stop->load() ? kStopped : step;
  const auto agreed = static_cast<int>(placement.broadcast_from_root(stream, tag, own));
  if (agreed == kStopped) throw Error(ErrorKind::kStopped, "stopped before the first step");
  return agreed;
}

}  // namespace weft
