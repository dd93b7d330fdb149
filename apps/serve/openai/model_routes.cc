#include "apps/serve/openai/model_routes.h"

#include <algorithm>

#include "apps/serve/http/file_response.h"

namespace weft {
namespace {

Json model_json(const ListedModel& model, const std::string& id) {
  Json out{{"id", id},
           {"object", "model"},
           {"created", model.created},
           {"owned_by", "weft"},
           {"root", model.ids.front()}};
  out.update(model.facts);
  return out;
}

HttpResponse model_response(const HttpRequest& request, const Json& body) {
  return tagged_response(request, {.body = body.dump_in_order() + "\n"});
}

}  // namespace

std::vector<Route> model_routes(const ListedModel& model) {
  const auto list = [model](const HttpRequest& request) {
    Json data = Json::array();
    for (const std::string& id : model.ids) data.push_back(model_json(model, id));
    return model_response(request, {{"object", "list"}, {"data", std::move(data)}});
  };
  const auto show = [model](const HttpRequest& request) {
    if (std::ranges::find(model.ids, request.parameter) == model.ids.end())
      return error_response(404, "model_not_found", "This server has no such model.", "model");
    return model_response(request, model_json(model, request.parameter));
  };
  return {{"GET", "/v1/models", list, false, true}, {"GET", "/v1/models/{id}", show, false, true}};
}

}  // namespace weft
