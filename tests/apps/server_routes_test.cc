// The routes of every server, its metrics and its log.
#include "apps/serve/server_routes.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "apps/serve/server_log.h"
#include "tests/apps/serve_testing.h"

namespace weft {
namespace {

TEST(ServerRoutes, EveryRouteButLiveNeedsTheKey) {
  ServerState state;
  state.readiness.set_ready();
  ServerSettings settings;
  settings.api_key = kKey;
  settings.routes = server_routes(state, kStream);
  const std::vector<Route> routes = settings.routes;
  ASSERT_EQ(routes.size(), 5u);
  RunningServer running(std::move(settings));
  for (const Route& route : routes) {
    const bool open = route.path == "/health/live";
    EXPECT_EQ(running.ask(get(route.path)).status, open ? 200 : 401) << route.path;
    EXPECT_EQ(running.ask(get(route.path, "X-Api-Key: wrong\r\n")).status, open ? 200 : 401);
    EXPECT_EQ(running.ask(get(route.path, "X-Api-Key: " + kKey + "\r\n")).status, 200);
    EXPECT_EQ(running.ask(get(route.path, "Origin: null\r\n")).status, 403) << route.path;
  }
}

TEST(ServerRoutes, ReadyTellsTheTruth) {
  ServerState state;
  ServerSettings settings;
  settings.routes = server_routes(state, kStream);
  RunningServer running(std::move(settings));
  RawClient client = running.connect();
  EXPECT_EQ(client.ask(get("/health/ready")).status, 503);
  state.readiness.set_reason("The warm-up runs.");
  const RawClient::Answer waits = client.ask(get("/health/ready"));
  EXPECT_EQ(waits.status, 503);
  EXPECT_NE(waits.body.find("The warm-up runs."), std::string::npos);
  state.readiness.set_ready();
  EXPECT_EQ(client.ask(get("/health/ready")).status, 200);
  state.readiness.set_draining();
  state.readiness.set_ready();
  const RawClient::Answer drains = client.ask(get("/health/ready"));
  EXPECT_EQ(drains.status, 503);
  EXPECT_NE(drains.body.find("\"draining\""), std::string::npos);
  EXPECT_EQ(client.ask(get("/health/live")).status, 200);
}

TEST(ServerRoutes, CapabilitiesAreTheTableOfFlags) {
  const auto listed = nlohmann::json::parse(capabilities_json(kStream | kGenerate));
  EXPECT_EQ(listed["commands"].size(), 2u);
  for (const Command command : {kStream, kGenerate}) {
    const auto& flags = listed["commands"][command_spec(command).name];
    size_t expected = 0;
    for (const FlagSpec& flag : flag_table()) expected += (flag.commands & command) != 0;
    EXPECT_EQ(flags.size(), expected);
    for (const auto& flag : flags) {
      const FlagSpec* spec = find_flag(command, flag["name"]);
      ASSERT_TRUE(spec);
      EXPECT_EQ(flag["help"], spec->help);
      EXPECT_EQ(flag["legal"].is_null(), spec->legal == nullptr);
    }
  }
}

TEST(Metrics, AreTheTextOfPrometheus) {
  const MetricFamily families[] = {
      {"a_total", MetricKind::kCounter, "Counts\nlines."},
      {"b", MetricKind::kGauge, "Holds."},
      {"c_seconds", MetricKind::kHistogram, "Times.", {0.5, 1}},
      {"unused", MetricKind::kGauge, "Stays away."},
  };
  Metrics metrics(families);
  metrics.add("a_total", {{"status", "200"}});
  metrics.add("a_total", {{"status", "200"}}, 2);
  metrics.add("a_total", {{"status", "a\"b\\c\nd"}});
  metrics.set("b", 1.5);
  for (const double value : {0.5, 0.75, 2.0}) metrics.observe("c_seconds", value);
  EXPECT_EQ(metrics.text(),
            "# HELP a_total Counts\\nlines.\n# TYPE a_total counter\n"
            "a_total{status=\"200\"} 3\na_total{status=\"a\\\"b\\\\c\\nd\"} 1\n"
            "# HELP b Holds.\n# TYPE b gauge\nb 1.5\n"
            "# HELP c_seconds Times.\n# TYPE c_seconds histogram\n"
            "c_seconds_bucket{le=\"0.5\"} 1\nc_seconds_bucket{le=\"1\"} 2\n"
            "c_seconds_bucket{le=\"+Inf\"} 3\nc_seconds_sum 3.25\nc_seconds_count 3\n");
  EXPECT_DEATH(metrics.add("b"), "b");
  EXPECT_DEATH(metrics.add("nothing_total"), "nothing_total");
}

TEST(Metrics, CountersOfTheServerEndInTotal) {
  for (const MetricFamily& family : server_metrics()) {
    EXPECT_EQ(family.name.ends_with("_total"), family.kind == MetricKind::kCounter) << family.name;
    EXPECT_EQ(family.buckets.empty(), family.kind != MetricKind::kHistogram) << family.name;
  }
}

TEST(ServerLog, WritesAJsonObjectPerLine) {
  std::string written;
  ServerLog log([&](const std::string& line) { written += line; });
  log.write(LogLevel::kInfo, "start", "line\nbreak \xff", {{"port", "80"}});
  log.answered({"GET", "/task", 503, 0.25});
  const size_t end = written.find('\n');
  const auto first = nlohmann::json::parse(written.substr(0, end));
  EXPECT_EQ(first["event"], "start");
  EXPECT_EQ(first["level"], "info");
  EXPECT_EQ(first["port"], "80");
  EXPECT_EQ(std::string(first["ts"]).size(), 24u);
  const auto second = nlohmann::json::parse(written.substr(end + 1));
  EXPECT_EQ(second["level"], "warning");
  EXPECT_EQ(second["status"], "503");
  EXPECT_EQ(second["ms"], "250.000");
}

}  // namespace
}  // namespace weft
