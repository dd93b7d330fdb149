#pragma once
// The server's log: a JSON object per line with ts, level, event, msg and the event's own fields.
// Callers give no prompts, paths or keys.
#include <functional>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "apps/serve/http/http_server.h"

namespace weft {

enum class LogLevel { kInfo, kWarning, kError };

class ServerLog {
 public:
  using Fields = std::vector<std::pair<std::string, std::string>>;
  // Takes whole lines; the default writes to standard error.
  explicit ServerLog(std::function<void(const std::string& line)> write = nullptr);

  void write(LogLevel level, const std::string& event, const std::string& message,
             const Fields& fields = {});
  void answered(const AnsweredRequest& request);  // a warning where the server failed

 private:
  std::mutex mutex_;
  std::function<void(const std::string& line)> write_;
};

}  // namespace weft
