#include "apps/serve/openai/served_model.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "apps/generate/client_job.h"
#include "apps/generate/quality.h"
#include "apps/serve/openai/image_routes.h"
#include "apps/serve/openai/model_routes.h"
#include "apps/serve/openai/video_routes.h"
#include "io/legal.h"

namespace weft {
namespace {

std::vector<std::string> served_names(const Flags& flags) {
  constexpr size_t kLongest = 128;
  const std::string flag = "served-model-name";
  std::vector<std::string> names;
  if (flags.given(flag)) names = split(flags.text(flag), ',');
  for (const std::string& name : names) {
    const bool plain = std::ranges::all_of(name, [](unsigned char c) {
      return std::isalnum(c) || c == '.' || c == '_' || c == '-' || c == '/' || c == ':';
    });
    if (!plain || name.size() > kLongest)
      throw Error(ErrorKind::kUsage,
                  flags.label(flag) + " is '" + flags.text(flag) +
                      "', legal: names of letters, digits and . _ - / :, separated by commas");
  }
  return names;
}

// The time of the model's files, so that it stays the same when the server starts again.
int64_t created(const std::string& path) {
  std::error_code error;
  const auto written = std::filesystem::last_write_time(path, error);
  if (error) return 0;
  const auto system = std::chrono::file_clock::to_sys(written);
  return std::chrono::duration_cast<std::chrono::seconds>(system.time_since_epoch()).count();
}

// The qualities that jobs may name, and their measured losses.
Json qualities_json() {
  Json out = Json::object();
  for (const Quality& quality : qualities()) {
    Json facts{{"exact", quality.method && quality.psnr == 0}};
    if (quality.cache) facts["cache"] = quality.cache;
    if (quality.psnr > 0) facts.update({{"psnr_db", quality.psnr}, {"torn_percent", quality.torn}});
    out[quality.name] = std::move(facts);
  }
  return out;
}

}  // namespace

std::vector<Route> openai_routes(Service& service, const JobServices& services,
                                 const ServedModel& served) {
  const ClientModel model = client_model(served.generator, served_names(served.flags));
  const ModelDirectory& directory = served.generator.model()->directory;
  Json facts{{"name", model.name}, {"qualities", qualities_json()}};
  facts.update(served.facts);
  std::vector<Route> routes = model_routes(
      {.ids = model.ids, .created = created(directory.path), .facts = std::move(facts)});
  for (Route& route : video_routes(service, services, model, served.tasks))
    routes.push_back(std::move(route));
  const ImageServices images{.service = service,
                             .desk = served.desk,
                             .tasks = served.tasks,
                             .jobs = services,
                             .model = model,
                             .scheme = served.scheme};
  for (Route& route : image_routes(images)) routes.push_back(std::move(route));
  return routes;
}

}  // namespace weft
