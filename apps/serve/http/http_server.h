#pragma once
// An HTTP and WebSocket server with limits on everything a client can make large or slow. It runs
// on a thread of its own. Routes and callbacks are called on that thread, one at a time, and must
// return at once.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/serve/http/http_message.h"

namespace weft {

struct ServerLimits {
  int connections = 1024, connections_per_address = 64;  // beyond them: 503
  size_t header_bytes = 16 << 10, header_fields = 100;   // 431
  size_t uri_bytes = 8 << 10;                            // 414
  size_t body_bytes = 64 << 20, body_chunks = 65536;     // 413
  size_t form_bytes = 512 << 20;                         // of a form with its files: 413
  int form_parts = 1000;                                 // 413
  size_t message_bytes = 1 << 20;                        // of a WebSocket: close 1009
  double messages_per_second = 100;                      // close 1008
  size_t queue_bytes = 8 << 20;                          // of messages or events: sending fails
  // 408: the header did not come in time, or no byte of the body did.
  std::chrono::milliseconds header_timeout{10'000}, body_timeout{30'000};
  // An idle connection between two requests, and a client that does not take its response.
  std::chrono::milliseconds idle_timeout{60'000};
  // A silent WebSocket is sent a ping after this time, and is closed after twice as long.
  std::chrono::milliseconds ping_interval{30'000};
  // A silent stream of events is sent a comment after this time.
  std::chrono::milliseconds comment_interval{15'000};
};

// One open WebSocket. All of it may be called from any thread, also after the socket closed.
class WebSocket {
 public:
  virtual ~WebSocket() = default;
  // False where the message is dropped: the socket is closed, or its queue is full.
  virtual bool send_text(std::string message) = 0;
  virtual bool send_binary(std::string message) = 0;
  virtual size_t queued_bytes() const = 0;  // accepted here and not yet taken by the system
  // Closes once everything that is queued was sent.
  virtual void close(uint16_t code, std::string reason) = 0;
};

// Absent callbacks are skipped.
struct WebSocketHandler {
  std::function<void(std::string_view message)> text, binary;
  // Called once. The code is the peer's, this side's, or 1006 where the connection broke.
  std::function<void(uint16_t code)> closed;
  // Called when the server drains. The handler then closes the socket when its work is done; the
  // server closes sockets that remain before the deadline, and those without this hook, with 1012.
  std::function<void()> draining;
};

struct Route {
  // The path may have one segment in braces, as /v1/jobs/{id}/cancel. It takes letters, digits,
  // '-',
  // '_' and '.', and is handed on as HttpRequest::parameter.
  std::string method, path;  // GET answers HEAD, too
  std::function<HttpResponse(const HttpRequest&)> answer;
  bool open = false;            // needs no key
  bool while_draining = false;  // answers during a drain, too
  bool forms = false;           // takes multipart/form-data, too: HttpRequest::form
};

struct WebSocketRoute {
  std::string path;
  // Answers in place of the upgrade where it returns a response. May be absent.
  std::function<std::optional<HttpResponse>(const HttpRequest&)> refuse;
  std::function<WebSocketHandler(const HttpRequest&, std::shared_ptr<WebSocket>)> open;
};

// One line of the log: a request that was answered, or a connection that was refused.
struct AnsweredRequest {
  std::string method, route;  // the registered path, "" where there is none
  int status = 0;
  double seconds = 0;
};

struct ServerSettings {
  std::string host = "127.0.0.1";  // an address, or localhost
  uint16_t port = 0;               // 0: any free one, see port()
  ServerLimits limits;
  std::string certificate_file, key_file;  // PEM files; TLS where both are given
  std::vector<std::string> allowed_origins;
  std::string api_key;          // empty: no key is needed
  bool insecure = false;        // allows an address that others reach although no key is needed
  std::string upload_folder{};  // of the files of forms; "": the folder of temporary files
  std::vector<Route> routes;
  std::vector<WebSocketRoute> websockets;
  std::function<void(const AnsweredRequest&)> answered;  // may be absent
};

class HttpServer {
 public:
  explicit HttpServer(ServerSettings settings);
  ~HttpServer();  // stops

  // Throws Error(kUsage): the address, port, key or certificate is unusable; kOutput: no folder for
  // the files of forms can be made.
  void start();
  uint16_t port() const;  // valid after start()
  int connections() const;
  int websockets() const;

  // Accepts no more connections, answers requests with 503, and lets WebSockets end. Returns after
  // the last connection ended or at the deadline, when the rest is cut: false.
  bool drain(std::chrono::milliseconds deadline);
  void stop();  // cuts all connections; the server cannot be started again

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Reads one request from bytes as a connection would, for tests. `status` is what its header or its
// form is refused with, 200 where it may go to a route, and 0 where more bytes are needed.
struct ReadRequest {
  int status = 0;
  HttpRequest request;
};
ReadRequest read_request(std::string_view bytes, const ServerLimits& limits);

}  // namespace weft
