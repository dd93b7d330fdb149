#pragma once
// The routes of jobs: POST and GET /v1/jobs, GET and DELETE /v1/jobs/{id}, POST
// /v1/jobs/{id}/cancel, GET /v1/jobs/{id}/content.
#include <functional>
#include <string>
#include <vector>

#include "apps/serve/http/http_server.h"
#include "apps/serve/jobs/job_queue.h"

namespace weft {

struct JobServices {
  // Reads the body of a request. It throws Error(kUsage) that names the field, its value and what
  // is legal.
  std::function<ServedJob(const std::string& body)> read;
  // Removes the files of a job that is no longer in the queue.
  std::function<void(const ServedJob& job)> remove_files;
};

// `queue` and what the services use outlive the server.
std::vector<Route> job_routes(JobQueue& queue, const JobServices& services);

}  // namespace weft
