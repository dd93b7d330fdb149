#include "apps/serve/jobs/job_routes.h"

#include <filesystem>

#include "apps/serve/http/file_response.h"
#include "io/json.h"
#include "io/legal.h"
#include "io/nearest.h"

namespace weft {
namespace {

constexpr size_t kMostListed = 100;
constexpr const char* kDefaultListed = "20";

HttpResponse json_response(int status, const Json& body) {
  return {.status = status, .body = body.dump_in_order() + "\n"};
}

HttpResponse unknown_job() {
  return error_response(404, "no_job", "This server has no such job; it may have forgotten it.");
}

HttpResponse submit(JobQueue& queue, const JobServices& services, const HttpRequest& request) {
  ServedJob job;
  try {
    job = services.read(request.body);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kMedia)
      return error_response(400, "invalid_media", without_folders(error.what()));
    if (error.kind() != ErrorKind::kUsage && error.kind() != ErrorKind::kModel) throw;
    return error_response(400, "invalid_job", error.what());
  }
  const std::string id = job.id;
  switch (queue.add(std::move(job))) {
    case JobAnswer::kFull:
      return retry_response(429, "queue_full", "As many jobs wait as this server lets wait.");
    case JobAnswer::kDraining:
      return retry_response(503, "draining", "The server is about to end.");
    default:
      break;
  }
  const std::optional<ServedJob> added = queue.find(id);
  if (!added) return unknown_job();
  HttpResponse response = json_response(202, to_json(*added));
  response.headers.emplace_back("Location", "/v1/jobs/" + id);
  return response;
}

struct ListQuery {
  size_t limit = 0;
  std::string after;
};

// Reads "limit=20&after=job_1". Error(kUsage).
ListQuery list_query(const std::string& query) {
  const std::vector<std::string> known = {"limit", "after"};
  ListQuery out;
  std::string limit = kDefaultListed;
  for (const std::string& part : split(query, '&')) {
    const std::string name = part.substr(0, part.find('=')),
                      value = part.size() > name.size() ? part.substr(name.size() + 1) : "";
    if (name == "limit")
      limit = value;
    else if (name == "after")
      out.after = value;
    else
      throw Error(ErrorKind::kUsage, name + " is no parameter of the list; legal: limit, after" +
                                         did_you_mean(nearest(name, known)));
  }
  const std::string legal = "1 ... " + std::to_string(kMostListed);
  out.limit = static_cast<size_t>(GivenText{limit, "limit", legal.c_str()}.whole_number());
  return out;
}

HttpResponse list(const JobQueue& queue, const HttpRequest& request) {
  ListQuery query;
  try {
    query = list_query(request.query);
  } catch (const Error& error) {
    return error_response(400, "invalid_query", error.what());
  }
  const auto page = queue.newest(query.limit, query.after);
  if (!page)
    return error_response(400, "invalid_query",
                          "after is '" + query.after + "', legal: the id of a job of this server");
  Json data = Json::array();
  for (const ServedJob& job : page->jobs) data.push_back(to_json(job));
  return tagged_response(request, json_response(200, {{"object", "list"},
                                                      {"data", std::move(data)},
                                                      {"has_more", page->has_more}}));
}

HttpResponse show(const JobQueue& queue, const HttpRequest& request) {
  const std::optional<ServedJob> job = queue.find(request.parameter);
  return job ? tagged_response(request, json_response(200, to_json(*job))) : unknown_job();
}

HttpResponse cancel(JobQueue& queue, const HttpRequest& request) {
  const JobAnswer answer = queue.cancel(request.parameter);
  const std::optional<ServedJob> job = queue.find(request.parameter);
  if (answer == JobAnswer::kUnknown || !job) return unknown_job();
  if (answer == JobAnswer::kOver)
    return error_response(409, "job_is_over",
                          std::string("The job has ") + to_string(job->state) + " already.");
  return json_response(200, to_json(*job));
}

HttpResponse content(const JobQueue& queue, const HttpRequest& request) {
  const std::optional<ServedJob> job = queue.find(request.parameter);
  if (!job) return unknown_job();
  if (!job->result)
    return error_response(
        409, "no_result",
        std::string("The job has no result: it is ") + to_string(job->state) + ".");
  const std::string& path = job->result->path;
  return file_response(request, {.path = path,
                                 .content_type = job->result->content_type,
                                 .name = std::filesystem::path(path).filename().string(),
                                 .tag = job->result->sha256});
}

HttpResponse preview(const JobQueue& queue, const HttpRequest& request) {
  const std::optional<ServedJob> job = queue.find(request.parameter);
  if (!job) return unknown_job();
  if (!job->preview)
    return error_response(409, "no_preview",
                          std::string("The job has no preview: it is ") + to_string(job->state) +
                              ", and the server makes them for running jobs with --preview.");
  return tagged_response(request, {.content_type = "image/png", .body = job->preview->png});
}

HttpResponse remove(JobQueue& queue, const JobServices& services, const HttpRequest& request) {
  const std::optional<ServedJob> job = queue.find(request.parameter);
  switch (queue.remove(request.parameter)) {
    case JobAnswer::kUnknown:
      return unknown_job();
    case JobAnswer::kActive:
      return error_response(409, "job_is_active",
                            "The job waits or runs; legal: to cancel it first.");
    default:
      break;
  }
  if (job) services.remove_files(*job);
  return json_response(200, {{"id", request.parameter}, {"deleted", true}});
}

}  // namespace

std::vector<Route> job_routes(JobQueue& queue, const JobServices& services) {
  const auto with_queue = [&queue](HttpResponse (*answer)(const JobQueue&, const HttpRequest&)) {
    return [&queue, answer](const HttpRequest& request) { return answer(queue, request); };
  };
  return {
      {"POST", "/v1/jobs",
       [&queue, services](const HttpRequest& request) { return submit(queue, services, request); }},
      {"GET", "/v1/jobs", with_queue(list), false, true},
      {"GET", "/v1/jobs/{id}", with_queue(show), false, true},
      {"DELETE", "/v1/jobs/{id}",
       [&queue, services](const HttpRequest& request) { return remove(queue, services, request); }},
      {"POST", "/v1/jobs/{id}/cancel",
       [&queue](const HttpRequest& request) { return cancel(queue, request); }, false, true},
      {"GET", "/v1/jobs/{id}/content", with_queue(content), false, true},
      {"GET", "/v1/jobs/{id}/preview", with_queue(preview), false, true},
  };
}

}  // namespace weft
