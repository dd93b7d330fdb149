#include "engine/long_video/queue_settings.h"

#include <algorithm>

namespace weft {

namespace {

constexpr int kFewSteps = 8;

[[noreturn]] void refuse(const std::string& what, int64_t value, const std::string& legal) {
  throw Error(ErrorKind::kUsage,
              "--method queue: " + what + " is " + std::to_string(value) + "; legal are " + legal);
}

}  // namespace

QueueSettings queue_settings(const Method& method) {
  return {.frames = {.block = *method.block, .context = *method.context}};
}

int QueueSettings::blocks(int64_t latent_frames) const {
  const int64_t rest = latent_frames - frames.context;
  return static_cast<int>(std::max<int64_t>(1, (rest + frames.block - 1) / frames.block));
}

void validate(const QueueSettings& settings, int64_t token_frames) {
  const auto& [block, context] = settings.frames;
  const std::string multiples =
      token_frames > 1 ? "multiples of " + std::to_string(token_frames) + " " : "";
  if (block < 1 || block % token_frames)
    refuse("block", block, multiples + "from " + std::to_string(token_frames) + " on");
  if (context < 0 || context > block || context % token_frames)
    refuse("context", context,
           multiples + "0 to " + std::to_string(block) + ", the latent frames of a block");
}

void check_queue_steps(int steps) {
  if (steps <= kFewSteps)
    refuse(
        "steps", steps,
        "values from " + std::to_string(kFewSteps + 1) +
            " on, because the blocks of the queue differ by one step each and those of a few-step "
            "sampler are too large; any number with --method full");
}

std::vector<std::string> queue_warnings(const QueueSettings& settings, const QueueFacts& facts) {
  std::vector<std::string> lines;
  const int64_t seen = settings.frames.block + 2 * settings.frames.context;
  if (facts.trained_frames > 0 && seen > facts.trained_frames)
    lines.push_back("a forward of the block queue sees " + std::to_string(seen) +
                    " latent frames (block + 2 context), but the model was trained on " +
                    std::to_string(facts.trained_frames) + ": motion may repeat");
  const int longest = std::min(facts.steps, facts.blocks);
  if (facts.stages > 1 && longest <= facts.stages)
    lines.push_back("the block queue is never longer than " + std::to_string(longest) +
                    " blocks (the smaller of steps and blocks), so that " +
                    std::to_string(facts.stages) +
                    " pipeline stages wait for each other in every turn; fewer than " +
                    std::to_string(longest) + " stages would not");
  return lines;
}

}  // namespace weft
