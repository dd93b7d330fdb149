#pragma once
// ServerConnection: a worker's WebSocket to its server. A thread of its own reads and writes, so
// that a worker that computes still answers pings; it sleeps while nothing comes.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

namespace weft {

struct ServerAddress {
  std::string host{};
  uint16_t port = 0;
};

class ServerConnection {
 public:
  // Connects. `text` is called with each message, and `ended` once where the server or the network
  // ended the connection; both on the connection's thread. Error(kComm) where there is no server,
  // kUsage where it refuses the key or has no workers.
  ServerConnection(const ServerAddress& address, const std::string& path, const std::string& key,
                   std::function<void(std::string_view message)> text, std::function<void()> ended);
  ~ServerConnection();  // sends what is queued, and closes

  // Queue a message; it is dropped once the connection has ended. Any thread may call them.
  void send_text(std::string message);
  void send_binary(std::string message);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
