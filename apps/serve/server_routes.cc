#include "apps/serve/server_routes.h"

#include "apps/commands.h"
#include "io/json.h"

namespace weft {
namespace {

const char* type_name(FlagType type) {
  switch (type) {
    case FlagType::kText:
      return "text";
    case FlagType::kInteger:
      return "integer";
    case FlagType::kReal:
      return "real";
    case FlagType::kRate:
      return "rate";
    case FlagType::kBytes:
      return "bytes";
    case FlagType::kSwitch:
      return "switch";
  }
  return "text";
}

Json flag_json(const FlagSpec& flag) {
  Json out = {{"name", flag.name}, {"type", type_name(flag.type)}};
  // A default that only describes what follows from the model or the machine is no value.
  out["default"] = flag.is_default && *flag.fallback ? Json(flag.fallback) : Json(nullptr);
  out["legal"] = flag.legal ? Json(flag.legal) : Json(nullptr);
  out["help"] = flag.help;
  return out;
}

}  // namespace

void Readiness::set_ready() {
  const std::lock_guard lock(mutex_);
  is_ready_ = true;
}

void Readiness::set_reason(std::string reason) {
  const std::lock_guard lock(mutex_);
  is_ready_ = false;
  reason_ = std::move(reason);
}

void Readiness::set_draining() {
  const std::lock_guard lock(mutex_);
  is_draining_ = true;
}

std::optional<std::pair<std::string, std::string>> Readiness::why_not() const {
  const std::lock_guard lock(mutex_);
  if (is_draining_) return {{"draining", "The server is about to end."}};
  if (!is_ready_) return {{"not_ready", reason_}};
  return std::nullopt;
}

void ServerState::answered(const AnsweredRequest& request) {
  metrics.add("weft_requests_total", {{"status", std::to_string(request.status)}});
  metrics.observe("weft_request_duration_seconds", request.seconds);
  log.answered(request);
}

std::optional<HttpResponse> ServerState::refuse_yet() const {
  constexpr int kRetrySeconds = 2;
  const auto reason = readiness.why_not();
  if (!reason) return std::nullopt;
  return retry_response(503, reason->first, reason->second, kRetrySeconds);
}

std::string capabilities_json(unsigned commands) {
  Json listed = Json::object();
  for (const CommandSpec& command : command_table()) {
    if (!(command.command & commands)) continue;
    Json flags = Json::array();
    for (const FlagSpec& flag : flag_table())
      if (flag.commands & command.command) flags.push_back(flag_json(flag));
    listed[command.name] = std::move(flags);
  }
  return Json{{"commands", std::move(listed)}}.dump_in_order() + "\n";
}

std::vector<Route> server_routes(ServerState& state, unsigned commands) {
  const std::string version = Json{{"version", version_text()}}.dump() + "\n";
  state.metrics.set("weft_build_info", 1, {{"version", version_text()}});
  return {
      {"GET", "/health/live",
       [](const HttpRequest&) { return HttpResponse{.body = "{\"status\":\"live\"}\n"}; }, true,
       true},
      {"GET", "/health/ready",
       [&state](const HttpRequest&) {
         return state.refuse_yet().value_or(HttpResponse{.body = "{\"status\":\"ready\"}\n"});
       },
       false, true},
      {"GET", "/metrics",
       [&state](const HttpRequest&) {
         if (state.measure) state.measure();
         return HttpResponse{.content_type = "text/plain; version=0.0.4; charset=utf-8",
                             .body = state.metrics.text()};
       },
       false, true},
      {"GET", "/version", [version](const HttpRequest&) { return HttpResponse{.body = version}; }},
      {"GET", "/v1/capabilities",
       [body = capabilities_json(commands)](const HttpRequest&) {
         return HttpResponse{.body = body};
       }},
  };
}

}  // namespace weft
