// Tests the laws of the segment queue with a small random transformer: the result is that of a
// double loop under every layout, to the bit; and faults of careless implementations change it.
#include "engine/schedules/queue_denoiser.h"

#include <set>

#include "tests/engine/queue_reference.h"
#include "tests/engine/toy_values.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// Law 1.
TEST(QueueDenoiser, GivesTheBitsOfADoubleLoopUnderEveryLayout) {
  for (const QueueNumbers& n :
       {QueueNumbers{}, QueueNumbers{.frames = {2, 2}, .segments = 4, .steps = 3},
        QueueNumbers{.frames = {2, 0}, .segments = 3, .steps = 4},
        QueueNumbers{.segments = 5, .steps = 6, .experts = 2},
        QueueNumbers{.segments = 4, .prompts = {0, 1, 1, 2}},
        QueueNumbers{.segments = 3, .steps = 1}, QueueNumbers{.segments = 2, .guidance = 1}}) {
    const Video expected = closed_form(n);
    for (const Layout& layout : queue_layouts()) {
      if (layout[Axis::kCfg] == 2 && n.guidance == 1) continue;
      EXPECT_TRUE(same(run_queue(n, layout), expected)) << to_string(layout);
    }
  }
}

// 7 segments of the model over 3 stages are 2, 3 and 2.
TEST(QueueDenoiser, UnevenStagesGiveTheSameBits) {
  const QueueNumbers n{.frames = {2, 1}, .segments = 4, .steps = 4, .layers = 7};
  const Video expected = closed_form(n);
  for (int count : {1, 3, 4}) EXPECT_TRUE(same(run_queue(n, stages(count)), expected)) << count;
}

// Fewer segments or steps than stages: the result is the same, only slower. Law 4 is the case of
// one step.
TEST(QueueDenoiser, ShortQueuesGiveTheSameBits) {
  for (int segments : {1, 2, 3})
    for (int steps : {1, 2, 3}) {
      const QueueNumbers n{.frames = {3, 1}, .segments = segments, .steps = steps, .layers = 4};
      const Video expected = closed_form(n);
      for (const Layout& layout :
           {stages(4), layout_of({{Axis::kCfg, 2}, {Axis::kLayers, 2}, {Axis::kUlysses, 2}})})
        EXPECT_TRUE(same(run_queue(n, layout), expected))
            << to_string(layout) << " B " << segments << " T " << steps;
    }
}

// More turns than are planned at a time: messages are pending from one window to the next.
TEST(QueueDenoiser, WindowsOfTurnsFollowOneAnother) {
  const QueueNumbers n{.frames = {1, 1}, .segments = 140, .steps = 3, .layers = 2};
  const Video expected = closed_form(n);
  for (const Layout& layout : {stages(1), stages(2), layout_of({{Axis::kUlysses, 2}})})
    EXPECT_TRUE(same(run_queue(n, layout), expected)) << to_string(layout);
}

TEST(QueueDenoiser, DelaysAndTheDecoderChangeNoBit) {
  const QueueNumbers n{.segments = 4, .steps = 3};
  const Video expected = closed_form(n);
  for (const Layout& layout : queue_layouts())
    for (uint64_t seed = 1; seed <= 3 && layout.ranks() > 1; ++seed)
      EXPECT_TRUE(same(
          run_queue(n, layout,
                    {.local = {.rendezvous = seed % 2 == 1, .delay_seed = seed, .max_delay_us = 50},
                     .decoder = static_cast<int>(seed) % layout.ranks()}),
          expected))
          << to_string(layout) << " seed " << seed;
}

// Hidden rows in bf16 are rounded once per hop, and not at all on one stage.
TEST(QueueDenoiser, TheWireDtypeMattersBetweenStagesAlone) {
  const QueueNumbers n{.segments = 3, .steps = 3};
  const Video expected = closed_form(n);
  EXPECT_TRUE(same(run_queue(n, {}, {.wire = DType::kBF16}), expected));
  const Video rounded = run_queue(n, stages(2), {.wire = DType::kBF16});
  EXPECT_FALSE(same(rounded, expected));
  EXPECT_TRUE(same(rounded, run_queue(n, stages(2), {.wire = DType::kBF16})));
}

