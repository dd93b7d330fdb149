#pragma once
// A job that a bench draws, its frames, and what they took.
#include <memory>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "engine/generation/generator.h"
#include "io/media/frame.h"
#include "parallel/transport/link.h"

namespace weft {

struct DrawnVideo {
  std::vector<Frame> frames;
  std::string hash;
  double seconds = 0, first_frame_s = 0;  // without loading
  double denoise_s = 0;
  int64_t sent_bytes = 0;     // by all ranks
  uint64_t peak_bytes = 0;    // of the first rank
  int64_t skipped_steps = 0;  // by a step cache
};

// --size, --num-frames and --steps. The model has defaults for what is not given.
Request sizes_of(const Flags& flags);

// Draws `request` as layout.ranks() threads on --device, over slow links where one is given.
// `options` are those of every rank, but for its device.
DrawnVideo draw_video(const Flags& flags, const std::shared_ptr<const OpenModel>& model,
                      const GeneratorOptions& options, const Layout& layout, const Request& request,
                      const Link* link = nullptr);

}  // namespace weft
