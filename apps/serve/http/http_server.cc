// The server on Boost.Beast. Only this source and those of the connections include Boost.
#include "apps/serve/http/http_server.h"

#include <algorithm>

#include "apps/serve/http/http_connection.h"
#include "apps/serve/http/request_reader.h"
#include "kernels/check.h"

namespace weft {
namespace serve {
namespace {

// Refused connections that may linger at a time; further ones are cut.
constexpr int kLingeringRefusals = 64;
constexpr milliseconds kAcceptRetry{100};  // after an accept failed, as without file descriptors

// Matches a path with that of a route. Returns what stands in place of the braces, "" where the
// route has none, and nullopt where the paths differ.
std::optional<std::string> path_parameter(const std::string& route, const std::string& path) {
  const size_t open = route.find('{'), close = route.find('}');
  if (open == std::string::npos)
    return route == path ? std::optional<std::string>("") : std::nullopt;
  const std::string_view before = std::string_view(route).substr(0, open),
                         after = std::string_view(route).substr(close + 1);
  if (path.size() <= before.size() + after.size() || !path.starts_with(before) ||
      !path.ends_with(after))
    return std::nullopt;
  std::string value = path.substr(open, path.size() - before.size() - after.size());
  const auto plain = [](char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
           c == '_' || c == '.';
  };
  if (value.starts_with('.') || !std::ranges::all_of(value, plain)) return std::nullopt;
  return value;
}

[[noreturn]] void refuse_setting(const std::string& what, const error_code& error) {
  throw Error(ErrorKind::kUsage, what + ": " + error.message());
}

net::ip::address address_of(const std::string& host) {
  error_code error;
  const auto address = net::ip::make_address(host == "localhost" ? "127.0.0.1" : host, error);
  if (error)
    throw Error(ErrorKind::kUsage, "the server cannot listen on '" + host +
                                       "'; legal: localhost, an IPv4 or an IPv6 address");
  return address;
}

std::optional<net::ssl::context> tls_context(const ServerSettings& settings) {
  const std::string &certificate = settings.certificate_file, &key = settings.key_file;
  if (certificate.empty() && key.empty()) return std::nullopt;
  if (certificate.empty() || key.empty())
    throw Error(ErrorKind::kUsage, "TLS needs both a certificate file and a key file; the " +
                                       std::string(key.empty() ? "key" : "certificate") +
                                       " file is missing");
  net::ssl::context context(net::ssl::context::tls_server);
  SSL_CTX_set_min_proto_version(context.native_handle(), TLS1_2_VERSION);
  error_code error;
  context.use_certificate_chain_file(certificate, error);
  if (error) refuse_setting("the certificate file " + certificate + " cannot be used", error);
  context.use_private_key_file(key, net::ssl::context::pem, error);
  if (error) refuse_setting("the key file " + key + " cannot be used", error);
  return context;
}

}  // namespace

void Core::start() {
  check_binding({settings.host, !settings.api_key.empty(), settings.insecure});
  tls_ = tls_context(settings);
  const tcp::endpoint endpoint(address_of(settings.host), settings.port);
  const std::string where = settings.host + " port " + std::to_string(settings.port);
  access = {settings.api_key, settings.allowed_origins, endpoint.address().is_loopback()};
  error_code error;
  acceptor_.open(endpoint.protocol(), error);
  if (!error) acceptor_.set_option(net::socket_base::reuse_address(true), error);
  if (!error) acceptor_.bind(endpoint, error);
  if (!error) acceptor_.listen(net::socket_base::max_listen_connections, error);
  if (error) refuse_setting("the server cannot listen on " + where, error);
  if (std::ranges::any_of(settings.routes, &Route::forms)) uploads_.emplace(settings.upload_folder);
  port = acceptor_.local_endpoint().port();
  guard_.emplace(io->get_executor());
  accept();
  thread_ = std::thread([io = io] { io->run(); });
}

void Core::accept() {
  acceptor_.async_accept([this](error_code error, tcp::socket socket) {
    if (!guard_) return;  // stopped
    if (!error) accepted(std::move(socket));
    if (!acceptor_.is_open()) return;
    if (!error) return accept();
    retry_.expires_after(kAcceptRetry);
    retry_.async_wait([this](error_code cancelled) {
      if (!cancelled && acceptor_.is_open()) accept();
    });
  });
}

// Closing the acceptor resets the connections that wait in its queue, so they are taken first. A
// client that comes between the two is reset; the system has no way to prevent it.
void Core::end_accepting() {
  error_code error;
  acceptor_.non_blocking(true, error);
  for (int taken = 0; !error && taken < net::socket_base::max_listen_connections; ++taken) {
    tcp::socket socket(*io);
    acceptor_.accept(socket, error);
    if (!error) accepted(std::move(socket));
    if (error == net::error::connection_aborted) error.clear();
  }
  acceptor_.close(error);
}

void Core::accepted(tcp::socket socket) {
  error_code error;
  net::ip::address address = socket.remote_endpoint(error).address();
  if (error) return;
  if (address.is_v6() && address.to_v6().is_v4_mapped())
    address = net::ip::make_address_v4(net::ip::v4_mapped, address.to_v6());
  socket.set_option(tcp::no_delay(true), error);
  const std::string name = address.to_string();
  const auto same = per_address.find(name);
  const ServerLimits& limits = settings.limits;
  const bool is_refused =
      open >= limits.connections ||
      (same != per_address.end() && same->second >= limits.connections_per_address);
  if (is_refused && refused >= kLingeringRefusals) return;
  auto slot = std::make_unique<Slot>(*this, name, is_refused);
  ServerStream stream =
      tls_ ? ServerStream(TlsStream(std::move(socket), *tls_)) : ServerStream(std::move(socket));
  open_http(*this, std::move(stream), std::move(slot));
}

bool Core::drain(milliseconds deadline) {
  if (!thread_.joinable()) return true;
  const Clock::time_point end = Clock::now() + deadline,
                          late = end - std::min(deadline / 4, kLinger);
  net::post(*io, [this] {
    draining = true;
    end_accepting();
    for_each([](Connection& connection) { connection.begin_drain(); });
    // A connection that was accepted just now may wait in the queue of the context.
    net::post(*io, [this] {
      const std::lock_guard lock(mutex_);
      is_drained_ = connections.empty();
      ended_.notify_all();
    });
  });
  std::unique_lock lock(mutex_);
  if (ended_.wait_until(lock, late, [&] { return is_drained_; })) return true;
  net::post(*io, [this] { for_each([](Connection& connection) { connection.end_drain(); }); });
  if (ended_.wait_until(lock, end, [&] { return is_drained_; })) return true;
  net::post(*io, [this] { for_each([](Connection& connection) { connection.cut(); }); });
  return false;
}

void Core::connection_ended() {
  if (!draining || !connections.empty()) return;
  const std::lock_guard lock(mutex_);
  is_drained_ = true;
  ended_.notify_all();
}

void Core::stop() {
  if (!thread_.joinable()) return;
  net::post(*io, [this] {
    draining = true;
    error_code ignored;
    acceptor_.close(ignored);
    retry_.cancel();
    for_each([](Connection& connection) { connection.cut(); });
    guard_.reset();
  });
  thread_.join();
}

const Route* Core::find(HttpRequest& request, std::string& allow) const {
  for (const Route& route : settings.routes) {
    const auto parameter = path_parameter(route.path, request.path);
    if (!parameter) continue;
    request.parameter = *parameter;
    const bool is_get = route.method == "GET";
    if (route.method == request.method || (is_get && request.method == "HEAD")) return &route;
    allow += route.method + (is_get ? ", HEAD, " : ", ");
  }
  if (allow.empty() && find_websocket(request.path)) allow = "GET, ";
  if (!allow.empty()) allow += "OPTIONS";
  return nullptr;
}

const WebSocketRoute* Core::find_websocket(const std::string& path) const {
  for (const WebSocketRoute& route : settings.websockets)
    if (route.path == path) return &route;
  return nullptr;
}

}  // namespace serve

struct HttpServer::Impl {
  serve::Core core;
};

HttpServer::HttpServer(ServerSettings settings)
    : impl_(new Impl{serve::Core(std::move(settings))}) {}
HttpServer::~HttpServer() = default;
void HttpServer::start() { impl_->core.start(); }
uint16_t HttpServer::port() const { return impl_->core.port; }
int HttpServer::connections() const { return impl_->core.open; }
int HttpServer::websockets() const { return impl_->core.websockets; }
bool HttpServer::drain(std::chrono::milliseconds deadline) { return impl_->core.drain(deadline); }
void HttpServer::stop() { impl_->core.stop(); }

ReadRequest read_request(std::string_view bytes, const ServerLimits& limits) {
  serve::LimitedParser reader(limits);
  serve::Parser& parser = reader.parser();
  ReadRequest read;
  // Returns false where reading ends here.
  const auto put = [&] {
    serve::error_code error;
    bytes.remove_prefix(parser.put(serve::net::buffer(bytes.data(), bytes.size()), error));
    if (error && error != serve::http::error::need_more) read.status = reader.status_of(error);
    return !error;
  };
  parser.eager(false);
  while (!parser.is_header_done())
    if (!put()) return read;
  const int status = reader.status_of_header();
  if (status != 200) return {status, {}};
  if (!reader.limit_body(limits.body_bytes)) return {413, {}};
  read.request = reader.head();
  parser.eager(true);
  while (!parser.is_done())
    if (bytes.empty() || !put()) return read;
  read.request.body = std::move(parser.get().body());
  read.status = 200;
  return read;
}

}  // namespace weft