// Law 2.
Tensor ordinary(const QueueNumbers& n, int64_t frames, const Tensor& noise) {
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 28);
  ToyAttentionExperts experts(1, n.layers);
  RankPlacement placement;
  const JobFacts facts{.request = {},
                       .sampler = n.sampler(),
                       .window = {2, frames, n.height, n.width},
                       .guidance = {n.guidance}};
  float prompts[] = {0.5f, n.negative};
  DenoisePlanConfig config =
      staged_config(placement, experts.traits(), DType::kF32, frames * n.height * n.width / 4);
  config.steps = n.step_list();
  config.blocks = {n.layers};
  Tensor result;
  LambdaHost host;
  Job job = toy_job(facts, host, prompts, noise);
  host.on_take = [&](const Segment&, const TensorView& latent) { result = copy_of(latent); };
  Denoiser({stream, arena, experts, placement}).run(config, job);
  return result;
}

TEST(QueueDenoiser, OneBlockIsAnOrdinaryGeneration) {
  const QueueNumbers n{.segments = 1};
  const Tensor expected = ordinary(n, n.frames.count(0), n.noise(0));
  for (int count : {1, 2, 3})
    EXPECT_TRUE(same_bits(run_queue(n, stages(count)).latents.at(0), expected));
  EXPECT_FALSE(same_bits(closed_form(n, {.bf16_latents = true}).latents.at(0), expected));
}

// Law 3.
TEST(QueueDenoiser, WithoutContextBlocksAreIndependent) {
  const QueueNumbers n{.frames = {3, 0}, .segments = 5};
  const Video video = run_queue(n, stages(2));
  for (int k = 0; k < n.segments; ++k)
    EXPECT_TRUE(same_bits(video.latents.at(k), ordinary(n, 3, n.noise(k)))) << k;
}

// The faults change the result, so the laws above would find them.
TEST(QueueDenoiser, PlantedFaultsChangeTheVideo) {
  const QueueNumbers n{};
  const Video right = closed_form(n);
  EXPECT_TRUE(same(closed_form(n, {}), right));
  for (const Planted& planted :
       {Planted{.old_prefix_in_fill = true}, Planted{.old_rows_in_drain = true},
        Planted{.bf16_latents = true}, Planted{.keys_of_prefix = true},
        Planted{.keys_of_last_turn = true}})
    EXPECT_FALSE(same(closed_form(n, planted), right));
  // Law 22: the other expert's keys are dropped.
  const QueueNumbers two{.steps = 6, .experts = 2};
  EXPECT_FALSE(same(closed_form(two, {.keep_at_switch = true}), closed_form(two)));
  // Law 15.
  const QueueNumbers alike{.frames = {3, 0}};
  EXPECT_FALSE(same(closed_form(alike, {.one_solver = true}), closed_form(alike)));
}

// Law 15: a fresh solver alone makes the same latent of a segment's velocities.
TEST(QueueDenoiser, EveryBlockHasASolverOfItsOwn) {
  const QueueNumbers n{};
  const Video video = run_queue(n);
  const TransformerTraits traits = ToyAttention(1).own;
  Stream stream = Stream::cpu(1);
  Arena arena;
  for (int k = 0; k < n.segments; ++k) {
    const int64_t rows = n.frames.count(k) * n.height * n.width / 4;
    Tensor x(DType::kF32, {rows, traits.row()}), latent(DType::kF32, n.shape(k));
    patchify(stream, n.noise(k), traits.patch, TokenRanges::all(rows), x);
    SamplerState state(x.count());
    for (int i = 0; i < n.steps; ++i)
      n.sampler().step(stream, arena, i, video.velocities.at({k, i}), x, state);
    unpatchify(stream, x, traits.patch, TokenRanges::all(rows), latent);
    EXPECT_TRUE(same_bits(latent, video.latents.at(k))) << k;
  }
}

// The segments whose velocities in `turn` change if rows of frames [first, last] of segment m
// change before the turn. Euler keeps no history.
std::set<int> changed_by(QueueNumbers n, int m, int turn, int64_t first, int64_t last) {
  n.solver = SolverKind::kEuler;
  const int64_t s = n.height * n.width / 4, row = 8;
  const auto of = [&](bool perturbed) {
    return run_queue(n, {}, {.on_update = [&](const Pass& pass, const TensorView& velocity) {
                       if (!perturbed || pass.segment != m || pass.step != turn - 1 - m) return;
                       for (int64_t at = first * s * row; at < (last + 1) * s * row; ++at)
                         velocity.as<float>()[at] += 0.5f;
                     }});
  };
  const Video plain = of(false), other = of(true);
  std::set<int> changed;
  for (int k = 0; k < n.segments; ++k)
    if (const auto found = plain.velocities.find({k, turn - k}); found != plain.velocities.end())
      if (!same_bits(found->second, other.velocities.at({k, turn - k}))) changed.insert(k);
  return changed;
}

