#pragma once
// The jobs of one request for pictures, from the queue to the answer.
#include <string>
#include <vector>

#include "apps/serve/http/http_message.h"
#include "apps/serve/http/work_queue.h"
#include "apps/serve/jobs/job_submission.h"
#include "apps/serve/openai/image_request.h"
#include "engine/service/service.h"

namespace weft {

struct ImageDrawing {
  ImageRequest request{};
  std::vector<TakenJob> jobs{};
  std::vector<std::shared_ptr<PreviewWish>> previews{};  // of each job, where it is streamed
  WorkQueue::Place place{};                              // of the desk
  std::string address{};  // of the server, as the client reaches it: "http://localhost:8188"
  // False where the client may come again for the jobs by its Idempotency-Key. Else jobs whose
  // answer nobody will read are cancelled: the client left, or one of the others failed.
  bool is_own = true;
  double seconds = 600;  // to the answer, which is else 504
};

// The answer when all jobs are over, or their events where the request is streamed. `service` and
// `desk` outlive the server.
HttpResponse drawing_response(Service& service, WorkQueue& desk, ImageDrawing drawing);

// The bytes of a completed job's picture as the client gets them. Error(kOutput) or kMedia where
// its file cannot be read.
std::string image_bytes(const std::string& path, const ImageFile& file);

}  // namespace weft
