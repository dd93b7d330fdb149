#include "apps/serve/openai/video_routes.h"

#include <algorithm>
#include <filesystem>
#include <memory>

#include "apps/serve/jobs/job.h"
#include "apps/serve/jobs/job_events.h"
#include "apps/serve/jobs/route_answers.h"
#include "apps/serve/jobs/sent_files.h"
#include "apps/serve/openai/client_failure.h"
#include "apps/serve/openai/client_request.h"
#include "apps/serve/openai/thumbnail.h"
#include "apps/serve/openai/video_object.h"
#include "io/json.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr double kLongestSync = 24 * 3600;  // seconds that POST /v1/videos/sync waits

HttpResponse unknown_video() {
  return error_response(404, "not_found",
                        "This server has no such video; it may have forgotten it.");
}

// A job whose settings another one takes over.
struct Remixed {
  VideoClient client{};
  json resolved{};
};

class VideoRoutes {
 public:
  VideoRoutes(Service& service, JobServices services, ClientModel model, WorkQueue& tasks)
      : service_(service),
        services_(std::move(services)),
        model_(std::move(model)),
        tasks_(tasks) {}

  HttpResponse create(const HttpRequest& request) {
    const auto taken = take(request, client_request(client_fields(request), model_), {});
    if (const auto* refused = std::get_if<HttpResponse>(&taken)) return *refused;
    return shown(std::get<TakenJob>(taken).id);
  }

  HttpResponse sync(const HttpRequest& request) {
    const auto taken = take(request, client_request(client_fields(request), model_), {});
    if (const auto* refused = std::get_if<HttpResponse>(&taken)) return *refused;
    const auto& [id, is_new] = std::get<TakenJob>(taken);
    const auto over = [this, id = id, plain = without_range(request)] {
      return sync_result(id, plain);
    };
    const HttpResponse meanwhile =
        retry_response(503, "draining", "The server is about to end; " + id + " goes on then.");
    // A client with a key may come again for the video.
    const bool is_own = is_new && request.header("idempotency-key").empty();
    return when_over(service_, id, meanwhile, kLongestSync, is_own, over);
  }

  HttpResponse list(const HttpRequest& request) {
    const std::vector<std::string> values =
        query_values(request.query, {"after", "limit", "order"});
    const std::string &after = values[0], &order = values[2];
    const size_t limit = page_limit(values[1]);
    if (!order.empty()) word_of("order", order, "asc|desc");
    const std::string prefix = std::string(kVideoKind) + "_";
    const auto page = service_.store().list(limit, after, order != "asc", prefix);
    if (!page) throw unknown_place(after, "video");
    Json data = Json::array();
    for (const StoredJob& job : page->jobs) data.push_back(object(job));
    const auto id_of = [&](size_t at) { return Json(page->jobs[at].job.id); };
    const size_t count = page->jobs.size();
    return {.body = Json{{"object", "list"},
                         {"data", std::move(data)},
                         {"first_id", count ? id_of(0) : Json()},
                         {"last_id", count ? id_of(count - 1) : Json()},
                         {"has_more", page->has_more}}
                        .dump_in_order() +
                    "\n"};
  }

  HttpResponse show(const HttpRequest& request) { return shown(request.parameter); }

  HttpResponse content(const HttpRequest& request) {
    const std::vector<std::string> values = query_values(request.query, {"variant"});
    const std::string variant = values[0].empty() ? "video" : values[0];
    if (variant == "spritesheet")
      throw ClientFault("unsupported_parameter", "variant",
                        "variant is 'spritesheet', which this server does not make; legal: video, "
                        "thumbnail");
    word_of("variant", variant, "video|thumbnail");
    const std::optional<StoredJob> job = found(request.parameter);
    if (!job) return unknown_video();
    const std::optional<JobOutput> output = output_of(*job);
    if (!output) return not_ready(job->job.id);
    const bool is_clip = output->content_type.starts_with("video/");
    if (variant == "thumbnail" && is_clip)
      return thumbnail_response(
          tasks_, request, {.path = output->path, .frames = output->frames, .tag = output->sha256});
    return output_response(request, *output);
  }

