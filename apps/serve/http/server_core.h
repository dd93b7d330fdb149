#pragma once
// A part of http_server.cc and of the connections: the state that all connections share.
#include <atomic>
#include <boost/asio/steady_timer.hpp>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_set>

#include "apps/serve/http/access.h"
#include "apps/serve/http/http_server.h"
#include "apps/serve/http/server_stream.h"
#include "apps/serve/http/upload_folder.h"

namespace weft::serve {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// Time that a connection gets after its last response so that the client reads it before the reset
// that unread bytes would cause.
constexpr milliseconds kLinger{1000};
// The same in all, for a client that goes on sending a body that was refused.
constexpr milliseconds kLongestLinger{30'000};

class Core;

// A connection of either protocol, as the server sees it. It lives in the handlers of its pending
// operations and dies on the server's thread.
class Connection {
 public:
  explicit Connection(Core& core);
  virtual ~Connection();
  virtual void begin_drain() = 0;
  virtual void end_drain() = 0;  // the deadline is near
  virtual void cut() = 0;

 protected:
  Core& core_;
};

// Counts one connection from accept to close; the upgrade hands it on.
class Slot {
 public:
  Slot(Core& core, std::string address, bool is_refused);
  ~Slot();
  const std::string address;
  const bool is_refused;

 private:
  Core& core_;
};
using SlotPtr = std::unique_ptr<Slot>;

class Core {
 public:
  explicit Core(ServerSettings given) : settings(std::move(given)) {}
  ~Core() { stop(); }

  void start();
  void stop();
  bool drain(milliseconds deadline);

  // The route of a request, whose parameter it sets; null where there is none. `allow` receives the
  // methods that the path takes.
  const Route* find(HttpRequest& request, std::string& allow) const;
  const WebSocketRoute* find_websocket(const std::string& path) const;
  void log(const AnsweredRequest& line) const {
    if (settings.answered) settings.answered(line);
  }

  const std::string& upload_folder() const { return uploads_->path(); }  // where a route has forms

  const ServerSettings settings;
  AccessRules access;
  std::shared_ptr<net::io_context> io = std::make_shared<net::io_context>(1);
  std::unordered_set<Connection*> connections;  // of the server's thread
  std::map<std::string, int> per_address;       // of the server's thread
  int refused = 0;                              // of the server's thread
  bool draining = false;                        // of the server's thread
  std::atomic<int> open{0}, websockets{0};
  uint16_t port = 0;
  void connection_ended();

 private:
  void accept();
  void accepted(tcp::socket socket);
  void end_accepting();
  template <class Action>
  void for_each(Action action) {
    for (Connection* connection : std::vector<Connection*>(connections.begin(), connections.end()))
      if (connections.contains(connection)) action(*connection);
  }

  tcp::acceptor acceptor_{*io};
  net::steady_timer retry_{*io};
  std::optional<net::ssl::context> tls_;
  std::optional<UploadFolder> uploads_;
  std::optional<net::executor_work_guard<net::io_context::executor_type>> guard_;
  std::thread thread_;
  std::mutex mutex_;
  std::condition_variable ended_;
  bool is_drained_ = false;  // under the mutex
};

inline Connection::Connection(Core& core) : core_(core) { core_.connections.insert(this); }
inline Connection::~Connection() {
  core_.connections.erase(this);
  core_.connection_ended();
}

inline Slot::Slot(Core& core, std::string from, bool refused)
    : address(std::move(from)), is_refused(refused), core_(core) {
  if (is_refused) {
    ++core_.refused;
  } else {
    ++core_.per_address[address];
    ++core_.open;
  }
}
inline Slot::~Slot() {
  if (is_refused) {
    --core_.refused;
  } else {
    if (--core_.per_address[address] == 0) core_.per_address.erase(address);
    --core_.open;
  }
}

}  // namespace weft::serve
