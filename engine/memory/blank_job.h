#pragma once
// BlankJob: what the steps of a job begin with on one rank, in tensors without values, and the run
// of its steps. A dry run of them finds their memory, and a simulation their time.
#include <array>
#include <functional>

#include "engine/conditions/picture_conditions.h"
#include "engine/preview/preview_fit.h"

namespace weft {

struct BlankJob {
  BlankJob(const Rank& rank, const JobFacts& facts);

  // Runs the steps of `few`, which stand for all of the job's (engine/job/shortened.h). `did` is
  // called after the steps of a queue's plan, and after the updates of other methods. Returns the
  // bytes of a set of the queue's step cache (QueuePlanConfig::kept_sets); 0 for other methods.
  size_t run(const JobFacts& few, const std::function<void(const Step& step)>& did = {},
             const PreviewFit* preview = nullptr) const;

  uint64_t chunk_bytes() const {  // of `signal` and `motion`
    if (!signal[0]) return 0;
    return signal[0].view().bytes() + signal[1].view().bytes() + motion.view().bytes();
  }

  const Rank& rank;
  // All f32, on the stream's device, and empty where the job has none.
  std::array<Tensor, 2> texts;   // the rows of its prompts, by branch
  Tensor later;                  // the rows of the longest prompt of the schedule
  Tensor pooled;                 // the vector of a prompt
  PictureConditions pictures;    // without its `frames`
  std::array<Tensor, 2> signal;  // what the frames of a clip follow, by branch
  Tensor motion;                 // the latents before a clip
};

}  // namespace weft
