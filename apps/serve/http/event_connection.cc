#include "apps/serve/http/event_connection.h"

#include <algorithm>
#include <boost/asio/write.hpp>
#include <cstdio>
#include <mutex>
#include <utility>
#include <vector>

#include "apps/serve/http/file_response.h"

namespace weft::serve {
namespace {

class EventConnection;

// Keeps events in the order of the calls: posts of several threads have none.
class EventHandle final : public EventStream {
 public:
  EventHandle(std::shared_ptr<net::io_context> io, std::weak_ptr<EventConnection> connection,
              size_t limit)
      : io_(std::move(io)), connection_(std::move(connection)), limit_(limit) {}

  bool send(const std::string& event) override;
  size_t queued_bytes() const override {
    const std::lock_guard lock(mutex_);
    return queued_;
  }
  void close() override;

  // For the connection: what was sent since the last call, and whether that is all.
  struct Sent {
    std::vector<std::string> events{};
    bool is_all = false;
  };
  Sent take() {
    const std::lock_guard lock(mutex_);
    return {std::exchange(events_, {}), is_closed_};
  }
  void sent(size_t bytes) {
    const std::lock_guard lock(mutex_);
    queued_ -= bytes;
  }
  void ended() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
  }

 private:
  void wake();

  const std::shared_ptr<net::io_context> io_;
  const std::weak_ptr<EventConnection> connection_;
  const size_t limit_;
  mutable std::mutex mutex_;  // guards the members below
  std::vector<std::string> events_;
  size_t queued_ = 0;
  bool is_closed_ = false;
};

class EventConnection final : public Connection,
                              public std::enable_shared_from_this<EventConnection> {
 public:
  EventConnection(Core& core, ServerStream stream, SlotPtr slot, bool in_chunks)
      : Connection(core),
        slot_(std::move(slot)),
        stream_(std::move(stream)),
        deadline_(*core.io),
        pause_(*core.io),
        in_chunks_(in_chunks) {}
  ~EventConnection() override { finish(); }

  void open(const HttpResponse& response) {
    error_code ignored;
    stream_.next_layer().set_option(net::socket_base::send_buffer_size(kSendBuffer), ignored);
    waiting_ =
        "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-store\r\n"
        "X-Content-Type-Options: nosniff\r\nConnection: close\r\n";
    for (const auto& [name, value] : response.headers) waiting_ += name + ": " + value + "\r\n";
    waiting_ += in_chunks_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n";
    handle_ = std::make_shared<EventHandle>(core_.io, weak_from_this(),
                                            core_.settings.limits.queue_bytes);
    write();
    watch();
    comment_later();
    try {
      closed_ = response.events(handle_);
    } catch (const std::exception&) {  // of the route: it ends the stream, not the server
      end();
    }
    if (core_.draining) end();
  }

  // Something was sent, or the stream was closed.
  void woken() {
    if (is_ending_) return;
    const EventHandle::Sent sent = handle_->take();
    for (const std::string& event : sent.events) {
      waiting_bytes_ += event.size();
      add(event);
    }
    if (sent.is_all) return end();
    if (!is_writing_) write();
  }
  // Ends the stream after what is queued.
  void end() {
    if (std::exchange(is_ending_, true)) return;
    handle_->ended();
    if (in_chunks_) waiting_ += "0\r\n\r\n";
    if (!is_writing_) write();
  }

  void begin_drain() override {
    woken();  // what was sent before is told
    end();
  }
  void end_drain() override { end(); }
  void cut() override {
    error_code ignored;
    stream_.next_layer().close(ignored);
    deadline_.cancel();
    pause_.cancel();
  }

 private:
  // Bytes that the system holds of what was sent and has not arrived; Linux doubles it.
  static constexpr int kSendBuffer = 64 << 10;

  void add(const std::string& text) {
    if (!in_chunks_) {
      waiting_ += text;
      return;
    }
    char size[20];
    std::snprintf(size, sizeof size, "%zx\r\n", text.size());
    waiting_ += size + text + "\r\n";
  }

  void write() {
    if (waiting_.empty()) {
      if (is_ending_) linger();
      return;
    }
    is_writing_ = true;
    written_ = std::exchange(waiting_, {});
    written_bytes_ = std::exchange(waiting_bytes_, 0);
    write_piece(0);
  }
  // A client that takes its time for a large event is not idle.
  void write_piece(size_t from) {
    cut_after(core_.settings.limits.idle_timeout);
    const size_t to = std::min(from + kFilePiece, written_.size());
    net::async_write(stream_, net::buffer(written_.data() + from, to - from),
                     [self = shared_from_this(), to](error_code error, size_t) {
                       if (!error && to < self->written_.size()) return self->write_piece(to);
                       self->is_writing_ = false;
                       self->deadline_.cancel();
                       self->handle_->sent(self->written_bytes_);
                       self->written_.clear();
                       error ? self->cut() : self->write();
                     });
  }
  void cut_after(milliseconds time) {
    deadline_.expires_after(time);
    deadline_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (!error && self) self->cut();
    });
  }

  // Drops what the client still sends, and learns when it leaves.
  void watch() {
    stream_.async_read_some(net::buffer(dropped_),
                            [self = shared_from_this()](error_code error, size_t) {
                              if (!error) return self->watch();
                              self->finish();
                              self->cut();
                            });
  }
  // The client reads the end before the connection does.
  void linger() {
    finish();
    cut_after(kLinger);
    error_code ignored;
    stream_.next_layer().shutdown(tcp::socket::shutdown_send, ignored);
  }

  // A comment shows clients and proxies that a silent stream lives.
  void comment_later() {
    pause_.expires_after(core_.settings.limits.comment_interval);
    pause_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (error || !self || self->is_ending_) return;
      if (!self->is_writing_) {
        self->add(": still here\n\n");
        self->write();
      }
      self->comment_later();
    });
  }

  void finish() {
    is_ending_ = true;
    if (handle_) handle_->ended();
    const auto closed = std::exchange(closed_, nullptr);
    if (!closed) return;
    try {
      closed();
    } catch (const std::exception&) {  // the client is gone: nobody is left to tell
    }
  }

  SlotPtr slot_;
  ServerStream stream_;
  net::steady_timer deadline_;  // of a write
  net::steady_timer pause_;     // to the next comment
  const bool in_chunks_;
  std::shared_ptr<EventHandle> handle_;
  std::function<void()> closed_;
  std::string waiting_, written_;                 // as they are sent
  size_t waiting_bytes_ = 0, written_bytes_ = 0;  // of their events, without the chunks' marks
  std::array<char, 512> dropped_;
  bool is_writing_ = false, is_ending_ = false;
};

bool EventHandle::send(const std::string& event) {
  {
    const std::lock_guard lock(mutex_);
    if (is_closed_ || (queued_ > 0 && queued_ + event.size() > limit_)) return false;
    queued_ += event.size();
    events_.push_back(event);
  }
  wake();
  return true;
}

void EventHandle::close() {
  ended();
  wake();
}

void EventHandle::wake() {
  net::post(*io_, [connection = connection_] {
    if (const auto alive = connection.lock()) alive->woken();
  });
}

}  // namespace

void open_events(Core& core, ServerStream stream, SlotPtr slot, const HttpResponse& response,
                 bool in_chunks) {
  std::make_shared<EventConnection>(core, std::move(stream), std::move(slot), in_chunks)
      ->open(response);
}

}  // namespace weft::serve