// Law 6: the light cone of one turn.
TEST(QueueDenoiser, ABlockIsSeenByItsNeighboursInATurnAndNoFurther) {
  for (int layers = 1; layers <= 3; ++layers) {
    const QueueNumbers n{
        .frames = {4, 2}, .segments = 9, .steps = 9, .layers = layers, .guidance = 1};
    std::set<int> expected;
    for (int k = 4 - layers; k <= 5; ++k) expected.insert(k);
    EXPECT_EQ(changed_by(n, 4, 8, 0, 3), expected) << layers;
  }
  const QueueNumbers n{.frames = {5, 2}, .segments = 7, .steps = 7, .layers = 1, .guidance = 1};
  EXPECT_EQ(changed_by(n, 3, 6, 2, 4), (std::set{3, 4}));  // frames C ... P - 1
  EXPECT_EQ(changed_by(n, 3, 6, 0, 2), (std::set{2, 3}));  // frames 0 ... P - C - 1
  EXPECT_EQ(changed_by(n, 3, 6, 2, 2), (std::set{3}));
}

// Laws 7 and 13: what a forward predicts for the frames before is thrown away, there are C S rows
// of them, and all tokens have one time.
TEST(QueueDenoiser, PredictionsForTheFramesBeforeAreDiscarded) {
  const QueueNumbers n{.segments = 4, .steps = 4};
  const Video expected = closed_form(n);
  for (int count : {1, 2}) {
    const Video video =
        run_queue(n, stages(count), {.model = [&](ToyAttention& model) {
                    model.after = [&](const Context& context, const ForwardArgs& args) {
                      EXPECT_EQ(args.times.size(), 1u);
                      EXPECT_EQ(args.times[0].tokens, (Range{0, context.tokens.total}));
                      EXPECT_EQ(context.tokens.total, n.frames.count(0) * 4);
                      if (!args.blocks.last() || context.pass.segment == 0) return;
                      std::fill_n(args.out.as<float>(), n.frames.context * 4 * args.out[1], 1e6f);
                    };
                  }});
    EXPECT_TRUE(same(video, expected));
  }
}

// Law 8: with a velocity of 1 and Euler steps the latents tell how many steps they have performed.
TEST(QueueDenoiser, TheFramesBeforeAreOneStepFurther) {
  QueueNumbers n{.segments = 6, .steps = 4, .guidance = 1, .solver = SolverKind::kEuler};
  const Sampler sampler = n.sampler();
  for (int count : {1, 2, 3}) {
    int checked = 0;
    std::mutex mutex;
    run_queue(n, stages(count), {.model = [&](ToyAttention& model) {
                model.before = [&](const Context& context, const ForwardArgs& args) {
                  const std::scoped_lock lock(mutex);
                  if (!args.blocks.first()) return;
                  const int64_t before = context.pass.segment ? n.frames.context * 4 : 0;
                  Tensor noise(DType::kF32, {args.in[0] - before, 8});
                  Stream stream = Stream::cpu(1);
                  patchify(stream, n.noise(context.pass.segment), {1, 2, 2},
                           TokenRanges::all(noise.view()[0]), noise);
                  const auto performed = [&](float moved) {
                    for (int i = 0; i <= n.steps; ++i)
                      if (std::abs(sampler.sigmas()[i] - sampler.sigmas()[0] - moved) < 1e-4f)
                        return i;
                    return -1;
                  };
                  EXPECT_EQ(performed(args.in.as<float>()[before * 8] - noise.as<float>()[0]),
                            context.pass.step);
                  if (before == 0) return;
                  Tensor last(DType::kF32, {n.frames.count(context.pass.segment - 1) * 4, 8});
                  patchify(stream, n.noise(context.pass.segment - 1), {1, 2, 2},
                           TokenRanges::all(last.view()[0]), last);
                  const int64_t from = (last.view()[0] - before) * 8;
                  EXPECT_EQ(performed(args.in.as<float>()[0] - last.as<float>()[from]),
                            context.pass.step + 1);
                  ++checked;
                };
                model.after = [](const Context&, const ForwardArgs& args) {
                  if (args.blocks.last()) std::fill_n(args.out.as<float>(), args.out.count(), 1.0f);
                };
              }});
    EXPECT_EQ(checked, (n.segments - 1) * n.steps);
  }
}

