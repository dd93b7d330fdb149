#pragma once
// The messages of the server as plain values: what a client asked, and what it is answered.
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace weft {

using HttpHeaders = std::map<std::string, std::string>;

// A part of a form (multipart/form-data, RFC 7578): a text in UTF-8, or a file whose bytes lie in a
// file of the server's. That is removed once the route has returned and no copy of the request is
// left, unless the route has moved it away.
struct FormPart {
  std::string name{}, text{};
  std::string file{};  // its path; "": the part is a text
  std::string file_name{},
      content_type{};    // as the client states them, of no other use than a hint
  uint64_t bytes = 0;    // of the file
  std::string sha256{};  // of the file
};
using Form = std::vector<FormPart>;

struct HttpRequest {
  std::string method{}, path{}, query{};  // path and query are as sent, without "?" between them
  HttpHeaders headers{};  // names are lowercase; ", " joins the values of a repeated name
  std::string body{};
  std::shared_ptr<const Form> form{};  // in place of the body, where the route takes forms
  std::string remote_address{};
  std::string parameter{};  // what stands in place of {...} of the route's path

  const std::string& header(const std::string& lowercase_name) const;  // "" where it is absent
};

class ServedFile;

// An open response of Server-Sent Events. All of it may be called from any thread, also after the
// client left.
class EventStream {
 public:
  virtual ~EventStream() = default;
  // False where the event is dropped: the stream is closed, or its queue is full. An empty queue
  // takes an event of any size.
  virtual bool send(const std::string& event) = 0;
  virtual size_t queued_bytes() const = 0;  // accepted here and not yet taken by the system
  // Closes once everything that is queued was sent.
  virtual void close() = 0;
};

struct HttpResponse {
  int status = 200;
  std::string content_type = "application/json";
  std::vector<std::pair<std::string, std::string>> headers{};
  std::string body{};
  // This file, if there is one, is sent in place of `body`, a piece at a time.
  std::shared_ptr<const ServedFile> file{};
  uint64_t file_offset = 0, file_bytes = 0;
  // Is called in place of sending `body`, once the header is on its way. It returns what is called
  // once when the stream is over, whoever ended it; that may be empty.
  std::function<std::function<void()>(const std::shared_ptr<EventStream>&)> events{};
  // The response is another one, which comes later: any thread calls `respond`, the first call
  // counts. It returns what is called where the client leaves before; that may be empty. After
  // `patience`, and where the server drains, this response is sent as it stands.
  using Respond = std::function<void(const HttpResponse&)>;
  std::function<std::function<void()>(const Respond& respond)> later{};
  std::chrono::milliseconds patience{0};  // 0: for ever
};

// An event for EventStream::send(). `data` may have several lines; an empty `id` is left out.
std::string event_text(const std::string& type, const std::string& id, const std::string& data);

// The hash of what a request asks for: of its path and its body, or of a form's parts, whose
// boundary may differ from one sending to the next.
std::string hash_of(const HttpRequest& request);

// The one form of every refusal: {"error": {"message", "type", "param", "code"}}, as OpenAI's
// clients read it. The type follows from the status; `param` is the field of the request that is
// refused, "" where it is none; `hints`, if there are any, say what would pass. A message names no
// path of the machine and no address. Clients repeat a request after some statuses; those after
// which the same request would be refused again carry "x-should-retry: false".
HttpResponse error_response(int status, const std::string& code, const std::string& message,
                            const std::string& param = "",
                            const std::vector<std::string>& hints = {});

// The same for a client that may ask again after some seconds.
HttpResponse retry_response(int status, const std::string& code, const std::string& message,
                            int seconds = 10);

// True where If-None-Match names the tag, in quotation marks, of what the client asks for.
bool has_tag(const HttpRequest& request, std::string_view tag);

// The parts of "a, b" without spaces around them; empty ones are left out.
std::vector<std::string> list_header(const std::string& value);
std::string lowercase(std::string text);

}  // namespace weft
