#pragma once
// The settings of the block queue (parallel/schedule/block_queue.h), and their legal values.
#include <optional>
#include <string>
#include <vector>

#include "engine/generation/method.h"
#include "engine/sampling/noise_pool.h"

namespace weft {

struct QueueSettings {
  // Latent frames of a block (P, from 1 on) and of its context on either side (C, 0 to P). Both are
  // multiples of the latent frames per token. A forward has P + C frames and sees the keys of
  // P + 2 C, which should not be more than the model was trained on.
  BlockFrames frames{.block = 9, .context = 6};
  NoiseMode noise = NoiseMode::kPool;
  // The dtype of hidden rows between pipeline stages; unset: the compute dtype. With f32 the bits
  // of the result do not depend on the number of stages; bf16 sends half of the bytes.
  std::optional<DType> wire{};

  // The blocks of a video of so many latent frames. The last one may have more frames than needed.
  int blocks(int64_t latent_frames) const;
  // The latent frames of the longest video: tags number blocks and turns with 16 bits.
  int64_t most_latents() const { return frames.first(60000); }
};

QueueSettings queue_settings(const Method& method);  // of a resolved one

// The facts of a job that its queue should suit.
struct QueueFacts {
  int steps = 0, blocks = 0;
  int stages = 1;              // ranks of the layers axis
  int64_t trained_frames = 0;  // latent frames that the model was trained on; 0: unknown
};

// Error(kUsage) that names the setting, its value and the legal ones. `token_frames`: the latent
// frames per token.
void validate(const QueueSettings& settings, int64_t token_frames);
// The same for too few steps: neighbouring blocks would differ by a large step.
void check_queue_steps(int steps);
// Says, a line each, what is legal but slow or outside of what the model was trained on.
std::vector<std::string> queue_warnings(const QueueSettings& settings, const QueueFacts& facts);

}  // namespace weft
