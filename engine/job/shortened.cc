#include "engine/job/shortened.h"

#include <algorithm>
#include <array>
#include <functional>
#include <set>

#include "engine/job/speech_chunks.h"
#include "parallel/schedule/segment_queue.h"

namespace weft {
namespace {

constexpr int kSampledSegments = 2;  // the first one has more frames; the last one reads no keys
constexpr int kLeastQueue = 3;  // segments from which on every rank takes equally much for each

JobFacts with_steps(const JobFacts& job, const std::vector<int>& indices) {
  JobFacts out = job;
  out.steps.clear();
  std::vector<double> sigmas;
  for (const int i : indices) {
    out.steps.push_back(job.steps[i]);
    sigmas.push_back(job.sampler.sigmas()[i]);
  }
  // Steps may be in another order than the job's. Neither time nor memory depends on the values.
  std::ranges::sort(sigmas, std::greater<>());
  out.sampler = Sampler(job.sampler.config(), static_cast<int>(sigmas.size()), sigmas);
  out.dual_scope = job.request.method->dual_scope(out.sampler);
  return out;
}

// The first step of each kind, and at least so many.
JobFacts first_steps(const JobFacts& job, int least) {
  const int global = job.dual_scope ? job.dual_scope->global_steps : 0;
  std::set<std::array<int, 5>> kinds;
  std::vector<int> kept;
  for (int i = 0; i < std::ssize(job.steps); ++i) {
    const DenoiseStep& step = job.steps[i];
    const bool fresh =
        kinds.insert({step.model, step.branches, step.displaced, step.skipped, i < global}).second;
    // The step after a skipped one of the queue reads older keys.
    const bool after = job.segments() > 0 && !kept.empty() && job.steps[kept.back()].skipped;
    if (fresh || i < least || after) kept.push_back(i);
  }
  return with_steps(job, kept);
}

int kept_sets(const JobFacts& job) {
  return QueuePlanConfig{.steps = job.steps, .segments = job.segments()}.kept_sets();
}

// The queue of the job with a few of its steps, at least so many, and as many prompts together. Its
// segments are those that the queue and the segment before it hold at most.
JobFacts short_queue(const JobFacts& job, int least) {
  const int steps = job.sampler.steps();
  const std::vector<int>& shows = job.segment_prompts;
  int prompts = 1;
  for (int tail = 0; tail < job.segments(); ++tail)
    prompts = std::max(prompts, 1 + shows[tail] - shows[std::max(0, tail - steps + 1)]);
  const bool ends_early = job.segments() <= steps;
  JobFacts out = first_steps(job, std::max(least, prompts));
  out.segment_prompts.resize(std::min(job.segments(), out.sampler.steps() + !ends_early));
  for (int segment = 0; segment < out.segments(); ++segment)
    out.segment_prompts[segment] = std::min(segment, prompts - 1);
  return out;
}

// A queue holds the more, the more segments it has at a time.
MemorySample queue_sample(const JobFacts& job) {
  const int steps = job.sampler.steps(), longest = std::min(steps, job.segments());
  MemorySample out{short_queue(job, kLeastQueue)};
  for (int least = kLeastQueue + 1; least <= steps && out.facts.sampler.steps() < longest;
       ++least) {
    JobFacts next = short_queue(job, least);
    const int has = out.facts.sampler.steps();
    const bool follows = next.sampler.steps() == has + 1 &&
                         next.segments() == out.facts.segments() + 1 &&
                         kept_sets(next) == kept_sets(out.facts);
    if (follows) {
      out.more = longest - has - 1;
      out.smaller = std::exchange(out.facts, std::move(next));
      break;
    }
    if (next.sampler.steps() > has) out.facts = std::move(next);
  }
  out.kept_sets = kept_sets(job) - kept_sets(out.facts);
  return out;
}

}  // namespace

MemorySample memory_sample(const JobFacts& job) {
  return job.segments() > 0 ? queue_sample(job) : MemorySample{first_steps(job, 1)};
}

TimeSample time_sample(const JobFacts& job) {
  const std::optional<Displaced>& displaced = job.patches.displaced;
  // Expert, branches, exact (of displaced patches), skipped; and the steps of this kind.
  std::vector<std::pair<std::array<int, 4>, std::vector<int>>> kinds;
  for (int i = 0; i < std::ssize(job.steps); ++i) {
    const DenoiseStep& step = job.steps[i];
    const bool exact = displaced ? displaced->exact(i) : !step.displaced;
    const std::array<int, 4> kind{step.model, step.branches, exact, step.skipped};
    auto found = std::ranges::find_if(kinds, [&](const auto& one) { return one.first == kind; });
    if (found == kinds.end()) found = kinds.insert(found, {kind, {}});
    found->second.push_back(i);
  }
  if (displaced)
    std::stable_partition(kinds.begin(), kinds.end(),
                          [](const auto& kind) { return kind.first[2] != 0; });
  std::vector<int> kept;
  std::vector<TimeSample::Alike> alike;
  std::vector<double> windows;
  int exact = 0;
  for (const auto& [kind, steps] : kinds) {
    alike.push_back({static_cast<int>(kept.size()), static_cast<int>(steps.size())});
    for (const int i : std::span(steps).first(std::min<size_t>(steps.size(), kSampledSteps))) {
      kept.push_back(i);
      exact += kind[2];
      if (displaced && !displaced->windows.empty()) windows.push_back(displaced->windows[i]);
    }
  }
  if (job.segments() > 0) {
    std::ranges::sort(kept);
    TimeSample queue{with_steps(job, kept)};
    queue.facts.segment_prompts.assign(std::min(job.segments(), kSampledSegments), 0);
    return queue;
  }
  TimeSample out{with_steps(job, kept), std::move(alike)};
  if (std::optional<Displaced>& few = out.facts.patches.displaced) {
    few->warmup = exact;
    few->resync = few->steps = 0;
    if (!windows.empty())  // kinds that take turns fall as in the job
      std::ranges::sort(windows.begin() + exact, windows.end(), std::greater<>());
    few->windows = windows;
  }
  return out;
}

LayersSample layers_sample(const ModelDirectory& model, int stages) {
  std::set<int> blocks;
  for (int expert = 0; expert < model.experts(); ++expert)
    blocks.insert(model.expert(expert).traits().blocks);
  const int least = *blocks.begin(), most = *blocks.rbegin();
  const int even = most / stages;
  if (even <= 2 || least != most) return {.fewest = most};
  // Stages that have a block more than others keep it.
  const int fewest = most - stages * (even - 1);
  return {.fewest = fewest, .next = fewest + stages, .more = even - 1};
}

Request ends_sample(const JobFacts& job, const ModelDirectory& model, int64_t pieces) {
  Request brief = job.request;
  if (job.patches) brief.method = Full();
  brief.steps = 1;
  brief.cache = {};
  brief.sigmas.resize(std::min<size_t>(brief.sigmas.size(), 1));
  const int64_t frames = model.chunks.any()
                             ? pieces * chunk_pictures(model) - model.chunks.dropped_frames
                             : model.vae_model->traits.frames(pieces);
  brief.frames = std::min(brief.frames, frames);
  return brief;
}

}  // namespace weft
