#pragma once
// Limits on what one job of a server may ask for.
#include <cstdint>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "engine/generation/generator.h"
#include "engine/job/job_spec.h"
#include "io/picture/picture_header.h"
#include "kernels/check.h"

namespace weft {

struct JobLimits {
  int64_t steps = 200, frames = 0, pixels = 16'777'216;  // 0: what the model can draw
  size_t prompt_bytes = 32 << 10;
  int64_t picture_pixels = 4 * kMaxPicturePixels;  // of all pictures that are sent with a job
  double cost = 0;                                 // 0: any
};
JobLimits job_limits(const Flags& flags);

// A job that costs more than the server gives to one.
struct TooDear : Error {
  TooDear(const std::string& message, std::vector<std::string> changes)
      : Error(ErrorKind::kUsage, message), hints(std::move(changes)) {}
  std::vector<std::string> hints;  // each of them alone would do; the smallest change comes first
};

// Refuses prompts of a job as it was sent. Error(kUsage) that begins with `where` and names the
// field and the limit.
void check_prompts(const JobSpec& sent, const JobLimits& limits, const std::string& where);
// Reads the headers of the pictures that were sent with a job, whose files it names, and refuses
// too many pixels in all before any is decoded. Error(kUsage) likewise; kMedia for a file that is
// no picture.
void check_pictures(const JobSpec& saved, const JobLimits& limits, const std::string& where);
// The same of a resolved job's steps, frames and size; TooDear where they cost too much together.
void check_work(const Generator& generator, const Request& resolved, const JobLimits& limits,
                const std::string& where);

// Steps times the square of the tokens, for each chunk of a video that follows a sound.
double job_cost(const Generator& generator, const Request& resolved);

}  // namespace weft
