// The rules of the server for WebSockets, each with the close code that a client sees.
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

RawClient open_socket(RunningServer& running) {
  RawClient client = running.connect();
  const RawClient::Answer answer = client.ask(upgrade());
  EXPECT_EQ(answer.status, 101);
  // The accept value of RFC 6455 for the key of upgrade().
  EXPECT_TRUE(answer.has("Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")) << answer.header;
  return client;
}

// The code that ends a socket after these bytes.
int close_code_of(RunningServer& running, const std::string& bytes) {
  RawClient client = open_socket(running);
  client.send(bytes);
  return read_close(client);
}

TEST(WebSocketServer, EchoesTextAndBinary) {
  RunningServer running(echo_settings());
  RawClient client = open_socket(running);
  client.send(text_frame("hello"));
  ServerFrame frame = read_frame(client);
  EXPECT_EQ(frame.opcode, 1);
  EXPECT_EQ(frame.payload, "hello");
  const std::string large(1 << 20, 'x');
  client.send(client_frame(0x82, large));
  frame = read_frame(client);
  EXPECT_EQ(frame.opcode, 2);
  EXPECT_EQ(frame.payload, large);
  client.send(client_frame(0x89, "ping"));
  frame = read_frame(client);
  EXPECT_EQ(frame.opcode, 10);
  EXPECT_EQ(frame.payload, "ping");
  EXPECT_EQ(running.server.websockets(), 1);
  client.send(client_frame(0x88, "\x03\xe8"));
  EXPECT_EQ(read_close(client), 1000);
  EXPECT_TRUE(client.ended());
}

TEST(WebSocketServer, RefusesMalformedFrames) {
  RunningServer running(echo_settings());
  for (const std::string& bytes : std::vector<std::string>{
           std::string("\x81\x05hello"),               // without a mask
           client_frame(0xc1, "hello"),                // a reserved bit
           client_frame(0x83, "hello"),                // a reserved opcode
           client_frame(0x80, "hello"),                // continues nothing
           client_frame(0x09, "ping"),                 // a control frame in parts
           client_frame(0x89, std::string(126, 'p')),  // a long control frame
           client_frame(0x01, "a") + text_frame("b"),  // a message inside another
           client_frame(0x88, "\x03"),                 // a code of one byte
       })
    EXPECT_EQ(close_code_of(running, bytes), 1002) << testing::PrintToString(bytes);
  EXPECT_EQ(close_code_of(running, text_frame("\xff\xfe")), 1007);
}

