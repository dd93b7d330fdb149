#include "apps/serve/page_routes.h"

#include <algorithm>

#include "kernels/check.h"

namespace weft {
namespace {

// A page loads scripts, styles and the WebSocket from its own server, and nothing from anywhere
// else. The player's media are blobs that its script makes; the picture of the tab is a data URL.
constexpr const char* kPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data: blob:; media-src 'self' blob:; worker-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'";

const PageFile& embedded(std::string_view name) {
  const auto files = page_files();
  const auto found = std::ranges::find(files, name, &PageFile::name);
  CHECK(found != files.end(), "no page file " + std::string(name) + " is embedded");
  return *found;
}

const char* content_type(std::string_view name) {
  if (name.ends_with(".html")) return "text/html; charset=utf-8";
  if (name.ends_with(".css")) return "text/css; charset=utf-8";
  CHECK(name.ends_with(".js"), "a page file of no known type: " + std::string(name));
  return "text/javascript; charset=utf-8";
}

HttpResponse answer(const PageFile& file, const HttpRequest& request) {
  HttpResponse response{.content_type = content_type(file.name)};
  response.headers = {{"ETag", std::string(file.etag)},
                      {"Cache-Control", "no-cache"},  // ask each time: 304 is cheap
                      {"Content-Security-Policy", kPolicy},
                      {"Referrer-Policy", "no-referrer"},
                      {"Cross-Origin-Opener-Policy", "same-origin"},
                      {"Cross-Origin-Resource-Policy", "same-origin"}};
  if (has_tag(request, file.etag))
    response.status = 304;
  else
    response.body = file.bytes;
  return response;
}

}  // namespace

Route page_route(std::string path, std::string_view file) {
  const PageFile& found = embedded(file);
  content_type(found.name);
  return {"GET", std::move(path),
          [&found](const HttpRequest& request) { return answer(found, request); }};
}

std::vector<Route> live_page_routes() {
  std::vector<Route> routes = {page_route("/", "live.html")};
  for (const PageFile& file : page_files())
    if (file.name.starts_with("live") && !file.name.ends_with(".html"))
      routes.push_back(page_route("/pages/" + std::string(file.name), file.name));
  return routes;
}

}  // namespace weft
