// The rules of the server for requests, each with the status that a client sees.
#include "apps/serve/http/http_server.h"

#include <gtest/gtest.h>

#include <future>
#include <mutex>
#include <thread>

#include "kernels/check.h"
#include "tests/apps/serve_testing.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

// The answer is the refusal, in the one form of errors, and the connection ends.
void expect_refused(RunningServer& running, const std::string& bytes, int status) {
  SCOPED_TRACE(bytes.substr(0, 80));
  RawClient client = running.connect();
  const RawClient::Answer answer = client.ask(bytes);
  EXPECT_EQ(answer.status, status);
  EXPECT_NE(answer.body.find("{\"error\":{\"message\":\""), std::string::npos) << answer.body;
  EXPECT_EQ(answer.body.find("127.0.0.1:"), std::string::npos) << answer.body;
  EXPECT_TRUE(client.ended());
}

TEST(HttpServer, AnswersRoutesAndKeepsTheConnection) {
  RunningServer running(echo_settings());
  EXPECT_GT(running.server.port(), 0);
  RawClient client = running.connect();
  EXPECT_EQ(client.ask(get("/task")).body, "ok");
  EXPECT_EQ(client.ask(post("/echo?a=%20b", "12345")).body, "5 a=%20b");
  client.send(get("/task") + get("/nothing") + get("/task"));
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(client.answer().status, 404);
  EXPECT_EQ(client.answer().status, 200);
  EXPECT_EQ(running.server.connections(), 1);
  EXPECT_TRUE(client.ask(get("/task", "Connection: close\r\n")).has("Connection: close"));
  EXPECT_TRUE(client.ended());
}

TEST(HttpServer, UnknownRoutesAndMethods) {
  RunningServer running(echo_settings());
  EXPECT_EQ(running.ask(get("/task/")).status, 404);
  EXPECT_EQ(running.ask(get("/../task")).status, 404);
  EXPECT_EQ(running.ask(get("/%74ask")).status, 404);
  const RawClient::Answer wrong = running.ask(post("/task", ""));
  EXPECT_EQ(wrong.status, 405);
  EXPECT_TRUE(wrong.has("Allow: GET, HEAD, OPTIONS")) << wrong.header;
  EXPECT_EQ(running.ask(get("/stream")).status, 426);
}

// HEAD tells what GET would answer, without the body.
TEST(HttpServer, HeadIsGetWithoutABody) {
  RunningServer running(echo_settings());
  RawClient client = running.connect();
  const std::string end = " HTTP/1.1\r\nHost: localhost\r\n\r\n";
  client.send("HEAD /task" + end);
  const std::string header = client.read_until("\r\n\r\n");
  EXPECT_TRUE(header.starts_with("HTTP/1.1 200 OK\r\n")) << header;
  EXPECT_NE(header.find("\r\nContent-Length: 2\r\n"), std::string::npos) << header;
  EXPECT_EQ(client.ask(get("/task")).body, "ok");  // the connection goes on, at the next answer
  for (const auto& [target, status] : {std::pair{"/nothing", "404"}, {"/echo", "405"}}) {
    client.send(std::string("HEAD ") + target + end);
    const std::string refused = client.read_until("\r\n\r\n");
    EXPECT_EQ(refused.substr(9, 3), status) << refused;
  }
  EXPECT_EQ(client.ask(get("/task")).body, "ok");
}

