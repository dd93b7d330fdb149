// Whole passes and jobs on the emulated device: golden cases under layouts of ranks that share a
// device or have one each, a generation, and jobs that do not fit.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <map>
#include <tuple>

#include "apps/verify/verify_case.h"
#include "engine/generation/generator.h"
#include "engine/job/job_spec.h"
#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/transfer.h"
#include "models/random_weights/random_weights.h"
#include "models/wan/transformer.h"
#include "parallel/context.h"
#include "parallel/transport/local.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/first_device.h"
#include "tests/engine/poisoned_model.h"
#include "tests/models/transformer_testing.h"
#include "tests/support/error_of.h"
#include "tests/support/faulty_transport.h"

namespace weft {
namespace {

constexpr Device kOther{Device::Kind::kCuda, 1};

// Restores the machine's devices and memory.
struct Machine {
  ~Machine() {
    emulated::set_device_count(1);
    emulated::set_device_bytes(size_t{8} << 30);
  }
};

struct Split {
  const char* name;
  const char* layout;
  int ranks;
  DType dtype;
};

void PrintTo(const Split& split, std::ostream* out) { *out << split.name << " " << split.layout; }

class Splits : public testing::TestWithParam<Split> {};

// Two devices copy whatever they send each other directly: slots, latents, feature caches, keys and
// values, rows of pictures.

TEST_P(Splits, GiveTheExpectedTensors) {
  const Machine machine;
  emulated::set_device_count(2);
  const uint64_t through_host = emulated::copies_through_host();
  const Split& split = GetParam();
  for (const std::vector<Device>& devices : {std::vector{kCuda}, {kCuda, kOther}}) {
    const VerifyOptions options{.devices = devices, .dtype = split.dtype, .threads = 1};
    Ranks ranks;
    ranks.count = ranks.on_this_host = split.ranks;
    for (const VerifyRow& row :
         verify_case(std::string("tests/golden/") + split.name, options, ranks, split.layout))
      EXPECT_TRUE(row.pass) << devices.size() << " devices, " << row.tensor << ": rel_l2 "
                            << row.rel_l2 << ", bound " << row.bound << " " << row.note;
  }
  EXPECT_EQ(emulated::copies_through_host(), through_host);
}

INSTANTIATE_TEST_SUITE_P(
    , Splits,
    testing::Values(Split{"dit_wan_tiny", "ulysses=2", 2, DType::kBF16},
                    Split{"dit_wan_tiny", "ring=3", 3, DType::kF32},
                    Split{"dit_wan_tiny", "token_ring=2", 2, DType::kBF16},
                    Split{"dit_wan_tiny", "tensor=2,layers=2", 4, DType::kF32},
                    Split{"vae21_tiny_decode3", "tensor=2", 2, DType::kF32},
                    Split{"vae22_encode3", "tensor=2", 2, DType::kF32},
                    Split{"umt5_uneven", "tensor=3", 3, DType::kBF16},
                    Split{"pipeline_t2v", "cfg=2", 2, DType::kF32},
                    Split{"pipeline_i2v21", "ulysses=2", 2, DType::kF32},
                    Split{"displaced_distrifusion", "patch=2", 2, DType::kF32},
                    Split{"displaced_pcpp", "patch=2", 2, DType::kBF16},
                    Split{"displaced_pipefusion", "layers=2", 2, DType::kF32},
                    Split{"stream_small", "step=2,layers=2", 4, DType::kF32},
                    Split{"s2v_stream", "step=2", 2, DType::kF32},
                    Split{"clips_uneven_globals", "clip=3", 3, DType::kF32},
                    Split{"clips_small", "clip=2,ulysses=2", 4, DType::kBF16},
                    Split{"queue_small", "layers=2", 2, DType::kF32},
                    Split{"queue_two_experts", "ulysses=2", 2, DType::kBF16},
                    Split{"llm_qwen3_tied", "ring=2,ulysses=2", 4, DType::kF32},
                    Split{"llm_qwen2_bias", "layers=2,tensor=2", 4, DType::kBF16}));

// Every kind of memory, whichever was there first: an arena is mapped for all devices, and what
// cudaMalloc gave before the other device had a stream is reached from its first stream on.
TEST(Messages, BetweenTwoDevicesNeverGoThroughTheHost) {
  const Machine machine;
  emulated::set_device_count(2);
  const uint64_t through_host = emulated::copies_through_host();
  constexpr int64_t kCount = 3000;
  run_ranks(2, [&](Communicator& world) {
    const Device device = world.rank() == 0 ? kCuda : kOther;
    const Tensor before(DType::kF32, {kCount}, device);
    Arena arena(size_t{1} << 30, device);
    const TensorView mapped = arena.alloc(DType::kF32, {kCount});
    Stream stream = stream_on(device, 1);
    const Tensor after(DType::kF32, {kCount}, device);
    const TensorView kinds[] = {before, mapped, after};
    Tensor host(DType::kF32, {kCount});
    for (int from = 0; from < 3; ++from)
      for (int to = 0; to < 3; ++to)
        for (int sender = 0; sender < 2; ++sender) {
          const float value = static_cast<float>(100 * from + 10 * to + sender + 1);
          const Tag tag{.pass = {.step = 2 * to + sender}, .hop = from};
          if (world.rank() == sender) {
            std::fill_n(host.as<float>(), kCount, value);
            copy(stream, host, kinds[from]);
            world.send(stream, 1 - sender, tag, kinds[from]);
          } else {
            world.receive(stream, sender, tag, kinds[to]);
            const HostCopy got(stream, kinds[to]);
            EXPECT_EQ(got.view().as<float>()[kCount - 1], value);
          }
        }
  });
  EXPECT_EQ(emulated::copies_through_host(), through_host);
}

// Three ranks on two devices run sums one after the other: the messages of each sum read what the
// previous one wrote. FaultyTransport only takes host memory.
TEST(Messages, OfDevicesGoDirectlyAndThroughTheHost) {
  const Machine machine;
  emulated::set_device_count(2);
  constexpr int64_t kCount = 1001;
  for (const bool straight : {true, false})
    for (const AllReduce how : {AllReduce::kRing, AllReduce::kStar}) {
      auto transports = make_local_transports(3, {.delay_seed = 5});
      if (!straight)
        for (auto& transport : transports)
          transport = std::make_shared<test::FaultyTransport>(transport, -1, [] {});
      run_ranks(transports, [&](Communicator& world) {
        Stream stream = stream_on(world.rank() % 2 ? kOther : kCuda, 1);
        EXPECT_EQ(world.transport().takes_device_memory(), straight);
        Arena arena(size_t{1} << 30, stream.device());
        Tensor x(DType::kF32, {kCount});
        for (int64_t i = 0; i < kCount; ++i)
          x.as<float>()[i] = static_cast<float>(world.rank() + 1 + i);
        x = on_device(stream, std::move(x));
        for (int step = 0; step < 2; ++step)
          world.all_reduce(stream, arena, {.kind = Payload::kPartial, .pass = {.step = step}}, x,
                           how);
        const HostCopy sum(stream, x);
        for (int64_t i = 0; i < kCount; ++i)
          EXPECT_EQ(sum.view().as<float>()[i], static_cast<float>(3 * (6 + 3 * i))) << i;
      });
    }
}

struct Tap final : PipelineTap {
  std::map<std::string, std::vector<float>> seen;
  void tap(const char* name, const TensorView& value) override {
    seen[name].assign(value.as<float>(), value.as<float>() + value.count());
  }
};

GeneratorOptions on(Device device, DType dtype = DType::kF32) {
  GeneratorOptions options;
  options.device = device;
  options.dtype = dtype;
  options.threads = 1;
  return options;
}

Request small_clip() {
  Request request;
  request.prompt = "a red ball";
  request.negative_prompt = "";
  request.width = 32;
  request.height = 32;
  request.frames = 5;
  request.steps = 3;
  request.seed = 7;
  return request;
}

constexpr const char* kDeviceModel = "tests/golden/pipeline_t2v/model";

double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    error += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += double{b[i]} * double{b[i]};
  }
  return std::sqrt(error / norm);
}

