// Denoises with a toy transformer under every layout: the latent equals to the bit what a plain
// loop over the whole latent gives, and every rank holds the rows that it owns and no more.
#include "engine/schedules/denoiser.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <mutex>

#include "engine/sampling/guidance.h"
#include "kernels/copy.h"
#include "kernels/tensor.h"
#include "parallel/sequence_map.h"
#include "parallel/transport/local.h"
#include "tests/engine/toy_values.h"

namespace weft::test {
namespace {

using Toy = ToyValues;

constexpr auto kShape = Toy::kShape;
constexpr int kBlocks = Toy::kBlocks;
constexpr int64_t kTokens = Toy::kTokens, kRow = Toy::kRow, kLatent = kTokens * kRow;

Tensor noise(const std::array<int64_t, 4>& shape = kShape) { return Toy::noise(shape); }
Sampler sampler() { return Toy::sampler(4); }

Request request(double guidance) {
  Request request;
  request.guidance_scale = request.guidance_scale_2 = guidance;
  return request;
}

// The whole latent in one loop, without rows, plans and ranks.
Tensor reference(double guidance, const std::array<int64_t, 4>& shape = kShape) {
  Stream stream = Stream::cpu(1);
  Arena arena;
  const Sampler steps = sampler();
  const Request asked = request(guidance);
  Tensor x = noise(shape), velocities[2] = {Tensor(DType::kF32, shape), Tensor(DType::kF32, shape)};
  SamplerState state(x.count());
  for (int step = 0; step < steps.steps(); ++step) {
    for (int branch = 0; branch < 2; ++branch)
      for (int64_t i = 0; i < x.count(); ++i) {
        const float timestep = steps.timesteps()[step];
        float v = Toy::embed(x.as<float>()[i]);
        for (int b = 0; b < kBlocks; ++b) v = Toy::block(v, branch ? -0.5f : 0.5f, timestep);
        velocities[branch].as<float>()[i] = Toy::head(v, timestep);
      }
    guide(stream, arena, {}, guidance, velocities[1], velocities[0]);
    steps.step(stream, arena, step, velocities[0], x, state);
  }
  return x;
}

struct Observed {
  Tensor latent;
  int64_t most_live = 0;  // tensor bytes of all ranks between two steps
  Snapshot kept{};
  std::vector<CommCounters::Count> sent{};  // latents, by rank
};

// `noise_of` is the noise that each rank begins with.
Observed denoise(
    const Layout& layout, double guidance, bool keep, const LocalOptions& options = {},
    const std::optional<PipeFusion>& pipefusion = {},
    const std::function<Tensor(int rank)>& noise_of = [](int) { return noise(); }) {
  Observed seen;
  seen.sent.resize(layout.ranks());
  std::mutex mutex;
  const JobFacts facts{.request = request(guidance),
                       .sampler = sampler(),
                       .window = kShape,
                       .guidance = {guidance},
                       .patches = {.pipefusion = pipefusion}};
  std::vector<Tensor> noises;
  for (int rank = 0; rank < layout.ranks(); ++rank) noises.push_back(noise_of(rank));
  const auto live = static_cast<int64_t>(tensor_bytes_live());
  run_ranks(
      layout.ranks(),
      [&](Communicator& world) {
        ToyRank toy(world, layout, facts, kTokens, noises[world.rank()]);
        if (pipefusion) displace_steps(toy.config.steps, pipefusion->warmup);
        toy.keep_latent(seen.latent, mutex);
        toy.host.on_turn = [&](int done, int64_t) {
          if (!pipefusion) world.barrier(toy.stream, {.pass = {.step = done}, .hop = 90});
          if (!pipefusion && world.rank() == 0)
            seen.most_live =
                std::max(seen.most_live, static_cast<int64_t>(tensor_bytes_live()) - live);
          if (!pipefusion) world.barrier(toy.stream, {.pass = {.step = done}, .hop = 91});
          return keep && done == 2 ? StepAction::kKeep : StepAction::kContinue;
        };
        toy.host.on_keep = [&](int, Snapshot snapshot) {
          if (world.rank() != 0) return;
          EXPECT_EQ(snapshot.latent.count(), kLatent);
          EXPECT_EQ(snapshot.history.size(), 3u);
          seen.kept = std::move(snapshot);
        };
        toy.denoiser().run(toy.config, toy.job);
        seen.sent[world.rank()] = world.counters().sent[static_cast<size_t>(Payload::kLatent)];
      },
      options);
  return seen;
}

// The bytes that are counted for a tensor of so many f32, alignment included.
int64_t counted_bytes(int64_t values) {
  const size_t before = tensor_bytes_live();
  const Tensor tensor(DType::kF32, {values});
  return static_cast<int64_t>(tensor_bytes_live() - before);
}

TEST(Denoiser, GivesTheLatentOfOneLoopUnderEveryLayoutFromTheRowsOfEachRank) {
  for (const double guidance : {1.0, 4.0}) {
    const Tensor expected = reference(guidance);
    const int branches = guidance_branches(guidance);
    for (int ranks = 1; ranks <= 4; ++ranks)
      for (const Layout& layout : legal_layouts(ranks, {.heads = 6,
                                                       .layers = kBlocks,
                                                       .tokens = kTokens,
                                                       .ffn = 6,
                                                       .guided = branches == 2})) {
        const Observed seen = denoise(layout, guidance, false);
        ASSERT_EQ(seen.latent.count(), kLatent);
        EXPECT_EQ(
            std::memcmp(seen.latent.view().data, expected.view().data, expected.view().bytes()), 0)
            << to_string(layout);
        // Between two steps: the latent on the first and the last stage; velocities and three
        // tensors of the solver on the last; hidden rows of the branches that a rank computes.
        int64_t bytes = 0;
        const Mesh mesh(layout);
        const int stages = layout[Axis::kLayers];
        for (int rank = 0; rank < ranks; ++rank) {
          const int stage = mesh.at(Axis::kLayers, rank);
          const int64_t own = counted_bytes(
              partition(kTokens, layout.sequence(), mesh.sequence_index(rank)).size() * kRow);
          const int computed = layout[Axis::kCfg] == 2 ? 1 : branches;
          if (stage == 0 || stage == stages - 1) bytes += own;
          if (stage == stages - 1) bytes += (branches + 3) * own;
          if (stages > 1) bytes += computed * own;
        }
        EXPECT_EQ(seen.most_live, bytes) << to_string(layout);
      }
  }
}

TEST(Denoiser, DelaysAndRendezvousChangeNoBit) {
  const Tensor expected = reference(4);
  for (const Layout& layout :
       legal_layouts(4, {.heads = 6, .layers = kBlocks, .tokens = kTokens, .ffn = 6}))
    for (uint64_t seed = 1; seed <= 6; ++seed) {
      const Observed seen = denoise(
          layout, 4, false, {.rendezvous = seed % 2 == 1, .delay_seed = seed, .max_delay_us = 30});
      EXPECT_EQ(std::memcmp(seen.latent.view().data, expected.view().data, expected.view().bytes()),
                0)
          << to_string(layout) << " seed " << seed;
    }
}

// A transformer without attention cannot tell patches that are displaced: the schedule, its buffers
// and the solver, which steps patch by patch (law L-PF9), give the bits of one loop, also under
// delays; and so does the checkpoint.
TEST(Denoiser, PatchByPatchGivesTheLatentOfOneLoop) {
  const Snapshot one = denoise({}, 4, true).kept;
  for (const double guidance : {1.0, 4.0}) {
    const Tensor expected = reference(guidance);
    for (const PipeFusion& method : {PipeFusion{{6, 6, 6}, 1}, PipeFusion{{5, 4, 9}, 2},
                                     PipeFusion{{18}, 0}, PipeFusion{{4, 2, 3, 3, 6}, 1}})
      for (int ranks = 1; ranks <= 4; ++ranks)
        for (const Layout& layout : legal_layouts(
                 ranks, {.heads = 6,
                        .layers = kBlocks,
                        .tokens = kTokens,
                        .ffn = 6,
                        .method = {SplitRule::kStagedPatches, std::ranges::min(method.patches)},
                        .guided = guidance > 1})) {
          EXPECT_TRUE(same_bits(denoise(layout, guidance, false, {}, method).latent, expected))
              << to_string(layout);
          if (guidance == 1) continue;
          const Observed seen = denoise(layout, guidance, true, {}, method);
          EXPECT_TRUE(same_bits(seen.latent, expected)) << to_string(layout);
          EXPECT_TRUE(same_bits(seen.kept.latent, one.latent)) << to_string(layout);
          for (size_t k = 0; k < one.history.size(); ++k)
            EXPECT_TRUE(same_bits(seen.kept.history[k].second, one.history[k].second))
                << to_string(layout);
        }
  }
  Layout layout;
  layout[Axis::kCfg] = layout[Axis::kLayers] = 2;
  const Tensor expected = reference(4);
  for (uint64_t seed = 1; seed <= 100; ++seed)
    EXPECT_TRUE(
        same_bits(denoise(layout, 4, false,
                          {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50},
                          PipeFusion{{5, 4, 9}, 1})
                      .latent,
                  expected))
        << seed;
}

// Planted: ranks that draw noise of their own fail law L-C4. Stages and cfg ranks all decode.
TEST(Denoiser, NoiseThatDependsOnTheRankFailsTheLaw) {
  const Tensor expected = reference(4);
  const auto planted = [](int rank) {
    Tensor x = noise();
    for (int64_t i = 0; i < x.count(); ++i) x.as<float>()[i] += 0.25f * static_cast<float>(rank);
    return x;
  };
  const PipeFusion method{{5, 4, 9}, 1};
  for (const Axis axis : {Axis::kLayers, Axis::kUlysses, Axis::kRing}) {
    Layout layout;
    layout[axis] = 2;
    EXPECT_TRUE(same_bits(denoise(layout, 4, false, {}, method).latent, expected))
        << to_string(layout);
    EXPECT_FALSE(same_bits(denoise(layout, 4, false, {}, method, planted).latent, expected))
        << to_string(layout);
  }
}

// Planted: solvers that go on patch by patch with the step of the patch before, or with its
// history, fail law L-PF9. The product's solver steps as `sound`.
TEST(Denoiser, PatchesThatShareASolverFailTheLaw) {
  enum class Planted : uint8_t { kNothing, kStepPerPatch, kHistoryOfThePatchBefore };
  const Sampler steps = sampler();
  constexpr int64_t kPatches = 3, kPart = 6;
  Stream stream = Stream::cpu(1);
  Arena arena;
  const auto run = [&](int64_t patches, Planted planted) {
    const int64_t part = kPatches * kPart / patches;
    Tensor x(DType::kF32, {kPatches * kPart}), v(DType::kF32, {kPatches * kPart});
    for (int64_t i = 0; i < x.count(); ++i) x.as<float>()[i] = std::sin(3.0f * i);
    std::vector<SamplerState> states;
    for (int64_t patch = 0; patch < patches; ++patch) states.emplace_back(part);
    for (int step = 0; step < steps.steps(); ++step) {
      for (int64_t i = 0; i < x.count(); ++i)
        v.as<float>()[i] = std::cos(2.0f * x.as<float>()[i] + static_cast<float>(step));
      for (int64_t patch = 0; patch < patches; ++patch) {
        const int taken = planted == Planted::kStepPerPatch
                              ? std::min<int>(step + static_cast<int>(patch), steps.steps() - 1)
                              : step;
        SamplerState& state = states[planted == Planted::kHistoryOfThePatchBefore ? 0 : patch];
        steps.step(stream, arena, taken, v.view().slice(0, patch * part, part),
                   x.view().slice(0, patch * part, part), state);
      }
    }
    return x;
  };
  const Tensor whole = run(1, Planted::kNothing);
  EXPECT_TRUE(same_bits(run(kPatches, Planted::kNothing), whole));
  EXPECT_FALSE(same_bits(run(kPatches, Planted::kStepPerPatch), whole));
  EXPECT_FALSE(same_bits(run(kPatches, Planted::kHistoryOfThePatchBefore), whole));
}

// A checkpoint is that of one rank. Of every sequence index the last stage's first rank sends its
// rows, if it is not the root: one message for the latent and for each tensor of the history.
TEST(Denoiser, GathersACheckpointFromTheRowsOfEachRank) {
  const Tensor expected = reference(4);
  const Snapshot one = denoise({}, 4, true).kept;
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (const Layout& layout :
         legal_layouts(ranks, {.heads = 6, .layers = kBlocks, .tokens = kTokens, .ffn = 6})) {
      const Observed plain = denoise(layout, 4, false), seen = denoise(layout, 4, true);
      EXPECT_TRUE(same_bits(seen.latent, expected)) << to_string(layout);
      EXPECT_TRUE(same_bits(seen.kept.latent, one.latent)) << to_string(layout);
      ASSERT_EQ(seen.kept.history.size(), one.history.size());
      for (size_t k = 0; k < one.history.size(); ++k) {
        EXPECT_EQ(seen.kept.history[k].first, one.history[k].first);
        EXPECT_TRUE(same_bits(seen.kept.history[k].second, one.history[k].second))
            << to_string(layout);
      }
      const Mesh mesh(layout);
      for (int rank = 0; rank < ranks; ++rank) {
        const bool sends = rank > 0 && mesh.at(Axis::kLayers, rank) == layout[Axis::kLayers] - 1 &&
                           mesh.at(Axis::kCfg, rank) == 0 && mesh.at(Axis::kTensor, rank) == 0;
        const int64_t rows =
            partition(kTokens, layout.sequence(), mesh.sequence_index(rank)).size();
        EXPECT_EQ(seen.sent[rank].messages - plain.sent[rank].messages, sends ? 4 : 0)
            << to_string(layout) << " rank " << rank;
        EXPECT_EQ(seen.sent[rank].bytes - plain.sent[rank].bytes,
                  sends ? 4 * rows * kRow * static_cast<int64_t>(sizeof(float)) : 0)
            << to_string(layout) << " rank " << rank;
      }
    }
}

constexpr std::array<int64_t, 4> kVideo{2, 8, 4, 6};
constexpr int64_t kSize = 2 * 3, kVideoTokens = 8 * kSize;

struct Streamed {
  Tensor latent{DType::kF32, kVideo}, channels{DType::kF32, kVideo};
  std::vector<int64_t> live = std::vector<int64_t>(8);  // tensor bytes of all ranks, by frame
  struct Sent {
    int64_t channels = 0, frames = 0;
  };
  std::vector<Sent> sent;  // bytes of latents, by rank
};

// Every rank begins with the frames of its clip. `measure` lets the ranks meet at every frame.
Streamed stream_clips(const Layout& layout, bool measure, const LocalOptions& options = {}) {
  Streamed seen;
  seen.sent.resize(layout.ranks());
  std::mutex mutex;
  const JobFacts facts{.request = request(4),
                       .sampler = sampler(),
                       .window = kVideo,
                       .guidance = {4},
                       .dual_scope = DualScope{.window = 1, .global = 1, .trained = 3, .bias = 1}};
  const Tensor whole = noise(kVideo);
  const auto live = static_cast<int64_t>(tensor_bytes_live());
  const auto rank = [&](Communicator& world) {
    ToyRank toy(world, layout, facts, {kVideoTokens, kVideo[1]}, whole);
    const auto sent = [&] {
      return world.counters().sent[static_cast<size_t>(Payload::kLatent)].bytes;
    };
    int64_t before = 0, frame = 0;
    toy.host.on_channels = [&](const JobHost::Channels& each) {
      before = sent();
      int64_t channel = 0;
      for (int twice = 0; twice < 2; ++twice)
        each([&](const TensorView& plane) {
          EXPECT_EQ(world.rank(), 0);
          copy(toy.stream, plane, seen.channels.view().select(0, channel++ % kVideo[0]));
        });
      seen.sent[world.rank()].channels = sent() - before;
      before = sent();
    };
    toy.host.on_take = [&](const Segment& segment, const TensorView& latent) {
      EXPECT_EQ(latent[1], 1);
      EXPECT_EQ(segment.frames, (Range{frame, frame + 1}));
      EXPECT_EQ(latent.data != nullptr, receives_frames(layout, world.rank()));
      if (measure) {
        world.barrier(toy.stream, {.pass = {.step = static_cast<int>(frame)}, .hop = 90});
        if (world.rank() == 0) seen.live[frame] = static_cast<int64_t>(tensor_bytes_live()) - live;
        world.barrier(toy.stream, {.pass = {.step = static_cast<int>(frame)}, .hop = 91});
      }
      const std::scoped_lock lock(mutex);
      if (latent.data) copy(toy.stream, latent, seen.latent.view().slice(1, frame, 1));
      ++frame;
    };
    toy.denoiser().run(toy.config, toy.job);
    EXPECT_EQ(frame, kVideo[1]);
    seen.sent[world.rank()].frames = sent() - before;
  };
  run_ranks(layout.ranks(), rank, options);
  return seen;
}

std::vector<Layout> clip_layouts() {
  std::vector<Layout> all;
  for (int ranks = 2; ranks <= 4; ++ranks)
    for (Layout layout : legal_layouts(ranks, {.heads = 6,
                                              .layers = kBlocks,
                                              .tokens = kVideoTokens,
                                              .ffn = 6,
                                              .method = {SplitRule::kClips, kVideo[1]}})) {
      if (layout[Axis::kClip] == 1 || layout[Axis::kData] > 1) continue;
      all.push_back(layout);
      layout.vae_ranks = 1;
      all.push_back(layout);
      layout.decode_rank = ranks - 1;
      all.push_back(layout);
    }
  return all;
}

// While a frame is decoded, a rank holds its own rows, the frame, and the parts of the next one
// that others have: no rank holds the latent of all frames. Frames and channels are those of one
// loop.
TEST(Denoiser, ClipsAreDecodedFrameByFrameAndNoRankHoldsAllFrames) {
  const Tensor expected = reference(4, kVideo);
  const int64_t whole = counted_bytes(kVideoTokens * kRow);
  for (const Layout& layout : clip_layouts()) {
    const Streamed seen = stream_clips(layout, true);
    EXPECT_TRUE(same_bits(seen.latent, expected)) << to_string(layout);
    EXPECT_TRUE(same_bits(seen.channels, expected)) << to_string(layout);
    const Mesh mesh(layout);
    const SequenceMap map = SequenceMap::clips({kVideoTokens, kVideo[1]}, layout[Axis::kClip],
                                               layout.sequence() / layout[Axis::kClip]);
    const int stages = layout[Axis::kLayers];
    const auto last = [&](int rank) { return mesh.at(Axis::kLayers, rank) == stages - 1; };
    for (int64_t frame = 0; frame < kVideo[1]; ++frame) {
      int64_t bytes = 0;
      for (int rank = 0; rank < layout.ranks(); ++rank) {
        int64_t held = 0;
        const auto rows = [&](const Range& of) { held += counted_bytes(of.size() * kRow); };
        if (last(rank) || mesh.at(Axis::kLayers, rank) == 0)
          rows(map[mesh.sequence_index(rank)].ranges[0]);
        if (receives_frames(layout, rank)) {
          rows({0, kSize});
          for (int from : mesh.along(sequence_axes({Axis::kLayers}), rank)) {
            const Range own = map[mesh.sequence_index(from)].ranges[0];
            const Range part{std::max(own.begin, (frame + 1) * kSize),
                             std::min(own.end, (frame + 2) * kSize)};
            if (from != rank && last(from) && part.size() > 0) rows(part);
          }
        }
        EXPECT_LT(held, whole) << to_string(layout);
        bytes += held;
      }
      EXPECT_EQ(seen.live[frame], bytes) << to_string(layout) << " frame " << frame;
    }
    for (int rank = 0; rank < layout.ranks(); ++rank) {
      const int64_t own = map.rows(mesh.sequence_index(rank)) * kRow * 4;
      const std::vector<int> group = mesh.along(sequence_axes({Axis::kLayers}), rank);
      const int64_t others = std::ranges::count_if(
          group, [&](int to) { return to != rank && receives_frames(layout, to); });
      const bool to_root = rank > 0 && last(rank) && mesh.at(Axis::kCfg, rank) == 0 &&
                           mesh.at(Axis::kTensor, rank) == 0;
      EXPECT_EQ(seen.sent[rank].frames, last(rank) ? others * own : 0) << to_string(layout);
      EXPECT_EQ(seen.sent[rank].channels, to_root ? 2 * own : 0) << to_string(layout);
    }
  }
}

TEST(Denoiser, DelaysChangeNoFrameOfClips) {
  const Tensor expected = reference(4, kVideo);
  for (const Layout& layout : clip_layouts())
    for (uint64_t seed = 1; seed <= 3; ++seed)
      EXPECT_TRUE(same_bits(
          stream_clips(layout, false,
                       {.rendezvous = seed % 2 == 1, .delay_seed = seed, .max_delay_us = 30})
              .latent,
          expected))
          << to_string(layout) << " seed " << seed;
}

}  // namespace
}  // namespace weft::test
