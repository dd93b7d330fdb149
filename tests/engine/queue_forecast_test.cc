// The forecast of the segment queue, compared with whole simulations.
#include <gtest/gtest.h>

#include <algorithm>

#include "engine/planning/forecast.h"
#include "tests/engine/small_job.h"

namespace weft::test {
namespace {

const Link kQueueFast{.latency_s = 1e-6, .bytes_per_s = 1e11},
    kQueueSlow{.latency_s = 10e-3, .bytes_per_s = 1e8};

PlannedJob planned_queue(const std::string& model, const Link& link, int frames, int steps,
                         const StepCache& cache = {}) {
  PlannedJob job{.model = std::make_shared<const OpenModel>(model),
                 .options = options_of(DType::kF32),
                 .request = {},
                 .machine = {.device = {}, .link = link}};
  job.machine.device.flop_per_s.fill(100e9);
  job.machine.device.bytes_per_s.fill(10e9);
  job.machine.device.copy_bytes_per_s = 5e9;
  job.machine.device.message_s = 30e-6;
  job.options.ops = &metered_ops();
  job.options.memory_limit = UINT64_MAX;
  job.request.prompt = "a big red ball";
  job.request.frames = frames;
  job.request.steps = steps;
  job.request.method = parse_method("queue:block=2,context=1", "method");
  job.request.cache = cache;
  job.request = Generator(job.model, job.options).resolve(job.request);
  return job;
}

std::vector<Layout> legal_for_queue(const PlannedJob& job, int ranks) {
  return parse_layouts("all", ranks, Generator(job.model, job.options).layout_limits(job.request));
}

void expect_like_whole(const PlannedJob& job, int ranks, const std::string& text = "all") {
  QuickForecast quick(job);
  const LayoutLimits limits = Generator(job.model, job.options).layout_limits(job.request);
  for (const Layout& layout : parse_layouts(text, ranks, limits)) {
    const Forecast whole = forecast_whole(job, layout), few = quick(layout);
    const std::string what = to_string(layout);
    EXPECT_NEAR(few.seconds / whole.seconds, 1, 0.02) << what;
    // The events of a simulated run do not tell decoding from the forwards beside it.
    EXPECT_NEAR((few.stage("denoise") + few.stage("decode")) / whole.stage("denoise"), 1, 0.02)
        << what;
    for (int rank = 0; rank < ranks; ++rank)
      for (const Payload payload : {Payload::kHidden, Payload::kLatent, Payload::kVelocity}) {
        const auto kind = static_cast<size_t>(payload);
        EXPECT_EQ(few.ranks[rank].counters.sent[kind], whole.ranks[rank].counters.sent[kind])
            << what << " " << to_string(payload);
      }
  }
}

TEST(QueueForecast, IsTheTimeOfTheWholeJob) {
  for (const Link& link : {kQueueFast, kQueueSlow})
    for (const int ranks : {1, 2, 3, 4})
      expect_like_whole(planned_queue("models/pocket", link, 81, 12), ranks);
}

// All frames are decoded by the decoder, in order, while later segments are denoised. A decoder
// that is the first rank has that time as a stage of its own, as a run has.
TEST(QueueForecast, CountsTheDecodingBesideTheForwards) {
  const PlannedJob job = planned_queue("models/pocket", kQueueFast, 81, 12);
  PlannedJob at_once = job;
  at_once.request.method = Full();
  const double decode_s = QuickForecast(at_once)({}).stage("decode");
  QuickForecast quick(job);
  for (const auto& [text, decoder] : {std::pair{"layers=2", 0}, {"layers=2,decode_rank=1", 1}}) {
    const Layout layout =
        parse_layout(text, 2, Generator(job.model, job.options).layout_limits(job.request));
    const Forecast forecast = quick(layout);
    const QueueTimeline& timeline = *forecast.queue;
    ASSERT_EQ(timeline.skipped, 0);
    std::vector<StepTime> decoded;
    double last_forward_s = 0;
    for (size_t rank = 0; rank < 2; ++rank)
      for (size_t i = 0; i < timeline.times[rank].size(); ++i) {
        const Step& step = timeline.plans[rank].steps[i];
        const StepTime& time = timeline.times[rank][i];
        if (step.kind == Step::Kind::kCompute)
          last_forward_s = std::max(last_forward_s, time.end_s);
        if (step.kind != Step::Kind::kDecode) continue;
        EXPECT_EQ(rank, decoder) << text;
        EXPECT_EQ(step.pass.segment, std::ssize(decoded)) << text;
        decoded.push_back(time);
      }
    ASSERT_EQ(std::ssize(decoded), timeline.config.segments) << text;
    EXPECT_LT(decoded.front().end_s, last_forward_s) << text;
    EXPECT_GE(timeline.end_s, decoded.back().end_s) << text;
    double sum_s = 0;
    for (const StepTime& time : decoded) sum_s += time.end_s - time.begin_s;
    EXPECT_NEAR(sum_s / decode_s, 1, 0.02) << text;
    EXPECT_NEAR(forecast.stage("decode"), decoder == 0 ? sum_s : 0, 1e-9) << text;
    double stages_s = 0;
    for (const auto& [stage, seconds] : forecast.stages) stages_s += seconds;
    EXPECT_NEAR(stages_s, forecast.seconds, 1e-9) << text;
  }
}

// Fewer segments than steps, and fewer than stages.
TEST(QueueForecast, HoldsForAShortQueue) {
  expect_like_whole(planned_queue("models/pocket", kQueueSlow, 29, 12), 4);
  expect_like_whole(planned_queue("models/pocket", kQueueSlow, 17, 9), 6);
}

// Many more segments than steps: most turns are left out.
TEST(QueueForecast, HoldsForALongVideo) {
  for (const Link& link : {kQueueFast, kQueueSlow}) {
    const PlannedJob job = planned_queue("models/pocket", link, 401, 9);
    Layout layout;
    layout[Axis::kLayers] = 3;
    EXPECT_GT(QuickForecast(job)(layout).queue->skipped, 20);
    for (const char* text : {"layers=3", "ulysses=3"}) expect_like_whole(job, 3, text);
  }
}

// Hidden rows of half the bytes, which other methods do not have.
TEST(QueueForecast, HoldsForAWireDtype) {
  PlannedJob job = planned_queue("models/pocket", kQueueSlow, 81, 12);
  const auto hidden = [&] {
    expect_like_whole(job, 2, "layers=2");
    Layout layout;
    layout[Axis::kLayers] = 2;
    return QuickForecast(job)(layout)
        .ranks[0]
        .counters.sent[static_cast<size_t>(Payload::kHidden)]
        .bytes;
  };
  const int64_t whole = hidden();
  job.options.wire_dtype = DType::kBF16;
  EXPECT_EQ(2 * hidden(), whole);
}

TEST(QueueForecast, HoldsForTwoExperts) {
  expect_like_whole(planned_queue("tests/golden/pipeline_two_experts/model", kQueueSlow, 41, 9), 2);
}

TEST(QueueForecast, HoldsForAStepCache) {
  const StepCache cache{StepCacheKind::kTeaCache, 0.1, std::vector<int>{1, 4, 5, 7}};
  for (const int ranks : {1, 2, 4})
    expect_like_whole(planned_queue("models/pocket", kQueueSlow, 81, 12, cache), ranks);
  expect_like_whole(planned_queue("models/pocket", kQueueFast, 201, 9, cache), 3, "layers=3");
}

int64_t bytes_of_a_forward(const PlannedJob& job, const Layout& layout, size_t rank = 0) {
  return static_cast<int64_t>(memory_of(job, layout)[rank].parts.streamed.front());
}

// Forwards take as long as their weights take to arrive, where that is longer: of one rank, all
// forwards of all segments one after the other.
TEST(QueueForecast, CountsTheReadingOfWeights) {
  PlannedJob job = planned_queue("models/pocket", kQueueFast, 81, 9);
  const Forecast resident = QuickForecast(job)({});
  EXPECT_EQ(resident.uploads.bytes, 0);
  job.options.resident_blocks = 2;
  const int64_t bytes = bytes_of_a_forward(job, {});
  ASSERT_GT(bytes, 0);
  constexpr double kForwardS = 2;
  job.machine.upload_bytes_per_s = static_cast<double>(bytes) / kForwardS;
  QuickForecast quick(job);
  const Forecast reads = quick({});
  const QueueTimeline& timeline = *reads.queue;
  ASSERT_EQ(timeline.skipped, 0);
  const auto forwards = static_cast<double>(
      std::ranges::count(timeline.plans[0].steps, Step::Kind::kCompute, &Step::kind));
  EXPECT_EQ(forwards, 9 * 2 * timeline.config.segments);
  // The rest of the job takes no longer than all of it does with resident weights.
  EXPECT_GE(reads.seconds, forwards * kForwardS);
  EXPECT_LE(reads.seconds, forwards * kForwardS + resident.seconds);
  EXPECT_GE(reads.seconds, quick.at_least({}).seconds);
  EXPECT_GE(quick.at_least({}).seconds, 0.99 * forwards * kForwardS);
  EXPECT_EQ(reads.uploads.bytes, 2 * bytes);  // both branches
  EXPECT_DOUBLE_EQ(reads.uploads.seconds, 2 * kForwardS);
  EXPECT_GT(reads.uploads.hidden_s, 0);
  EXPECT_LT(reads.uploads.hidden_s, 0.5 * reads.uploads.seconds);
  // Reading that is faster than computing costs nothing.
  job.machine.upload_bytes_per_s = static_cast<double>(bytes) * 1e6;
  const Forecast hidden = QuickForecast(job)({});
  EXPECT_DOUBLE_EQ(hidden.seconds, resident.seconds);
  EXPECT_DOUBLE_EQ(hidden.uploads.hidden_s, hidden.uploads.seconds);
}

// A step reads what it reads without the queue, on every layout.
TEST(QueueForecast, ReadsLikeOtherMethods) {
  PlannedJob job = planned_queue("models/pocket", kQueueFast, 81, 9);
  job.options.resident_blocks = 2;
  job.machine.upload_bytes_per_s = static_cast<double>(bytes_of_a_forward(job, {})) / 2;
  PlannedJob at_once = job;
  at_once.request.method = Full();
  QuickForecast quick(job);
  QuickForecast full(at_once);
  for (const int ranks : {1, 2})
    for (const Layout& layout : legal_for_queue(job, ranks)) {
      const Uploads is = quick(layout).uploads, wants = full(layout).uploads;
      EXPECT_EQ(is.bytes, wants.bytes) << to_string(layout);
      EXPECT_DOUBLE_EQ(is.seconds, wants.seconds) << to_string(layout);
    }
}

// A mode that decides to read weights costs what the same number of layers costs that is asked for.
TEST(QueueForecast, CountsTheReadingThatAModeChooses) {
  PlannedJob job = planned_queue("models/pocket", kQueueFast, 81, 9), asked = job;
  job.options.mode = MemoryMode::kMemory;
  const int resident = memory_of(job, {}).front().resident_layers;
  ASSERT_GE(resident, 2);
  asked.options.resident_blocks = resident;
  const double slow = static_cast<double>(bytes_of_a_forward(asked, {})) / 2;
  job.machine.upload_bytes_per_s = asked.machine.upload_bytes_per_s = slow;
  const Forecast chosen = QuickForecast(job)({}), wants = QuickForecast(asked)({});
  EXPECT_GT(chosen.uploads.bytes, 0);
  EXPECT_EQ(chosen.uploads.bytes, wants.uploads.bytes);
  EXPECT_DOUBLE_EQ(chosen.seconds, wants.seconds);
}

TEST(QueueForecast, ChoosesTheFastestLayout) {
  for (const Link& link : {kQueueFast, kQueueSlow}) {
    const PlannedJob job = planned_queue("models/pocket", link, 81, 12);
    const std::vector<Layout> layouts = legal_for_queue(job, 4);
    double least = INFINITY;
    for (const Layout& layout : layouts)
      least = std::min(least, forecast_whole(job, layout).seconds);
    const LayoutChoice choice = choose_layout(job, layouts);
    EXPECT_LT(forecast_whole(job, choice.best.front().layout).seconds, (kAlike + 0.02) * least);
  }
}

}  // namespace
}  // namespace weft::test
