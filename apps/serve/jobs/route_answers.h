#pragma once
// Routes of jobs, of videos and of pictures have these in common: queries, pages of lists, files of
// results, and refusals of parameters.
#include <functional>
#include <string>
#include <vector>

#include "apps/generate/client_job.h"
#include "apps/serve/http/http_server.h"
#include "apps/serve/jobs/job.h"

namespace weft {

// The parameters of "a=1&b=2", in the order of their names; "" for those that are absent.
// ClientFault for others.
std::vector<std::string> query_values(const std::string& query,
                                      const std::vector<std::string>& names);

// The number of jobs on a page, 20 where the parameter `limit` is "". ClientFault.
size_t page_limit(const std::string& limit);
// The refusal of a place from which a list cannot go on; `what` is "job" or the like.
ClientFault unknown_place(const std::string& after, const std::string& what);

HttpResponse refusal_of(const ClientFault& fault);
// The route's answer, or the refusal of what it throws as a ClientFault.
using RouteAnswer = std::function<HttpResponse(const HttpRequest&)>;
RouteAnswer refusing(RouteAnswer answer);

// The file of a result.
HttpResponse output_response(const HttpRequest& request, const JobOutput& output);

}  // namespace weft