  HttpResponse remove(const HttpRequest& request) {
    if (!found(request.parameter) || !service_.discard(request.parameter)) return unknown_video();
    return {.body = Json{{"id", request.parameter}, {"object", "video.deleted"}, {"deleted", true}}
                        .dump_in_order() +
                    "\n"};
  }

  HttpResponse remix(const HttpRequest& request) {
    const std::optional<StoredJob> job = found(request.parameter);
    if (!job) return unknown_video();
    if (job->state != JobState::kCompleted) return not_ready(job->job.id);
    const Remixed source{.client = video_client(*job),
                         .resolved = parse_json(job->job.resolved, "the stored job")};
    ClientModel model = model_;
    model.least_pictures = 0;  // the pictures of the first video are taken again
    ClientRequest asked = client_request(client_fields(request), model);
    LinkedFiles links;
    try {
      take_over(source, asked, links);
    } catch (const Error& error) {
      if (error.kind() == ErrorKind::kOutput) return storage_response();
      throw;
    }
    const auto taken = take(request, std::move(asked), job->job.id);
    if (const auto* refused = std::get_if<HttpResponse>(&taken)) return *refused;
    return shown(std::get<TakenJob>(taken).id);
  }

 private:
  std::optional<StoredJob> found(const std::string& id) const {
    if (!id.starts_with(std::string(kVideoKind) + "_") || !is_job_id(id)) return std::nullopt;
    return service_.find(id);
  }
  std::optional<LiveJob> live(const StoredJob& job) const {
    return job.state == JobState::kRunning ? service_.live(job.job.id) : std::nullopt;
  }
  Json object(const StoredJob& job) const { return video_json(job, live(job)); }

  HttpResponse shown(const std::string& id) const {
    const std::optional<StoredJob> job = found(id);
    if (!job) return unknown_video();
    HttpResponse response{.body = object(*job).dump_in_order() + "\n"};
    if (const int poll = video_poll_ms(*job, live(*job)); poll > 0)
      response.headers.emplace_back("openai-poll-after-ms", std::to_string(poll));
    return response;
  }

  HttpResponse not_ready(const std::string& id) const {
    const std::optional<StoredJob> job = found(id);
    if (!job) return unknown_video();
    const std::string is = std::string("video is ") + video_status(job->state);
    const Json error = job_error(*job);
    return error_response(404, "video_not_ready",
                          error.is_null()
                              ? is + " (" + std::to_string(video_percent(*job, live(*job))) + " %)"
                              : is + ": " + error.text("message"));
  }

  static HttpRequest without_range(const HttpRequest& request) {
    return {.method = request.method, .path = request.path};
  }

  HttpResponse sync_result(const std::string& id, const HttpRequest& request) const {
    const std::optional<StoredJob> job = found(id);
    if (const std::optional<JobOutput> output = job ? output_of(*job) : std::nullopt) {
      HttpResponse response = output_response(request, *output);
      response.headers.emplace_back("Location", "/v1/videos/" + id);
      return response;
    }
    return failure_response(client_failure(job).value());
  }

  std::variant<TakenJob, HttpResponse> take(const HttpRequest& request, ClientRequest asked,
                                            const std::string& remixed_from) {
    json fields = parse_json(asked.job.fields, kSentJob);
    fields.erase("prompt");
    for (const char* file : kFileFields) fields.erase(file);
    asked.job.id = new_job_id(kVideoKind);
    asked.job.client = to_text({.model = asked.model,
                                .quality = asked.quality,
                                .seconds = asked.seconds,
                                .remixed_from = remixed_from,
                                .fields = fields.dump()});
    return take_job(service_, services_, request, std::move(asked.job));
  }

