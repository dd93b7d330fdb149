#include "apps/serve/http/http_message.h"

#include <algorithm>

#include "io/json.h"
#include "io/sha256.h"
#include "io/text/utf8.h"

namespace weft {
namespace {

const char* error_type(int status) {
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

// True where the same request may be answered otherwise when it is sent again.
bool may_pass_later(int status) {
  return status == 408 || status == 429 || (status >= 500 && status != 504);
}

}  // namespace

const std::string& HttpRequest::header(const std::string& lowercase_name) const {
  static const std::string kAbsent;
  const auto found = headers.find(lowercase_name);
  return found == headers.end() ? kAbsent : found->second;
}

std::string hash_of(const HttpRequest& request) {
  std::string all = sha256_hex(request.path);
  if (!request.form) return sha256_hex(all + sha256_hex(request.body));
  for (const FormPart& part : *request.form)
    all += sha256_hex(part.name) + (part.file.empty() ? sha256_hex(part.text) : part.sha256);
  return sha256_hex(all);
}

HttpResponse error_response(int status, const std::string& code, const std::string& message,
                            const std::string& param, const std::vector<std::string>& hints) {
  constexpr size_t kLongest = 4000, kLongestParam = 200;  // both may hold what the client sent
  HttpResponse response{.status = status};
  Json error{{"message", utf8_beginning(message, kLongest)},
             {"type", error_type(status)},
             {"param", param.empty() ? Json() : Json(utf8_beginning(param, kLongestParam))},
             {"code", code}};
  if (!hints.empty()) error["hints"] = hints;
  response.body = Json{{"error", std::move(error)}}.dump_in_order() + "\n";
  if (!may_pass_later(status)) response.headers.emplace_back("x-should-retry", "false");
  return response;
}

HttpResponse retry_response(int status, const std::string& code, const std::string& message,
                            int seconds) {
  HttpResponse response = error_response(status, code, message);
  response.headers.emplace_back("Retry-After", std::to_string(seconds));
  return response;
}

std::string event_text(const std::string& type, const std::string& id, const std::string& data) {
  std::string text = "event: " + type + "\n";
  if (!id.empty()) text += "id: " + id + "\n";
  for (size_t begin = 0; begin <= data.size();) {
    const size_t end = std::min(data.find('\n', begin), data.size());
    text += "data: " + data.substr(begin, end - begin) + "\n";
    begin = end + 1;
  }
  return text + "\n";
}

bool has_tag(const HttpRequest& request, std::string_view tag) {
  const std::vector<std::string> given = list_header(request.header("if-none-match"));
  return std::ranges::any_of(given, [&](std::string_view one) {
    if (one.starts_with("W/")) one.remove_prefix(2);
    return one == "*" || one == tag;
  });
}

std::vector<std::string> list_header(const std::string& value) {
  std::vector<std::string> parts;
  for (size_t begin = 0; begin <= value.size();) {
    const size_t end = std::min(value.find(',', begin), value.size());
    const size_t first = value.find_first_not_of(" \t", begin);
    if (first < end) {
      const size_t last = value.find_last_not_of(" \t", end - 1);
      parts.push_back(value.substr(first, last - first + 1));
    }
    begin = end + 1;
  }
  return parts;
}

std::string lowercase(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

}  // namespace weft
