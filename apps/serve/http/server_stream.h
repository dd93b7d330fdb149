#pragma once
// A part of http_server.cc and of the connections: the bytes of a connection, plain or over
// TLS. Both are of one type, so that what Beast makes of a stream and of a handler is compiled
// once.
#include <array>
#include <boost/asio/ip/tcp.hpp>
#include <boost/beast/core.hpp>
#include <boost/beast/ssl.hpp>
#include <boost/beast/websocket/ssl.hpp>
#include <boost/beast/websocket/teardown.hpp>
#include <memory>

namespace weft::serve {

namespace net = boost::asio;
namespace beast = boost::beast;
namespace ws = boost::beast::websocket;
using boost::system::error_code;
using net::ip::tcp;
using TlsStream = beast::ssl_stream<tcp::socket>;

// The first buffers of a sequence that are not empty. One call may pass on fewer than all bytes.
template <class Buffer>
class FirstBuffers {
 public:
  template <class Buffers>
  explicit FirstBuffers(const Buffers& all) {
    const auto end = net::buffer_sequence_end(all);
    for (auto at = net::buffer_sequence_begin(all); at != end && count_ < buffers_.size(); ++at)
      if (const Buffer buffer(*at); buffer.size() > 0) buffers_[count_++] = buffer;
  }
  const Buffer* begin() const { return buffers_.data(); }
  const Buffer* end() const { return buffers_.data() + count_; }

 private:
  std::array<Buffer, 16> buffers_;
  size_t count_ = 0;
};

// A completion handler of any type. It is called once.
class IoDone {
 public:
  template <class Handler>
  explicit IoDone(Handler handler) : held_(new Held<Handler>(std::move(handler))) {}
  void operator()(error_code error, size_t bytes = 0) {
    const std::unique_ptr<Base> held = std::move(held_);
    held->call(error, bytes);
  }

 private:
  struct Base {
    virtual ~Base() = default;
    virtual void call(error_code error, size_t bytes) = 0;
  };
  template <class Handler>
  struct Held final : Base {
    explicit Held(Handler given) : handler(std::move(given)) {}
    void call(error_code error, size_t bytes) override {
      if constexpr (std::is_invocable_v<Handler&, error_code, size_t>)
        handler(error, bytes);
      else
        handler(error);
    }
    Handler handler;
  };
  std::unique_ptr<Base> held_;
};

class ServerStream {
 public:
  using executor_type = tcp::socket::executor_type;
  explicit ServerStream(tcp::socket socket) : link_(new Link<tcp::socket>(std::move(socket))) {}
  explicit ServerStream(TlsStream stream) : link_(new Link<TlsStream>(std::move(stream))) {}

  executor_type get_executor() { return next_layer().get_executor(); }
  tcp::socket& next_layer() { return link_->socket(); }
  TlsStream* tls() { return link_->tls(); }  // null where it is plain

  template <class Buffers, class Handler>
  auto async_read_some(const Buffers& buffers, Handler&& handler) {
    return net::async_initiate<Handler, void(error_code, size_t)>(
        [this](auto done, const auto& first) { link_->read(first, IoDone(std::move(done))); },
        handler, FirstBuffers<net::mutable_buffer>(buffers));
  }
  template <class Buffers, class Handler>
  auto async_write_some(const Buffers& buffers, Handler&& handler) {
    return net::async_initiate<Handler, void(error_code, size_t)>(
        [this](auto done, const auto& first) { link_->write(first, IoDone(std::move(done))); },
        handler, FirstBuffers<net::const_buffer>(buffers));
  }
  // Beast ends the stream of a WebSocket by this call.
  template <class Handler>
  friend void async_teardown(beast::role_type role, ServerStream& stream, Handler&& handler) {
    stream.link_->tear_down(role, IoDone(std::forward<Handler>(handler)));
  }

 private:
  struct AnyLink {
    virtual ~AnyLink() = default;
    virtual tcp::socket& socket() = 0;
    virtual TlsStream* tls() = 0;
    virtual void read(const FirstBuffers<net::mutable_buffer>& buffers, IoDone done) = 0;
    virtual void write(const FirstBuffers<net::const_buffer>& buffers, IoDone done) = 0;
    virtual void tear_down(beast::role_type role, IoDone done) = 0;
  };
  template <class Stream>
  struct Link final : AnyLink {
    explicit Link(Stream given) : stream(std::move(given)) {}
    tcp::socket& socket() override { return beast::get_lowest_layer(stream); }
    TlsStream* tls() override {
      if constexpr (std::is_same_v<Stream, TlsStream>) return &stream;
      return nullptr;
    }
    void read(const FirstBuffers<net::mutable_buffer>& buffers, IoDone done) override {
      stream.async_read_some(buffers, std::move(done));
    }
    void write(const FirstBuffers<net::const_buffer>& buffers, IoDone done) override {
      stream.async_write_some(buffers, std::move(done));
    }
    void tear_down(beast::role_type role, IoDone done) override {
      using ws::async_teardown;
      async_teardown(role, stream, std::move(done));
    }
    Stream stream;
  };
  std::unique_ptr<AnyLink> link_;
};

}  // namespace weft::serve
