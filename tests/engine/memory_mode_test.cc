// Jobs on a CPU whose transformers are not in memory as a whole, and the memory modes.
#include "engine/memory/memory_mode.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/memory/memory_advice.h"
#include "kernels/dry_run.h"
#include "models/random_weights/random_weights.h"
#include "parallel/transport/local.h"
#include "tests/engine/small_job.h"
#include "tests/support/error_of.h"
#include "tests/support/gguf_copy.h"
#include "tests/support/scaled_copy.h"
#include "tests/support/sparse_model.h"

namespace weft::test {
namespace {

namespace fs = std::filesystem;

constexpr int kLayers = 8;

// A model with two experts of eight blocks, which are most of its memory.
const std::string& deep_model() {
  static const std::string folder = [] {
    const std::string copy = testing::TempDir() + "/weft_deep_model";
    fs::remove_all(copy);
    fs::copy("tests/golden/pipeline_two_experts/model", copy, fs::copy_options::recursive);
    for (const char* expert : {"transformer", "transformer_2"}) {
      const std::string path = copy + "/" + expert + "/config.json";
      nlohmann::json json = nlohmann::json::parse(std::ifstream(path));
      json["num_attention_heads"] = 16;
      json["ffn_dim"] = 768;
      json["num_layers"] = kLayers;
      std::ofstream(path) << json;
      const std::string weights = copy + "/" + expert + "/diffusion_pytorch_model.safetensors";
      fs::remove(weights);
      write_random(weights, random_wan(WanConfig::from_json_file(path)));
    }
    return copy;
  }();
  return folder;
}

// The same model whose experts are files that users share: GGUF blocks, or 8 bits with a scale per
// row.
std::string stored_model(BlockType type) {
  const std::string copy = testing::TempDir() + "/weft_deep_" + shape_of(type).name;
  if (fs::exists(copy)) return copy;
  const bool scaled = type == BlockType::kI8 || type == BlockType::kF8E4M3;
  const auto convert = scaled ? copy_with_scaled : copy_with_gguf;
  convert(deep_model(), copy + "_one", "transformer", type);
  convert(copy + "_one", copy, "transformer_2", type);
  fs::remove_all(copy + "_one");
  return copy;
}

Request mode_job() {
  Request request = job();
  request.steps = 4;
  return request;
}

struct RanInMode {
  MemoryPlan plan;
  RunResult result;
  uint64_t taken = 0;
};

RanInMode run_mode(const GeneratorOptions& options, const std::string& model = deep_model()) {
  const size_t before = tensor_bytes_live();
  Generator generator(model, options);
  RanInMode ran;
  ran.plan = generator.plan(generator.resolve(mode_job()));
  ran.result = generator.run(mode_job(), nullptr);
  ran.taken = ran.result.memory_high_water - before;
  return ran;
}

MemoryPlan plan_of(const GeneratorOptions& options, const std::string& model = deep_model()) {
  const Generator generator(model, options);
  return generator.plan(generator.resolve(mode_job()));
}

std::string refusal_of(const GeneratorOptions& options) {
  return error_of([&] { run_mode(options); }, ErrorKind::kMemory);
}

TEST(ResidentLayers, GiveTheSamePictureInThePlannedMemory) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const WeightFormat weights : {WeightFormat::kCompute, WeightFormat::kInt8}) {
      GeneratorOptions options = options_of(dtype);
      options.weights = weights;
      const RanInMode all = run_mode(options);
      EXPECT_EQ(all.result.streaming.forwards, 0);
      uint64_t before = all.plan.high_water;
      for (const int resident : {6, 4, 2}) {
        options.resident_blocks = resident;
        const RanInMode some = run_mode(options);
        const std::string about = std::to_string(resident) + " resident, " +
                                  std::string(to_string(dtype)) + ", " + to_string(weights) + ": " +
                                  some.plan.to_string();
        EXPECT_EQ(some.result.framehash, all.result.framehash) << about;
        EXPECT_EQ(some.plan.resident_layers, resident);
        EXPECT_NEAR(static_cast<double>(some.plan.high_water), static_cast<double>(some.taken),
                    0.05 * static_cast<double>(some.taken))
            << about;
        EXPECT_LT(some.plan.high_water, before) << about;
        before = some.plan.high_water;
        const OffloadTotals& streaming = some.result.streaming;
        EXPECT_EQ(streaming.forwards, 8);  // four steps of two branches
        EXPECT_EQ(streaming.bytes_per_forward,
                  static_cast<int64_t>(some.plan.parts.streamed.front()));
        EXPECT_EQ(streaming.weights.bytes, streaming.forwards * streaming.bytes_per_forward);
        EXPECT_GT(streaming.weights.bytes_per_s(), 0);
      }
    }
}

