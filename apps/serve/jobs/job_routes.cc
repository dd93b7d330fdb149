#include "apps/serve/jobs/job_routes.h"

#include "apps/serve/http/file_response.h"
#include "apps/serve/jobs/job.h"
#include "apps/serve/jobs/job_events.h"
#include "apps/serve/jobs/route_answers.h"
#include "io/json.h"

namespace weft {
namespace {

HttpResponse json_response(int status, const Json& body) {
  return {.status = status, .body = body.dump_in_order() + "\n"};
}

Json shown(Service& service, const StoredJob& job) {
  const bool runs = job.state == JobState::kRunning;
  return job_json(job, runs ? service.live(job.job.id) : std::nullopt);
}

// The answer of a call that waited for the end of its job.
HttpResponse over_response(Service& service, const std::string& id) {
  const std::optional<StoredJob> job = service.find(id);
  if (!job) return unknown_job();
  const Json body = shown(service, *job);
  HttpResponse response = json_response(200, body);
  if (!body.at("error").is_null() && body.at("error").text("code") == "deadline_exceeded")
    response = error_response(504, "deadline_exceeded", body.at("error").text("message"));
  response.headers.emplace_back("Location", "/v1/jobs/" + id);
  return response;
}

HttpResponse submit(Service& service, const JobServices& services, const HttpRequest& request) {
  const auto taken =
      take_job(service, services, request, {.id = new_job_id("job"), .fields = request.body});
  if (const auto* refused = std::get_if<HttpResponse>(&taken)) return *refused;
  const auto& [id, is_new] = std::get<TakenJob>(taken);
  const std::optional<StoredJob> added = service.find(id);
  if (!added) return unknown_job();
  HttpResponse response = json_response(202, shown(service, *added));
  response.headers.emplace_back("Location", "/v1/jobs/" + id);
  const double seconds = seconds_to_wait(request);
  if (seconds == 0) return response;
  return when_over(service, id, std::move(response), seconds, is_new,
                   [&service, id] { return over_response(service, id); });
}

// The number of jobs in each state.
Json counts_json(const JobStore& store) {
  const std::vector<int64_t> counts = store.counts();
  Json out = Json::object();
  for (size_t i = 0; i < counts.size(); ++i) out[to_string(static_cast<JobState>(i))] = counts[i];
  return out;
}

HttpResponse list(Service& service, const HttpRequest& request) {
  const std::vector<std::string> values = query_values(request.query, {"limit", "after"});
  const auto page = service.store().list(page_limit(values[0]), values[1]);
  if (!page) throw unknown_place(values[1], "job");
  Json data = Json::array();
  for (const StoredJob& job : page->jobs) data.push_back(shown(service, job));
  return tagged_response(request, json_response(200, {{"object", "list"},
                                                      {"data", std::move(data)},
                                                      {"has_more", page->has_more},
                                                      {"counts", counts_json(service.store())}}));
}

HttpResponse show(Service& service, const HttpRequest& request) {
  const std::optional<StoredJob> job = service.find(request.parameter);
  return job ? tagged_response(request, json_response(200, shown(service, *job))) : unknown_job();
}

HttpResponse cancel(Service& service, const HttpRequest& request) {
  const CancelAnswer answer = service.cancel(request.parameter);
  const std::optional<StoredJob> job = service.find(request.parameter);
  if (answer == CancelAnswer::kUnknown || !job) return unknown_job();
  if (answer == CancelAnswer::kOver)
    return error_response(409, "already_finished",
                          std::string("The job has ") + to_string(job->state) + " already.");
  return json_response(200, shown(service, *job));
}

HttpResponse content(Service& service, const HttpRequest& request) {
  const std::optional<StoredJob> job = service.find(request.parameter);
  if (!job) return unknown_job();
  const std::optional<JobOutput> output = output_of(*job);
  if (!output)
    return error_response(
        409, "no_result",
        std::string("The job has no result: it is ") + to_string(job->state) + ".");
  return output_response(request, *output);
}

HttpResponse preview(Service& service, const HttpRequest& request) {
  const std::optional<StoredJob> job = service.find(request.parameter);
  if (!job) return unknown_job();
  const std::optional<LiveJob> live = service.live(request.parameter);
  if (!live || !live->preview_png)
    return error_response(409, "no_preview",
                          std::string("The job has no preview: it is ") + to_string(job->state) +
                              ", and the server makes them for running jobs with --preview.");
  return tagged_response(request, {.content_type = "image/png", .body = *live->preview_png});
}

HttpResponse remove(Service& service, const HttpRequest& request) {
  if (!service.find(request.parameter)) return unknown_job();
  if (!service.remove(request.parameter))
    return error_response(409, "job_is_active",
                          "The job waits or runs; legal: to cancel it first.");
  return json_response(200, {{"id", request.parameter}, {"deleted", true}});
}

}  // namespace

std::vector<Route> job_routes(Service& service, const JobServices& services) {
  const auto on = [&service](HttpResponse (*answer)(Service&, const HttpRequest&)) {
    return [&service, answer](const HttpRequest& request) { return answer(service, request); };
  };
  return {
      {"POST", "/v1/jobs",
       [&service, services](const HttpRequest& request) {
         return submit(service, services, request);
       }},
      {"GET", "/v1/jobs", refusing(on(list)), false, true},
      {"GET", "/v1/jobs/{id}", on(show), false, true},
      {"DELETE", "/v1/jobs/{id}", on(remove)},
      {"POST", "/v1/jobs/{id}/cancel", on(cancel), false, true},
      {"GET", "/v1/jobs/{id}/content", on(content), false, true},
      {"GET", "/v1/jobs/{id}/preview", on(preview), false, true},
      {"GET", "/v1/jobs/{id}/events", on(job_events), false, true},
  };
}

}  // namespace weft
