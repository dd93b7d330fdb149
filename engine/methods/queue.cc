#include "engine/methods/queue.h"

#include <algorithm>

namespace weft {
namespace {

constexpr int kFewSteps = 8;

[[noreturn]] void refuse_number(const std::string& what, int64_t value, const std::string& legal) {
  throw Error(ErrorKind::kUsage,
              "--method queue: " + what + " is " + std::to_string(value) + "; legal are " + legal);
}

}  // namespace

// Segment and both contexts fill the trained length: 9 and 6 of 21, 8 and 4 of 16.
std::string Queue::resolve(const MethodFacts& facts) {
  const int64_t trained = facts.trained_latents;
  context = context.value_or(std::min(2 * trained / 7, segment.value_or(trained)));
  segment = segment.value_or(std::max<int64_t>(1, trained - 2 * *context));
  return "";
}

std::string Queue::refuse(const MethodJob& job) const {
  const int64_t unit = job.token_frames;
  const std::string multiples = unit > 1 ? "multiples of " + std::to_string(unit) + " " : "";
  if (*segment < 1 || *segment % unit)
    refuse_number("block", *segment, multiples + "from " + std::to_string(unit) + " on");
  if (*context < 0 || *context > *segment || *context % unit)
    refuse_number(
        "context", *context,
        multiples + "0 to " + std::to_string(*segment) + ", the latent frames of a block");
  if (job.steps <= kFewSteps)
    refuse_number(
        "steps", job.steps,
        "values from " + std::to_string(kFewSteps + 1) +
            " on, because the blocks of the queue differ by one step each and those of a few-step "
            "sampler are too large; any number with --method full");
  return "";
}

std::pair<std::string, std::string> Queue::refuse_cache(const StepCache& cache) const {
  if (cache.kind != StepCacheKind::kFirstBlock) return {};
  return {", whose blocks are planned turns ahead, and this cache decides while a step runs",
          "none, or teacache:0.1"};
}

std::string Queue::why_not_between_steps(const StepCache& cache) const {
  if (!cache.skipped || cache.skipped->empty()) return "";
  return "the method is queue with a step cache, and checkpoints do not hold what the skipped "
         "steps of its blocks reuse";
}

int Queue::segments(int64_t latent_frames) const {
  const int64_t rest = latent_frames - *context;
  return static_cast<int>(std::max<int64_t>(1, (rest + *segment - 1) / *segment));
}

std::vector<std::string> Queue::warnings(const QueueFacts& facts) const {
  std::vector<std::string> lines;
  const int64_t seen = *segment + 2 * *context;
  if (facts.trained_frames > 0 && seen > facts.trained_frames)
    lines.push_back("a forward of the block queue sees " + std::to_string(seen) +
                    " latent frames (block + 2 context), but the model was trained on " +
                    std::to_string(facts.trained_frames) + ": motion may repeat");
  const int longest = std::min(facts.steps, facts.segments);
  if (facts.stages > 1 && longest <= facts.stages)
    lines.push_back("the block queue is never longer than " + std::to_string(longest) +
                    " blocks (the smaller of steps and blocks), so that " +
                    std::to_string(facts.stages) +
                    " pipeline stages wait for each other in every turn; fewer than " +
                    std::to_string(longest) + " stages would not");
  return lines;
}

}  // namespace weft