// The thread that reads ahead may or may not be at work when most memory is taken.
void expect_planned(const RanInMode& ran, const std::string& about) {
  const auto most = static_cast<double>(ran.plan.high_water),
             taken = static_cast<double>(ran.taken),
             reading = static_cast<double>(ran.plan.parts.reading);
  EXPECT_LE(taken, 1.05 * most) << about;
  EXPECT_GE(taken, 0.95 * (most - reading)) << about;
}

// Blocks that stay as their file stores them are read ahead like others.
TEST(ResidentLayers, KeepTheFormatOfTheirFile) {
  for (const BlockType type :
       {BlockType::kQ8_0, BlockType::kQ4_K, BlockType::kF16, BlockType::kI8, BlockType::kF8E4M3})
    for (const DType dtype : {DType::kF32, DType::kBF16}) {
      GeneratorOptions options = options_of(dtype);
      const std::string model = stored_model(type);
      const RanInMode expanded = run_mode(options, model);
      options.weights = WeightFormat::kFile;
      const RanInMode all = run_mode(options, model);
      EXPECT_EQ(all.result.framehash, expanded.result.framehash);
      uint64_t before = all.plan.high_water;
      for (const int resident : {5, 2}) {
        options.resident_blocks = resident;
        const RanInMode some = run_mode(options, model);
        const std::string about = std::string(shape_of(type).name) + ", " +
                                  std::string(to_string(dtype)) + ", " + std::to_string(resident) +
                                  " resident: " + some.plan.to_string();
        EXPECT_EQ(some.result.framehash, expanded.result.framehash) << about;
        expect_planned(some, about);
        EXPECT_LT(some.plan.high_water, before) << about;
        before = some.plan.high_water;
        const OffloadTotals& streaming = some.result.streaming;
        EXPECT_EQ(streaming.bytes_per_forward,
                  static_cast<int64_t>(some.plan.parts.streamed.front()))
            << about;
        EXPECT_EQ(streaming.weights.bytes, streaming.forwards * streaming.bytes_per_forward)
            << about;
      }
    }
}

// The mode of the smallest footprint keeps the format that the user asked for.
TEST(MemoryModes, MemoryTakesTheLeastOfAFilesFormat) {
  for (const BlockType type : {BlockType::kQ8_0, BlockType::kI8}) {
    const std::string model = stored_model(type);
    GeneratorOptions options = options_of(DType::kF32);
    options.weights = WeightFormat::kFile;
    options.weights_fixed = true;
    const std::string framehash = run_mode(options, model).result.framehash;
    options.mode = MemoryMode::kMemory;
    const RanInMode ran = run_mode(options, model);
    EXPECT_EQ(ran.plan.resident_layers, 2);
    EXPECT_EQ(ran.result.framehash, framehash);
    expect_planned(ran, ran.plan.to_string());
    EXPECT_EQ(smallest_weights(options, {}), WeightFormat::kFile);
    GeneratorOptions computed = options;
    computed.weights = WeightFormat::kCompute;
    EXPECT_LT(ran.plan.high_water, plan_of(computed, model).high_water);
    // The limit of that plan is enough for auto, too.
    options.mode = MemoryMode::kAuto;
    options.memory_limit = ran.plan.high_water;
    EXPECT_EQ(run_mode(options, model).result.framehash, framehash);
  }
}

TEST(ResidentLayers, GiveTheSamePictureUnderEveryLayout) {
  const std::string stored = stored_model(BlockType::kQ8_0);
  const auto hash = [&](const std::string& text, int resident, WeightFormat weights) {
    const Layout layout = parse_layout(text, 2, {});
    const std::string& model = weights == WeightFormat::kFile ? stored : deep_model();
    std::string framehash;
    run_ranks(2, [&](Communicator& world) {
      GeneratorOptions options = options_of(DType::kF32);
      options.resident_blocks = resident;
      options.weights = weights;
      Generator generator(model, options, RankPlacement::of(world, layout));
      const RunResult result = generator.run(mode_job(), nullptr);
      if (world.rank() == 0) framehash = result.framehash;
      EXPECT_EQ(result.streaming.forwards > 0, resident > 0) << text;
    });
    return framehash;
  };
  for (const char* text : {"cfg=2", "ulysses=2", "ring=2", "token_ring=2", "layers=2", "tensor=2"})
    for (const WeightFormat weights : {WeightFormat::kCompute, WeightFormat::kFile})
      EXPECT_EQ(hash(text, 2, weights), hash(text, 0, weights)) << text << to_string(weights);
  EXPECT_EQ(hash("ulysses=2", 3, WeightFormat::kInt8), hash("ulysses=2", 0, WeightFormat::kInt8));
}

