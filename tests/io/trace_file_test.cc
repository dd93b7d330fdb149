// Trace files are JSON that a viewer reads, with every zone's name, thread and time.
#include "io/trace_file.h"

#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/support/error_of.h"

namespace weft::test {
namespace {

void record(Recorder& recorder) {
  const MeterScope scope(recorder);
  const ZoneScope stage(Zone::kDenoise);
  const ZoneScope step(Zone::kStep, 0), block(Zone::kBlock, 4);
  recorder.op({OpFamily::kNorm, 0, 64, "layer_norm"}, [] {});
  recorder.op({OpFamily::kLinear, 1e15, 12, "linear"}, [] {});
  const ZoneScope message(Zone::kCommunication, -1, "key-value", 100);
  recorder.counter("memory", 3e9);
  const MeterScope helping(*recorder.helper("writer"));
  const ZoneScope frame(Zone::kEncodeVideo, 2);
}

TEST(TraceFile, IsWhatAViewerReads) {
  Recorder first(Recorder::Keep::kEvents), second(Recorder::Keep::kEvents);
  record(first);
  record(second);
  const nlohmann::json trace = nlohmann::json::parse(
      trace_json({{0, &first}, {3, &second}}, {{"model", "a \"quoted\"\nname"}}));
  EXPECT_EQ(trace["otherData"]["model"], "a \"quoted\" name");
  std::map<std::string, int> names;
  std::map<std::string, std::pair<double, double>> spans;  // zones of rank 3
  for (const nlohmann::json& event : trace["traceEvents"]) {
    const int pid = event.at("pid"), tid = event.at("tid");
    EXPECT_TRUE(pid == 0 || pid == 3);
    EXPECT_TRUE(tid == 0 || tid == 1);
    const std::string phase = event.at("ph"), name = event.at("name");
    ++names[phase + " " + name];
    if (phase != "X") continue;
    EXPECT_GE(event.at("dur").get<double>(), 0);
    EXPECT_EQ(tid == 1, name == "encode_video 2");
    if (pid == 3)
      spans[name] = {event["ts"], event["ts"].get<double>() + event["dur"].get<double>()};
    if (name == "linear") {
      EXPECT_EQ(event["cat"], "linear");
      EXPECT_EQ(event["args"]["flop"], 1e15);
      EXPECT_EQ(event["args"]["bytes"], 12);
    }
    if (name == "layer_norm") {
      EXPECT_EQ(event["cat"], "norm");
    }
  }
  EXPECT_EQ(names, (std::map<std::string, int>{{"C memory", 2},
                                               {"M process_name", 2},
                                               {"M process_sort_index", 2},
                                               {"M thread_name", 4},
                                               {"M thread_sort_index", 4},
                                               {"X block 4", 2},
                                               {"X communication key-value", 2},
                                               {"X denoise", 2},
                                               {"X encode_video 2", 2},
                                               {"X layer_norm", 2},
                                               {"X linear", 2},
                                               {"X step 1", 2}}));
  constexpr double kRounding = 2e-3;  // both ends are rounded to thousandths of a microsecond
  for (const auto& [outer, inner] : {std::pair{"denoise", "step 1"},
                                     {"step 1", "block 4"},
                                     {"block 4", "linear"},
                                     {"block 4", "communication key-value"}}) {
    EXPECT_LE(spans[outer].first, spans[inner].first + kRounding) << inner;
    EXPECT_GE(spans[outer].second, spans[inner].second - kRounding) << inner;
  }
}

TEST(TraceFile, OfNothingIsStillJson) {
  EXPECT_EQ(nlohmann::json::parse(trace_json({}))["traceEvents"].size(), 0u);
}

TEST(TraceFile, NamesSayTheFormat) {
  for (const char* path : {"a", "a.txt", "a.json.zip", "a.gz"}) {
    expect_error(ErrorKind::kUsage, ".json.gz", [&] { check_trace_name(path); });
  }
  check_trace_name("a.json");
}

}  // namespace
}  // namespace weft::test
