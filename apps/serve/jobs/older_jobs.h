#pragma once
// OlderJobs: finds jobs that servers of earlier versions took which were started with --lora. The
// program of a job stood for its LoRAs, too, then; today each job states its own.
#include <set>
#include <string>
#include <utility>

#include "engine/generation/generator.h"
#include "engine/service/job_store.h"

namespace weft {

class OlderJobs {
 public:
  // `program` is program_of() a generator like `planner`.
  OlderJobs(const Generator& planner, std::string program)
      : generator_(planner.model(), planner.options()), program_(std::move(program)) {}

  // Takes jobs over that are not over and that this program draws as they were to be drawn. Those
  // whose LoRAs cannot be opened any more stay as they are. Returns their number. Error as
  // the store's calls; the next call then looks again.
  int take_over(JobStore& store);

 private:
  const Generator generator_;
  const std::string program_;
  int64_t version_ = -1;            // of the store when it was last looked at
  std::set<std::string> others_{};  // programs that draw other jobs
};

}  // namespace weft