// A generator keeps its weights between jobs, however they are held.
TEST(ResidentLayers, ServeOneJobAfterTheOther) {
  GeneratorOptions options = options_of(DType::kF32);
  options.resident_blocks = 3;
  Generator generator(deep_model(), options);
  const RunResult first = generator.run(mode_job(), nullptr);
  const RunResult second = generator.run(mode_job(), nullptr);
  EXPECT_EQ(first.framehash, second.framehash);
  EXPECT_EQ(second.streaming.weights.bytes, first.streaming.weights.bytes);
}

// The fastest way that fits is taken, and its picture is always the same.
TEST(MemoryModes, AutoTakesTheFastestThatFits) {
  GeneratorOptions options = options_of(DType::kF32);
  options.mode = MemoryMode::kAuto;
  const RanInMode all = run_mode(options);
  EXPECT_EQ(all.plan.residency, Residency::kAll);
  EXPECT_EQ(all.plan.resident_layers, 0);
  EXPECT_EQ(all.plan.reason, "it fits: all resident");
  options.resident_blocks = 2;
  const uint64_t floor = memory_under(Residency::kSequential, plan_of(options).parts, 0).high_water;
  options.resident_blocks = 0;
  const uint64_t one = memory_under(Residency::kSequential, all.plan.parts, 0).high_water;
  ASSERT_LT(floor, one);
  int before = kLayers;
  for (const double share : {1.0, 0.8, 0.6, 0.4, 0.2, 0.0}) {
    options.memory_limit =
        floor + static_cast<uint64_t>(share * static_cast<double>(one - 1 - floor));
    const RanInMode some = run_mode(options);
    const int layers = some.plan.resident_layers;
    EXPECT_GE(layers, 2);
    EXPECT_LT(layers, kLayers);
    EXPECT_LE(layers, before);
    before = layers;
    EXPECT_LE(static_cast<double>(some.taken), 1.01 * static_cast<double>(options.memory_limit));
    EXPECT_EQ(some.result.framehash, all.result.framehash);
    EXPECT_EQ(some.result.resident_layers, layers);
    // One more would not fit.
    GeneratorOptions more = options;
    more.resident_blocks = layers + 1;
    if (layers + 1 < kLayers) {
      EXPECT_FALSE(plan_of(more).fits()) << some.plan.to_string();
    }
    EXPECT_TRUE(some.plan.reason.starts_with("all resident would take ")) << some.plan.reason;
    EXPECT_TRUE(contains(some.plan.reason, std::to_string(layers) + " of 8 layers in memory"));
  }
  // Between the two, a slower residency with all layers in memory is chosen before any is read.
  options.memory_limit = one;
  EXPECT_EQ(plan_of(options).resident_layers, 0);
  EXPECT_EQ(plan_of(options).residency, Residency::kSequential);
}

TEST(MemoryModes, SpeedIsAllOrNothing) {
  GeneratorOptions options = options_of(DType::kF32);
  options.mode = MemoryMode::kSpeed;
  const MemoryPlan all = plan_of(options);
  EXPECT_EQ(all.residency, Residency::kAll);
  EXPECT_EQ(all.reason, "as asked: all resident");
  options.memory_limit = all.high_water - 1;
  EXPECT_EQ(plan_of(options).residency, Residency::kAll);
  const std::string text = refusal_of(options);
  EXPECT_TRUE(contains(text, "Try --mode auto ("));
  options.memory_limit = all.high_water;
  EXPECT_EQ(run_mode(options).result.streaming.forwards, 0);
  options.resident_blocks = 2;
  EXPECT_THROW(Generator(deep_model(), options), Error);
}

// The smallest footprint does not depend on the memory that there is.
TEST(MemoryModes, MemoryTakesTheLeast) {
  GeneratorOptions options = options_of(DType::kF32);
  const std::string framehash = run_mode(options).result.framehash;
  options.resident_blocks = 2;
  const uint64_t floor = memory_under(Residency::kSequential, plan_of(options).parts, 0).high_water;
  options.resident_blocks = 0;
  options.mode = MemoryMode::kMemory;
  const RanInMode ran = run_mode(options);
  EXPECT_EQ(ran.plan.high_water, floor);
  EXPECT_EQ(ran.plan.resident_layers, 2);
  EXPECT_EQ(ran.result.framehash, framehash);
  EXPECT_NEAR(static_cast<double>(ran.taken), static_cast<double>(floor),
              0.05 * static_cast<double>(floor));
  options.memory_limit = floor;
  EXPECT_EQ(plan_of(options).high_water, floor);
  options.memory_limit = floor - 1;
  EXPECT_NE(refusal_of(options), "");
  // A number that the user gives is kept.
  options.memory_limit = 0;
  options.resident_blocks = 5;
  EXPECT_EQ(plan_of(options).resident_layers, 5);
}