  // Adds links of the files of one input, a path or a list of paths.
  static void link_input(const std::string& input, const json& files, ClientRequest& asked,
                         LinkedFiles& links) {
    for (const json& file : files.is_array() ? files : json::array({files}))
      if (!fs::exists(path_of_text(file.get<std::string>())))
        throw ClientFault("invalid_request", input, input + " of the video is no longer there");
    for (auto& file : links.of(input, files)) asked.job.files.push_back(std::move(file));
  }

  // Adds what the first video was asked with and what its size, length and seed became, where the
  // request leaves it open, and links of its pictures and its sound, which the job moves away.
  static void take_over(const Remixed& source, ClientRequest& asked, LinkedFiles& links) {
    json fields = parse_json(asked.job.fields, kSentJob);
    const auto given = [&](const char* name) { return fields.contains(name); };
    const bool has_size = given("size") || given("width") || given("height"),
               has_length = given("seconds") || given("num_frames");
    json earlier = parse_json(source.client.fields, "the stored job");
    for (const char* settled : {"size", "width", "height", "seconds", "num_frames", "fps", "seed"})
      earlier.erase(settled);
    for (const char* settled : {"width", "height", "num_frames", "fps", "seed"})
      if (source.resolved.contains(settled)) earlier[settled] = source.resolved.at(settled);
    if (has_size) {
      earlier.erase("width");
      earlier.erase("height");
    }
    if (has_length) earlier.erase("num_frames");
    for (const auto& [name, value] : earlier.items())
      if (!fields.contains(name)) fields[name] = value;
    for (const std::string input : kFileFields)
      if (!given(input.c_str()) && source.resolved.contains(input) &&
          !std::ranges::count(asked.job.files, input, &std::pair<std::string, std::string>::first))
        link_input(input, source.resolved.at(input), asked, links);
    if (asked.quality.empty()) asked.quality = source.client.quality;
    if (asked.seconds.empty() && !has_length) asked.seconds = source.client.seconds;
    if (!source.client.model.empty()) asked.model = source.client.model;
    asked.job.fields = fields.dump();
  }

  Service& service_;
  const JobServices services_;
  const ClientModel model_;
  WorkQueue& tasks_;
};

HttpResponse refuse_edit(const HttpRequest&) {
  throw ClientFault("unsupported_parameter", "video",
                    "video is given, but no model of this server edits or extends one; legal: POST "
                    "/v1/videos/{id}/remix, which draws a video again with another prompt");
}

}  // namespace

std::vector<Route> video_routes(Service& service, const JobServices& services,
                                const ClientModel& model, WorkQueue& tasks) {
  const auto routes = std::make_shared<VideoRoutes>(service, services, model, tasks);
  using Answer = HttpResponse (VideoRoutes::*)(const HttpRequest&);
  const auto on = [&](Answer answer) {
    return refusing(
        [routes, answer](const HttpRequest& request) { return ((*routes).*answer)(request); });
  };
  std::vector<Route> all{
      {"POST", "/v1/videos", on(&VideoRoutes::create), false, false, true},
      {"GET", "/v1/videos", on(&VideoRoutes::list), false, true},
      {"POST", "/v1/videos/sync", on(&VideoRoutes::sync), false, false, true},
      {"GET", "/v1/videos/{id}", on(&VideoRoutes::show), false, true},
      {"DELETE", "/v1/videos/{id}", on(&VideoRoutes::remove)},
      {"GET", "/v1/videos/{id}/content", on(&VideoRoutes::content), false, true},
      {"POST", "/v1/videos/{id}/remix", on(&VideoRoutes::remix), false, false, true},
  };
  for (const char* path : {"/v1/videos/edits", "/v1/videos/extensions", "/v1/videos/characters"})
    all.push_back({"POST", path, refusing(refuse_edit), false, false, true});
  return all;
}

}  // namespace weft
