#pragma once
// WorkerHost: the server's side of its workers. Each that connects is a team: a thread takes jobs
// for it, and tells the service what comes back. Its messages are those of messages.h.
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "apps/serve/http/http_server.h"
#include "engine/service/service.h"

namespace weft {

enum class WorkerEvent : uint8_t { kReady, kDrew, kGone };  // kGone follows kReady once

class WorkerHost {
 public:
  struct Settings {
    std::string folder{};  // of the results and of what clients sent
    std::string key{};     // that workers must give
    // Service::take(), or one like it.
    std::function<std::unique_ptr<HeldJob>(const std::string& team, const std::string& program,
                                           const std::function<bool()>& give_up)>
        take{};
    // The result, as JSON, that an earlier attempt left without telling it; "" where there is none.
    std::function<std::string(const StoredJob&)> result_left{};           // may be absent
    std::function<void(const std::string& worker, WorkerEvent)> heard{};  // on any thread
  };
  explicit WorkerHost(Settings settings);
  ~WorkerHost();  // cuts the connections; running jobs are given back

  int drawing();           // workers that have a job, or may get one
  WebSocketRoute route();  // /v1/worker; the host outlives the server

 private:
  class Link;
  std::shared_ptr<Link> open(std::shared_ptr<WebSocket> socket);

  const Settings settings_;
  std::mutex mutex_;  // guards the links
  std::vector<std::shared_ptr<Link>> links_;
};

}  // namespace weft
