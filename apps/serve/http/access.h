#pragma once
// Decides who may ask: the API key, and the rules for Host and Origin that keep foreign web pages
// out.
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "apps/serve/http/http_message.h"

namespace weft {

// The key in a file: one line of 16 ... 4096 printable ASCII characters without spaces; one newline
// at the end is dropped. Throws Error(kUsage) that never shows what the file holds.
std::string read_key_file(const std::string& path);

// The key that a request states in a header, right or wrong; "" where it states none.
std::string stated_key(const HttpRequest& request);

// Compares in a time that depends on the length of `given` alone.
bool same_secret(std::string_view given, std::string_view secret);

std::string base64url(std::string_view bytes);  // without padding

// A WebSocket of a browser cannot set headers, so it may state the key as this subprotocol,
// followed by the base64url of the key.
inline constexpr std::string_view kKeyProtocol = "weft.key.";
// The subprotocol to answer with: the first offered one that is no key, else the first; "" where
// none is offered.
std::string chosen_protocol(const HttpRequest& request);

struct AccessRules {
  std::string api_key{};                       // empty: no key is needed
  std::vector<std::string> allowed_origins{};  // as browsers send them: "https://example.org"
  bool loopback = true;                        // the listener's address is a loopback address
};

enum class KeyRule : bool { kNeeded, kOpen };

// The refusal, 403 for Host or Origin and 401 for the key; nullopt where the request may pass.
// Browsers send the password that their user typed with every later request, also with those that
// foreign pages cause; the rule for Origin refuses these before the key is read.
std::optional<HttpResponse> access_refusal(const AccessRules& rules, const HttpRequest& request,
                                           KeyRule key);

// True for the question of a browser whether a page of another origin may send a request, which
// states no key.
bool is_preflight(const HttpRequest& request);
// Headers that let a page of an allowed origin read the answer; none for other requests.
std::vector<std::pair<std::string, std::string>> cross_origin_headers(const AccessRules& rules,
                                                                      const HttpRequest& request);
// The answer to OPTIONS, with the methods that the route takes.
HttpResponse options_response(const AccessRules& rules, const HttpRequest& request,
                              const std::string& allow);

bool is_loopback_host(std::string_view host);  // "localhost", "127.0.0.1" or "[::1]", port or not

struct Binding {
  std::string host;  // an address, or localhost
  bool has_key = false, insecure = false;
};
// Throws Error(kUsage) where others could reach a server that asks for no key.
void check_binding(const Binding& binding);

}  // namespace weft
