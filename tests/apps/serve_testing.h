#pragma once
// A client of raw sockets for the tests of the server: it can send what no library would.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <string>
#include <utility>

#include "apps/serve/http/http_server.h"

namespace weft {

using namespace std::chrono_literals;

inline const std::string kKey = "0123456789abcdef";

// A connection to the server at a loopback address. Reads end at the latest after 20 s, so that a
// server that does not answer fails the test.
class RawClient {
 public:
  explicit RawClient(uint16_t port, const char* from = "127.0.0.1") {
    fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, from, &address.sin_addr);
    is_open_ = fd_ >= 0 && bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
    inet_pton(AF_INET, "127.0.0.1", &address.sin_addr);
    address.sin_port = htons(port);
    is_open_ = is_open_ && connect(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0;
  }
  RawClient(RawClient&& other) noexcept
      : fd_(std::exchange(other.fd_, -1)), is_open_(other.is_open_), rest_(other.rest_) {}
  RawClient& operator=(RawClient&&) = delete;
  ~RawClient() {
    if (fd_ >= 0) close(fd_);
  }

  bool is_open() const { return is_open_; }

  // False where the server took no more.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(fd_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<size_t>(sent));
    }
    return true;
  }

  // The bytes that came by the time there are `count`, or all up to the end of the connection.
  std::string read(size_t count) {
    while (rest_.size() < count && more()) {
    }
    std::string out = rest_.substr(0, count);
    rest_.erase(0, out.size());
    return out;
  }
  std::string read_until(const std::string& mark) {
    size_t found;
    while ((found = rest_.find(mark)) == std::string::npos && more()) {
    }
    return read(found == std::string::npos ? rest_.size() : found + mark.size());
  }
  bool ended() { return rest_.empty() && !more(); }

  struct Answer {
    int status = 0;  // 0: none came
    std::string header, body;
    bool has(const std::string& line) const {
      return header.find("\r\n" + line + "\r\n") != std::string::npos;
    }
  };
  Answer answer() {
    Answer answer;
    answer.header = read_until("\r\n\r\n");
    if (answer.header.size() < 12) return answer;
    answer.status = std::stoi(answer.header.substr(9, 3));
    const size_t at = answer.header.find("Content-Length: ");
    if (at != std::string::npos) answer.body = read(std::stoul(answer.header.substr(at + 16)));
    return answer;
  }
  Answer ask(const std::string& bytes) {
    send(bytes);
    return answer();
  }

  void finish() { shutdown(fd_, SHUT_WR); }
  int descriptor() const { return fd_; }

 private:
  bool more() {
    pollfd waiting{fd_, POLLIN, 0};
    if (poll(&waiting, 1, 20'000) != 1) return false;
    char bytes[65536];
    const ssize_t count = recv(fd_, bytes, sizeof bytes, 0);
    if (count > 0) rest_.append(bytes, static_cast<size_t>(count));
    return count > 0;
  }

  int fd_;
  bool is_open_;
  std::string rest_;
};

inline std::string get(const std::string& target, const std::string& headers = "") {
  return "GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n";
}
inline std::string post(const std::string& target, const std::string& body) {
  return "POST " + target +
         " HTTP/1.1\r\nHost: localhost\r\nContent-Length: " + std::to_string(body.size()) +
         "\r\n\r\n" + body;
}

// Settings with a route that needs no key, one that takes a body, and a WebSocket that echoes.
inline ServerSettings echo_settings() {
  ServerSettings settings;
  const auto ok = [](const HttpRequest&) { return HttpResponse{.body = "ok"}; };
  settings.routes = {
      {"GET", "/health/live", ok, true, true},
      {"GET", "/task", ok},
      {"POST", "/echo",
       [](const HttpRequest& request) {
         return HttpResponse{.body = std::to_string(request.body.size()) + " " + request.query};
       }},
  };
  const auto echo = [](const HttpRequest&, std::shared_ptr<WebSocket> socket) {
    WebSocketHandler handler;
    handler.text = [socket](std::string_view text) { socket->send_text(std::string(text)); };
    handler.binary = [socket](std::string_view bytes) { socket->send_binary(std::string(bytes)); };
    return handler;
  };
  settings.websockets = {{"/stream", nullptr, echo}};
  return settings;
}

struct RunningServer {
  explicit RunningServer(ServerSettings settings) : server(std::move(settings)) { server.start(); }
  RawClient connect(const char* from = "127.0.0.1") { return RawClient(server.port(), from); }
  RawClient::Answer ask(const std::string& bytes) { return connect().ask(bytes); }
  HttpServer server;
};

// A frame as clients send it, masked with zeros.
inline std::string client_frame(int first_byte, const std::string& payload) {
  std::string frame(1, static_cast<char>(first_byte));
  if (payload.size() < 126) {
    frame += static_cast<char>(0x80 | payload.size());
  } else {
    frame += static_cast<char>(0x80 | 127);
    for (int shift = 56; shift >= 0; shift -= 8)
      frame += static_cast<char>(uint64_t{payload.size()} >> shift);
  }
  return frame + std::string(4, '\0') + payload;
}
inline std::string text_frame(const std::string& text) { return client_frame(0x81, text); }

inline std::string upgrade(const std::string& headers = "") {
  return get("/stream",
             "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
             "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n" +
                 headers);
}

struct ServerFrame {
  int opcode = -1;  // -1: the connection ended
  std::string payload;
  int close_code() const {
    if (opcode != 8 || payload.size() < 2) return 0;
    return static_cast<unsigned char>(payload[0]) << 8 | static_cast<unsigned char>(payload[1]);
  }
};
inline ServerFrame read_frame(RawClient& client) {
  const std::string head = client.read(2);
  if (head.size() < 2) return {};
  uint64_t size = static_cast<unsigned char>(head[1]) & 127;
  if (size > 125) {
    const std::string extended = client.read(size == 126 ? 2 : 8);
    size = 0;
    for (const char c : extended) size = size << 8 | static_cast<unsigned char>(c);
  }
  return {head[0] & 15, client.read(size)};
}
// The code of the close frame that ends what comes; 0 where the connection ends without one.
inline int read_close(RawClient& client) {
  for (;;) {
    const ServerFrame frame = read_frame(client);
    if (frame.opcode == 8) return frame.close_code();
    if (frame.opcode < 0) return 0;
  }
}

}  // namespace weft