TEST(WebSocketServer, RefusesLargeMessages) {
  RunningServer running(echo_settings());
  const std::string half(1 << 19, 'x');
  EXPECT_EQ(close_code_of(running, client_frame(0x82, std::string((1 << 20) + 1, 'x'))), 1009);
  EXPECT_EQ(close_code_of(running, client_frame(0x02, half) + client_frame(0x00, half) +
                                       client_frame(0x80, "x")),
            1009);
  // The header alone announces more than fits.
  EXPECT_EQ(
      close_code_of(running, std::string("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 14)),
      1009);
}

TEST(WebSocketServer, RefusesTooManyMessages) {
  RunningServer running(echo_settings());
  std::string many, pings;
  for (int i = 0; i < 1000; ++i) many += text_frame("x"), pings += client_frame(0x89, "");
  EXPECT_EQ(close_code_of(running, many), 1008);
  EXPECT_EQ(close_code_of(running, pings), 1008);
  RawClient client = open_socket(running);
  std::string few;
  for (int i = 0; i < 90; ++i) few += text_frame("x");
  client.send(few);
  for (int i = 0; i < 90; ++i) ASSERT_EQ(read_frame(client).opcode, 1) << i;
}

TEST(WebSocketServer, AnswersTheSubprotocolThatIsNoKey) {
  RunningServer running(echo_settings());
  RawClient client = running.connect();
  const RawClient::Answer answer =
      client.ask(upgrade("Sec-WebSocket-Protocol: weft.key.eA, weft.stream\r\n"));
  EXPECT_EQ(answer.status, 101);
  EXPECT_TRUE(answer.has("Sec-WebSocket-Protocol: weft.stream")) << answer.header;
}

TEST(WebSocketServer, RefusesFramesBeforeItsAnswer) {
  RunningServer running(echo_settings());
  EXPECT_EQ(running.ask(upgrade() + text_frame("hello")).status, 400);
}

TEST(WebSocketServer, RouteMayRefuse) {
  ServerSettings settings = echo_settings();
  settings.websockets[0].refuse = [](const HttpRequest& request) {
    return std::optional(error_response(503, "no_place", request.query));
  };
  RunningServer running(std::move(settings));
  const RawClient::Answer answer = running.ask(upgrade());
  EXPECT_EQ(answer.status, 503);
  EXPECT_NE(answer.body.find("no_place"), std::string::npos);
}

// Keeps what a route opened, to drive it from the test's thread.
struct Opened {
  std::shared_ptr<WebSocket> socket;
  std::atomic<int> closed{0}, calls{0}, drains{0};
  std::atomic<bool> is_open{false};

  ServerSettings settings(bool has_drain_hook = false) {
    ServerSettings settings = echo_settings();
    settings.websockets[0].open = [this, has_drain_hook](const HttpRequest&,
                                                         std::shared_ptr<WebSocket> opened) {
      socket = std::move(opened);
      is_open = true;
      WebSocketHandler handler;
      handler.closed = [this](uint16_t code) { closed = code, ++calls; };
      handler.text = [](std::string_view) { throw std::runtime_error("fails"); };
      if (has_drain_hook) handler.draining = [this] { ++drains; };
      return handler;
    };
    return settings;
  }
  template <class Condition>
  static bool wait(Condition condition) {
    for (int i = 0; i < 2000 && !condition(); ++i) std::this_thread::sleep_for(10ms);
    return condition();
  }
};

TEST(WebSocketServer, QueueIsBounded) {
  Opened opened;
  RunningServer running(opened.settings());
  RawClient client = open_socket(running);
  ASSERT_TRUE(Opened::wait([&] { return opened.is_open.load(); }));
  // The client reads nothing: the system takes some megabytes, the queue 8 MiB, and then no more.
  const std::string piece(1 << 20, 'x');
  int accepted = 0;
  while (accepted < 1000 && opened.socket->send_binary(piece)) {
    ++accepted;
    EXPECT_LE(opened.socket->queued_bytes(), size_t{8} << 20);
    std::this_thread::sleep_for(1ms);
  }
  EXPECT_LT(accepted, 1000);
  EXPECT_GE(accepted, 8);
  for (int i = 0; i < accepted; ++i) ASSERT_EQ(read_frame(client).payload.size(), piece.size());
  EXPECT_TRUE(Opened::wait([&] { return opened.socket->queued_bytes() == 0; }));
  EXPECT_TRUE(opened.socket->send_text("again"));
  EXPECT_EQ(read_frame(client).payload, "again");
}

TEST(WebSocketServer, ClosesAfterWhatWasQueued) {
  Opened opened;
  RunningServer running(opened.settings());
  RawClient client = open_socket(running);
  ASSERT_TRUE(Opened::wait([&] { return opened.is_open.load(); }));
  for (int i = 0; i < 100; ++i) EXPECT_TRUE(opened.socket->send_text(std::to_string(i)));
  opened.socket->close(4001, "done");
  EXPECT_FALSE(opened.socket->send_text("late"));
  for (int i = 0; i < 100; ++i) EXPECT_EQ(read_frame(client).payload, std::to_string(i));
  const ServerFrame frame = read_frame(client);
  EXPECT_EQ(frame.close_code(), 4001);
  EXPECT_EQ(frame.payload.substr(2), "done");
  client.send(client_frame(0x88, frame.payload));
  client.finish();
  EXPECT_TRUE(client.ended());
  EXPECT_TRUE(Opened::wait([&] { return opened.calls == 1; }));
  EXPECT_EQ(opened.closed, 4001);
}

TEST(WebSocketServer, TellsOnceThatAConnectionBroke) {
  Opened opened;
  {
    RunningServer running(opened.settings());
    { RawClient client = open_socket(running); }
    EXPECT_TRUE(Opened::wait([&] { return opened.calls == 1; }));
    EXPECT_EQ(opened.closed, 1006);
    RawClient client = open_socket(running);
    client.send(text_frame("x"));
    EXPECT_EQ(read_close(client), 1011);  // the handler failed
    client.send(client_frame(0x88, "\x03\xf3"));
    EXPECT_TRUE(Opened::wait([&] { return opened.calls == 2; }));
    EXPECT_EQ(opened.closed, 1011);
    EXPECT_TRUE(Opened::wait([&] { return running.server.websockets() == 0; }));
  }
  EXPECT_EQ(opened.calls, 2);
  EXPECT_FALSE(opened.socket->send_text("the server is gone"));
}

TEST(WebSocketServer, SilentClientsArePingedAndThenCut) {
  Opened opened;
  ServerSettings settings = opened.settings();
  settings.limits.ping_interval = 300ms;
  RunningServer running(std::move(settings));
  RawClient client = open_socket(running);
  EXPECT_EQ(read_frame(client).opcode, 9);
  client.send(client_frame(0x8a, ""));
  EXPECT_EQ(read_frame(client).opcode, 9);
  EXPECT_TRUE(Opened::wait([&] { return opened.calls == 1; }));
  EXPECT_EQ(opened.closed, 1006);
}

TEST(WebSocketServer, DrainClosesWith1012) {
  Opened opened;
  RunningServer running(opened.settings());
  RawClient client = open_socket(running);
  std::thread drain([&] { EXPECT_TRUE(running.server.drain(10s)); });
  const ServerFrame frame = read_frame(client);
  EXPECT_EQ(frame.close_code(), 1012);
  client.send(client_frame(0x88, frame.payload));
  client.finish();
  drain.join();
  EXPECT_EQ(opened.closed, 1012);
}

TEST(WebSocketServer, DrainHookMayFinishItsWork) {
  Opened opened;
  RunningServer running(opened.settings(true));
  RawClient client = open_socket(running);
  std::thread drain([&] { EXPECT_TRUE(running.server.drain(10s)); });
  ASSERT_TRUE(Opened::wait([&] { return opened.drains == 1; }));
  EXPECT_TRUE(opened.socket->send_text("last"));
  opened.socket->close(1012, "the server restarts");
  EXPECT_EQ(read_frame(client).payload, "last");
  const ServerFrame frame = read_frame(client);
  EXPECT_EQ(frame.close_code(), 1012);
  client.send(client_frame(0x88, frame.payload));
  client.finish();
  drain.join();
}

TEST(WebSocketServer, DrainClosesWhatTheHookLeavesOpen) {
  Opened opened;
  RunningServer running(opened.settings(true));
  RawClient client = open_socket(running);
  std::thread drain([&] { running.server.drain(1s); });
  EXPECT_EQ(read_close(client), 1012);
  drain.join();
  EXPECT_EQ(opened.drains, 1);
}

}  // namespace
}  // namespace weft
