#include "apps/serve/openai/served_model.h"

#include <algorithm>
#include <chrono>
#include <filesystem>

#include "apps/generate/client_job.h"
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

}  // namespace

std::vector<Route> openai_routes(Service& service, const JobServices& services,
                                 const ServedModel& served) {
  const ClientModel model = client_model(served.generator, served_names(served.flags));
  const ModelDirectory& directory = served.generator.model()->directory;
  std::vector<Route> routes =
      model_routes({.ids = model.ids,
                    .created = created(directory.path),
                    .facts = {{"name", model.name}, {"defaults", served.defaults}}});
  for (Route& route : video_routes(service, services, model)) routes.push_back(std::move(route));
  return routes;
}

}  // namespace weft
