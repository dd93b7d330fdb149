#pragma once
// The messages of the server as plain values: what a client asked, and what it is answered.
#include <map>
#include <string>
#include <vector>

namespace weft {

using HttpHeaders = std::map<std::string, std::string>;

struct HttpRequest {
  std::string method{}, path{}, query{};  // path and query are as sent, without "?" between them
  HttpHeaders headers{};  // names are lowercase; ", " joins the values of a repeated name
  std::string body{};
  std::string remote_address{};

  const std::string& header(const std::string& lowercase_name) const;  // "" where it is absent
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
  std::string body{};
};

// The one form of every refusal: {"error": {"code", "message"}}. A message names no path of the
// machine and no address.
HttpResponse error_response(int status, const std::string& code, const std::string& message);

// The parts of "a, b" without spaces around them; empty ones are left out.
std::vector<std::string> list_header(const std::string& value);
std::string lowercase(std::string text);

}  // namespace weft
