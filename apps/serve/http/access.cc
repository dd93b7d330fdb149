#include "apps/serve/http/access.h"

#include <arpa/inet.h>

#include <algorithm>
#include <fstream>

#include "apps/serve/server_text.h"
#include "kernels/check.h"

namespace weft {
namespace {

constexpr size_t kMinKey = 16, kMaxKey = 4096;
constexpr const char* kKeyLegal = "legal: one line of 16 ... 4096 printable characters, no spaces";

bool has_prefix(const std::string& text, std::string_view prefix) {
  return text.compare(0, prefix.size(), prefix) == 0;
}

// "example.org:80" and "[::1]:80" without the port.
std::string_view without_port(std::string_view host) {
  if (!host.empty() && host.front() == '[') return host.substr(0, host.find(']') + 1);
  return host.substr(0, host.find(':'));
}

bool key_matches(const std::string& key, const HttpRequest& request) {
  if (const std::string stated = stated_key(request); !stated.empty())
    return same_secret(stated, key);
  if (lowercase(request.header("upgrade")) != "websocket") return false;
  for (const std::string& protocol : list_header(request.header("sec-websocket-protocol")))
    if (has_prefix(protocol, kKeyProtocol))
      return same_secret(protocol.substr(kKeyProtocol.size()), base64url(key));
  return false;
}

// True for a page of an origin that the server's user named.
bool is_of_allowed_origin(const AccessRules& rules, const HttpRequest& request) {
  const std::string origin = lowercase(request.header("origin"));
  const auto same = [&](const std::string& allowed) { return lowercase(allowed) == origin; };
  return origin != "null" && std::ranges::any_of(rules.allowed_origins, same);
}

bool origin_allowed(const AccessRules& rules, const HttpRequest& request) {
  const std::string origin = lowercase(request.header("origin"));
  if (origin == "null") return false;
  if (is_of_allowed_origin(rules, request)) return true;
  const size_t scheme = origin.find("://");
  return scheme != std::string::npos &&
         origin.substr(scheme + 3) == lowercase(request.header("host"));
}

}  // namespace

std::string read_key_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const auto refuse = [&](const std::string& why) {
    throw Error(ErrorKind::kUsage, "the key file " + path + " " + why + "; " + kKeyLegal);
  };
  if (!file) refuse("cannot be read");
  std::string key(kMaxKey + 2, '\0');
  file.read(key.data(), static_cast<std::streamsize>(key.size()));
  if (file.bad()) refuse("cannot be read");
  key.resize(static_cast<size_t>(file.gcount()));
  if (!key.empty() && key.back() == '\n') key.pop_back();
  if (key.find('\n') != std::string::npos) refuse("has more than one line");
  if (key.size() > kMaxKey) refuse("holds more than 4096 characters");
  if (key.size() < kMinKey) refuse("holds " + std::to_string(key.size()) + " characters");
  if (!std::ranges::all_of(key, [](char c) { return c > ' ' && c <= '~'; }))
    refuse("holds a character that is not printable ASCII, or a space");
  return key;
}

// A browser asks its user for a name and a password; the password is the key.
std::string stated_key(const HttpRequest& request) {
  const std::string& authorization = request.header("authorization");
  if (lowercase(authorization.substr(0, 7)) == "bearer ") return authorization.substr(7);
  if (lowercase(authorization.substr(0, 6)) != "basic ") return request.header("x-api-key");
  const std::string pair = base64_bytes(authorization.substr(6)).value_or("");
  const size_t colon = pair.find(':');
  return colon == std::string::npos ? "" : pair.substr(colon + 1);
}

bool same_secret(std::string_view given, std::string_view secret) {
  if (secret.empty()) return false;
  volatile size_t difference = given.size() ^ secret.size();
  for (size_t i = 0; i < given.size(); ++i)
    difference = difference | static_cast<size_t>(given[i] ^ secret[i % secret.size()]);
  return difference == 0;
}

