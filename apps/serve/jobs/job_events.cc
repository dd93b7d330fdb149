#include "apps/serve/jobs/job_events.h"

#include <algorithm>
#include <atomic>
#include <charconv>
#include <cmath>
#include <memory>

namespace weft {
namespace {

constexpr size_t kSlow = 64 << 10;  // queued bytes of a reader that loses progress and previews
constexpr double kLongestWait = 24 * 3600;

bool may_be_lost(const JobEvent& event) {
  return event.type == "progress" || event.type == "preview";
}

void tell_event(EventStream& stream, const JobEvent& event) {
  if (may_be_lost(event) && stream.queued_bytes() > kSlow) return;
  const std::string number = event.number > 0 ? std::to_string(event.number) : "";
  const bool sent = stream.send(event_text(event.type, number, event.data));
  if (event.type == "end" || (!sent && !may_be_lost(event))) stream.close();
}

}  // namespace

HttpResponse unknown_job() {
  return error_response(404, "not_found", "This server has no such job; it may have forgotten it.");
}

HttpResponse job_events(Service& service, const HttpRequest& request) {
  if (!service.find(request.parameter)) return unknown_job();
  int64_t after = 0;
  const std::string& last = request.header("last-event-id");
  const auto [end, error] = std::from_chars(last.data(), last.data() + last.size(), after);
  if (!last.empty() && (error != std::errc() || end != last.data() + last.size() || after < 0))
    return error_response(400, "invalid_request",
                          "Last-Event-ID is '" + last + "', legal: the id of an event");
  HttpResponse response{.content_type = "text/event-stream"};
  response.events = [&service, id = request.parameter,
                     after](const std::shared_ptr<EventStream>& stream) {
    stream->send("retry: 2000\n\n");
    auto watch = std::make_shared<std::shared_ptr<Service::Watch>>(
        service.watch(id, after, [stream](const JobEvent& event) { tell_event(*stream, event); }));
    if (!*watch) stream->close();  // it was removed meanwhile
    return [watch] { watch->reset(); };
  };
  return response;
}

double seconds_to_wait(const HttpRequest& request) {
  constexpr std::string_view kWait = "wait=";
  for (const std::string& preference : list_header(request.header("prefer"))) {
    if (!preference.starts_with(kWait)) continue;
    double seconds = 0;
    const char* end = preference.data() + preference.size();
    const auto read = std::from_chars(preference.data() + kWait.size(), end, seconds);
    if (read.ec == std::errc() && read.ptr == end && seconds > 0)
      return std::min(seconds, kLongestWait);
  }
  return 0;
}

HttpResponse when_over(Service& service, const std::string& id, HttpResponse accepted,
                       double seconds, bool is_own, const std::function<HttpResponse()>& over) {
  accepted.patience = std::chrono::milliseconds(std::max(1L, std::lround(seconds * 1000)));
  accepted.later = [&service, id, is_own, over](const HttpResponse::Respond& respond) {
    // The last event of a job comes last of all, so that its state is final then.
    auto watch = std::make_shared<std::shared_ptr<Service::Watch>>(
        service.watch(id, 0, [respond, over](const JobEvent& event) {
          if (event.type == "end") respond(over());
        }));
    if (!*watch) respond(over());  // it was removed meanwhile
    return [&service, id, is_own, watch] {
      watch->reset();
      if (is_own) service.cancel(id);
    };
  };
  return accepted;
}

}  // namespace weft
