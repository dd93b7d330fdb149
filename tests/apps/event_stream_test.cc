// Responses that come bit by bit or later: streams of events, and answers of other threads.
#include <gtest/gtest.h>

#include <atomic>
#include <functional>
#include <future>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

// A server with a stream of events at /events and a route that is answered later at /later.
class Events : public testing::Test {
 protected:
  explicit Events(ServerSettings settings = echo_settings()) {
    settings.limits.queue_bytes = 1 << 20;
    settings.limits.comment_interval = 300ms;
    settings.answered = [this](const AnsweredRequest& line) {
      const std::lock_guard lock(mutex_);
      statuses_.push_back(line.status);
    };
    settings.routes.push_back({"GET", "/events", [this](const HttpRequest&) {
                                 HttpResponse response;
                                 response.events = [this](const auto& stream) {
                                   opened_.set_value(stream);
                                   return [this] { ++closed_; };
                                 };
                                 return response;
                               }});
    settings.routes.push_back({"POST", "/later", [this](const HttpRequest&) {
                                 HttpResponse response{.status = 202, .body = "meanwhile"};
                                 response.patience = patience_;
                                 response.later = [this](const HttpResponse::Respond& respond) {
                                   asked_.set_value(respond);
                                   return [this] { ++left_; };
                                 };
                                 return response;
                               }});
    running_.emplace(std::move(settings));
  }

  std::shared_ptr<EventStream> opened() { return opened_.get_future().get(); }
  static void await(const std::function<bool()>& what) {
    for (int i = 0; i < 2000 && !what(); ++i) std::this_thread::sleep_for(5ms);
    EXPECT_TRUE(what());
  }
  static std::string chunk(RawClient& client) {
    const std::string size = client.read_until("\r\n");
    if (size.empty()) return "";
    const std::string bytes = client.read(std::stoul(size, nullptr, 16));
    client.read_until("\r\n");
    return bytes;
  }
  std::vector<int> statuses() {
    const std::lock_guard lock(mutex_);
    return statuses_;
  }

  std::promise<std::shared_ptr<EventStream>> opened_;
  std::promise<HttpResponse::Respond> asked_;
  std::atomic<int> closed_{0}, left_{0};
  std::atomic<std::chrono::milliseconds> patience_{0ms};
  std::mutex mutex_;
  std::vector<int> statuses_;
  std::optional<RunningServer> running_;  // last: its thread uses the others
};

TEST_F(Events, TextOfAnEvent) {
  EXPECT_EQ(event_text("state", "3", "{}"), "event: state\nid: 3\ndata: {}\n\n");
  EXPECT_EQ(event_text("log", "", "a\nb\n"), "event: log\ndata: a\ndata: b\ndata: \n\n");
}

TEST_F(Events, OtherThreadsAppendAndEnd) {
  RawClient client = running_->connect();
  client.send(get("/events"));
  const std::string header = client.read_until("\r\n\r\n");
  EXPECT_TRUE(header.starts_with("HTTP/1.1 200 OK\r\n")) << header;
  for (const char* line :
       {"Content-Type: text/event-stream", "Transfer-Encoding: chunked", "Cache-Control: no-store"})
    EXPECT_NE(header.find(std::string("\r\n") + line + "\r\n"), std::string::npos) << header;
  const std::shared_ptr<EventStream> stream = opened();
  EXPECT_TRUE(stream->send("event: a\n\n"));
  EXPECT_EQ(chunk(client), "event: a\n\n");
  EXPECT_TRUE(stream->send("event: b\n\n"));
  EXPECT_TRUE(stream->send("event: c\n\n"));
  EXPECT_EQ(chunk(client), "event: b\n\n");
  EXPECT_EQ(chunk(client), "event: c\n\n");
  EXPECT_EQ(closed_, 0);
  stream->close();
  EXPECT_FALSE(stream->send("event: d\n\n"));
  EXPECT_EQ(client.read_until("0\r\n\r\n"), "0\r\n\r\n");
  await([&] { return closed_ == 1; });
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(statuses(), std::vector<int>{200});
}

TEST_F(Events, AClientOfHttp10GetsNoChunks) {
  RawClient client = running_->connect();
  client.send("GET /events HTTP/1.0\r\nHost: localhost\r\n\r\n");
  EXPECT_EQ(client.read_until("\r\n\r\n").find("chunked"), std::string::npos);
  const auto stream = opened();
  stream->send("event: a\n\n");
  stream->close();
  EXPECT_EQ(client.read_until("no such text"), "event: a\n\n");
}

TEST_F(Events, HeadOpensNone) {
  RawClient client = running_->connect();
  client.send("HEAD /events HTTP/1.1\r\nHost: localhost\r\n\r\n");
  EXPECT_TRUE(client.read_until("\r\n\r\n").starts_with("HTTP/1.1 200"));
  EXPECT_EQ(client.ask(get("/task")).status, 200);
}

TEST_F(Events, ASilentStreamIsSentComments) {
  RawClient client = running_->connect();
  client.send(get("/events"));
  client.read_until("\r\n\r\n");
  EXPECT_EQ(chunk(client), ": still here\n\n");
  EXPECT_EQ(chunk(client), ": still here\n\n");
}

