#include "apps/serve/http/websocket_connection.h"

#include <boost/beast/websocket.hpp>
#include <deque>

namespace weft::serve {
namespace {

// Time that a client gets to answer a close.
constexpr milliseconds kCloseTimeout{2000};

// Bytes that the system holds of what was sent and has not arrived; Linux doubles it.
constexpr int kSendBuffer = 64 << 10;

struct Frame {
  std::string data;
  bool is_text = false;
};

class WebSocketConnection;

class SocketHandle final : public WebSocket {
 public:
  SocketHandle(std::shared_ptr<net::io_context> io, std::weak_ptr<WebSocketConnection> connection,
               size_t limit)
      : io_(std::move(io)), connection_(std::move(connection)), limit_(limit) {}

  bool send_text(std::string message) override { return send({std::move(message), true}); }
  bool send_binary(std::string message) override { return send({std::move(message), false}); }
  size_t queued_bytes() const override { return queued_; }
  void close(uint16_t code, std::string reason) override;
  void sent(size_t bytes) { queued_ -= bytes; }
  void ended() { is_open_ = false; }

 private:
  bool send(Frame frame);

  const std::shared_ptr<net::io_context> io_;
  const std::weak_ptr<WebSocketConnection> connection_;
  const size_t limit_;
  std::atomic<size_t> queued_{0};
  std::atomic<bool> is_open_{true};
};

class WebSocketConnection final : public Connection,
                                  public std::enable_shared_from_this<WebSocketConnection> {
 public:
  WebSocketConnection(Core& core, ServerStream stream, SlotPtr slot)
      : Connection(core), slot_(std::move(slot)), stream_(std::move(stream)), timer_(*core.io) {
    ++core_.websockets;
  }
  ~WebSocketConnection() override {
    finish(1006);
    --core_.websockets;
  }

  void accept(const WebSocketRoute& route, HttpRequest request, Parser::value_type message) {
    const ServerLimits& limits = core_.settings.limits;
    ws::stream_base::timeout timeout;
    timeout.handshake_timeout = limits.header_timeout;
    timeout.idle_timeout = 2 * limits.ping_interval;  // Beast sends a ping after half of it
    timeout.keep_alive_pings = true;
    stream_.set_option(timeout);
    stream_.read_message_max(limits.message_bytes);
    stream_.auto_fragment(false);  // a message is a frame
    // Bytes that the system holds for a slow client can be neither seen nor dropped: few are.
    error_code ignored;
    stream_.next_layer().next_layer().set_option(net::socket_base::send_buffer_size(kSendBuffer),
                                                 ignored);
    stream_.set_option(ws::stream_base::decorator(
        [protocol = chosen_protocol(request)](ws::response_type& response) {
          if (!protocol.empty()) response.set(http::field::sec_websocket_protocol, protocol);
        }));
    stream_.control_callback([this](ws::frame_type kind, beast::string_view) {
      if (kind != ws::frame_type::close) count_message();
    });
    message_ = std::move(message);
    stream_.async_accept(message_, [self = shared_from_this(), &route,
                                    request = std::move(request)](error_code error) {
      if (!error) self->opened(route, request);
    });
  }

  void enqueue(Frame frame) {
    if (close_code_ || !handle_) return;
    queue_.push_back(std::move(frame));
    if (queue_.size() == 1) write();
  }
  void close_after_queue(uint16_t code, std::string reason) {
    if (close_code_) return;
    if (handle_) handle_->ended();
    close_code_ = code;
    reason_ = std::move(reason);
    timer_.expires_after(kCloseTimeout);
    timer_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (!error && self) self->cut();
    });
    if (queue_.empty()) send_close();
  }

  void begin_drain() override {
    if (!handle_) return;  // opened() asks again
    if (!handler_.draining) return end_drain();
    guarded([&] { handler_.draining(); });
  }
  void end_drain() override {
    if (!handle_) return cut();
    close_after_queue(1012, "the server restarts");
  }
  void cut() override {
    error_code ignored;
    stream_.next_layer().next_layer().close(ignored);
    timer_.cancel();
  }

 private:
  void opened(const WebSocketRoute& route, const HttpRequest& request) {
    handle_ = std::make_shared<SocketHandle>(core_.io, weak_from_this(),
                                             core_.settings.limits.queue_bytes);
    guarded([&] { handler_ = route.open(request, handle_); });
    if (core_.draining) begin_drain();
    read();
  }

