#pragma once
// Why a job of OpenAI's routes has no result, as their clients see it.
#include <optional>
#include <string>

#include "apps/serve/http/http_message.h"
#include "engine/service/job_store.h"
#include "io/json.h"

namespace weft {

// {"code", "message"}, and null where it has not failed. The codes are those that the guide lists.
Json job_error(const StoredJob& job);

struct ClientFailure {
  int status = 500;
  std::string code{}, message{};
};
// Why a job that is over has no result; nullopt where it has one. A job that is gone was cancelled.
std::optional<ClientFailure> client_failure(const std::optional<StoredJob>& job);
HttpResponse failure_response(const ClientFailure& failure);

}  // namespace weft
