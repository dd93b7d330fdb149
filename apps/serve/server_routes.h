#pragma once
// The routes that every server has: health, metrics, version and capabilities.
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "apps/serve/http/http_server.h"
#include "apps/serve/metrics.h"
#include "apps/serve/server_log.h"

namespace weft {

// Tells load balancers whether to send work. It starts as not ready. Thread-safe.
class Readiness {
 public:
  void set_ready();
  void set_reason(std::string reason);  // not ready, as "warm-up runs"; names no path
  void set_draining();                  // for good

  // The code and the reason; nullopt where it is ready.
  std::optional<std::pair<std::string, std::string>> why_not() const;

 private:
  mutable std::mutex mutex_;
  bool is_ready_ = false, is_draining_ = false;
  std::string reason_ = "The server starts.";
};

struct ServerState {
  Readiness readiness{};
  Metrics metrics{server_metrics()};
  ServerLog log{};
  std::function<void()> measure{};  // sets gauges before they are read; may be absent

  void answered(const AnsweredRequest& request);   // counts and logs it
  std::optional<HttpResponse> refuse_yet() const;  // 503 where it is not ready
};

// GET /health/live, /health/ready, /metrics, /version and /v1/capabilities. `state` outlives the
// server; `commands` are bits of Command whose flags the capabilities list.
std::vector<Route> server_routes(ServerState& state, unsigned commands);

// The flags of the commands as JSON: {"commands": {NAME: [{name, type, default, legal, help}]}}.
std::string capabilities_json(unsigned commands);

}  // namespace weft
