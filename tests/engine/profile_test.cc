// The recording of a job contains every stage, step, block and message, its sums agree, and it
// changes no bit of the result.
#include <gtest/gtest.h>

#include <chrono>
#include <map>
#include <mutex>

#include "kernels/trace.h"
#include "models/umt5/encoder.h"
#include "models/wan/transformer.h"
#include "tests/engine/replica_job.h"

namespace weft::test {
namespace {

constexpr Zone kStages[] = {Zone::kLoad,   Zone::kEncodeText,  Zone::kDenoise,
                            Zone::kDecode, Zone::kEncodeVideo, Zone::kWrite};

struct Sink final : FrameSink {
  void push(const Frame&) override {}
  std::string finish() override { return "nowhere"; }
};

GeneratorOptions recorded_options(DType dtype) {
  GeneratorOptions options = options_of(dtype);
  options.ops = &metered_ops();
  return options;
}

int count(const Recorder& recorder, Zone zone) {
  int found = 0;
  for (const Recorder::Event& event : recorder.events()) found += event.zone == zone;
  return found;
}

// Zones of one thread either follow each other or contain one another.
void expect_nested(const Recorder& recorder) {
  std::vector<std::pair<int64_t, int64_t>> inside;  // complete ones, by their ends
  for (const Recorder::Event& event : recorder.events()) {
    EXPECT_LE(event.begin_ns, event.end_ns);
    while (!inside.empty() && inside.back().first >= event.begin_ns) inside.pop_back();
    if (!inside.empty()) {
      EXPECT_LE(inside.back().second, event.begin_ns) << to_string(event.zone);
    }
    inside.emplace_back(event.begin_ns, event.end_ns);
  }
}

TEST(Profile, OfAJobIsWhole) {
  Recorder recorder(Recorder::Keep::kEvents);
  Sink sink;
  const auto begun = std::chrono::steady_clock::now();
  {
    const MeterScope scope(recorder);
    Generator(kModel, recorded_options(DType::kF32)).run(job(), &sink);
  }
  const double all =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  const Profile& profile = recorder.profile();
  double stages = 0;
  for (const Zone stage : kStages) {
    EXPECT_EQ(profile.of(stage, stage).calls, 1) << to_string(stage);
    EXPECT_LE(profile.family_seconds(stage), profile.of(stage, stage).seconds) << to_string(stage);
    stages += profile.of(stage, stage).seconds;
  }
  EXPECT_LE(stages, all);
  const Umt5Config text = Umt5Config::from_json_file(kModel + "/text_encoder/config.json");
  const WanConfig wan = WanConfig::from_json_file(kModel + "/transformer/config.json");
  EXPECT_EQ(count(recorder, Zone::kStep), 2);
  EXPECT_EQ(count(recorder, Zone::kForward), 2 * 2);
  EXPECT_EQ(count(recorder, Zone::kBlock), 2 * 2 * wan.layers + 2 * text.num_layers);
  EXPECT_EQ(count(recorder, Zone::kChunk), 3);
  EXPECT_EQ(count(recorder, Zone::kCommunication), 0);
  EXPECT_EQ(profile.of(Zone::kDenoise, Zone::kRope).calls, 2 * 2 * 2 * wan.layers);  // q and k
  EXPECT_GT(profile.of(Zone::kDenoise, Zone::kLinear).flop, 0);
  EXPECT_GT(profile.of(Zone::kDecode, Zone::kConv).flop, 0);
  EXPECT_FALSE(recorder.samples().empty());
  ASSERT_EQ(recorder.helpers().size(), 1u);
  EXPECT_EQ(count(*recorder.helpers().at("writer"), Zone::kEncodeVideo), job().frames);
  expect_nested(recorder);
}

TEST(Profile, ChangesNoBit) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const RunResult plain = Generator(kModel, options_of(dtype)).run(job(), nullptr);
    for (const Recorder::Keep keep : {Recorder::Keep::kTotals, Recorder::Keep::kEvents}) {
      Recorder recorder(keep);
      const MeterScope scope(recorder);
      const RunResult seen = Generator(kModel, recorded_options(dtype)).run(job(), nullptr);
      EXPECT_EQ(seen.signature, plain.signature);
      EXPECT_EQ(seen.framehash, plain.framehash);
      EXPECT_EQ(seen.memory_high_water, plain.memory_high_water);
    }
  }
}

// A job that fails closes its zones, so that the next one can be recorded.
TEST(Profile, OutlivesAFailedJob) {
  struct Full final : FrameSink {
    void push(const Frame&) override { throw Error(ErrorKind::kOutput, "the disk is full"); }
    std::string finish() override { return ""; }
  } full;
  Recorder recorder(Recorder::Keep::kEvents);
  const MeterScope scope(recorder);
  Generator generator(kModel, recorded_options(DType::kF32));
  EXPECT_THROW(generator.run(job(), &full), Error);
  recorder.restart();
  generator.run(job(), nullptr);
  EXPECT_EQ(recorder.profile().of(Zone::kDenoise, Zone::kDenoise).calls, 1);
}

TEST(Profile, CountsTheMessagesOfEveryRank) {
  for (const char* layout : {"ring=2", "cfg=2,layers=2"}) {
    const int ranks = std::string(layout) == "ring=2" ? 2 : 4;
    std::vector<Recorder> recorders;
    for (int rank = 0; rank < ranks; ++rank) recorders.emplace_back(Recorder::Keep::kEvents);
    const LayoutLimits limits = Generator(kModel, options_of(DType::kF32)).layout_limits(job());
    run_ranks(ranks, [&](Communicator& world) {
      Recorder& recorder = recorders[world.rank()];
      const MeterScope scope(recorder);
      Generator(kModel, recorded_options(DType::kF32),
                RankPlacement::of(world, parse_layout(layout, ranks, limits)))
          .run(job(), nullptr);
      double bytes = 0;
      for (int stage = 0; stage <= kZones; ++stage)
        bytes += recorder.profile().totals[stage][static_cast<int>(Zone::kCommunication)].bytes;
      EXPECT_EQ(bytes, static_cast<double>(world.counters().total_sent().bytes +
                                           world.counters().total_received().bytes));
      EXPECT_GT(bytes, 0);
      expect_nested(recorder);
    });
  }
}

}  // namespace
}  // namespace weft::test
