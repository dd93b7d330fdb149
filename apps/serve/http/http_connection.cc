// The server on Boost.Beast: one connection that speaks HTTP.
#include "apps/serve/http/http_connection.h"

#include <algorithm>
#include <boost/beast/websocket/rfc6455.hpp>
#include <iterator>

#include "apps/serve/http/event_connection.h"
#include "apps/serve/http/file_response.h"
#include "apps/serve/http/form_reader.h"
#include "apps/serve/http/websocket_connection.h"

namespace weft::serve {
namespace {

class HttpConnection final : public Connection,
                             public std::enable_shared_from_this<HttpConnection> {
 public:
  HttpConnection(Core& core, ServerStream stream, SlotPtr slot)
      : Connection(core),
        slot_(std::move(slot)),
        stream_(std::move(stream)),
        timer_(*core.io),
        buffer_(core.settings.limits.header_bytes + (16 << 10)) {}

  void start() {
    if (TlsStream* tls = stream_.tls()) {
      if (slot_->is_refused) return;  // the connection is cut: a handshake would cost too much
      arm(limits().header_timeout);
      tls->async_handshake(net::ssl::stream_base::server, next([this](error_code error) {
                             if (!error) read_header();
                           }));
    } else if (slot_->is_refused) {
      keep_alive_ = false;
      respond(refusal_of(503));
    } else {
      read_header();
      if (core_.draining) begin_drain();
    }
  }

  void begin_drain() override {
    if (is_waiting_) return answer_later(HttpResponse(meanwhile_));
    // A request may be on its way: it is answered with 503 before the connection ends.
    if (is_idle_ || is_fresh()) arm(kLinger);
  }
  void end_drain() override { cut(); }
  void cut() override {
    error_code ignored;
    stream_.next_layer().close(ignored);
    timer_.cancel();
  }

 private:
  const ServerLimits& limits() const { return core_.settings.limits; }

  // A new connection that has sent nothing, as browsers open them in advance.
  bool is_fresh() const { return parser_ && !parser_->parser().got_some() && buffer_.size() == 0; }

  // A completion handler that keeps the connection alive and ends the deadline of its operation.
  template <class Call>
  IoDone next(Call call) {
    return IoDone([self = shared_from_this(), call](error_code error) mutable {
      ++self->operation_;
      call(error);
    });
  }
  void arm(milliseconds timeout) {
    timed_out_ = false;
    timer_.expires_after(timeout);
    timer_.async_wait([weak = weak_from_this(), operation = operation_](error_code error) {
      const auto self = weak.lock();
      if (error || !self || self->operation_ != operation) return;
      self->timed_out_ = true;
      error_code ignored;
      self->stream_.next_layer().cancel(ignored);
    });
  }

  void read_next() {
    if (buffer_.size() > 0) return read_header();
    buffer_.shrink_to_fit();
    is_idle_ = true;
    arm(core_.draining ? kLinger : limits().idle_timeout);
    const auto came = [self = shared_from_this()](error_code error, size_t bytes = 0) {
      ++self->operation_;
      self->is_idle_ = false;
      self->buffer_.commit(bytes);
      if (!error) self->read_header();
    };
    // An idle connection without TLS holds no buffer: there may be thousands.
    if (stream_.tls())
      stream_.async_read_some(buffer_.prepare(512), came);
    else
      stream_.next_layer().async_wait(tcp::socket::wait_read, came);
  }

  void read_header() {
    parser_ = std::make_unique<LimitedParser>(limits());
    began_ = Clock::now();
    route_.clear();
    arm(limits().header_timeout);
    http::async_read_header(stream_, buffer_, parser_->parser(),
                            next([this](error_code error) { header_read(error); }));
  }
  void header_read(error_code error) {
    keep_alive_ = false;
    if (error) return refuse(error);
    if (const int status = parser_->status_of_header(); status != 200)
      return respond(refusal_of(status));
    request_ = parser_->head();
    request_.remote_address = slot_->address;
    const auto& message = parser_->parser().get();
    if (ws::is_upgrade(message))
      if (const WebSocketRoute* route = core_.find_websocket(request_.path)) return upgrade(*route);

    std::string allow;
    const Route* route = core_.find(request_, allow);
    if (route) route_ = route->path;
    const bool is_form = route && route->forms && media_type(request_) == kFormType;
    if (!parser_->limit_body(is_form ? limits().form_bytes : limits().body_bytes))
      return respond(refusal_of(413));
    const bool is_open = route ? route->open : !allow.empty() && is_preflight(request_);
    if (const auto refused =
            access_refusal(core_.access, request_, is_open ? KeyRule::kOpen : KeyRule::kNeeded))
      return respond(*refused);
    const bool has_body = !parser_->parser().is_done();
    keep_alive_ = message.keep_alive() && !core_.draining && !has_body;
    if (!route) return respond(no_route(allow));
    if (core_.draining && !route->while_draining) return respond(draining());
    if (has_body && !is_form && media_type(request_).starts_with("multipart/"))
      return respond(no_such_form(*route));
    keep_alive_ = message.keep_alive() && !core_.draining;
    chosen_ = route;
    take_body(is_form);
  }
  HttpResponse no_route(const std::string& allow) const {
    if (request_.method == "OPTIONS" && !allow.empty())
      return options_response(core_.access, request_, allow);
    if (core_.find_websocket(request_.path))
      return error_response(426, "upgrade_needed", "This route speaks WebSocket alone.");
    if (allow.empty()) return error_response(404, "not_found", "There is no such route.");
    HttpResponse response =
        error_response(405, "method_not_allowed", "The route takes " + allow + ".");
    response.headers.emplace_back("Allow", allow);
    return response;
  }
  static HttpResponse no_such_form(const Route& route) {
    return error_response(415, "unsupported_media",
                          route.forms ? "The route takes application/json or multipart/form-data."
                                      : "The route takes application/json, and no forms.");
  }
  static HttpResponse draining() {
    return retry_response(503, "draining", "The server is about to end.");
  }

  void take_body(bool is_form) {
    try {
      if (is_form)
        form_ = std::make_unique<FormReader>(form_boundary(request_.header("content-type")),
                                             limits(), core_.upload_folder());
    } catch (const FormRefused& refused) {
      return refuse_form(refused);
    }
    // A client that waits for this sends no body that is refused by its header.
    const beast::string_view expected = parser_->parser().get()[http::field::expect];
    if (!beast::iequals(expected, "100-continue") || parser_->parser().is_done() ||
        buffer_.size() > 0)
      return read_body();
    arm(limits().body_timeout);
    static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
    net::async_write(stream_, net::buffer(kContinue), next([this](error_code error) {
                       if (!error) read_body();
                     }));
  }
  void read_body() {
    try {
      if (form_) read_form();
    } catch (const FormRefused& refused) {
      return refuse_form(refused);
    }
    if (parser_->parser().is_done()) return answer();
    arm(limits().body_timeout);
    http::async_read_some(stream_, buffer_, parser_->parser(), next([this](error_code error) {
                            if (!error) return read_body();
                            keep_alive_ = false;
                            refuse(error);
                          }));
  }
  // Hands on the bytes that came, so that none of them stay in memory.
  void read_form() {
    std::string& body = parser_->parser().get().body();
    form_->put(body);
    body.clear();
    if (!parser_->parser().is_done()) return;
    request_.form = form_->finish();
    form_.reset();
  }
  void refuse_form(const FormRefused& refused) {
    keep_alive_ = keep_alive_ && parser_->parser().is_done();
    respond(refused.response());
  }
  void refuse(error_code error) {
    if (timed_out_ && core_.draining) return respond(draining());
    const int status = timed_out_ ? 408 : parser_->status_of(error);
    if (status > 0) respond(refusal_of(status));
  }
  void answer() {
    request_.body = std::move(parser_->parser().get().body());
    HttpResponse response;
    try {
      response = chosen_->answer(request_);
    } catch (const std::exception&) {  // its text may name paths
      response = error_response(500, "internal", "The server failed to answer.");
    }
    request_.form.reset();  // its files are gone before the client is answered
    request_.body = {};     // which may be large, while the client waits
    const bool is_get = request_.method != "HEAD";
    if (response.events && is_get) return stream(response);
    response.later ? wait(response) : respond(response);
  }

  void stream(const HttpResponse& response) {
    log(response.status);
    ++operation_;
    timer_.cancel();
    const bool in_chunks = parser_->parser().get().version() >= 11;
    HttpResponse shared = response;
    std::ranges::copy(cross_origin_headers(core_.access, request_),
                      std::back_inserter(shared.headers));
    open_events(core_, std::move(stream_), std::move(slot_), shared, in_chunks);
  }

  // Waits for a response that another thread gives, or for the client to leave.
  void wait(const HttpResponse& response) {
    is_waiting_ = is_dropping_ = true;
    keep_alive_ = false;  // what the client sends meanwhile is dropped
    ++operation_;
    timer_.cancel();
    buffer_.clear();
    meanwhile_ = response;
    meanwhile_.later = nullptr;
    if (response.patience.count() > 0) {
      timer_.expires_after(response.patience);
      timer_.async_wait([weak = weak_from_this()](error_code error) {
        const auto self = weak.lock();
        if (!error && self) self->answer_later(HttpResponse(self->meanwhile_));
      });
    }
    discard();
    const auto answer = [io = core_.io, weak = weak_from_this()](const HttpResponse& given) {
      net::post(*io, [weak, given] {
        if (const auto self = weak.lock()) self->answer_later(given);
      });
    };
    try {
      left_ = response.later(answer);
    } catch (const std::exception&) {
      answer_later(error_response(500, "internal", "The server failed to answer."));
    }
    if (core_.draining) answer_later(HttpResponse(meanwhile_));
  }
  void answer_later(const HttpResponse& response) {
    if (!std::exchange(is_waiting_, false)) return;
    left_ = nullptr;
    meanwhile_ = {};
    respond(response);
  }
  void client_left() {
    is_waiting_ = false;
    log(499);  // as nginx names it
    const auto left = std::exchange(left_, nullptr);
    try {
      if (left) left();
    } catch (const std::exception&) {  // nobody is left to tell
    }
  }

  void upgrade(const WebSocketRoute& route) {
    route_ = route.path;
    if (const auto refused = access_refusal(core_.access, request_, KeyRule::kNeeded))
      return respond(*refused);
    // A client waits for the answer; bytes before it belong to nobody.
    if (buffer_.size() > 0) return respond(refusal_of(400));
    if (core_.draining) return respond(draining());
    if (route.refuse)
      if (const auto refused = route.refuse(request_)) return respond(*refused);
    log(101);
    ++operation_;
    timer_.cancel();
    auto message = parser_->parser().release();
    open_websocket(core_, std::move(stream_), std::move(slot_), route, std::move(request_),
                   std::move(message));
  }

  void log(int status) const {
    core_.log({request_.method, route_, status,
               std::chrono::duration<double>(Clock::now() - began_).count()});
  }
  void respond(const HttpResponse& given) {
    log(given.status);
    keep_alive_ = keep_alive_ && !core_.draining;
    form_.reset();
    response_ = {};
    response_.version(11);
    response_.result(static_cast<unsigned>(given.status));
    if (given.status != 204) response_.set(http::field::content_type, given.content_type);
    response_.set(http::field::cache_control, "no-store");
    response_.set("X-Content-Type-Options", "nosniff");
    for (const auto& [name, value] : given.headers) response_.set(name, value);
    for (const auto& [name, value] : cross_origin_headers(core_.access, request_))
      response_.set(name, value);
    response_.keep_alive(keep_alive_);
    response_.content_length(given.file ? given.file_bytes : given.body.size());
    if (given.status == 204) response_.erase(http::field::content_length);
    const bool is_head = request_.method == "HEAD";  // its header is that of GET
    body_ = is_head ? "" : given.body;
    body_sent_ = std::min(body_.size(), kFilePiece);
    response_.body() = body_.substr(0, body_sent_);
    pieces_ = is_head ? FilePieces() : FilePieces(given);
    arm(limits().idle_timeout);
    http::async_write(stream_, response_, next([this](error_code error) {
                        if (!error) written();
                      }));
  }
  // The header, or a piece of the body or of a file has been sent. A client that takes its time for
  // a large answer is not idle.
  void written() {
    if (body_sent_ < body_.size()) return send_more_of_body();
    if (pieces_.left() > 0) return send_piece();
    body_.clear();
    response_ = {};
    request_ = {};
    parser_.reset();
    pieces_ = {};
    keep_alive_ ? read_next() : finish_writing();
  }
  void send_more_of_body() {
    const std::string_view rest = std::string_view(body_).substr(body_sent_, kFilePiece);
    body_sent_ += rest.size();
    arm(limits().idle_timeout);
    net::async_write(stream_, net::buffer(rest.data(), rest.size()), next([this](error_code error) {
                       if (!error) written();
                     }));
  }
  void send_piece() {
    if (!pieces_.read()) return cut();  // the file became shorter than was promised
    arm(limits().idle_timeout);
    net::async_write(stream_, net::buffer(pieces_.piece()), next([this](error_code error) {
                       if (!error) written();
                     }));
  }

  void finish_writing() {
    linger_until_ = Clock::now() + (slot_->is_refused ? kLinger : kLongestLinger);
    wait_for_more();
    if (TlsStream* tls = stream_.tls(); tls && !is_dropping_) {
      tls->async_shutdown([self = shared_from_this()](error_code) { self->linger(); });
    } else {
      linger();
    }
  }
  // Cuts the connection of a client that sends nothing more, or has sent for too long.
  void wait_for_more() {
    if (core_.draining) linger_until_ = std::min(linger_until_, Clock::now() + kLinger);
    timer_.expires_at(std::min(Clock::now() + kLinger, linger_until_));
    timer_.async_wait([weak = weak_from_this()](error_code error) {
      const auto self = weak.lock();
      if (!error && self) self->cut();
    });
  }
  // Drops what the client still sends, so that no reset overtakes the response.
  void linger() {
    error_code ignored;
    stream_.next_layer().shutdown(tcp::socket::shutdown_send, ignored);
    buffer_.clear();
    if (!is_dropping_) discard();
  }
  void discard() {
    stream_.next_layer().async_read_some(
        buffer_.prepare(16 << 10), [self = shared_from_this()](error_code error, size_t) {
          if (!error && self->linger_until_ > Clock::time_point()) self->wait_for_more();
          if (!error) return self->discard();
          if (self->is_waiting_ && error != net::error::operation_aborted) self->client_left();
          self->cut();
        });
  }

  SlotPtr slot_;
  ServerStream stream_;
  net::steady_timer timer_;
  beast::flat_buffer buffer_;
  std::unique_ptr<LimitedParser> parser_;
  HttpRequest request_;
  std::unique_ptr<FormReader> form_;  // while it is being read
  http::response<http::string_body> response_;
  std::string body_;      // of the response
  size_t body_sent_ = 0;  // its bytes that have been sent
  FilePieces pieces_;     // of the response
  const Route* chosen_ = nullptr;
  std::string route_;
  Clock::time_point began_ = Clock::now(), linger_until_{};
  uint64_t operation_ = 0;
  std::function<void()> left_;  // of a response that comes later
  HttpResponse meanwhile_;      // what is sent if it does not come
  bool timed_out_ = false, keep_alive_ = false, is_idle_ = false;
  bool is_waiting_ = false, is_dropping_ = false;
};

}  // namespace

void open_http(Core& core, ServerStream stream, SlotPtr slot) {
  std::make_shared<HttpConnection>(core, std::move(stream), std::move(slot))->start();
}

}  // namespace weft::serve