// Attends to one window of frames, at the positions of their places. `k` and `v` are those of the
// frames after the forward's own, before rope; with none of them it only notes the forward's.
struct WindowMixer final : TokenMixer {
  Tensor k, v, noted_k, noted_v;
  Rope rope;

  void attend(Context& context, const Attend& a) override {
    noted_k = copy_of(a.k);
    noted_v = copy_of(a.v);
    const int64_t own = a.k[0], behind = k ? k.view()[0] : 0;
    Tensor keys(DType::kF32, {own + behind, a.k[1], a.k[2]});
    Tensor values(DType::kF32, {own + behind, a.k[1], a.k[2]});
    copy(context.stream, a.k, keys.view().slice(0, 0, own));
    copy(context.stream, a.v, values.view().slice(0, 0, own));
    if (k) copy(context.stream, k, keys.view().slice(0, own, behind));
    if (v) copy(context.stream, v, values.view().slice(0, own, behind));
    apply_rope(context.stream, keys, rope, 0, keys);
    apply_rope(context.stream, a.q, rope, 0, a.q);
    const KVSegment window{.k = keys, .v = values};
    attention(context.stream, {.q = a.q, .segments = {&window, 1}, .scale = a.scale, .out = a.out});
  }
};

// Law 12: in a model of one layer the context after a segment is as if the window of P + 2 C
// frames were computed anew, where the keys of the last C frames come from the latents of the next
// segment, with the time of the step before. `keys_step` and `keys_time` choose that step; others
// are wrong. Returns the largest relative L2 of a velocity.
double distance_to_window(const QueueNumbers& n, const Layout& layout, int keys_step,
                          int keys_time) {
  const Video video = run_queue(n, layout);
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 28);
  const ToyAttention model(n.layers);
  const Sampler sampler = n.sampler();
  const int64_t s = n.height * n.width / 4, context = n.frames.context * s, row = model.own.row();
  std::map<StepOf, Tensor> z;  // rows of a segment's own frames before a step
  for (int k = 0; k < n.segments; ++k) {
    const int64_t own = n.frames.count(k) * s;
    Tensor x(DType::kF32, {own, row});
    patchify(stream, n.noise(k), model.own.patch, TokenRanges::all(own), x);
    SamplerState state(x.count());
    for (int i = 0; i < n.steps; ++i) {
      z[{k, i}] = copy_of(x);
      sampler.step(stream, arena, i, video.velocities.at({k, i}), x, state);
    }
    z[{k, n.steps}] = std::move(x);
  }
  const auto forward = [&](WindowMixer& mixer, const Tensor& x, int64_t frames, int time_of) {
    const int64_t tokens = x.view()[0];
    IdentityReducer reducer;
    IdentityHalo halo;
    Context seams{stream, arena, mixer, reducer, halo, {}, TokenRanges::all(tokens)};
    float prompt = n.prompt(0);
    const auto conditioning =
        model.prepare(seams, {.text = TensorView(&prompt, DType::kF32, {1, 1})}, {});
    mixer.rope = model.rope({frames, n.height / 2, n.width / 2}, {}, *conditioning);
    const TimeSegment time{{0, tokens}, sampler.timesteps()[time_of]};
    Tensor out(DType::kF32, {tokens, row});
    model.forward(seams, {.blocks = BlockRange::all(n.layers),
                          .in = x,
                          .times = {&time, 1},
                          .embedding = {},
                          .conditioning = *conditioning,
                          .rope = mixer.rope,
                          .out = out});
    return out;
  };
  double most = 0;
  for (int k = 0; k + 1 < n.segments; ++k)
    for (int i = 1; i < n.steps; ++i) {
      WindowMixer behind, window;
      const Tensor next = copy_of(z.at({k + 1, i + keys_step}).view().slice(0, 0, context));
      forward(behind, next, n.frames.context, i + keys_time);
      window.k = std::move(behind.noted_k);
      window.v = std::move(behind.noted_v);
      const TensorView own = z.at({k, i});
      const int64_t tokens = n.frames.count(0) * s, before = tokens - own[0];
      Tensor x(DType::kF32, {tokens, row});
      copy(stream, own, x.view().slice(0, before, own[0]));
      if (before > 0) {
        const TensorView left = z.at({k - 1, i + 1});
        copy(stream, left.slice(0, left[0] - before, before), x.view().slice(0, 0, before));
      }
      const Tensor out = forward(window, x, n.frames.count(0) + n.frames.context, i);
      const float *got = out.as<float>() + before * row,
                  *made = video.velocities.at({k, i}).as<float>();
      double error = 0, norm = 0;
      for (int64_t j = 0; j < own.count(); ++j) {
        error += std::pow(double{got[j]} - made[j], 2);
        norm += std::pow(double{made[j]}, 2);
      }
      most = std::max(most, std::sqrt(error / norm));
    }
  return most;
}