// OPTIONS tells the methods of a route.
TEST(HttpServer, OptionsOfRoutes) {
  RunningServer running(echo_settings());
  RawClient client = running.connect();
  const auto options = [&](const std::string& target, const std::string& headers = "") {
    return client.ask("OPTIONS " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  };
  for (const auto& [target, allow] : {std::pair{"/task", "GET, HEAD, OPTIONS"},
                                      {"/echo", "POST, OPTIONS"},
                                      {"/stream", "GET, OPTIONS"}}) {
    const RawClient::Answer answer = options(target);
    EXPECT_EQ(answer.status, 204) << target;
    EXPECT_TRUE(answer.has(std::string("Allow: ") + allow)) << answer.header;
    EXPECT_EQ(answer.header.find("Content-"), answer.header.find("Content-Type-Options"))
        << answer.header;
  }
  EXPECT_EQ(options("/nothing").status, 404);
  EXPECT_EQ(running.ask(post("/stream", "")).status, 426);
}

// A page of an allowed origin may ask everything that a program may; its browser asks first.
TEST(HttpServer, PagesOfAllowedOriginsReadTheAnswers) {
  ServerSettings settings = echo_settings();
  settings.api_key = kKey;
  settings.allowed_origins = {"https://example.org"};
  settings.routes.push_back({"GET", "/events", [](const HttpRequest&) {
                               return HttpResponse{.events = [](const auto& stream) {
                                 stream->close();
                                 return std::function<void()>();
                               }};
                             }});
  RunningServer running(std::move(settings));
  const std::string page = "Origin: https://example.org\r\n",
                    other = "Origin: https://example.com\r\n",
                    asks =
                        "Access-Control-Request-Method: POST\r\n"
                        "Access-Control-Request-Headers: authorization,content-type\r\n",
                    key = "Authorization: Bearer " + kKey + "\r\n";
  const auto options = [&](const std::string& target, const std::string& headers) {
    return running.ask("OPTIONS " + target + " HTTP/1.1\r\nHost: localhost\r\n" + headers + "\r\n");
  };
  const RawClient::Answer preflight = options("/echo", page + asks);
  EXPECT_EQ(preflight.status, 204);
  for (const char* line : {"Access-Control-Allow-Origin: https://example.org",
                           "Access-Control-Allow-Methods: POST, OPTIONS",
                           "Access-Control-Allow-Headers: authorization,content-type",
                           "Access-Control-Max-Age: 3600", "Vary: Origin"})
    EXPECT_TRUE(preflight.has(line)) << line << " in " << preflight.header;
  // Only a preflight states no key, and it tells nothing of paths that are no routes.
  EXPECT_EQ(options("/echo", page).status, 401);
  EXPECT_EQ(options("/echo", asks).status, 401);
  EXPECT_EQ(options("/echo", key).status, 204);
  EXPECT_EQ(options("/nothing", page + asks).status, 401);
  const RawClient::Answer foreign = options("/echo", other + asks);
  EXPECT_EQ(foreign.status, 403);
  EXPECT_EQ(foreign.header.find("Access-Control"), std::string::npos) << foreign.header;
  // Every answer may be read, the refusals too.
  for (const auto& [bytes, status] : {std::pair{get("/task", page + key), 200},
                                      {get("/events", page + key), 200},
                                      {get("/task", page), 401},
                                      {get("/nothing", page + key), 404}}) {
    const RawClient::Answer answer = running.ask(bytes);
    EXPECT_EQ(answer.status, status);
    EXPECT_TRUE(answer.has("Access-Control-Allow-Origin: https://example.org")) << answer.header;
    EXPECT_NE(answer.header.find("openai-poll-after-ms"), std::string::npos) << answer.header;
  }
  EXPECT_EQ(running.ask(get("/task", key)).header.find("Access-Control"), std::string::npos);
}

TEST(HttpServer, RefusesMalformedRequests) {
  RunningServer running(echo_settings());
  const std::string host = "Host: localhost\r\n";
  for (const std::string& bytes : std::vector<std::string>{
           "POST /echo HTTP/1.1\r\n" + host +
               "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
           "POST /echo HTTP/1.1\r\n" + host +
               "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
           "POST /echo HTTP/1.1\r\n" + host + "Content-Length: 5\r\nContent-Length: 6\r\n\r\n12345",
           "POST /echo HTTP/1.1\r\n" + host + "Content-Length: -1\r\n\r\n",
           "POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: chunked\r\n\r\nxyz\r\n",
           "POST /echo HTTP/1.1\r\n" + host +
               "Transfer-Encoding: gzip\r\nContent-Length: 5\r\n\r\nhello",
           "POST /echo HTTP/1.1\r\n" + host + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
           "GET /task HTTP/1.1\r\n" + host + host + "\r\n",
           std::string("GET /task HTTP/1.1\r\n\r\n"),
           "GET http://localhost/task HTTP/1.1\r\n" + host + "\r\n",
           "OPTIONS * HTTP/1.1\r\n" + host + "\r\n",
           "GET /task HTTP/9.9\r\n" + host + "\r\n",
           "GET /task HTTP/1.1\r\n" + host + "a b: c\r\n\r\n",
           std::string("\x16\x03\x01 hello\r\n\r\n"),
       })
    expect_refused(running, bytes, 400);
}

TEST(HttpServer, RefusesLargeHeaders) {
  RunningServer running(echo_settings());
  std::string fields;
  for (int i = 0; i < 200'000; ++i) fields += "a" + std::to_string(i) + ": b\r\n";
  expect_refused(running, get("/task", fields), 431);
  expect_refused(running, get("/task", "a: " + std::string(20'000, 'b') + "\r\n"), 431);
  expect_refused(running, get("/" + std::string(8192, 'a')), 414);
  expect_refused(running, get("/" + std::string(40'000, 'a')), 414);
  EXPECT_EQ(running.ask(get("/" + std::string(8191, 'a'))).status, 404);
  std::string hundred;
  for (int i = 0; i < 99; ++i) hundred += "a" + std::to_string(i) + ": b\r\n";
  EXPECT_EQ(running.ask(get("/task", hundred)).status, 200);
  expect_refused(running, get("/task", hundred + "last: b\r\n"), 431);
}

TEST(HttpServer, RefusesLargeBodies) {
  ServerSettings settings = echo_settings();
  settings.limits.body_bytes = 1000;
  settings.limits.body_chunks = 10;
  RunningServer running(std::move(settings));
  EXPECT_EQ(running.ask(post("/echo", std::string(1000, 'a'))).body, "1000 ");
  expect_refused(running, post("/echo", std::string(1001, 'a')), 413);
  const std::string chunked =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n";
  EXPECT_EQ(running.ask(chunked + "2\r\nab\r\n0\r\n\r\n").body, "2 ");
  expect_refused(running, chunked + "3e9\r\n" + std::string(1001, 'a') + "\r\n0\r\n\r\n", 413);
  std::string chunks;
  for (int i = 0; i < 11; ++i) chunks += "1\r\na\r\n";
  expect_refused(running, chunked + chunks + "0\r\n\r\n", 413);
  // Without a route nothing of the body is taken.
  EXPECT_EQ(running.ask(post("/nothing", std::string(1001, 'a'))).status, 413);
}

TEST(HttpServer, SlowRequestsTimeOut) {
  ServerSettings settings = echo_settings();
  settings.limits.header_timeout = 200ms;
  settings.limits.body_timeout = 200ms;
  settings.limits.idle_timeout = 400ms;
  RunningServer running(std::move(settings));
  expect_refused(running, "", 408);
  expect_refused(running, "GET /task HTTP/1.1\r\nHost:", 408);
  expect_refused(running, "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\nabc",
                 408);
  RawClient idle = running.connect();
  EXPECT_EQ(idle.ask(get("/task")).status, 200);
  EXPECT_TRUE(idle.ended());  // without an answer that belongs to no request
}

TEST(HttpServer, LimitsConnections) {
  ServerSettings settings = echo_settings();
  settings.limits.connections = 3;
  settings.limits.connections_per_address = 2;
  RunningServer running(std::move(settings));
  {
    RawClient first = running.connect(), second = running.connect();
    EXPECT_EQ(first.ask(get("/task")).status, 200);
    EXPECT_EQ(second.ask(get("/task")).status, 200);
    expect_refused(running, "", 503);
    RawClient other = running.connect("127.0.0.2");
    EXPECT_EQ(other.ask(get("/task")).status, 200);
    EXPECT_EQ(running.connect("127.0.0.3").answer().status, 503);
    EXPECT_EQ(first.ask(get("/task")).status, 200);
  }
  // Connections that ended make room.
  for (int i = 0; i < 200 && running.server.connections() > 0; ++i)
    std::this_thread::sleep_for(10ms);
  EXPECT_EQ(running.ask(get("/task")).status, 200);
}

TEST(HttpServer, HostOriginAndKey) {
  ServerSettings settings = echo_settings();
  settings.api_key = kKey;
  RunningServer running(std::move(settings));
  const std::string key = "Authorization: Bearer " + kKey + "\r\n";
  EXPECT_EQ(running.ask(get("/health/live")).status, 200);
  EXPECT_EQ(running.ask(get("/task", key)).status, 200);
  EXPECT_EQ(running.ask(get("/nothing", key)).status, 404);
  for (const std::string target : {"/task", "/echo", "/nothing", "/stream", "/health/live/"}) {
    const RawClient::Answer answer = running.ask(get(target));
    EXPECT_EQ(answer.status, 401) << target;
    EXPECT_TRUE(answer.has("WWW-Authenticate: Bearer"));
    EXPECT_EQ(running.ask(get(target, "X-Api-Key: " + kKey + "x\r\n")).status, 401) << target;
  }
  EXPECT_EQ(running.ask(upgrade()).status, 401);
  EXPECT_EQ(running.ask(upgrade(key)).status, 101);
  EXPECT_EQ(running.ask(get("/task", key + "Origin: null\r\n")).status, 403);
  EXPECT_EQ(running.ask(upgrade(key + "Origin: https://example.org\r\n")).status, 403);
  EXPECT_EQ(running.ask("GET /task HTTP/1.1\r\nHost: example.org\r\n" + key + "\r\n").status, 403);
}

TEST(HttpServer, HandlersMayFail) {
  ServerSettings settings = echo_settings();
  settings.routes.push_back({"GET", "/fails", [](const HttpRequest&) -> HttpResponse {
                               throw std::runtime_error("/secret/path");
                             }});
  RunningServer running(std::move(settings));
  const RawClient::Answer answer = running.ask(get("/fails"));
  EXPECT_EQ(answer.status, 500);
  EXPECT_EQ(answer.body.find("secret"), std::string::npos);
  EXPECT_EQ(running.ask(get("/task")).status, 200);
}

TEST(HttpServer, TellsWhatItAnswered) {
  ServerSettings settings = echo_settings();
  std::mutex mutex;
  std::string lines;
  settings.answered = [&](const AnsweredRequest& line) {
    const std::lock_guard lock(mutex);
    lines += line.method + " " + line.route + " " + std::to_string(line.status) + "\n";
  };
  {
    RunningServer running(std::move(settings));
    running.ask(get("/task?secret"));
    running.ask(get("/secret"));
    running.ask(upgrade());
    running.ask("nonsense\r\n\r\n");
  }
  EXPECT_EQ(lines, "GET /task 200\nGET  404\nGET /stream 101\n  400\n");
}

TEST(HttpServer, RefusesUnusableSettings) {
  const auto refusal = [](auto change) -> std::string {
    ServerSettings settings = echo_settings();
    change(settings);
    HttpServer server(std::move(settings));
    return test::error_of([&] { server.start(); }, ErrorKind::kUsage);
  };
  EXPECT_EQ(refusal([](ServerSettings&) {}), "");
  EXPECT_NE(refusal([](ServerSettings& s) { s.host = "0.0.0.0"; }), "");
  EXPECT_EQ(refusal([](ServerSettings& s) { s.host = "0.0.0.0", s.insecure = true; }), "");
  EXPECT_EQ(refusal([](ServerSettings& s) { s.host = "0.0.0.0", s.api_key = kKey; }), "");
  EXPECT_NE(refusal([](ServerSettings& s) { s.host = "nowhere", s.api_key = kKey; }), "");
  EXPECT_NE(refusal([](ServerSettings& s) { s.certificate_file = "/no/such/file"; }), "");
  EXPECT_NE(refusal([](ServerSettings& s) { s.key_file = s.certificate_file = "/no"; }), "");
  RunningServer running(echo_settings());
  EXPECT_NE(refusal([&](ServerSettings& s) { s.port = running.server.port(); }), "");
}

TEST(HttpServer, DrainRefusesRequestsAndEndsInTime) {
  RunningServer running(echo_settings());
  RawClient idle = running.connect(), probe = running.connect(), half = running.connect();
  EXPECT_EQ(idle.ask(get("/task")).status, 200);
  EXPECT_EQ(probe.ask(get("/task")).status, 200);
  half.send("GET /ta");
  std::thread drain([&] { EXPECT_TRUE(running.server.drain(10s)); });
  // The listener closes first: then a new connection is refused.
  for (int i = 0; i < 500 && running.connect().is_open(); ++i) std::this_thread::sleep_for(1ms);
  EXPECT_FALSE(running.connect().is_open());
  const RawClient::Answer refused = idle.ask(get("/task"));
  EXPECT_EQ(refused.status, 503);
  EXPECT_NE(refused.body.find("\"draining\""), std::string::npos);
  EXPECT_TRUE(refused.has("Connection: close"));
  EXPECT_EQ(probe.ask(get("/health/live")).status, 200);
  EXPECT_EQ(half.ask("sk HTTP/1.1\r\nHost: localhost\r\n\r\n").status, 503);
  drain.join();
  EXPECT_EQ(running.server.connections(), 0);
}

TEST(HttpServer, DrainAnswersConnectionsThatWaitToBeAccepted) {
  std::promise<void> entered, released;
  ServerSettings settings = echo_settings();
  settings.routes.push_back({"GET", "/wait", [&](const HttpRequest&) {
                               entered.set_value();
                               released.get_future().wait();
                               return HttpResponse{.body = "waited"};
                             }});
  RunningServer running(std::move(settings));
  RawClient busy = running.connect();
  busy.send(get("/wait"));
  entered.get_future().wait();
  // The server's thread is held up, so these wait in the system's queue.
  std::vector<RawClient> waiting;
  for (int i = 0; i < 20; ++i) {
    waiting.push_back(running.connect());
    waiting.back().send(get("/task"));
  }
  std::thread drain([&] { EXPECT_TRUE(running.server.drain(10s)); });
  std::this_thread::sleep_for(50ms);  // usually the drain begins before the next accept
  released.set_value();
  EXPECT_EQ(busy.answer().status, 200);
  for (RawClient& client : waiting) {
    const int status = client.answer().status;
    EXPECT_TRUE(status == 200 || status == 503) << status;
  }
  drain.join();
  EXPECT_EQ(running.server.connections(), 0);
}

TEST(HttpServer, DrainEndsConnectionsThatSentNothing) {
  RunningServer running(echo_settings());
  RawClient silent = running.connect();
  while (running.server.connections() == 0) std::this_thread::sleep_for(1ms);
  EXPECT_TRUE(running.server.drain(60s));
  EXPECT_EQ(silent.answer().status, 503);
  EXPECT_TRUE(silent.ended());
}

TEST(HttpServer, DrainCutsConnectionsThatDoNotEnd) {
  RunningServer running(echo_settings());
  RawClient half = running.connect();
  half.send("GET /ta");
  EXPECT_EQ(running.ask(get("/task")).status, 200);
  const auto began = std::chrono::steady_clock::now();
  running.server.drain(500ms);
  EXPECT_LT(std::chrono::steady_clock::now() - began, 5s);
  EXPECT_TRUE(half.ended());
}

}  // namespace
}  // namespace weft
