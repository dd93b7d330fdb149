#include "apps/serve/jobs/route_answers.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "apps/serve/http/file_response.h"
#include "io/legal.h"
#include "io/nearest.h"

namespace weft {

std::vector<std::string> query_values(const std::string& query,
                                      const std::vector<std::string>& names) {
  std::vector<std::string> values(names.size());
  for (const std::string& part : split(query, '&')) {
    const std::string name = part.substr(0, part.find('='));
    const auto found = std::ranges::find(names, name);
    if (found == names.end())
      throw ClientFault("unsupported_parameter", name,
                        name + " is no parameter of this route; legal: " + listed(names) +
                            did_you_mean(nearest(name, names)));
    std::string& value = values[static_cast<size_t>(found - names.begin())];
    value = part.size() > name.size() ? part.substr(name.size() + 1) : "";
  }
  return values;
}

size_t page_limit(const std::string& limit) {
  return limit.empty() ? 20 : static_cast<size_t>(count_of("limit", limit, "1 ... 100"));
}

ClientFault unknown_place(const std::string& after, const std::string& what) {
  return {"invalid_request", "after",
          "after is '" + after + "', legal: the id of a " + what + " of this server"};
}

HttpResponse refusal_of(const ClientFault& fault) {
  return error_response(fault.code == "model_not_found" ? 404 : 400, fault.code, fault.what(),
                        fault.param);
}

RouteAnswer refusing(RouteAnswer answer) {
  return [answer = std::move(answer)](const HttpRequest& request) {
    try {
      return answer(request);
    } catch (const ClientFault& fault) {
      return refusal_of(fault);
    }
  };
}

HttpResponse output_response(const HttpRequest& request, const JobOutput& output) {
  return file_response(request, {.path = output.path,
                                 .content_type = output.content_type,
                                 .name = std::filesystem::path(output.path).filename().string(),
                                 .tag = output.sha256});
}

}  // namespace weft