std::string base64url(std::string_view bytes) {
  std::string out = base64_text(bytes);
  out.resize(std::min(out.find('='), out.size()));
  std::ranges::replace(out, '+', '-');
  std::ranges::replace(out, '/', '_');
  return out;
}

std::string chosen_protocol(const HttpRequest& request) {
  const std::vector<std::string> offered = list_header(request.header("sec-websocket-protocol"));
  for (const std::string& protocol : offered)
    if (!has_prefix(protocol, kKeyProtocol)) return protocol;
  return offered.empty() ? "" : offered.front();
}

std::optional<HttpResponse> access_refusal(const AccessRules& rules, const HttpRequest& request,
                                           KeyRule key) {
  if (rules.loopback && !is_loopback_host(request.header("host")))
    return error_response(403, "host_refused",
                          "The Host header must name this machine's loopback address: localhost, "
                          "127.0.0.1 or [::1].");
  if (request.headers.contains("origin") && !origin_allowed(rules, request))
    return error_response(403, "origin_refused",
                          "Web pages of this Origin may not use the server; they must come from "
                          "the server itself or from an allowed origin.");
  if (key == KeyRule::kOpen || rules.api_key.empty() || key_matches(rules.api_key, request))
    return std::nullopt;
  HttpResponse response =
      error_response(401, "invalid_api_key",
                     "A valid API key is needed, as Authorization: Bearer KEY, as X-Api-Key: KEY, "
                     "or in a browser as the password, with any user name.");
  // Only a browser that opens a page may ask its user; programs read the code.
  const bool is_page = request.header("accept").find("text/html") != std::string::npos;
  response.headers.emplace_back("WWW-Authenticate",
                                is_page ? R"(Basic realm="weft", charset="UTF-8")" : "Bearer");
  return response;
}

bool is_preflight(const HttpRequest& request) {
  return request.method == "OPTIONS" && request.headers.contains("origin") &&
         request.headers.contains("access-control-request-method");
}

std::vector<std::pair<std::string, std::string>> cross_origin_headers(const AccessRules& rules,
                                                                      const HttpRequest& request) {
  if (!is_of_allowed_origin(rules, request)) return {};
  return {{"Access-Control-Allow-Origin", request.header("origin")},
          {"Access-Control-Expose-Headers",
           "Accept-Ranges, Content-Disposition, Content-Range, ETag, Location, "
           "openai-poll-after-ms, Retry-After, x-should-retry"},
          {"Vary", "Origin"}};
}

HttpResponse options_response(const AccessRules& rules, const HttpRequest& request,
                              const std::string& allow) {
  HttpResponse response{.status = 204, .headers = {{"Allow", allow}}};
  if (!is_preflight(request) || !is_of_allowed_origin(rules, request)) return response;
  constexpr const char* kSeconds = "3600";  // for which the browser need not ask again
  response.headers.emplace_back("Access-Control-Allow-Methods", allow);
  response.headers.emplace_back("Access-Control-Max-Age", kSeconds);
  const std::string& asked = request.header("access-control-request-headers");
  if (!asked.empty()) response.headers.emplace_back("Access-Control-Allow-Headers", asked);
  // A page from the internet asks so for a server of its own network.
  if (request.header("access-control-request-private-network") == "true")
    response.headers.emplace_back("Access-Control-Allow-Private-Network", "true");
  return response;
}

bool is_loopback_host(std::string_view host) {
  const std::string name = lowercase(std::string(without_port(host)));
  if (name == "localhost" || name == "[::1]") return true;
  in_addr address;
  return inet_pton(AF_INET, name.c_str(), &address) == 1 && ntohl(address.s_addr) >> 24 == 127;
}

void check_binding(const Binding& binding) {
  const bool loopback = binding.host == "::1" || is_loopback_host(binding.host);
  if (loopback || binding.has_key || binding.insecure) return;
  throw Error(ErrorKind::kUsage,
              "the server would listen on " + binding.host +
                  ", where other machines can reach it, without a key; legal: --api-key-file FILE, "
                  "an address of this machine alone as 127.0.0.1, or --insecure");
}

}  // namespace weft
