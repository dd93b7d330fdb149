// Thousands of connections, and traffic that is malformed in bulk.
#include <gtest/gtest.h>
#include <malloc.h>
#include <sys/resource.h>

#include <algorithm>
#include <fstream>
#include <vector>

#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

// As many connections as `wanted`, or as the limit of open files allows after it was raised as far
// as this user may; each takes two files, one per end. tests/bench/server_load.py holds its ends in
// other processes, so that the whole number fits.
int allowed_connections(int wanted) {
  constexpr rlim_t kOthers = 100;
  const rlim_t needed = 2 * static_cast<rlim_t>(wanted) + kOthers;
  rlimit limit;
  getrlimit(RLIMIT_NOFILE, &limit);
  rlimit raised{needed, std::max(needed, limit.rlim_max)};
  if (setrlimit(RLIMIT_NOFILE, &raised) == 0) return wanted;
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int>(std::min<rlim_t>(needed, limit.rlim_max) - kOthers) / 2;
}

ServerSettings large_settings() {
  ServerSettings settings = echo_settings();
  settings.limits.connections = settings.limits.connections_per_address = 20'000;
  settings.limits.header_timeout = settings.limits.idle_timeout = 600s;
  return settings;
}

// Asks the live route 200 times on connections of their own, and prints the 99th percentile.
void measure_live(RunningServer& running, const std::string& what) {
  std::vector<double> times;
  for (int i = 0; i < 200; ++i) {
    const auto began = std::chrono::steady_clock::now();
    ASSERT_EQ(running.ask(get("/health/live")).status, 200) << i;
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    times.push_back(took.count());
  }
  std::ranges::sort(times);
  std::printf("/health/live beside %s: median %.2f ms, p99 %.2f ms\n", what.c_str(), times[100],
              times[198]);
}

TEST(ServerLoad, HalfOpenConnectionsDelayNobody) {
  const int count = allowed_connections(2000);
  RunningServer running(large_settings());
  std::vector<RawClient> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(running.connect());
    ASSERT_TRUE(clients.back().is_open()) << i;
    clients.back().send("GET /task HTTP/1.1\r\nHo");
  }
  measure_live(running, std::to_string(count) + " half-open connections");
  // Each of them is still served.
  for (RawClient& client : clients) ASSERT_EQ(client.ask("st: localhost\r\n\r\n").status, 200);
}

TEST(ServerLoad, IdleConnectionsDelayNobody) {
  const int count = allowed_connections(10'000);
  RunningServer running(large_settings());
  std::vector<RawClient> clients;
  for (int i = 0; i < count; ++i) {
    clients.push_back(running.connect());
    ASSERT_EQ(clients.back().ask(get("/task")).status, 200) << i;
  }
  EXPECT_EQ(running.server.connections(), count);
  measure_live(running, std::to_string(count) + " idle connections");
  for (RawClient& client : clients) ASSERT_EQ(client.ask(get("/task")).status, 200);
}

double resident_megabytes() {
  malloc_trim(0);
  std::ifstream file("/proc/self/statm");
  double total, resident;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE)) / (1 << 20);
}

TEST(ServerLoad, MalformedTrafficTakesNoMemory) {
  std::string fields, chunks;
  for (int i = 0; i < 200'000; ++i) fields += "a" + std::to_string(i) + ": b\r\n";
  for (int i = 0; i < 1'000'000; ++i) chunks += "1\r\na\r\n";
  const std::string large_header = get("/task", fields);
  const std::string many_chunks =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks;
  const std::string both =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n"
      "Transfer-Encoding: chunked\r\n\r\n0\r\n\r\n";
  const std::string too_long =
      "POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 67108865\r\n\r\nabc";
  const std::string large_message("\x82\xff\x7f\xff\xff\xff\xff\xff\xff\xff\0\0\0\0", 14);
  RunningServer running(large_settings());
  double before = 0, after = 0;
  for (int round = 0; round < 110; ++round) {
    if (round == 10) before = resident_megabytes();  // after the first allocations
    ASSERT_EQ(running.ask(large_header).status, 431);
    ASSERT_EQ(running.ask(many_chunks).status, 413);
    ASSERT_EQ(running.ask(both).status, 400);
    ASSERT_EQ(running.ask(too_long).status, 413);
    RawClient client = running.connect();
    ASSERT_EQ(client.ask(upgrade()).status, 101);
    client.send(large_message);
    ASSERT_EQ(read_close(client), 1009);
  }
  after = resident_megabytes();
  std::printf("resident memory: %.1f MiB before, %.1f MiB after\n", before, after);
  EXPECT_LE(after - before, 16);
  EXPECT_EQ(running.ask(get("/task")).status, 200);
}

// Settings with a route that takes forms and answers with the size of the last part.
ServerSettings form_settings() {
  ServerSettings settings = large_settings();
  settings.routes.push_back({.method = "POST",
                             .path = "/form",
                             .answer =
                                 [](const HttpRequest& request) {
                                   const FormPart& last = request.form->back();
                                   return HttpResponse{.body = std::to_string(last.bytes)};
                                 },
                             .forms = true});
  return settings;
}
const std::string kFilePart = "--B\r\nContent-Disposition: form-data; name=a; filename=b\r\n\r\n";
std::string upload_header(const std::string& length) {
  return "POST /form HTTP/1.1\r\nHost: localhost\r\n"
         "Content-Type: multipart/form-data; boundary=B\r\n" +
         length + "\r\n\r\n";
}

// The largest upload goes to the disk as it comes, and forms that are too large or in too many
// pieces leave no file.
TEST(ServerLoad, UploadsTakeNoMemory) {
  constexpr size_t kPiece = 1 << 20;
  const ServerSettings settings = form_settings();
  const std::string piece(kPiece, 'x'), end = "\r\n--B--";
  const size_t all = settings.limits.form_bytes, bytes = all - kFilePart.size() - end.size();
  std::string chunks = "3b\r\n" + kFilePart + "\r\n";
  for (int i = 0; i < 1'000'000; ++i) chunks += "1\r\na\r\n";
  const std::string many_chunks = upload_header("Transfer-Encoding: chunked") + chunks;
  const std::string longest = upload_header("Content-Length: " + std::to_string(all));
  const std::string too_long = upload_header("Content-Length: " + std::to_string(all + 1));
  RunningServer running(settings);
  double before = 0, most = 0;
  for (int round = 0; round < 30; ++round) {
    if (round == 10) before = resident_megabytes();
    ASSERT_EQ(running.ask(many_chunks).status, 413);
    ASSERT_EQ(running.ask(too_long).status, 413);
    RawClient leaver = running.connect();
    leaver.send(longest + kFilePart + piece);
  }
  RawClient client = running.connect();
  client.send(longest + kFilePart);
  for (size_t sent = 0; sent < bytes; sent += kPiece) {
    ASSERT_TRUE(client.send(std::string_view(piece).substr(0, std::min(kPiece, bytes - sent))));
    if (sent % (64 * kPiece) == 0) most = std::max(most, resident_megabytes());
  }
  EXPECT_EQ(client.ask(end).body, std::to_string(bytes));
  most = std::max(most, resident_megabytes());
  std::printf("resident memory: %.1f MiB before, at most %.1f MiB\n", before, most);
  EXPECT_LE(most - before, 16);
}

}  // namespace
}  // namespace weft
