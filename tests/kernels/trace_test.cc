// Recorder: zones nest, sums agree, and a thread without a meter records nothing.
#include "kernels/trace.h"

#include <gtest/gtest.h>

#include <cstring>
#include <thread>

namespace weft {
namespace {

void spend(double seconds) { std::this_thread::sleep_for(std::chrono::duration<double>(seconds)); }

Work work_of(OpFamily family, double flop, double bytes) {
  return {family, flop, bytes, "some_op"};
}

TEST(Zones, AreSortedAndEachIsOneKind) {
  for (int i = 1; i < kZones; ++i)
    EXPECT_LT(std::strcmp(to_string(static_cast<Zone>(i - 1)), to_string(static_cast<Zone>(i))), 0);
  int stages = 0, families = 0;
  for (int i = 0; i < kZones; ++i) {
    const auto zone = static_cast<Zone>(i);
    EXPECT_FALSE(is_stage(zone) && is_family(zone));
    stages += is_stage(zone);
    families += is_family(zone);
  }
  EXPECT_EQ(stages, 8);
  EXPECT_EQ(families, kOpFamilies + 1);  // and communication
  for (int i = 0; i < kOpFamilies; ++i) EXPECT_TRUE(is_family(zone_of(static_cast<OpFamily>(i))));
}

TEST(Recorder, CountsOpsUnderTheirStage) {
  Recorder recorder(Recorder::Keep::kTotals);
  const MeterScope scope(recorder);
  {
    const ZoneScope stage(Zone::kDenoise);
    const ZoneScope step(Zone::kStep, 0), block(Zone::kBlock, 7);
    recorder.op(work_of(OpFamily::kLinear, 10, 3), [] { spend(2e-3); });
    recorder.op(work_of(OpFamily::kLinear, 5, 2), [] {});
    const ZoneScope message(Zone::kCommunication, -1, "hidden", 100);
  }
  recorder.op(work_of(OpFamily::kCopy, 0, 8), [] {});
  const Profile& profile = recorder.profile();
  const Profile::Total& linear = profile.of(Zone::kDenoise, Zone::kLinear);
  EXPECT_EQ(linear.calls, 2);
  EXPECT_EQ(linear.flop, 15);
  EXPECT_EQ(linear.bytes, 5);
  EXPECT_GE(linear.seconds, 2e-3);
  EXPECT_EQ(profile.of(Zone::kDenoise, Zone::kCommunication).bytes, 100);
  EXPECT_EQ(profile.of(Zone::kDenoise, Zone::kBlock).calls, 1);
  EXPECT_EQ(profile.of(Zone::kCount, Zone::kCopy).bytes, 8);
  EXPECT_LE(profile.family_seconds(Zone::kDenoise),
            profile.of(Zone::kDenoise, Zone::kDenoise).seconds);
  EXPECT_TRUE(recorder.events().empty());
  recorder.restart();
  EXPECT_EQ(recorder.profile().of(Zone::kDenoise, Zone::kLinear).calls, 0);
}

TEST(Recorder, StageInsideAStageHasItsTimeToItself) {
  Recorder recorder(Recorder::Keep::kTotals);
  const MeterScope scope(recorder);
  const auto begun = std::chrono::steady_clock::now();
  {
    const ZoneScope outer(Zone::kDenoise);
    const ZoneScope step(Zone::kStep, 3);
    const ZoneScope inner(Zone::kLoad);
    recorder.op(work_of(OpFamily::kCopy, 0, 8), [] { spend(5e-3); });
  }
  const double all =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begun).count();
  const Profile& profile = recorder.profile();
  const double load = profile.of(Zone::kLoad, Zone::kLoad).seconds;
  const double denoise = profile.of(Zone::kDenoise, Zone::kDenoise).seconds;
  EXPECT_GE(load, 5e-3);
  EXPECT_GE(denoise, 0);
  EXPECT_LE(load + denoise, all);
  EXPECT_EQ(profile.of(Zone::kLoad, Zone::kCopy).calls, 1);
  EXPECT_EQ(profile.of(Zone::kDenoise, Zone::kCopy).calls, 0);
  EXPECT_GE(profile.of(Zone::kDenoise, Zone::kStep).seconds, 5e-3);  // with what is inside
}

TEST(Recorder, EventsNest) {
  Recorder recorder(Recorder::Keep::kEvents);
  const MeterScope scope(recorder);
  {
    const ZoneScope stage(Zone::kDecode);
    for (int chunk = 0; chunk < 2; ++chunk) {
      const ZoneScope zone(Zone::kChunk, chunk);
      recorder.op(work_of(OpFamily::kConv, 1, 1), [&] {
        recorder.op(work_of(OpFamily::kCopy, 0, 1), [] {});  // a part of the op, not counted as one
      });
    }
  }
  const auto& events = recorder.events();  // by their ends: conv, chunk 0, conv, chunk 1, decode
  ASSERT_EQ(events.size(), 5u);
  EXPECT_EQ(events[0].zone, Zone::kConv);
  EXPECT_STREQ(events[0].what, "some_op");
  EXPECT_EQ(events[1].index, 0);
  EXPECT_EQ(events[3].index, 1);
  EXPECT_EQ(events[4].zone, Zone::kDecode);
  for (const int op : {0, 2}) {
    EXPECT_LE(events[op + 1].begin_ns, events[op].begin_ns);
    EXPECT_GE(events[op + 1].end_ns, events[op].end_ns);
  }
  EXPECT_LE(events[4].begin_ns, events[1].begin_ns);
  EXPECT_LE(events[1].end_ns, events[3].begin_ns);
}

TEST(Recorder, ClosesZonesThatAnErrorLeaves) {
  Recorder recorder(Recorder::Keep::kEvents);
  const MeterScope scope(recorder);
  try {
    const ZoneScope stage(Zone::kDenoise), step(Zone::kStep, 0);
    recorder.op(work_of(OpFamily::kNorm, 0, 1), [] { throw Error(ErrorKind::kInternal, "no"); });
  } catch (const Error&) {
  }
  EXPECT_EQ(recorder.events().size(), 2u);
  recorder.restart();  // CHECKs that no zone is open
  recorder.op(work_of(OpFamily::kNorm, 0, 1), [] {});
  EXPECT_EQ(recorder.profile().of(Zone::kCount, Zone::kNorm).calls, 1);
}

TEST(Recorder, AThreadWithoutAMeterIsNotSeen) {
  Recorder recorder(Recorder::Keep::kEvents);
  const MeterScope scope(recorder);
  EXPECT_EQ(thread_meter(), &recorder);
  std::thread([] {
    EXPECT_EQ(thread_meter(), nullptr);
    const ZoneScope zone(Zone::kWrite);
  }).join();
  EXPECT_TRUE(recorder.events().empty());
  Meter* helper = recorder.helper("writer");
  std::thread([&] {
    const MeterScope helping(*helper);
    const ZoneScope zone(Zone::kEncodeVideo, 0);
  }).join();
  EXPECT_EQ(recorder.helper("writer"), helper);
  EXPECT_EQ(recorder.helpers().at("writer")->events().size(), 1u);
}

}  // namespace
}  // namespace weft
