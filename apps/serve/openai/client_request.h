#pragma once
// Requests of OpenAI's clients, in JSON or as forms, read into the parameters that they name and
// translated into jobs.
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "apps/generate/client_job.h"
#include "apps/serve/http/http_message.h"
#include "apps/serve/jobs/job_submission.h"

namespace weft {

// The parameters of a request. Of a form all values are texts, or lists and objects of texts.
struct ClientFields {
  nlohmann::json values = nlohmann::json::object();
  std::vector<std::pair<std::string, std::string>> files{};  // parameters, and paths of files

  // Takes a parameter out; null where it is absent.
  nlohmann::json take(const std::string& name);
};

// Reads a body that is a JSON object, or a form: `name`, `name[]` for a list, `name[key]` for an
// object. What "extra_body" and "extra_params" hold counts as if it stood beside them. ClientFault.
ClientFields client_fields(const HttpRequest& request);

struct ClientRequest {
  SentJob job{};                   // without an id and the text for its route
  std::string model{}, quality{};  // its id as the client calls it; "": no quality was named
  std::string seconds{};           // as the client wrote them; "": it did not
};
// `own` are parameters that the route has taken out, for suggestions. `picture` is the route's
// parameter for pictures. ClientFault.
ClientRequest client_request(ClientFields fields, const ClientModel& model,
                             const std::vector<std::string>& own = {},
                             const std::string& picture = "input_reference");

}  // namespace weft