TEST_F(Events, AClientThatLeavesIsNoticed) {
  {
    RawClient client = running_->connect();
    client.send(get("/events"));
    opened()->send("event: a\n\n");
    client.read_until("event: a\n\n");
    EXPECT_EQ(closed_, 0);
  }
  await([&] { return closed_ == 1; });
  await([&] { return running_->server.connections() == 0; });
}

TEST_F(Events, ASlowReaderFillsABoundedQueue) {
  RawClient client = running_->connect();
  client.send(get("/events"));
  client.read_until("\r\n\r\n");
  const auto stream = opened();
  const std::string event = "data: " + std::string(10'000, 'x') + "\n\n";
  int accepted = 0;
  // The system takes some megabytes at most; then the queue is full.
  while (accepted < 10'000 && stream->send(event)) ++accepted;
  EXPECT_LT(accepted, 10'000);
  EXPECT_GE(stream->queued_bytes() + event.size(), size_t{1} << 20);
  EXPECT_EQ(running_->ask(get("/task")).status, 200);  // nobody else waits
  std::string all;
  for (int i = 0; i < accepted; ++i) all += chunk(client);
  EXPECT_EQ(all.size(), accepted * event.size());
  await([&] { return stream->queued_bytes() == 0; });
  EXPECT_TRUE(stream->send(event));
}

TEST_F(Events, AnEmptyQueueTakesAnEventOfAnySize) {
  RawClient client = running_->connect();
  client.send(get("/events"));
  client.read_until("\r\n\r\n");
  const auto stream = opened();
  const std::string large = "data: " + std::string(16 << 20, 'x') + "\n\n";
  EXPECT_TRUE(stream->send(large));
  EXPECT_FALSE(stream->send(large)) << "the first one is queued";
  EXPECT_EQ(chunk(client), large);
}

TEST_F(Events, ADrainEndsStreams) {
  RawClient client = running_->connect();
  client.send(get("/events"));
  client.read_until("\r\n\r\n");
  opened()->send("event: a\n\n");
  std::thread drain([&] { EXPECT_TRUE(running_->server.drain(10s)); });
  EXPECT_EQ(chunk(client), "event: a\n\n");
  EXPECT_EQ(chunk(client), "");
  EXPECT_TRUE(client.read(1).empty());
  drain.join();
  EXPECT_EQ(closed_, 1);
}

class SlowReaders : public Events {
 protected:
  static ServerSettings settings() {
    ServerSettings settings = echo_settings();
    settings.limits.idle_timeout = 300ms;
    return settings;
  }
  SlowReaders() : Events(settings()) {}
};

TEST_F(SlowReaders, OneThatTakesNothingIsCut) {
  RawClient client = running_->connect();
  client.send(get("/events"));
  const auto stream = opened();
  while (stream->send(std::string(10'000, 'x'))) {
  }
  await([&] { return closed_ == 1; });
  EXPECT_FALSE(stream->send("x"));
}

TEST_F(Events, AnAnswerComesLater) {
  RawClient client = running_->connect();
  client.send(post("/later", "x"));
  const HttpResponse::Respond respond = asked_.get_future().get();
  EXPECT_EQ(running_->ask(get("/task")).status, 200);
  respond({.status = 200, .body = "done"});
  respond({.status = 500, .body = "again"});
  const RawClient::Answer answer = client.answer();
  EXPECT_EQ(answer.status, 200);
  EXPECT_EQ(answer.body, "done");
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(left_, 0);
  await([&] { return statuses().size() == 2; });
}

TEST_F(Events, AClientThatLeavesBeforeItsAnswerIsNoticed) {
  {
    RawClient client = running_->connect();
    client.send(post("/later", "x"));
    asked_.get_future().wait();
    std::this_thread::sleep_for(50ms);
    EXPECT_EQ(left_, 0);
  }
  await([&] { return left_ == 1 && running_->server.connections() == 0; });
  EXPECT_EQ(statuses(), std::vector<int>{499});
}

TEST_F(Events, ADrainAnswersThoseThatWait) {
  RawClient client = running_->connect();
  client.send(post("/later", "x"));
  const HttpResponse::Respond respond = asked_.get_future().get();
  std::thread drain([&] { EXPECT_TRUE(running_->server.drain(10s)); });
  EXPECT_EQ(client.answer().body, "meanwhile");
  drain.join();
  respond({.body = "too late"});
  EXPECT_EQ(left_, 0);
}

TEST_F(Events, PatienceEnds) {
  patience_ = 100ms;
  RawClient client = running_->connect();
  const RawClient::Answer answer = client.ask(post("/later", "x"));
  EXPECT_EQ(answer.status, 202);
  EXPECT_EQ(answer.body, "meanwhile");
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(left_, 0);
}

TEST_F(Events, StoppingIsNoLeaving) {
  RawClient client = running_->connect();
  client.send(post("/later", "x"));
  asked_.get_future().wait();
  running_->server.stop();
  EXPECT_TRUE(client.ended());
  EXPECT_EQ(left_, 0);
}

}  // namespace
}  // namespace weft
