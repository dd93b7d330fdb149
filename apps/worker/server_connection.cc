#include "apps/worker/server_connection.h"

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/websocket.hpp>
#include <deque>
#include <thread>

#include "kernels/check.h"

namespace weft {
namespace {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace http = boost::beast::http;
namespace ws = boost::beast::websocket;
using ErrorCode = boost::system::error_code;

constexpr size_t kMostMessage = size_t{64} << 20;
constexpr std::chrono::seconds kHandshake{30}, kIdle{60}, kClosing{2};

struct QueuedMessage {
  std::string data;
  bool is_text = false;
};

}  // namespace

struct ServerConnection::Impl {
  Impl(std::function<void(std::string_view)> on_text, std::function<void()> on_end)
      : text(std::move(on_text)), ended(std::move(on_end)) {}

  void connect(const ServerAddress& address, const std::string& path, const std::string& key) {
    const std::string authority =
        (address.host.find(':') == std::string::npos ? address.host : "[" + address.host + "]") +
        ":" + std::to_string(address.port);
    ErrorCode error;
    net::ip::tcp::resolver resolver(io);
    const auto found = resolver.resolve(address.host, std::to_string(address.port), error);
    if (!error) net::connect(stream.next_layer(), found, error);
    if (error)
      throw Error(ErrorKind::kComm,
                  "the server at " + authority + " cannot be reached: " + error.message());
    stream.next_layer().set_option(net::ip::tcp::no_delay(true), error);
    stream.set_option(ws::stream_base::timeout{kHandshake, kIdle, true});
    stream.set_option(ws::stream_base::decorator([&](ws::request_type& request) {
      if (!key.empty()) request.set(http::field::authorization, "Bearer " + key);
    }));
    stream.read_message_max(kMostMessage);
    ws::response_type response;
    // Unlike its twin that blocks, it has a time limit, and tells the response of a refusal.
    bool is_done = false;
    stream.async_handshake(response, authority, path, [&](ErrorCode told) {
      error = told;
      is_done = true;
    });
    while (!is_done) io.run_one();
    if (error == ws::error::upgrade_declined)
      refuse(authority, static_cast<int>(response.result_int()));
    if (error)
      throw Error(ErrorKind::kComm,
                  "the server at " + authority + " does not speak WebSocket: " + error.message());
    read();
    thread = std::thread([this] { io.run(); });
  }
  [[noreturn]] static void refuse(const std::string& authority, int status) {
    const std::string server = "the server at " + authority;
    if (status == 401 || status == 403)
      throw Error(ErrorKind::kUsage, server +
                                         " refuses the key of this worker; legal: the key of its "
                                         "--api-key-file, as --api-key-file here");
    if (status == 404 || status == 426)
      throw Error(ErrorKind::kUsage, server + " takes no workers; legal: weft serve");
    throw Error(ErrorKind::kComm, server + " answers with " + std::to_string(status));
  }

  void read() {
    stream.async_read(buffer, [this](ErrorCode error, size_t) {
      if (error) return end();
      const std::string_view message(static_cast<const char*>(buffer.cdata().data()),
                                     buffer.size());
      if (stream.got_text()) text(message);
      buffer.consume(buffer.size());
      read();
    });
  }
  void end() {
    if (is_over) return;
    is_over = true;
    queue.clear();
    if (!is_closing) ended();
    io.stop();
  }

  void send(QueuedMessage message) {
    net::post(io, [this, message = std::move(message)]() mutable {
      if (is_over) return;
      queue.push_back(std::move(message));
      if (queue.size() == 1) write();
    });
  }
  void write() {
    stream.text(queue.front().is_text);
    stream.async_write(net::buffer(queue.front().data), [this](ErrorCode error, size_t) {
      if (error) return end();
      queue.pop_front();
      if (!queue.empty()) return write();
      if (is_closing) close();
    });
  }
  void close() {
    stream.async_close(ws::close_code::normal, [this](ErrorCode) { end(); });
  }
  void close_after_queue() {
    net::post(io, [this] {
      is_closing = true;
      timer.expires_after(kClosing);
      timer.async_wait([this](ErrorCode error) {
        if (!error) end();
      });
      if (queue.empty()) close();
    });
    thread.join();
  }

  const std::function<void(std::string_view)> text;
  const std::function<void()> ended;
  net::io_context io{1};
  ws::stream<net::ip::tcp::socket> stream{io};
  net::steady_timer timer{io};
  beast::flat_buffer buffer;
  std::deque<QueuedMessage> queue;  // the first one is being written
  bool is_over = false, is_closing = false;
  std::thread thread;
};

ServerConnection::ServerConnection(const ServerAddress& address, const std::string& path,
                                   const std::string& key,
                                   std::function<void(std::string_view message)> text,
                                   std::function<void()> ended)
    : impl_(std::make_unique<Impl>(std::move(text), std::move(ended))) {
  impl_->connect(address, path, key);
}
ServerConnection::~ServerConnection() { impl_->close_after_queue(); }

void ServerConnection::send_text(std::string message) { impl_->send({std::move(message), true}); }
void ServerConnection::send_binary(std::string message) {
  impl_->send({std::move(message), false});
}

}  // namespace weft
