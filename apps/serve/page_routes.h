#pragma once
// The pages of the server: files of apps/serve/pages that the build puts into the binary.
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/serve/http/http_server.h"

namespace weft {

struct PageFile {
  std::string_view name;  // "live.html"
  std::string_view etag;  // of its bytes, with quotation marks
  std::string_view bytes;
};
// All embedded files. The build writes the definition (pages/embed.cmake).
std::span<const PageFile> page_files();

// GET `path` answers with the embedded file: 304 where the browser has it already. The headers let
// a page load from its own server alone, and let nobody frame it. The name's ending tells the
// content type: html, css or js.
Route page_route(std::string path, std::string_view file);

// The live page: GET / and the files that it names, as /pages/NAME.
std::vector<Route> live_page_routes();

}  // namespace weft
