#pragma once
// Clients follow a job as a stream of events, or by a request that waits for its end.
#include <functional>
#include <string>

#include "apps/serve/http/http_message.h"
#include "engine/service/service.h"

namespace weft {

// GET /v1/jobs/{id}/events: the job's events as Server-Sent Events, those after Last-Event-ID,
// until it is over. A slow reader loses progress and previews; where it loses more, the stream is
// closed, and the client gets the rest when it comes again. 404 where there is no such job.
HttpResponse job_events(Service& service, const HttpRequest& request);

// The seconds of "Prefer: wait=SECONDS" (RFC 7240); 0 where the request does not wait.
double seconds_to_wait(const HttpRequest& request);

// Makes of `accepted` a response that is sent when the job is over, as `over` makes it then, and
// as it stands after so many seconds. A client that leaves before cancels the job where `is_own`.
HttpResponse when_over(Service& service, const std::string& id, HttpResponse accepted,
                       double seconds, bool is_own, const std::function<HttpResponse()>& over);

HttpResponse unknown_job();

}  // namespace weft
