#pragma once
// The messages of the server as plain values: what a client asked, and what it is answered.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

using HttpHeaders = std::map<std::string, std::string>;

struct HttpRequest {
  std::string method{}, path{}, query{};  // path and query are as sent, without "?" between them
  HttpHeaders headers{};  // names are lowercase; ", " joins the values of a repeated name
  std::string body{};
  std::string remote_address{};
  std::string parameter{};  // what stands in place of {...} of the route's path

  const std::string& header(const std::string& lowercase_name) const;  // "" where it is absent
};

class ServedFile;

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
  std::string body{};
  // This file, if there is one, is sent in place of `body`, a piece at a time.
  std::shared_ptr<const ServedFile> file{};
  uint64_t file_offset = 0, file_bytes = 0;
};

// The one form of every refusal: {"error": {"code", "message"}}. A message names no path of the
// machine and no address.
HttpResponse error_response(int status, const std::string& code, const std::string& message);

// The same for a client that may ask again after some seconds.
HttpResponse retry_response(int status, const std::string& code, const std::string& message,
                            int seconds = 10);

// True where If-None-Match names the tag, in quotation marks, of what the client asks for.
bool has_tag(const HttpRequest& request, std::string_view tag);

// The parts of "a, b" without spaces around them; empty ones are left out.
std::vector<std::string> list_header(const std::string& value);
std::string lowercase(std::string text);

}  // namespace weft
