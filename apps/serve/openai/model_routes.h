#pragma once
// GET /v1/models and /v1/models/{id}: the model of a server, by each of its ids.
#include <cstdint>
#include <string>
#include <vector>

#include "apps/serve/http/http_server.h"
#include "io/json.h"

namespace weft {

struct ListedModel {
  std::vector<std::string> ids{};  // the first is the model's own
  int64_t created = 0;             // Unix time in seconds
  Json facts{};                    // an object of further fields: its defaults and so on
};
std::vector<Route> model_routes(const ListedModel& model);

}  // namespace weft
