#pragma once
// A toy transformer whose values go through it one by one, and a latent for it.
#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <mutex>

#include "engine/sampling/guidance.h"
#include "engine/schedules/denoiser.h"
#include "kernels/copy.h"
#include "kernels/tensor.h"
#include "tests/engine/lambda_host.h"
#include "tests/engine/toy_transformer.h"

namespace weft::test {

struct ToyValues final : ToyTransformer {
  static constexpr std::array<int64_t, 4> kShape{2, 3, 4, 6};  // of the latent
  static constexpr int kBlocks = 5;
  static constexpr int64_t kTokens = 3 * 2 * 3, kRow = 2 * 2 * 2;

  ToyValues() : ToyTransformer(kRow, kBlocks) {}

  static float embed(float x) { return 1.5f * x + 0.125f; }
  static float block(float x, float prompt, float timestep) {
    return 0.75f * x + 0.25f * std::sin(x + prompt) + 0.001f * timestep;
  }
  static float head(float x, float timestep) { return 0.5f * x - 0.0005f * timestep; }

  void forward(Context& context, const ForwardArgs& args) const override {
    EXPECT_TRUE(args.blocks.begin == args.blocks.end || args.in[0] == context.tokens.size());
    const float prompt = prompt_of(args), timestep = args.times[0].timestep;
    const Arena::Scope scope(context.arena);
    const TensorView x = context.arena.alloc(DType::kF32, args.in.shape());
    for (int64_t i = 0; i < x.count(); ++i) {
      float value = args.in.as<float>()[i];
      if (args.blocks.first()) value = embed(value);
      for (int b = args.blocks.begin; b < args.blocks.end; ++b)
        value = block(value, prompt, timestep);
      x.as<float>()[i] = value;
    }
    if (args.blocks.last() && args.hook) args.hook(x);
    for (int64_t i = 0; i < x.count(); ++i)
      args.out.as<float>()[i] =
          args.blocks.last() ? head(x.as<float>()[i], timestep) : x.as<float>()[i];
  }

  static Tensor noise(const std::array<int64_t, 4>& shape = kShape) {
    Tensor x(DType::kF32, shape);
    for (int64_t i = 0; i < x.count(); ++i)
      x.as<float>()[i] = static_cast<float>((i * 7919) % 1009) / 504.5f - 1;
    return x;
  }

  // UniPC, which remembers three tensors.
  static Sampler sampler(int steps) {
    SamplerConfig config;
    config.shift = 3;
    return {config, steps};
  }
};

struct ToyValuesExperts final : ToyExperts {
  ToyValues toy;
  const TransformerTraits& traits() const override { return toy.own; }
  const Transformer& expert(Stream&, int) override { return toy; }
};

// A job whose prompts are one value each, from the frames of `noise`.
inline Job toy_job(const JobFacts& facts, LambdaHost& host, float (&prompts)[2],
                   const TensorView& noise) {
  host.on_noise = [noise](const Segment& segment, const TensorView& to) {
    Stream stream = Stream::cpu(1);
    copy(stream, noise.slice(1, segment.frames.begin, segment.frames.size()), to);
  };
  return {.facts = facts,
          .host = host,
          .prompts = {TensorView(&prompts[0], DType::kF32, {1, 1})},
          .negative = TensorView(&prompts[1], DType::kF32, {1, 1})};
}

// One rank of a toy's denoising: its model, its plan and its job.
struct ToyRank {
  Stream stream = Stream::cpu(1);
  Arena arena;
  ToyValuesExperts experts;
  RankPlacement placement;
  float prompts[2] = {0.5f, -0.5f};
  DenoisePlanConfig config;
  LambdaHost host;
  Job job;

  // `noise` must outlive it.
  ToyRank(Communicator& world, const Layout& layout, const JobFacts& facts, const Sequence& all,
          const TensorView& noise)
      : placement(RankPlacement::of(world, layout)),
        config(staged_config(placement, experts.traits(), DType::kF32, all, facts.patches)),
        job(toy_job(facts, host, prompts, noise)) {
    config.steps.assign(facts.sampler.steps(),
                        {.model = 0, .branches = guidance_branches(facts.guidance[0])});
    config.blocks = {ToyValues::kBlocks};
  }
  Denoiser denoiser() { return Denoiser({stream, arena, experts, placement}); }
  // Stores the latent, of which every rank that receives it must have the same bits.
  void keep_latent(Tensor& latent, std::mutex& mutex) {
    host.on_take = [&](const Segment&, const TensorView& taken) {
      Tensor copied(DType::kF32, ToyValues::kShape);
      copy(stream, taken, copied);
      const std::scoped_lock lock(mutex);
      if (latent) {
        EXPECT_TRUE(same_bits(latent, copied));
      }
      latent = std::move(copied);
    };
  }
};

}  // namespace weft::test
