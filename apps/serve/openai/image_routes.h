#pragma once
// OpenAI's routes of images: POST /v1/images/generations and /v1/images/edits, and GET
// /v1/images/{id}/content for the addresses that they answer with.
#include <string>
#include <vector>

#include "apps/generate/client_job.h"
#include "apps/serve/http/http_server.h"
#include "apps/serve/http/work_queue.h"
#include "apps/serve/jobs/job_submission.h"

namespace weft {

struct ImageServices {
  Service& service;
  WorkQueue& desk;   // of requests that wait for their pictures
  WorkQueue& tasks;  // reads and encodes a picture
  JobServices jobs{};
  ClientModel model{};
  std::string scheme = "http";  // of addresses: https where the listener has a certificate
};
// The references of the services outlive the server.
std::vector<Route> image_routes(const ImageServices& services);

}  // namespace weft