TEST(Generation, StartsFromTheCpusNoiseAndEndsAtItsFrames) {
  const auto made = [](Device device, DType dtype) {
    Generator generator(kDeviceModel, on(device, dtype));
    Tap tap;
    RunOptions run;
    run.tap = &tap;
    const RunResult result = generator.run(small_clip(), nullptr, run);
    EXPECT_EQ(result.frames, 5);
    return std::move(tap.seen);
  };
  const auto cpu = made({}, DType::kF32);
  for (const auto& [dtype, bound] : {std::pair{DType::kF32, 1e-4}, {DType::kBF16, 2e-2}}) {
    const auto cuda = made(kCuda, dtype);
    const std::vector<float>&noise = cuda.at("latents_initial"), &same = cpu.at("latents_initial");
    ASSERT_EQ(noise.size(), same.size());
    EXPECT_EQ(std::memcmp(noise.data(), same.data(), same.size() * sizeof(float)), 0);
    for (const char* name : {"prompt_embeds", "latents_final", "video"}) {
      ASSERT_EQ(cuda.at(name).size(), cpu.at(name).size()) << name;
      EXPECT_LT(distance(cuda.at(name), cpu.at(name)), bound) << name << to_string(dtype);
    }
  }
}

// Whole jobs of the methods for long videos, on ranks that share the device: the latents and the
// pictures of the CPU.
TEST(Generation, LongVideosHaveTheCpusFrames) {
  const auto made = [](Device device, const std::string& method, const Layout& layout) {
    std::vector<uint8_t> pictures;
    struct Sink final : FrameSink {
      std::vector<uint8_t>& to;
      explicit Sink(std::vector<uint8_t>& pictures) : to(pictures) {}
      void push(const Frame& frame) override {
        to.insert(to.end(), frame.rgb.begin(), frame.rgb.end());
      }
      std::string finish() override { return ""; }
    };
    run_ranks(layout.ranks(), [&](Communicator& world) {
      Generator generator(kDeviceModel, on(device), RankPlacement::of(world, layout));
      Request request = small_clip();
      request.frames = 9;
      request.steps = method.starts_with("queue") ? 9 : 3;
      request.method = parse_method(method, "method");
      Sink sink(pictures);
      generator.run(request, world.rank() == 0 ? &sink : nullptr);
    });
    return pictures;
  };
  Layout stages, clips;
  stages[Axis::kLayers] = 2;
  stages.text_ranks = 1;
  stages.decode_rank = 1;
  clips[Axis::kClip] = 2;
  for (const auto& [method, layout] :
       {std::pair{"queue:block=1,context=1", stages}, {"clips:window=1,global=2,bias=2", clips}}) {
    const std::vector<uint8_t> cpu = made({}, method, layout), cuda = made(kCuda, method, layout);
    ASSERT_EQ(cpu.size(), size_t{9} * 32 * 32 * 3) << method;
    ASSERT_EQ(cuda.size(), cpu.size()) << method;
    int most = 0;
    for (size_t i = 0; i < cpu.size(); ++i)
      most = std::max(most, std::abs(int{cpu[i]} - int{cuda[i]}));
    EXPECT_LE(most, 1) << method;
  }
}