  // An exception of a handler ends its socket, not the server.
  template <class Call>
  void guarded(Call call) {
    try {
      call();
    } catch (const std::exception&) {
      close_after_queue(1011, "internal error");
    }
  }

  void read() {
    stream_.async_read(
        buffer_, [self = shared_from_this()](error_code error, size_t) { self->was_read(error); });
  }
  void was_read(error_code error) {
    if (error) return ended(error);
    count_message();
    if (!close_code_) {
      const std::string_view message(static_cast<const char*>(buffer_.cdata().data()),
                                     buffer_.size());
      const auto& callback = stream_.got_text() ? handler_.text : handler_.binary;
      if (callback) guarded([&] { callback(message); });
    }
    buffer_.consume(buffer_.size());
    if (buffer_.capacity() > 64 << 10) buffer_.shrink_to_fit();
    read();
  }
  void ended(error_code error) {
    uint16_t code = 1006;
    if (error == ws::error::closed) code = stream_.reason().code;
    if (error == ws::error::message_too_big) code = 1009;
    if (close_code_) code = *close_code_;
    finish(code);
    cut();
  }
  void finish(uint16_t code) {
    if (!handle_) return;
    handle_->ended();
    const auto closed = std::move(handler_.closed);
    handler_ = {};
    handle_ = nullptr;
    if (!closed) return;
    try {
      closed(code);
    } catch (const std::exception&) {  // the socket is gone: nobody is left to tell
    }
  }

  void count_message() {
    const double limit = core_.settings.limits.messages_per_second;
    const Clock::time_point now = Clock::now();
    const double passed = std::chrono::duration<double>(now - counted_).count();
    counted_ = now;
    allowance_ = std::min(limit, (allowance_ < 0 ? limit : allowance_) + passed * limit) - 1;
    if (allowance_ >= 0 || !handle_) return;
    allowance_ = 0;
    close_after_queue(1008, "too many messages");
  }

  void write() {
    stream_.text(queue_.front().is_text);
    stream_.async_write(
        net::buffer(queue_.front().data),
        [self = shared_from_this()](error_code error, size_t) { self->was_written(error); });
  }
  void was_written(error_code error) {
    if (handle_) handle_->sent(queue_.front().data.size());
    queue_.pop_front();
    if (error) return cut();
    if (!queue_.empty()) return write();
    if (close_code_) send_close();
  }
  void send_close() {
    // A close frame has room for 123 bytes of text.
    const ws::close_reason reason(
        static_cast<ws::close_code>(*close_code_),
        beast::string_view(reason_.data(), std::min<size_t>(reason_.size(), 123)));
    stream_.async_close(reason, [self = shared_from_this()](error_code) {
      self->finish(*self->close_code_);
      self->cut();
    });
  }

  SlotPtr slot_;
  ws::stream<ServerStream> stream_;
  net::steady_timer timer_;
  Parser::value_type message_;
  beast::flat_buffer buffer_;
  std::shared_ptr<SocketHandle> handle_;  // null before the handshake and after the end
  WebSocketHandler handler_;
  std::deque<Frame> queue_;  // the first one is being written
  std::optional<uint16_t> close_code_;
  std::string reason_;
  double allowance_ = -1;
  Clock::time_point counted_ = Clock::now();
};

void SocketHandle::close(uint16_t code, std::string reason) {
  if (!is_open_.exchange(false)) return;
  net::post(*io_, [connection = connection_, code, reason = std::move(reason)] {
    if (const auto alive = connection.lock()) alive->close_after_queue(code, reason);
  });
}

bool SocketHandle::send(Frame frame) {
  const size_t bytes = frame.data.size();
  if (!is_open_) return false;
  if (queued_.fetch_add(bytes) + bytes > limit_) {
    queued_ -= bytes;
    return false;
  }
  net::post(*io_, [connection = connection_, frame = std::move(frame)]() mutable {
    if (const auto alive = connection.lock()) alive->enqueue(std::move(frame));
  });
  return true;
}

}  // namespace

void open_websocket(Core& core, ServerStream stream, SlotPtr slot, const WebSocketRoute& route,
                    HttpRequest request, Parser::value_type message) {
  std::make_shared<WebSocketConnection>(core, std::move(stream), std::move(slot))
      ->accept(route, std::move(request), std::move(message));
}

}  // namespace weft::serve
