#include "apps/serve/server_log.h"

#include <chrono>
#include <cstdio>

#include "apps/serve/server_text.h"
#include "io/json.h"

namespace weft {
ServerLog::ServerLog(std::function<void(const std::string& line)> write)
    : write_(write ? std::move(write)
                   : [](const std::string& line) { std::fputs(line.c_str(), stderr); }) {}

void ServerLog::write(LogLevel level, const std::string& event, const std::string& message,
                      const Fields& fields) {
  const char* names[] = {"info", "warning", "error"};
  Json line = {{"ts", utc_text(std::chrono::system_clock::now())},
               {"level", names[static_cast<int>(level)]},
               {"event", event},
               {"msg", message}};
  for (const auto& [name, value] : fields) line[name] = value;
  const std::string text = line.dump_in_order() + "\n";
  const std::lock_guard lock(mutex_);
  write_(text);
}

void ServerLog::answered(const AnsweredRequest& request) {
  char milliseconds[32];
  std::snprintf(milliseconds, sizeof milliseconds, "%.3f", request.seconds * 1e3);
  write(request.status >= 500 ? LogLevel::kWarning : LogLevel::kInfo, "request", "answered",
        {{"method", request.method},
         {"route", request.route},
         {"status", std::to_string(request.status)},
         {"ms", milliseconds}});
}

}  // namespace weft
