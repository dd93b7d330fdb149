#pragma once
// All routes of OpenAI's clients, for the model of a server.
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/serve/http/http_server.h"
#include "apps/serve/http/work_queue.h"
#include "apps/serve/jobs/job_submission.h"
#include "engine/generation/generator.h"
#include "io/json.h"

namespace weft {

struct ServedModel {
  const Generator& generator;
  const Flags& flags;       // --served-model-name
  WorkQueue &desk, &tasks;  // of ImageServices; they outlive the server
  std::string scheme;       // of the server's addresses: http or https
  Json facts{};  // an object of further fields of the model, as its defaults and adapters
};
// Error(kUsage) for a name that is none.
std::vector<Route> openai_routes(Service& service, const JobServices& services,
                                 const ServedModel& model);

}  // namespace weft
