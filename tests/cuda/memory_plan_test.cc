// Compares a device's memory plan with what is allocated there: scratch op by op, and whole jobs.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/generation/generator.h"
#include "kernels/cuda/device.h"
#include "kernels/transfer.h"
#include "models/footprint.h"
#include "models/random_weights/random_weights.h"
#include "parallel/context.h"
#include "parallel/transport/local.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/first_device.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/error_of.h"
#include "tests/support/faulty_transport.h"

namespace weft {
namespace {

constexpr const char* kPocket = "tests/golden/pipeline_t2v/model";

// Makes a copy of the small model whose transformer has 24 MiB of bf16 weights, enough to matter.
WanConfig wide() {
  WanConfig config = WanConfig::from_json_file(std::string(kPocket) + "/transformer/config.json");
  config.heads = 6;
  config.head_dim = 64;
  config.ffn_dim = 1536;
  config.layers = 5;
  return config;
}

const std::string& wide_model() {
  static const std::string folder = [] {
    namespace fs = std::filesystem;
    const std::string copy = testing::TempDir() + "/weft_wide_model";
    fs::remove_all(copy);
    fs::copy(kPocket, copy, fs::copy_options::recursive);
    const WanConfig config = wide();
    const std::string path = copy + "/transformer/config.json";
    nlohmann::json json = nlohmann::json::parse(std::ifstream(path));
    json["attention_head_dim"] = config.head_dim;
    json["num_attention_heads"] = config.heads;
    json["ffn_dim"] = config.ffn_dim;
    json["num_layers"] = config.layers;
    std::ofstream(path) << json;
    const std::string weights = copy + "/transformer/diffusion_pytorch_model.safetensors";
    fs::remove(weights);
    write_random(weights, random_wan(config));
    return copy;
  }();
  return folder;
}

struct PlannedWay {
  const char* model;
  WeightFormat weights = WeightFormat::kCompute;
  int resident = 0;
  DType dtype = DType::kBF16;
};

GeneratorOptions options_of(const PlannedWay& way) {
  GeneratorOptions options;
  options.device = kCuda;
  options.dtype = way.dtype;
  options.weights = way.weights;
  options.resident_blocks = way.resident;
  options.threads = 1;
  return options;
}

// 18 tokens are more rows than a GEMV takes.
Request small_picture() {
  Request request;
  request.prompt = "a red ball";
  request.negative_prompt = "";
  request.width = request.height = 48;
  request.frames = 5;
  request.steps = 1;
  request.guidance_scale = 1;
  request.seed = 7;
  return request;
}

// The plan may exceed what is allocated by at most 5 % and the slab of small tensors.
void expect_planned(uint64_t planned, uint64_t taken, const std::string& about) {
  EXPECT_GE(planned, taken) << about;
  EXPECT_LE(static_cast<double>(planned), 1.05 * static_cast<double>(taken) + kDeviceSlab) << about;
}

class JobsOf : public testing::TestWithParam<PlannedWay> {};

TEST_P(JobsOf, UseThePlannedMemory) {
  const PlannedWay& way = GetParam();
  const std::string model = way.model == std::string("wide") ? wide_model() : kPocket;
  const size_t before = device_use(kCuda).live;
  Generator generator(model, options_of(way));
  const Request request = generator.resolve(small_picture());
  const MemoryPlan plan = generator.plan(request);
  ASSERT_EQ(plan.residency, Residency::kAll);
  const RunResult result = generator.run(request, nullptr);
  expect_planned(plan.high_water, result.memory_high_water - before, plan.to_string());
  // The program's own count must equal the machine's.
  EXPECT_EQ(device_use(kCuda).live, emulated::device_bytes_used(0));
  EXPECT_EQ(result.streaming.bytes_per_forward, static_cast<int64_t>(plan.parts.streamed.front()));
  if (way.resident == 0) return;
  EXPECT_EQ(plan.host.streamed, plan.parts.streamed.front());
  // The window stays as far ahead of the forwards as at the beginning.
  EXPECT_EQ(result.streaming.weights.bytes,
            result.streaming.forwards * result.streaming.bytes_per_forward);
  EXPECT_GT(result.streaming.forwards, 0);
  EXPECT_GT(result.streaming.weights.bytes_per_s(), 0);
}

INSTANTIATE_TEST_SUITE_P(
    , JobsOf,
    testing::Values(
        PlannedWay{kPocket}, PlannedWay{kPocket, WeightFormat::kCompute, 0, DType::kF32},
        PlannedWay{kPocket, WeightFormat::kInt8}, PlannedWay{kPocket, WeightFormat::kFp8},
        PlannedWay{"wide"}, PlannedWay{"wide", WeightFormat::kInt8},
        PlannedWay{"wide", WeightFormat::kFp8}, PlannedWay{"wide", WeightFormat::kCompute, 2},
        PlannedWay{"wide", WeightFormat::kCompute, 4}, PlannedWay{"wide", WeightFormat::kFp8Tensor},
        PlannedWay{"wide", WeightFormat::kFp8, 3}),
    [](const testing::TestParamInfo<PlannedWay>& info) {
      const PlannedWay& way = info.param;
      std::string name =
          std::string(way.model == std::string("wide") ? "prefill_model_" : "pocket_") +
          to_string(way.weights) + "_" + std::string(to_string(way.dtype)) + "_" +
          std::to_string(way.resident);
      std::ranges::replace(name, '-', '_');
      return name;
    });

// Runs the denoising stage alone; in the small jobs above, a decoder's scratch hides its peak.
TEST(Forwards, UseThePlannedMemory) {
  const WanConfig config = wide();
  const TensorFile weights = random_wan(config);
  const DeviceTraits device = device_traits(kCuda);
  for (const auto& [format, resident] : {std::pair{WeightFormat::kCompute, 0},
                                         {WeightFormat::kFp8, 0},
                                         {WeightFormat::kInt8, 0},
                                         {WeightFormat::kCompute, 2},
                                         {WeightFormat::kFp8, 4}}) {
    const size_t before = device_use(kCuda).live;
    reset_device_use_peak(kCuda);
    Stream stream = cuda_stream(0, Determinism::kFixed, 1);
    const TransformerLoad load{
        .dtype = DType::kBF16, .blocks = {}, .weights = format, .resident = resident};
    const WanTransformer model = WanTransformer::load(stream, weights, config, load);
    Arena arena(size_t{1} << 30, kCuda);
    SerialSeams seams;
    const TokenRanges tokens = TokenRanges::all(18);
    constexpr int64_t kRows = 20;
    Context context = seams.context(stream, arena, {}, tokens);
    const Tensor rows(DType::kF32, {kRows, config.text_dim}, kCuda),
        latent(DType::kF32, {config.in_channels, 2, 6, 6}, kCuda),
        out(DType::kF32, {config.out_channels, 2, 6, 6}, kCuda);
    const WanText text = test::prepare_text(model, context, rows, kRows);
    const Rope rope = on_device(stream, test::rope_of(model, {2, 3, 3}));
    const TimeSegment time{{0, tokens.total}, 500};
    test::forward(model, context, BlockRange::all(config.layers), latent, {&time, 1}, text, rope,
                  out);
    stream.sync();
    const size_t taken = device_use(kCuda).peak - before;
    DryRun run(device);
    const auto [dry, held] =
        dry_load(run, *make_wan_model(config), without_values(wan_tensors(config)), load);
    Context dry_context = seams.context(run.stream(), run.arena(), {}, tokens);
    const Footprint forward = dry_forward(run, *dry, dry_context, {2, 3, 3}, kRows, kRows);
    EXPECT_EQ(model.weights_bytes(), dry->weights_bytes());
    EXPECT_EQ(model.streamed_bytes(), dry->streamed_bytes());
    const StageBytes stage{
        .tensors = forward.held + rows.view().bytes() + 2 * latent.view().bytes(),
        .arena = forward.arena,
        .scratch = std::max(kTransferPiece, forward.scratch),
        .loading = held.passing};
    expect_planned(held.held + stage.held(true), taken,
                   to_string(format) + " " + std::to_string(resident));
  }
}

TEST(Jobs, RanksThatShareADeviceUseThePlannedMemory) {
  const size_t before = device_use(kCuda).live;
  uint64_t planned[2] = {};
  auto transports = make_local_transports(2);
  run_ranks(transports, [&](Communicator& world) {
    Generator generator(wide_model(), options_of({"wide"}),
                        RankPlacement::of(world, parse_layout("ulysses=2", 2, {})));
    const Request request = generator.resolve(small_picture());
    planned[world.rank()] = generator.plan(request).high_water;
    generator.run(request, nullptr);
  });
  expect_planned(planned[0] + planned[1], device_use(kCuda).peak - before, "2 ranks");
}

// The pinned buffers that messages of a device pass through, where the transport takes host memory
// alone (FaultyTransport). After the last chunk all of them are idle.
TEST(Jobs, StageMessagesInThePlannedMemory) {
  struct Held final : ProgressListener {
    explicit Held(const Communicator& of) : world(of) {}
    const Communicator& world;
    int64_t bytes = 0;
    void progress(const Progress& at) override {
      if (at.stage == "decode" && at.step == at.total) bytes = world.held_bytes();
    }
  };
  for (const char* text : {"ulysses=2", "tensor=2", "layers=2", "cfg=2"}) {
    const Layout layout = parse_layout(text, 2, {});
    std::array<uint64_t, 2> planned{};  // straight from the device, through the host
    int64_t counted = 0;
    for (const bool staged : {false, true}) {
      auto transports = make_local_transports(2);
      if (staged)
        for (auto& transport : transports)
          transport = std::make_shared<test::FaultyTransport>(transport, -1, [] {});
      run_ranks(transports, [&](Communicator& world) {
        Generator generator(wide_model(), options_of({"wide"}), RankPlacement::of(world, layout));
        Request request = small_picture();
        request.steps = 1;
        request.guidance_scale = 5;
        request = generator.resolve(request);
        Held held(world);
        RunOptions run;
        if (world.rank() == 0) planned[staged] = generator.plan(request).parts.host.copies;
        if (world.rank() == 0) run.listener = &held;
        generator.run(request, nullptr, run);
        if (world.rank() == 0) counted = held.bytes;
      });
      if (!staged) {
        EXPECT_EQ(counted, 0) << text;
      }
    }
    EXPECT_GT(counted, 0) << text;
    EXPECT_EQ(planned[1] - planned[0], static_cast<uint64_t>(counted)) << text;
  }
}

TEST(Jobs, TooLargeForPinnedMemoryAreRefusedBeforeLoading) {
  GeneratorOptions options = options_of({"wide", WeightFormat::kCompute, 2});
  options.host_memory_limit = size_t{44} << 20;  // some 24 MiB of weights, 32 MiB of copies
  Generator generator(wide_model(), options);
  const Request request = generator.resolve(small_picture());
  EXPECT_TRUE(generator.plan(request).fits_device());
  EXPECT_FALSE(generator.plan(request).fits_host());
  reset_device_use_peak(kCuda);
  const size_t live = device_use(kCuda).live;
  const std::string message =
      test::thrown_error([&] { generator.run(request, nullptr); }, ErrorKind::kMemory);
  EXPECT_TRUE(test::contains(message, "of host memory beside the device's"));
  EXPECT_TRUE(test::contains(message, "Try --resident-layers "));
  EXPECT_EQ(device_use(kCuda).peak, live);
}

TEST(Jobs, TooLargeForTheDeviceAreOfferedFewerResidentLayers) {
  GeneratorOptions options = options_of({"wide"});
  Generator whole(wide_model(), options);
  const MemoryPlan plan = whole.plan(whole.resolve(small_picture()));
  options.memory_limit = memory_under(Residency::kSequential, plan.parts, 0).high_water - 1;
  Generator tight(wide_model(), options);
  test::thrown_error([&] { tight.run(tight.resolve(small_picture()), nullptr); },
                     ErrorKind::kMemory);
}

}  // namespace
}  // namespace weft
