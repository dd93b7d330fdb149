// Requests: defaults, and refusals with the nearest legal values. Also the memory plan's
// arithmetic.
#include "engine/job/request.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "engine/memory/memory_mode.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

DefaultSettings defaults() {
  DefaultSettings out;
  out.origin = "weft.json";
  out.width = 128;
  out.height = 96;
  out.frames = 25;
  out.fps = 16;
  out.steps = 20;
  out.guidance_scale = 4;
  out.flow_shift = 3;
  return out;
}

std::string request_refusal(const Request& request, const ModelLimits& limits = {}) {
  return error_of([&] { validate(request, limits); }, ErrorKind::kUsage);
}

Request with(const std::function<void(Request&)>& change) {
  Request request = resolve({}, defaults());
  change(request);
  return request;
}

TEST(Request, OpenFieldsBecomeTheModels) {
  const Request request = resolve({}, defaults());
  EXPECT_EQ(request.width, 128);
  EXPECT_EQ(request.height, 96);
  EXPECT_EQ(request.frames, 25);
  EXPECT_EQ(request.steps, 20);
  EXPECT_EQ(request.guidance_scale, 4.0);
  EXPECT_EQ(request.guidance_scale_2, 4.0);
  EXPECT_EQ(request.flow_shift, 3.0);
  EXPECT_EQ(request.negative_prompt, "");
  EXPECT_EQ(request_refusal(request), "");
  EXPECT_EQ(request_refusal(resolve(request, defaults())), "");  // resolving twice changes nothing
}

TEST(Request, AGivenScaleCountsForBothExperts) {
  DefaultSettings model = defaults();
  model.guidance_scale_2 = 3;
  EXPECT_EQ(resolve({}, model).guidance_scale_2, 3.0);
  Request given;
  given.guidance_scale = 6;
  EXPECT_EQ(resolve(given, model).guidance_scale_2, 6.0);
  given.guidance_scale_2 = 2;
  EXPECT_EQ(resolve(given, model).guidance_scale_2, 2.0);
}

TEST(Request, APublishedShiftYieldsToSchedulerConfig) {
  DefaultSettings model = defaults();
  model.origin = "built-in";
  EXPECT_FALSE(resolve({}, model).flow_shift);
}

TEST(Request, SigmasSetTheStepsAndExcludeAShift) {
  Request request;
  request.sigmas = {1, 0.5, 0.25};
  request = resolve(request, defaults());
  EXPECT_EQ(request.steps, 3);
  EXPECT_EQ(request_refusal(request), "");
  request.flow_shift = 5;
  EXPECT_TRUE(contains(request_refusal(request), "flow shift"));
}

TEST(Request, IllegalSizesNameTheNearestTwo) {
  const auto width = [](int64_t value) {
    return request_refusal(with([&](Request& r) { r.width = value; }));
  };
  EXPECT_TRUE(contains(width(500), "width is 500"));
  EXPECT_TRUE(contains(width(500), "nearest: 496 and 512"));
  EXPECT_TRUE(contains(width(5), "nearest: 16 and 32"));
  EXPECT_TRUE(contains(width(-16), "nearest: 16 and 32"));
  EXPECT_TRUE(contains(width(int64_t{1} << 40), "nearest: 16384"));
  EXPECT_EQ(width(512), "");
  const auto frames = [](int64_t value) {
    return request_refusal(with([&](Request& r) { r.frames = value; }));
  };
  EXPECT_TRUE(contains(frames(80), "; nearest: 77 and 81"));
  EXPECT_TRUE(contains(frames(0), "nearest: 1 and 5"));
  EXPECT_EQ(frames(1), "");
  ModelLimits coarse;
  coarse.size_multiple = 32;
  EXPECT_TRUE(contains(request_refusal(with([](Request& r) { r.height = 80; }), coarse),
                       "nearest: 64 and 96"));
}

TEST(Request, OtherIllegalFieldsAreNamed) {
  EXPECT_TRUE(contains(request_refusal(with([](Request& r) { r.fps = -1; })), "fps"));
  EXPECT_TRUE(contains(request_refusal(with([](Request& r) { r.guidance_scale = NAN; })),
                       "guidance scale"));
  EXPECT_TRUE(
      contains(request_refusal(with([](Request& r) { r.guidance_scale_2 = 9; })), "one expert"));
  EXPECT_TRUE(
      contains(request_refusal(with([](Request& r) { r.solver = "ddim"; })), "unipc-original"));
}

TEST(MemoryPlan, PicksTheFastestResidencyThatFits) {
  ComponentBytes parts;
  parts.text_encoder = 100;
  parts.experts = {40, 50};
  parts.vae = 10;
  parts.encode_text = 5;
  parts.denoise = 20;
  parts.decode = 30;
  const auto at = [&](uint64_t available) {
    return choose_plan(
        {.mode = MemoryMode::kLayers, .bytes = [&](int) { return parts; }, .available = available});
  };
  // all: 200 + 30; staged: max(105, 100 + 30); one expert: max(105, 60 + 30); then 105.
  EXPECT_EQ(at(230).residency, Residency::kAll);
  EXPECT_EQ(at(230).high_water, 230u);
  EXPECT_EQ(at(229).residency, Residency::kStaged);
  EXPECT_EQ(at(130).high_water, 130u);
  EXPECT_EQ(at(129).residency, Residency::kOneExpert);
  EXPECT_EQ(at(129).high_water, 105u);
  EXPECT_FALSE(at(104).fits());
  EXPECT_EQ(at(104).residency, Residency::kSequential);
  EXPECT_TRUE(contains(at(104).to_string(), "DOES NOT FIT"));
  parts.text_encoder = 0;  // one expert: 60 + 30; one component: max(50 + 20, 10 + 30)
  EXPECT_EQ(at(89).residency, Residency::kSequential);
  EXPECT_EQ(at(89).high_water, 70u);
}

TEST(MemoryPlan, SomethingIsAvailableHere) {
  EXPECT_GT(available_memory(), uint64_t{64} << 20);
  EXPECT_LT(available_memory(), uint64_t{1} << 50);
  EXPECT_EQ(format_bytes(uint64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(format_bytes(uint64_t{3} << 20), "3.00 MiB");
}

}  // namespace
}  // namespace weft::test
