#include "apps/serve/openai/image_routes.h"

#include "apps/serve/jobs/job.h"
#include "apps/serve/jobs/job_events.h"
#include "apps/serve/jobs/route_answers.h"
#include "apps/serve/openai/image_drawing.h"
#include "apps/serve/openai/image_request.h"

namespace weft {
namespace {

constexpr const char* kImagePrefix = "image_";

// The server as this client reaches it. A proxy that ends TLS says so.
std::string address_of(const HttpRequest& request, const std::string& scheme) {
  const std::string& host = request.header("host");
  if (host.empty()) return "";
  const bool is_secure = lowercase(request.header("x-forwarded-proto")) == "https";
  return (is_secure ? "https" : scheme) + "://" + host;
}

HttpResponse draw_images(const ImageServices& services, const HttpRequest& request,
                         ImageTask task) {
  ImageDrawing drawing{.place = services.desk.place()};
  if (!drawing.place) return WorkQueue::full_response();
  try {
    drawing.request = image_request(request, services.model, task);
    const int partial_images = drawing.request.streamed ? drawing.request.partial_images : 0;
    const auto wish = [&](const std::string& id) {
      return services.service.want_previews(id, partial_images);
    };
    ImageJobs jobs(drawing.request);
    // The wish comes before the job, which may be drawn at once.
    auto taken = take_jobs(services.service, services.jobs, request, drawing.request.count,
                           [&](std::span<const NewJob> before) {
                             SentJob job = jobs.next(before);
                             if (partial_images > 0) drawing.previews.push_back(wish(job.id));
                             return job;
                           });
    if (auto* refused = std::get_if<HttpResponse>(&taken)) return std::move(*refused);
    drawing.jobs = std::move(std::get<std::vector<TakenJob>>(taken));
    for (size_t i = 0; i < drawing.previews.size(); ++i)
      if (!drawing.jobs[i].is_new) drawing.previews[i] = wish(drawing.jobs[i].id);
  } catch (const ClientFault& fault) {
    return refusal_of(fault);
  }
  drawing.address = address_of(request, services.scheme);
  drawing.is_own = request.header("idempotency-key").empty();
  if (const double seconds = seconds_to_wait(request); seconds > 0) drawing.seconds = seconds;
  return drawing_response(services.service, services.desk, std::move(drawing));
}

// Another form of a picture than the file that the job has written.
HttpResponse encoded_response(WorkQueue& tasks, const HttpRequest& request, const JobOutput& output,
                              const ImageFile& file) {
  const std::string tag =
      "\"" + output.sha256 + "-" + to_string(file.format) + std::to_string(file.compression) + "\"";
  HttpResponse response{.content_type = content_type(file.format), .headers = {{"ETag", tag}}};
  if (has_tag(request, tag)) {
    response.status = 304;
    return response;
  }
  return tasks.answer([response, path = output.path, file]() mutable {
    try {
      response.body = image_bytes(path, file);
    } catch (const std::exception&) {
      response = error_response(404, "not_found", "The picture's file cannot be read.");
    }
    return response;
  });
}

HttpResponse image_content(const ImageServices& services, const HttpRequest& request) {
  const std::optional<StoredJob> job = services.service.find(request.parameter);
  if (!job || !request.parameter.starts_with(kImagePrefix))
    return error_response(404, "not_found",
                          "This server has no such picture; it may have forgotten it.");
  const std::optional<JobOutput> output = output_of(*job);
  if (!output)
    return error_response(
        404, "image_not_ready",
        std::string("The picture is not drawn: its job is ") + to_string(job->state) + ".");
  const ImageFile file = image_file_of(job->job.client);
  if (file.format != PictureFormat::kPng)
    return encoded_response(services.tasks, request, *output, file);
  return output_response(request, *output);
}

}  // namespace

std::vector<Route> image_routes(const ImageServices& services) {
  const auto draw = [&services](ImageTask task) {
    return [services, task](const HttpRequest& request) {
      return draw_images(services, request, task);
    };
  };
  Route generations{"POST", "/v1/images/generations", draw(ImageTask::kGenerate)};
  Route edits{"POST", "/v1/images/edits", draw(ImageTask::kEdit)};
  generations.forms = edits.forms = true;
  return {generations,
          edits,
          {"GET", "/v1/images/{id}/content",
           [services](const HttpRequest& request) { return image_content(services, request); },
           false, true}};
}

}  // namespace weft
