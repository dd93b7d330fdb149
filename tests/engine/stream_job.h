#pragma once
// A small stream and its run under a layout.
#include <gtest/gtest.h>

#include <cstring>
#include <map>
#include <mutex>

#include "engine/schedules/stream_denoiser.h"
#include "kernels/copy.h"
#include "parallel/transport/local.h"
#include "tests/engine/lambda_host.h"
#include "tests/engine/toy_attention.h"

namespace weft::test {

// A segment as the decoder gets it.
struct Decoded {
  Segment segment{};
  std::vector<float> latent;
};
inline bool operator==(const Decoded& a, const Decoded& b) {
  return a.segment.number == b.segment.number && a.segment.frames == b.segment.frames &&
         a.latent.size() == b.latent.size() &&
         std::memcmp(a.latent.data(), b.latent.data(), a.latent.size() * sizeof(float)) == 0;
}
inline void PrintTo(const Decoded& x, std::ostream* out) {
  *out << "block " << x.segment.number << " frames " << to_string(x.segment.frames) << " begins "
       << x.latent[0];
}

struct StreamRun {
  int steps = 4, layers = 4, credits = 2, swap_segment = 2, segments = StreamPlanConfig::kEndless;
  int64_t largest = 3, window = 7, columns = 2;
  bool decodes_apart = false;
  DType wire = DType::kF32;
  KeptRows kept = KeptRows::kCompute;
  LocalOptions local{};
  StreamState* state = nullptr;
  decltype(StreamSource::plan) plan = plan_stream;
  // It is JobHost::next, on the thread of the first rank.
  std::function<NextSegment(int64_t number)> next{};
  std::function<float(const Segment& segment)> loud = [](const Segment& segment) {
    return 0.3f * static_cast<float>(segment.number % 5);
  };
  std::function<void(const Segment&, const TensorView&)> decode{};  // in place of the result
  std::function<void(int rank, size_t window_bytes)> done{};
  // Called at the end of a rank, where there are several.
  std::function<void(const StreamPlanConfig&, const CommCounters&)> counted{};
  // Called where a segment is updated, with the most bytes that the rank's arena has held.
  std::function<void(int rank, const Pass& pass, size_t arena)> updated{};

  static Layout split(int steps, int layers = 1, int ulysses = 1) {
    Layout layout;
    layout[Axis::kUlysses] = ulysses;
    layout[Axis::kStep] = steps;
    layout[Axis::kLayers] = layers;
    return layout;
  }

  static float value(int64_t i, int64_t of) {
    return static_cast<float>((i * 7919 + of * 104729) % 1009) / 504.5f - 1;
  }

  std::vector<Decoded> run(const Layout& layout = {}) const {
    std::vector<Decoded> out;
    if (layout.ranks() + decodes_apart == 1)
      one_rank(nullptr, layout, out);
    else
      run_ranks(
          layout.ranks() + decodes_apart,
          [&](Communicator& world) { one_rank(&world, layout, out); }, local);
    return out;
  }

  Sampler sampler() const {
    SamplerConfig config;
    config.kind = SolverKind::kEuler;
    config.shift = 3;
    return {config, steps};
  }

 private:
  RankPlacement place(Communicator* world, const Layout& layout) const {
    if (!world || world->rank() == layout.ranks() || layout.ranks() == 1) return RankPlacement();
    if (!decodes_apart) return RankPlacement::of(*world, layout);
    std::vector<int> ranks;
    for (int rank = 0; rank < layout.ranks(); ++rank) ranks.push_back(rank);
    return RankPlacement(world->group(ranks, 40), layout);
  }

  void one_rank(Communicator* world, const Layout& layout, std::vector<Decoded>& out) const {
    Stream stream = Stream::cpu(1);
    Arena arena(size_t{1} << 26);
    ToyAttentionExperts experts(1, layers);
    experts.models[0]->own.signal_columns = columns;
    RankPlacement placement = place(world, layout);
    const std::array<int64_t, 4> shape{2, largest, 4, 4};
    const JobFacts facts{.request = {}, .sampler = sampler(), .window = shape};
    float prompt = 0.5f;
    Tensor sink(DType::kF32, {2, 1, 4, 4});
    for (int64_t i = 0; i < sink.count(); ++i) sink.as<float>()[i] = value(i, 77);
    StreamSource source{.window_frames = window,
                        .sink = sink,
                        .sink_position = {.start = 9, .distance = {4, 9}, .seed = 3},
                        .kept = kept,
                        .plan = plan,
                        .state = state};
    LambdaHost host;
    Job job{.facts = facts, .host = host, .prompts = {TensorView(&prompt, DType::kF32, {1, 1})}};
    host.on_next = next;
    host.on_noise = [](const Segment& segment, const TensorView& to) {
      for (int64_t i = 0; i < to.count(); ++i) to.as<float>()[i] = value(i, segment.number);
    };
    host.on_take = [&](const Segment& segment, const TensorView& latent) {
      if (decode) return decode(segment, latent);
      const float* from = latent.as<float>();
      out.push_back({segment, {from, from + latent.count()}});
    };
    if (columns > 0)
      host.on_signal = [&](const Segment& segment, const TensorView& to) {
        EXPECT_EQ(to[0], segment.frames.size());
        for (int64_t i = 0; i < to.count(); ++i)
          to.as<float>()[i] = loud(segment) + 0.1f * static_cast<float>(i);
      };
    const int rank = world ? world->rank() : 0;
    if (updated)
      host.on_velocity = [&](const Pass& pass, const Range&, const TensorView&) {
        updated(rank, pass, arena.high_water());
      };
    StreamPlanConfig config = stream_config(placement, experts.traits(), wire, facts, source);
    config.layout = layout;
    config.segments = segments;
    config.credits = credits;
    config.swap_segment = swap_segment;
    config.decodes_apart = decodes_apart;
    Rank on(stream, arena, experts, placement);
    if (decodes_apart) on.world = world;
    StreamDenoiser denoiser(on, wire);
    denoiser.run(config, job, source);
    if (done) done(rank, denoiser.window_bytes());
    if (counted && world) counted(config, world->counters());
  }
};

}  // namespace weft::test
