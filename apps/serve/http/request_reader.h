#pragma once
// A part of http_server.cc and of the connections: reads a request within the limits.
#include <algorithm>
#include <boost/beast/core.hpp>
#include <boost/beast/http.hpp>
#include <functional>
#include <string>

#include "apps/serve/http/http_server.h"

namespace weft::serve {

namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace net = boost::asio;
using boost::system::error_code;

inline std::string text(beast::string_view view) { return {view.data(), view.size()}; }

// A body as a string that grows as the bytes come, however long the header says that it is.
struct GrowingBody {
  using value_type = std::string;
  class reader {
   public:
    template <class Header>
    reader(Header&, std::string& body) : body_(body) {}
    void init(const boost::optional<uint64_t>&, error_code& error) { error = {}; }
    template <class Buffers>
    size_t put(const Buffers& buffers, error_code& error) {
      error = {};
      const size_t before = body_.size();
      for (const net::const_buffer buffer : beast::buffers_range_ref(buffers))
        body_.append(static_cast<const char*>(buffer.data()), buffer.size());
      return body_.size() - before;
    }
    void finish(error_code& error) { error = {}; }

   private:
    std::string& body_;
  };
};
using Parser = http::request_parser<GrowingBody>;

// Counts the chunks of a body, because Beast limits their sizes alone.
class LimitedParser {
 public:
  explicit LimitedParser(const ServerLimits& limits) : limits_(limits) {
    parser_.header_limit(static_cast<uint32_t>(limits.header_bytes));
    parser_.body_limit(std::max(limits.body_bytes, limits.form_bytes));
    parser_.eager(true);
    parser_.on_chunk_header(count_);
  }
  Parser& parser() { return parser_; }

  // The status for an error of the parser; 0 where the connection just ended.
  int status_of(const error_code& error) {
    if (error == http::error::header_limit) return parser_.get().target().empty() ? 414 : 431;
    if (error == http::error::buffer_overflow) return parser_.is_header_done() ? 413 : 431;
    if (error == http::error::body_limit) return 413;
    if (error == http::error::end_of_stream || error == http::error::partial_message) return 0;
    return error.category() == make_error_code(http::error::bad_method).category() ? 400 : 0;
  }

  // The status for a complete header: 200 where it may pass.
  int status_of_header() {
    const auto& message = parser_.get();
    if (message.target().size() > limits_.uri_bytes) return 414;
    if (std::distance(message.begin(), message.end()) >
        static_cast<std::ptrdiff_t>(limits_.header_fields))
      return 431;
    if (message.target().empty() || message.target().front() != '/') return 400;
    if (message.count(http::field::host) > 1 || !has_one_length()) return 400;
    return message.version() >= 11 && message.count(http::field::host) == 0 ? 400 : 200;
  }

  // Limits the body, once the header is read: false where the header states a longer one.
  bool limit_body(size_t bytes) {
    parser_.body_limit(bytes);
    const auto length = parser_.content_length();
    return !length || *length <= bytes;
  }

  // The request without its body. Trailers come later and do not count as headers.
  HttpRequest head() {
    const auto& message = parser_.get();
    HttpRequest request;
    request.method = text(message.method_string());
    const std::string target = text(message.target());
    const size_t mark = target.find('?');
    request.path = target.substr(0, mark);
    if (mark != std::string::npos) request.query = target.substr(mark + 1);
    for (const auto& field : message) {
      std::string& value = request.headers[lowercase(text(field.name_string()))];
      value += (value.empty() ? "" : ", ") + text(field.value());
    }
    return request;
  }

 private:
  // Two statements of a body's length would make two requests of one for a reader that believes the
  // other statement, and so would a coding that is not read here.
  bool has_one_length() const {
    const auto& message = parser_.get();
    const size_t codings = message.count(http::field::transfer_encoding);
    if (codings == 0) return true;
    return codings == 1 && message.count(http::field::content_length) == 0 &&
           beast::iequals(message[http::field::transfer_encoding], "chunked");
  }

  const ServerLimits& limits_;
  Parser parser_;
  size_t chunks_ = 0;
  std::function<void(uint64_t, beast::string_view, error_code&)> count_ =
      [this](uint64_t, beast::string_view, error_code& error) {
        if (++chunks_ > limits_.body_chunks) error = http::error::body_limit;
      };
};

inline HttpResponse refusal_of(int status) {
  switch (status) {
    case 408:
      return error_response(408, "timeout", "The request did not arrive in time.");
    case 413:
      return error_response(413, "payload_too_large", "The body is larger than allowed.");
    case 414:
      return error_response(414, "uri_too_long", "The URI is longer than allowed.");
    case 431:
      return error_response(431, "headers_too_large",
                            "The header has more bytes or fields than allowed.");
    case 503:
      return retry_response(503, "busy", "The server has as many connections as it takes.", 1);
    default:
      return error_response(400, "invalid_request", "The request is malformed.");
  }
}

}  // namespace weft::serve