TEST(QueueDenoiser, InOneLayerTheContextIsTheWindowComputedAnew) {
  const QueueNumbers one{.segments = 4, .steps = 4, .layers = 1, .guidance = 1};
  EXPECT_LE(distance_to_window(one, {}, -1, -1), 1e-5);
  EXPECT_GE(distance_to_window(one, {}, 0, -1), 1e-4);  // latents of this step
  EXPECT_GE(distance_to_window(one, {}, -1, 0), 1e-4);  // the time of this step
  // Two layers: the keys of the second one have seen the next segment's window, not this one.
  const QueueNumbers two{.segments = 4, .steps = 4, .layers = 2, .guidance = 1};
  EXPECT_GE(distance_to_window(two, {}, -1, -1), 1e-4);
}

// Law 14: the branches' keys do not mix. With a velocity of 0 the latents stay, so that the
// negative prompt could reach the positive branch through its keys alone.
TEST(QueueDenoiser, BranchesDoNotMix) {
  std::map<float, std::map<StepOf, Tensor>> positive;
  for (const float negative : {-0.5f, 3.0f}) {
    QueueNumbers n{.segments = 4, .steps = 4, .negative = negative};
    run_queue(n, {},
              {.model =
                   [&](ToyAttention& model) {
                     model.after = [&](const Context& context, const ForwardArgs& args) {
                       const Pass& pass = context.pass;
                       if (pass.branch == 0)
                         positive[negative][{pass.segment, pass.step}] = copy_of(args.out);
                     };
                   },
               .on_update =
                   [](const Pass&, const TensorView& velocity) {
                     std::fill_n(velocity.as<float>(), velocity.count(), 0.0f);
                   }});
  }
  ASSERT_EQ(positive[-0.5f].size(), 16u);
  for (const auto& [pass, rows] : positive[-0.5f])
    EXPECT_TRUE(same_bits(rows, positive[3.0f].at(pass)));
  // Without guidance the negative prompt is not read.
  const QueueNumbers a{.guidance = 1, .negative = -0.5f}, b{.guidance = 1, .negative = 3};
  EXPECT_TRUE(same(run_queue(a), run_queue(b)));
}

// Law 17, counted in the communicator.
TEST(QueueDenoiser, SendsTheBytesOfTheFormula) {
  const QueueNumbers n{};
  for (int count : {2, 3})
    for (const DType wire : {DType::kF32, DType::kBF16}) {
      std::mutex mutex;
      run_queue(n, stages(count),
                {.done =
                     [&](Communicator& world) {
                       const std::scoped_lock lock(mutex);
                       const auto& sent = world.counters().sent;
                       const auto bytes = [&](Payload kind) {
                         return sent[static_cast<size_t>(kind)].bytes;
                       };
                       const bool last = world.rank() == count - 1;
                       const int64_t passes = n.steps * n.segments;
                       EXPECT_EQ(bytes(Payload::kHidden),
                                 last ? 0
                                      : passes * 2 * n.frames.count(0) * 4 * ToyAttention::kWidth *
                                            static_cast<int64_t>(size_of(wire)));
                       EXPECT_EQ(bytes(Payload::kLatent),
                                 last ? n.steps * n.frames.first(n.segments) * 2 * 4 * 4 * 4 : 0);
                       EXPECT_EQ(world.counters().total_sent().bytes,
                                 bytes(Payload::kHidden) + bytes(Payload::kLatent));
                     },
                 .wire = wire});
    }
}

