#pragma once
// WorkerSession: a worker's talk with its server, from the connection to its end.
#include <atomic>
#include <condition_variable>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "apps/worker/job_team.h"
#include "apps/worker/server_connection.h"

namespace weft {

class WorkerSession {
 public:
  struct Settings {
    ServerAddress server{};
    std::string key{}, name{};
  };
  WorkerSession(Settings settings, JobTeam& team);

  // Draws the jobs that the server gives until it has no more (0), or a signal came (0). The job
  // that runs when a signal comes, or the connection ends, leaves a checkpoint. Error(kComm) where
  // the connection ended; Error(kUsage) where the server refuses the worker.
  int run();

 private:
  class Reporter;
  using Message = nlohmann::json;
  void heard(std::string_view text);  // on the connection's thread
  void lost();
  void end_soon();
  bool ends_after_job();
  void introduce();
  bool warm_up();
  std::optional<Message> next_job();
  void draw(const Message& job);
  void tell(const char* type, Json fields = Json::object());
  void require_server();

  const Settings settings_;
  JobTeam& team_;
  std::mutex mutex_;  // guards the members below but the last two
  std::condition_variable changed_;
  std::optional<Message> welcome_{}, job_{};
  std::string job_id_{}, refusal_{};
  bool shall_end_ = false, is_lost_ = false;
  std::atomic<bool> stop_{false};  // ends the job that runs
  std::optional<ServerConnection> connection_{};
};

}  // namespace weft
