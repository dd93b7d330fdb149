// Published ratios that a forecast has to reproduce: the order, and within 25 %. The transformers
// have the shapes of the models, and the devices 60 to 75 % of their peaks. Steps are compared;
// published times are of whole runs.
//
// Disagreements, with their reasons:
// - DistriFusion was published for a UNet, which is not built. Its three times (no messages, hidden
//   ones, awaited ones) are compared as ratios of a transformer's steps at the same sizes, where a
//   ring awaits as many bytes.
// - StepVideo's tensor parallelism is as fast as its sequence parallelism; here it is a third
//   slower on eight ranks, because partial sums travel in f32.
// - PipeFusion's table has DistriFusion at 1.8 and 2.7 times PipeFusion's time over PCIe; here
// their
//   messages are hidden in both, so that they are equal.
// - SANA (five plans of eight ranks within 5 % at 4096 x 4096): its linear attention is not built,
//   and with that of all pairs the plans differ by what they send.
// - FLUX (eager 4.24 s, compiled 1.63 s on four ranks) shows what a host program's launches cost,
//   and Qwen-Image (3.65 times as fast on eight ranks) the host and the VAE beside them. A
//   described device has no cost of a launch.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/planning/forecast.h"
#include "tests/engine/small_job.h"

namespace weft::test {
namespace {

struct Shape {
  int layers, heads, head_dim, ffn;
  int frames, width, height;
  double guidance = 5;
};
const Shape kHunyuanVideo{60, 24, 128, 12288, 129, 1280, 720, 1};  // distilled guidance
const Shape kStepVideo{48, 48, 128, 24576, 61, 992, 544};
const Shape kConsisId{42, 48, 64, 12288, 49, 720, 480};
const Shape kWan14B{40, 40, 128, 13824, 81, 832, 480};

Machine machine(double flop_per_s, double bytes_per_s, double link_bytes_per_s) {
  Machine out;
  out.device.flop_per_s.fill(flop_per_s);
  out.device.bytes_per_s.fill(bytes_per_s);
  out.link = {.latency_s = 10e-6, .bytes_per_s = link_bytes_per_s};
  return out;
}
const Machine kH100 = machine(600e12, 2.5e12, 200e9), kH20 = machine(110e12, 2.8e12, 200e9);

class Anchors : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/weft_anchor_model";
    std::filesystem::remove_all(folder_);
    std::filesystem::copy("models/pocket", folder_, std::filesystem::copy_options::recursive);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  // A job of a transformer of this shape. Only its shapes are read.
  PlannedJob planned(const Shape& shape, const Machine& machine,
                     const std::string& method = "full") const {
    const std::string path = folder_ + "/transformer/config.json";
    nlohmann::json config = nlohmann::json::parse(std::ifstream(path));
    config.update({{"num_layers", shape.layers + 1},
                   {"num_attention_heads", shape.heads},
                   {"attention_head_dim", shape.head_dim},
                   {"ffn_dim", shape.ffn}});
    std::ofstream(path) << config;
    PlannedJob job{.model = std::make_shared<const OpenModel>(OpenModel(folder_), shape.layers),
                   .options = options_of(DType::kBF16),
                   .request = {},
                   .machine = machine};
    job.options.ops = &metered_ops();
    job.options.memory_limit = UINT64_MAX;
    job.request.prompt = "a red ball";
    job.request.frames = shape.frames;
    job.request.width = shape.width;
    job.request.height = shape.height;
    job.request.steps = 20;
    job.request.guidance_scale = job.request.guidance_scale_2 = shape.guidance;
    job.request.method = parse_method(method, "method");
    job.request = Generator(job.model, job.options).resolve(job.request);
    return job;
  }
  static double denoise(const PlannedJob& job, const std::vector<std::pair<Axis, int>>& split) {
    Layout layout;
    for (const auto& [axis, ranks] : split) layout[axis] = ranks;
    return QuickForecast(job)(layout).stage("denoise");
  }
  double speed_up(const Shape& shape, const Machine& machine,
                  const std::vector<std::pair<Axis, int>>& split) const {
    const PlannedJob job = planned(shape, machine);
    return denoise(job, {}) / denoise(job, split);
  }
  std::string folder_;
};

void expect_within(double actual, double published, const std::string& what) {
  EXPECT_NEAR(actual / published, 1, 0.25) << what << ": " << actual << ", published " << published;
}

// 50 steps and what no rank shares (1904 s and 6639 s on one device) on eight Ulysses ranks. The
// unshared seconds are those that the other device's two times give.
TEST_F(Anchors, HunyuanVideoScalesBetterOnTheSlowerDevice) {
  const double fast = speed_up(kHunyuanVideo, kH100, {{Axis::kUlysses, 8}}),
               slow = speed_up(kHunyuanVideo, kH20, {{Axis::kUlysses, 8}});
  EXPECT_GT(slow, fast);
  const auto unshared = [](double one, double eight) { return (8 * eight - one) / 7; };
  const auto whole = [](double one, double rest, double steps) {
    return one / (rest + (one - rest) / steps);
  };
  expect_within(whole(1904, unshared(6639, 941), fast), 5.64, "H100");
  expect_within(whole(6639, unshared(1904, 337.6), slow), 7.06, "H20");
}

TEST_F(Anchors, StepVideoUnderTensorAndSequenceParallelism) {
  const double one = 213.6;
  for (const auto& [ranks, tensor, sequence] :
       {std::tuple{2, 109.0, 108.1}, {4, 57.6, 57.0}, {8, 30.4, 30.1}}) {
    expect_within(speed_up(kStepVideo, kH20, {{Axis::kTensor, ranks}}), one / tensor, "tensor");
    expect_within(speed_up(kStepVideo, kH20, {{Axis::kUlysses, ranks}}), one / sequence, "ulysses");
  }
  const PlannedJob job = planned(kStepVideo, kH20);
  const auto gigabytes = [&](Axis axis) {
    Layout layout;
    layout[axis] = 8;
    Forecast forecast;
    forecast.memory = memory_of(job, layout);
    return static_cast<double>(forecast.high_water()) * 1e-9;
  };
  // The text encoders, which are other ones here, are in both.
  expect_within(gigabytes(Axis::kUlysses) - gigabytes(Axis::kTensor), 79.684 - 30.028, "GB");
}

TEST_F(Anchors, ConsisIdPrefersGuidanceThenTheRing) {
  const double cfg = speed_up(kConsisId, kH100, {{Axis::kCfg, 2}}),
               ring = speed_up(kConsisId, kH100, {{Axis::kRing, 2}}),
               ulysses = speed_up(kConsisId, kH100, {{Axis::kUlysses, 2}});
  EXPECT_GT(cfg, ring);
  EXPECT_GT(ring, ulysses);
  expect_within(cfg, 1.92, "cfg");
  expect_within(ring, 1.64, "ring");
  expect_within(ulysses, 1.50, "ulysses");
}

TEST_F(Anchors, Wan14BOnEightDevices) {
  const PlannedJob job = planned(kWan14B, kH100);
  const double one = denoise(job, {}) / job.request.steps,
               eight = denoise(job, {{Axis::kUlysses, 8}}) / job.request.steps;
  expect_within(one, 5.18, "s on one device");
  expect_within(eight, 0.75, "s on eight");
  expect_within(one / eight, 6.9, "speed-up");
}

// PixArt's shapes on four A100 over PCIe and on eight over NVLink.
TEST_F(Anchors, PipeFusionWinsOverPcieAndUlyssesOverNvlink) {
  const auto seconds = [&](int side, const Machine& machine, const std::string& method, Axis axis,
                           int ranks) {
    const Shape picture{28, 16, 72, 4608, 1, side, side};
    return denoise(planned(picture, machine, method), {{axis, ranks}});
  };
  const Machine pcie = machine(190e12, 1.5e12, 23e9), nvlink = machine(190e12, 1.5e12, 268e9);
  // By side: Ulysses in PipeFusion's time over PCIe; PipeFusion in DistriFusion's over NVLink.
  for (const auto& [side, ulysses, pipefusion] :
       {std::tuple{1024, 2.01, 1.26}, {2048, 1.48, 1.64}}) {
    const std::string of = std::to_string(side);
    const auto few = [&](const std::string& method, Axis axis) {
      return seconds(side, pcie, method, axis, 4);
    };
    const auto many = [&](const Machine& machine, const std::string& method, Axis axis) {
      return seconds(side, machine, method, axis, 8);
    };
    const double staged = few("pipefusion:patches=8,warmup=1", Axis::kLayers);
    EXPECT_LT(staged, few("full", Axis::kUlysses));
    EXPECT_LT(staged, few("full", Axis::kRing));
    EXPECT_LT(staged, few("full", Axis::kTensor));
    expect_within(few("full", Axis::kUlysses) / staged, ulysses, of + " ulysses over PCIe");

    const std::string distrifusion = "distrifusion:patches=8,warmup=1";
    const double best = many(nvlink, distrifusion, Axis::kPatch);
    EXPECT_LT(many(nvlink, "full", Axis::kUlysses),
              many(nvlink, "pipefusion:patches=16,warmup=1", Axis::kLayers));
    expect_within(many(nvlink, "pipefusion:patches=16,warmup=1", Axis::kLayers) / best, pipefusion,
                  of + " pipefusion over NVLink");
  }
}

// The third size of DistriFusion's table: 22.9 s and 24.7 s with hidden and awaited messages, 21.3
// s without any. The larger the picture, the less messages cost.
TEST_F(Anchors, DistriFusionHidesItsMessagesAtThreeSizes) {
  double smaller = 1e9;
  for (const auto& [side, hidden, awaited] : {std::tuple{1024, 1.77 / 1.48, 2.21 / 1.48},
                                              {2048, 4.81 / 4.14, 5.62 / 4.14},
                                              {3840, 22.9 / 21.3, 24.7 / 21.3}}) {
    const auto seconds = [&, of = side](double link, const std::string& method, Axis axis) {
      const Shape picture{28, 16, 72, 4608, 1, of, of};
      return denoise(planned(picture, machine(190e12, 1.5e12, link), method), {{axis, 8}});
    };
    const std::string distrifusion = "distrifusion:patches=8,warmup=1";
    const double silent = seconds(0, distrifusion, Axis::kPatch),
                 displaced = seconds(268e9, distrifusion, Axis::kPatch),
                 ring = seconds(268e9, "full", Axis::kRing);
    EXPECT_LT(silent, displaced);
    EXPECT_LT(displaced, ring);
    EXPECT_LT(ring / silent, smaller);
    smaller = ring / silent;
    expect_within(displaced / silent, hidden, std::to_string(side) + " hidden");
    expect_within(ring / silent, awaited, std::to_string(side) + " awaited");
  }
}

}  // namespace
}  // namespace weft::test
