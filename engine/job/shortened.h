#pragma once
// The few steps, segments of the queue, transformer blocks and latent frames that stand for all of
// a job's. Its memory and its time are found by running these alone.
#include <vector>

#include "engine/job/job_facts.h"

namespace weft {

// The first step of each kind. Of the queue as many segments as it and the segment before hold at
// most, of a few steps.
struct MemorySample {
  JobFacts facts;
  // The queue's other sample, with a segment and a step less. Each of `more` segments that are left
  // out takes the difference between the two. `kept_sets` of its step cache are left out
  // (QueuePlanConfig::kept_sets).
  std::optional<JobFacts> smaller{};
  int more = 0, kept_sets = 0;
};
MemorySample memory_sample(const JobFacts& job);

// Two steps of each kind; the exact ones of displaced patches come first. Of the queue two
// segments.
struct TimeSample {
  JobFacts facts;
  // The steps of each kind: the first of those that are left, and how many the job has. Those that
  // are left out take as long as the last one. None for the queue.
  struct Alike {
    int first = 0, count = 0;
  };
  std::vector<Alike> alike{};
};
constexpr int kSampledSteps = 2;  // of each kind
TimeSample time_sample(const JobFacts& job);

// Forwards of so few transformer blocks, and of `next`, which has one more per stage, tell what
// those of all segments take: the difference between the two, `more` times. `next` is 0 where so
// few are all of them.
struct LayersSample {
  int fewest = 0, next = 0, more = 0;
};
LayersSample layers_sample(const ModelDirectory& model, int stages);

// The request with one step, and with so many latent frames, or chunks of sound. What it encodes
// and decodes stands for all.
Request ends_sample(const JobFacts& job, const ModelDirectory& model, int64_t pieces);

}  // namespace weft
