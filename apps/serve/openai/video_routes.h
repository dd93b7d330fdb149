#pragma once
// The routes of OpenAI's video jobs: POST and GET /v1/videos, GET and DELETE /v1/videos/{id}, GET
// .../content, POST .../remix, and POST /v1/videos/sync, which answers with the video itself.
#include <vector>

#include "apps/generate/client_job.h"
#include "apps/serve/http/http_server.h"
#include "apps/serve/http/work_queue.h"
#include "apps/serve/jobs/job_submission.h"

namespace weft {

// `service`, `tasks` (which reads thumbnails) and what the services use outlive the server.
std::vector<Route> video_routes(Service& service, const JobServices& services,
                                const ClientModel& model, WorkQueue& tasks);

}  // namespace weft
