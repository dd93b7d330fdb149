#pragma once
// The routes of jobs: POST and GET /v1/jobs, GET and DELETE /v1/jobs/{id}, POST
// /v1/jobs/{id}/cancel, GET /v1/jobs/{id}/content, /preview and /events.
#include <vector>

#include "apps/serve/http/http_server.h"
#include "apps/serve/jobs/job_submission.h"

namespace weft {

// `service` and what the services use outlive the server.
std::vector<Route> job_routes(Service& service, const JobServices& services);

}  // namespace weft
