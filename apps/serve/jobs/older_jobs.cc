#include "apps/serve/jobs/older_jobs.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "apps/worker/job_team.h"
#include "io/json.h"
#include "models/lora/lora.h"

namespace weft {
namespace {

// The program that an older server had with the LoRAs of this job; "" where it states none.
std::string program_with_loras(const Generator& generator, const NewJob& job) {
  constexpr const char* kWhat = "the stored job";
  const std::string loras = json_string_or(parse_json(job.resolved, kWhat), "lora", kWhat, "");
  if (loras.empty() || loras == kNoLora) return "";
  return earlier_program_of(generator, parse_loras(loras, kWhat));
}

}  // namespace

int OlderJobs::take_over(JobStore& store) {
  const int64_t version = store.version();
  if (version == version_) return 0;
  int taken = 0;
  for (const StoredJob& job : store.one_of_each_other(program_)) {
    const std::string& program = job.job.program;
    if (others_.contains(program)) continue;
    bool is_ours = false;
    try {
      is_ours = program_with_loras(generator_, job.job) == program;
    } catch (const Error&) {  // a LoRA's file is gone, or the job is of a newer version
    }
    if (is_ours)
      taken += store.change_program(program, program_);
    else
      others_.insert(program);
  }
  version_ = version;  // all of it was looked at
  return taken;
}

}  // namespace weft