TEST(Generation, RecordedForwardsHaveTheBitsOfSingleOps) {
  std::map<std::string, std::vector<float>> seen[2];
  for (const Graphs graphs : {Graphs::kRecord, Graphs::kNone}) {
    GeneratorOptions options = on(kCuda, DType::kBF16);
    options.graphs = graphs;
    Generator generator(kDeviceModel, options);
    Tap tap;
    RunOptions run;
    run.tap = &tap;
    Request request = small_clip();
    request.steps = 5;
    request.guidance_scale = 4;
    const uint64_t before = emulated::graph_launches();
    generator.run(request, nullptr, run);
    // All forwards of each branch but the first, of 5, are replayed graphs.
    EXPECT_EQ(emulated::graph_launches() - before, graphs == Graphs::kRecord ? 8u : 0u);
    seen[static_cast<int>(graphs)] = std::move(tap.seen);
  }
  EXPECT_EQ(seen[0], seen[1]);
}

// Tries every number of blocks that stream through the device, over several forwards.
constexpr int kStreamedLayers = 5;

// Returns the velocities of three steps of a small transformer with kLayers blocks.
std::vector<float> velocities(const TransformerLoad& load) {
  WanConfig config;
  config.heads = 2;
  config.head_dim = 16;
  config.layers = kStreamedLayers;
  config.ffn_dim = 48;
  config.in_channels = config.out_channels = 4;
  config.text_dim = 24;
  config.freq_dim = 16;
  const TensorFile weights = random_wan(config);
  constexpr int64_t kRows = 7, kText = 9;
  Stream stream = cuda_stream(0, Determinism::kFixed, 1);
  const WanTransformer model = WanTransformer::load(stream, weights, config, load);
  EXPECT_EQ(model.streamed_bytes() > 0, load.resident > 0);
  Arena arena(size_t{1} << 30, kCuda);
  SerialSeams seams;
  const auto values = [&](std::initializer_list<int64_t> shape) {
    Tensor tensor(DType::kF32, shape);
    fill_for_limit(tensor.view().data, DType::kF32, tensor.count());
    return on_device(stream, std::move(tensor));
  };
  const Tensor latent = values({4, 2, 8, 6}), rows = values({kRows, config.text_dim});
  const auto grid = config.traits().grid(2, 8, 6);
  const TokenRanges tokens = TokenRanges::all(grid[0] * grid[1] * grid[2]);
  Context context = seams.context(stream, arena, {}, tokens);
  const WanText text = test::prepare_text(model, context, rows, kText);
  const Rope rope = on_device(stream, test::rope_of(model, grid));
  const Tensor out(DType::kF32, latent.view().shape(), kCuda);
  std::vector<float> all;
  for (float timestep : {900.0f, 500.0f, 100.0f}) {
    const TimeSegment time{{0, tokens.total}, timestep};
    test::forward(model, context, BlockRange::all(config.layers), latent, {&time, 1}, text, rope,
                  out);
    const HostCopy read(stream, out);
    all.insert(all.end(), read.view().as<float>(), read.view().as<float>() + out.count());
  }
  return all;
}