// If only other weights fit, the refusal names the mode that may take them.
TEST(MemoryModes, ARefusalNamesTheModeThatFits) {
  if (!cpu_has_int8()) GTEST_SKIP() << "no 8-bit weights here";
  GeneratorOptions options = options_of(DType::kF32);
  options.mode = MemoryMode::kMemory;
  const uint64_t exact = plan_of(options).high_water;
  options.mode = MemoryMode::kAuto;
  options.memory_limit = exact - 1;
  const std::string fixed = refusal_of(options);
  EXPECT_FALSE(contains(fixed, "--mode"));
  options.weights_fixed = false;
  EXPECT_EQ(smallest_weights(options, {}), WeightFormat::kInt8);
  const std::string text = refusal_of(options);
  EXPECT_TRUE(contains(text, "Try --mode memory ("));
  options.mode = MemoryMode::kMemory;
  options.weights = smallest_weights(options, {});
  EXPECT_LT(plan_of(options).high_water, exact);
  Layout split;
  split[Axis::kTensor] = 2;
  options.weights = WeightFormat::kCompute;
  EXPECT_EQ(smallest_weights(options, split), WeightFormat::kCompute);
}

// Wan 2.1 14B plans on a machine of 24 GiB, exactly: 832x480, 81 frames.
TEST(MemoryModes, FourteenBillionParametersFitIn22GiB) {
  const fs::path folder = testing::TempDir() + "/weft_sparse_14b";
  write_sparse_14b(folder);
  GeneratorOptions options = options_of(DType::kBF16);
  options.ops = &metered_ops();  // the limit may exceed this machine's memory
  const auto plan = [&](MemoryMode mode, uint64_t gib) {
    const DryRun planning;
    options.mode = mode;
    options.memory_limit = gib << 30;
    const Generator generator(folder.string(), options);
    Request request = mode_job();
    request.width = 832;
    request.height = 480;
    request.frames = 81;
    return generator.plan(generator.resolve(request));
  };
  const MemoryPlan tight = plan(MemoryMode::kAuto, 22);
  EXPECT_TRUE(tight.fits()) << tight.to_string();
  EXPECT_GT(tight.resident_layers, 2);
  EXPECT_LT(tight.resident_layers, 40);
  EXPECT_GT(tight.parts.streamed.front(), 0u);
  EXPECT_FALSE(plan(MemoryMode::kSpeed, 22).fits());
  EXPECT_FALSE(plan(MemoryMode::kLayers, 22).fits());
  const MemoryPlan large = plan(MemoryMode::kAuto, 64);
  EXPECT_TRUE(large.fits());
  EXPECT_EQ(large.resident_layers, 0);
  std::printf("14B in 22 GiB: %s\n", tight.reason.c_str());
  std::printf("%s\n", tight.to_string().c_str());
  std::printf("%s\n", plan(MemoryMode::kMemory, 22).to_string().c_str());
  fs::remove_all(folder);
}

// The plans of a job whose blocks take 10 each.
MemoryChoices choices(MemoryMode mode, uint64_t available, uint64_t text = 30) {
  return {.mode = mode,
          .layers = 10,
          .bytes =
              [text](int resident) {
                const auto layers = static_cast<uint64_t>(resident ? resident : 10);
                return ComponentBytes{
                    .text_encoder = text, .experts = {10 * layers}, .vae = 5, .denoise = 7};
              },
          .available = available};
}

TEST(MemoryModes, TheFootprintOfAnotherStageLeavesRoomForLayers) {
  // Encoding takes 60 in any case, so that five layers (57) cost nothing.
  const MemoryPlan plan = choose_plan(choices(MemoryMode::kMemory, 1000, 60));
  EXPECT_EQ(plan.high_water, 60u);
  EXPECT_EQ(plan.resident_layers, 5);
  EXPECT_EQ(plan.residency, Residency::kStaged);  // 55 beside the VAE
  // All of them cost nothing where it takes more than they do.
  EXPECT_EQ(choose_plan(choices(MemoryMode::kMemory, 1000, 200)).resident_layers, 0);
}

TEST(MemoryModes, AutoNeedsNoMoreLayersThanThereAre) {
  MemoryChoices few = choices(MemoryMode::kAuto, 1);
  few.layers = 2;
  EXPECT_EQ(choose_plan(few).resident_layers, 0);
  EXPECT_FALSE(choose_plan(few).fits());
  EXPECT_EQ(choose_plan(choices(MemoryMode::kAuto, 1)).resident_layers, 2);
  EXPECT_EQ(choose_plan(choices(MemoryMode::kAuto, 57)).resident_layers, 5);
  EXPECT_EQ(choose_plan(choices(MemoryMode::kAuto, 107)).resident_layers, 0);
  EXPECT_EQ(choose_plan(choices(MemoryMode::kLayers, 57)).resident_layers, 0);
}

}  // namespace
}  // namespace weft::test
