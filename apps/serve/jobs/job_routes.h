#pragma once
// The routes of jobs: POST and GET /v1/jobs, GET and DELETE /v1/jobs/{id}, POST
// /v1/jobs/{id}/cancel, GET /v1/jobs/{id}/content, /preview and /events.
#include <functional>
#include <string>
#include <vector>

#include "apps/serve/http/http_server.h"
#include "engine/service/service.h"

namespace weft {

struct JobServices {
  // Reads the body of a request as a job with its id, request, resolved form and output. It throws
  // Error(kUsage) that names the field, its value and what is legal, and TooDear (job_limits.h).
  std::function<NewJob(const std::string& body)> read;
  // Removes what was saved of a job that was not taken.
  std::function<void(const NewJob& job)> remove_files;
  std::function<bool()> draining;  // the server takes no more jobs
};

// `service` and what the services use outlive the server.
std::vector<Route> job_routes(Service& service, const JobServices& services);

}  // namespace weft