TEST(OffloadTotals, StreamedBlocksHaveTheBitsOfResidentOnes) {
  const std::vector<float> expected = velocities({.dtype = DType::kBF16});
  for (const float value : expected) ASSERT_TRUE(std::isfinite(value));
  for (int resident = 2; resident < kStreamedLayers; ++resident)
    EXPECT_EQ(velocities({.dtype = DType::kBF16, .resident = resident}), expected)
        << resident << " resident";
}

// --attention fp8 only changes the transformer's attention over its own tokens; the error stays
// that of three bits of fraction.
TEST(EightBitAttention, OnlyChangesTheTransformersSelfAttention) {
  const std::vector<float> plain = velocities({.dtype = DType::kF32});
  const std::vector<float> eight =
      velocities({.dtype = DType::kF32, .attention = AttentionFormat::kFp8});
  double error = 0, norm = 0;
  for (size_t i = 0; i < plain.size(); ++i) {
    error += std::pow(eight[i] - plain[i], 2);
    norm += std::pow(plain[i], 2);
  }
  EXPECT_GT(std::sqrt(error / norm), 5e-6);  // random weights attend to all tokens nearly alike
  EXPECT_LT(std::sqrt(error / norm), 2e-4);
}

TEST(OffloadTotals, OneBlockInMemoryIsRefused) {
  const Machine machine;
  GeneratorOptions options = on(kCuda);
  options.resident_blocks = 1;
  EXPECT_THROW(Generator(kDeviceModel, options), Error);
}

TEST(Generation, IsPlannedForTheDevicesMemoryAndRefusedWhereItDoesNotFit) {
  const Machine machine;
  Generator fits(kDeviceModel, on(kCuda));
  const MemoryPlan plan = fits.plan(fits.resolve(small_clip()));
  EXPECT_TRUE(plan.fits());
  const RunResult result = fits.run(small_clip(), nullptr);
  const auto planned = static_cast<double>(plan.high_water);
  EXPECT_NEAR(static_cast<double>(result.memory_high_water), planned, planned / 20);

  emulated::set_device_bytes(emulated::device_bytes_used(0) + plan.high_water / 2);
  Generator tight(kDeviceModel, on(kCuda));
  test::expect_error(ErrorKind::kMemory, "are available. Try",
                     [&] { tight.run(small_clip(), nullptr); });
}

// A device is only checked after a forward, not after each block; still, the error names the first
// block that went wrong.
TEST(Generation, NamesTheFirstBlockWithANonFiniteValue) {
  for (const auto& [component, tensor, where] :
       {std::tuple{"transformer", "blocks.1.ffn.net.2.bias", "first in block 1"},
        {"transformer", "condition_embedder.time_proj.bias", "first in timestep_proj"},
        {"vae", "decoder.conv_in.bias", "decode, chunk 1 of 2"}}) {
    Generator sick(test::poisoned(kDeviceModel, component, tensor, testing::TempDir()), on(kCuda));
    test::expect_error(ErrorKind::kNonFinite, where, [&] { sick.run(small_clip(), nullptr); });
  }
}

TEST(Generation, ACpuCheckpointIsNotResumedOnADevice) {
  Generator cpu(kDeviceModel, on({})), cuda(kDeviceModel, on(kCuda));
  const Request request = cpu.resolve(small_clip());
  EXPECT_EQ(difference(cpu.job_record(request), cuda.job_record(request)),
            "device is 'cpu' there and 'cuda' here");
}

}  // namespace
}  // namespace weft
