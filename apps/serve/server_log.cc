#include "apps/serve/server_log.h"

#include <chrono>
#include <cstdio>
#include <ctime>
#include <nlohmann/json.hpp>

namespace weft {
namespace {

std::string timestamp() {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  const auto milliseconds = std::chrono::duration_cast<std::chrono::milliseconds>(now).count();
  const std::time_t seconds = milliseconds / 1000;
  std::tm utc;
  gmtime_r(&seconds, &utc);
  char date[32], text[48];
  std::strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &utc);
  std::snprintf(text, sizeof text, "%s.%03dZ", date, static_cast<int>(milliseconds % 1000));
  return text;
}

}  // namespace

ServerLog::ServerLog(std::function<void(const std::string& line)> write)
    : write_(write ? std::move(write)
                   : [](const std::string& line) { std::fputs(line.c_str(), stderr); }) {}

void ServerLog::write(LogLevel level, const std::string& event, const std::string& message,
                      const Fields& fields) {
  const char* names[] = {"info", "warning", "error"};
  nlohmann::ordered_json line = {{"ts", timestamp()},
                                 {"level", names[static_cast<int>(level)]},
                                 {"event", event},
                                 {"msg", message}};
  for (const auto& [name, value] : fields) line[name] = value;
  const std::string text =
      line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
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