// Law 19: memory does not depend on the length of the video.
TEST(QueueDenoiser, MemoryDoesNotGrowWithTheVideo) {
  for (int count : {1, 2}) {
    std::map<int, int64_t> most;
    for (int segments : {4, 8, 16}) {
      std::mutex mutex;
      const auto live = static_cast<int64_t>(tensor_bytes_live());
      run_queue({.segments = segments, .steps = 3}, stages(count),
                {.before_turn =
                     [&](Communicator* world, int turn) {
                       Stream stream = Stream::cpu(1);
                       if (world) world->barrier(stream, {.pass = {.step = turn}, .hop = 90});
                       if (!world || world->rank() == 0)
                         most[segments] = std::max(
                             most[segments], static_cast<int64_t>(tensor_bytes_live()) - live);
                       if (world) world->barrier(stream, {.pass = {.step = turn}, .hop = 91});
                       return true;
                     },
                 .keep = false});
    }
    EXPECT_EQ(most[4], most[8]) << count;
    EXPECT_EQ(most[8], most[16]) << count;
  }
}

// A rank keeps one set of keys, for the segments, branches and heads that it computes.
TEST(QueueDenoiser, KeepsOneSetOfKeys) {
  const QueueNumbers n{.layers = 5};
  for (const Layout& layout : queue_layouts()) {
    run_queue(n, layout, {.kept_keys = [&](const RankPlacement& placement, size_t bytes) {
                const BlockRange layers = placement.blocks(n.layers);
                const int64_t heads = ToyAttention::kHeads / layout[Axis::kUlysses];
                EXPECT_EQ(bytes, segment_context_cache_bytes(
                                     layers.end - layers.begin, layout[Axis::kCfg] == 2 ? 1 : 2,
                                     n.frames.context * 4, {heads, heads, ToyAttention::kHead}))
                    << to_string(layout);
              }});
  }
}

// Law 20.
TEST(QueueDenoiser, LaterBlocksChangeNothingThatHasLeft) {
  const QueueNumbers shorter{.segments = 6, .steps = 3}, longer{.segments = 8, .steps = 3};
  const Video a = run_queue(shorter, stages(2)), b = run_queue(longer, stages(2));
  for (int k = 0; k < shorter.segments; ++k) {
    const bool left = shorter.segments >= k + shorter.steps;
    EXPECT_EQ(same_bits(a.latents.at(k), b.latents.at(k)), left) << k;
  }
  for (const auto& [pass, velocity] : a.velocities)
    if (pass.first + pass.second < shorter.segments) {
      EXPECT_TRUE(same_bits(velocity, b.velocities.at(pass))) << pass.first << " " << pass.second;
    }
}

// All ranks stop before the turn after the root's decision, with no message on its way.
TEST(QueueDenoiser, EveryRankObeysTheRootBeforeTheNextTurn) {
  const QueueNumbers n{.segments = 4, .steps = 3};
  for (const Layout& layout : queue_layouts())
    for (const bool rendezvous : {false, true})
      for (int turn = 0; turn < n.segments + n.steps - 1; turn += 2) {
        const auto end = [](Communicator& world) {
          Stream stream = Stream::cpu(1);
          world.barrier(stream, {.hop = 92});
        };
        QueueHooks hooks{.stop_at = turn, .local = {.rendezvous = rendezvous}};
        if (layout.ranks() > 1) hooks.done = end;
        const Video video = run_queue(n, layout, hooks);
        EXPECT_EQ(std::ssize(video.latents), std::max(0, turn + 1 - n.steps))
            << to_string(layout) << " turn " << turn;
      }
  // A root that decides nothing changes nothing.
  EXPECT_TRUE(same(run_queue(n, stages(2), {.stop_at = 1000}), closed_form(n)));
}

TEST(QueueDenoiser, NamesTheBlockAndTheStepOfWhatIsNotFinite) {
  const QueueNumbers n{.segments = 3, .steps = 3};
  expect_error(ErrorKind::kNonFinite, "block 2, step 3 of 3", [&] {
    run_queue(n, {}, {.on_update = [](const Pass& pass, const TensorView& velocity) {
                if (pass.segment == 1 && pass.step == 2) velocity.as<float>()[3] = NAN;
              }});
  });
}

}  // namespace
}  // namespace weft::test
