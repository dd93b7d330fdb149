// The laws of dual-scope attention: against a slow reference by definition, for every number of
// clips, with the bytes of its formula, fresh and stale.
#include "parallel/methods/dual_scope.h"

#include <set>

#include "parallel/methods/mixer_factory.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/step_run.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

struct Video {
  int64_t frames = 7, height = 2, width = 2;
  int64_t heads = 4, kv_heads = 2, head_dim = 12;
  DType dtype = DType::kF32;
  const Ops* ops = &reference_ops();

  int64_t size() const { return height * width; }  // tokens per frame
  int64_t tokens() const { return frames * size(); }
  Sequence sequence() const { return {tokens(), frames}; }
  AttendShape shape() const { return {heads, kv_heads, head_dim, dtype}; }
  operator Shapes() const {
    return {.grid = {frames, height, width},
            .heads = heads,
            .kv_heads = kv_heads,
            .head_dim = head_dim,
            .dtype = dtype,
            .ops = ops};
  }
  float scale() const { return Shapes(*this).scale(); }
};

MixerDescription describe_clips(const Video& video, const DualScope& scope, const Layout& layout,
                                int rank) {
  return {
      .mesh = Mesh(layout),
      .rank = rank,
      .tokens = SequenceMap::clips(video.sequence(), layout[Axis::kClip], layout[Axis::kUlysses]),
      .dual_scope = scope,
      .frames = video.frames};
}

Layout clips(int count, int ulysses = 1) {
  Layout layout;
  layout[Axis::kClip] = count;
  layout[Axis::kUlysses] = ulysses;
  return layout;
}

std::vector<Features> features_of_steps(const Video& video, const std::vector<int>& steps) {
  std::vector<Features> all;
  for (const int step : steps) all.emplace_back(video, step);
  return all;
}

std::unique_ptr<TokenMixer> mixer_of(const MixerDescription& description, Communicator& world) {
  return make_mixer(description, [&](const std::vector<int>& ranks, int number) {
    return world.group(ranks, 7 + number);
  });
}

// The bytes of the arena that each pass of a rank takes in a dry run.
std::vector<size_t> dry_arenas(const Video& video, const MixerDescription& description,
                               const std::vector<Pass>& passes, const Rope& rope) {
  DryRun dry;
  Communicator world(
      std::make_shared<SilentTransport>(description.rank, description.mesh.layout().ranks()));
  const auto mixer = mixer_of(description, world);
  const TokenRanges own = description.tokens[description.rank];
  const auto tensor = [&](int64_t heads) {
    return dry.tensor(video.dtype, {own.size(), heads, video.head_dim});
  };
  const Tensor q = tensor(video.heads), k = tensor(video.kv_heads), v = tensor(video.kv_heads),
               out = tensor(video.heads);
  const Rope all = on_device(dry.stream(), rope);
  SerialSeams seams;
  std::vector<size_t> arenas;
  for (const Pass& pass : passes) {
    Context context{dry.stream(), dry.arena(), *mixer, seams.reducer, seams.halo, pass, own};
    mixer->begin(pass);
    const auto attend = [&] {
      mixer->attend(context,
                    {.layer = 3, .q = q, .k = k, .v = v, .out = out, .rope = &all, .scale = 1});
    };
    arenas.push_back(dry.measure(attend).arena);
    mixer->finish();
  }
  return arenas;
}

using After = std::function<void(Communicator&)>;

// The output of every step under a layout. Pass i has the features `values[i]`.
std::vector<Tensor> run_dual_scope(const Video& video, const DualScope& scope, const Layout& layout,
                                   const std::vector<Pass>& passes,
                                   const std::vector<Features>& values,
                                   const LocalOptions& options = {}, const After& after = {}) {
  StepRun run{.ranks = layout.ranks(), .make = [&](Communicator& world) {
                const MixerDescription description =
                    describe_clips(video, scope, layout, world.rank());
                const TokenRanges own = description.tokens[world.rank()];
                return RankOfRun{mixer_of(description, world), [own](const Pass&) { return own; }};
              }};
  for (const Pass& pass : passes) run.forwards.push_back({pass, run.forwards.size()});
  run.options = options;
  std::vector<std::vector<size_t>> arenas(layout.ranks());
  run.after_forward = [&](Communicator& world, TokenMixer& mixer, const Arena& arena) {
    arenas[world.rank()].push_back(arena.high_water());
    mixer.finish();
  };
  const Rope rope =
      make_rope({video.frames, video.height, video.width}, {}, static_cast<int>(video.head_dim));
  run.after = [&](Communicator& world) {
    const MixerDescription description = describe_clips(video, scope, layout, world.rank());
    EXPECT_EQ(arenas[world.rank()], dry_arenas(video, description, passes, rope))
        << to_string(layout) << " rank " << world.rank();
    EXPECT_EQ(world.counters().total_sent().bytes,
              static_cast<int64_t>(passes.size()) * mixer_sent_bytes(description, video.shape()))
        << to_string(layout) << " rank " << world.rank();
    if (after) after(world);
  };
  return run_steps(video, run, values);
}

Tensor run_once(const Video& video, const DualScope& scope, const Layout& layout, int step = 0,
                const LocalOptions& options = {}) {
  return std::move(run_dual_scope(video, scope, layout, {{.step = step}},
                                  features_of_steps(video, {step}), options)[0]);
}

// Row t of x [n, heads, E] turned to the position (frame, row, column) in f64.
std::vector<double> clip_turned(const Video& video, const Tensor& x, int64_t token, int64_t head,
                                double frame) {
  return turned_head(x.as<float>() + (token * x.view()[1] + head) * video.head_dim, video.head_dim,
                     {frame, static_cast<double>(token % video.size() / video.width),
                      static_cast<double>(token % video.width)});
}

// By definition: one softmax over all keys that a token sees, frame by frame. `seen_of(a, b)` says
// which features frame a sees of frame b.
using SeenOf = std::function<const Features&(int64_t query_frame, int64_t key_frame)>;

Tensor dual_scope_by_definition(const Video& video, const DualScope& scope, int step,
                                const Features& own, const SeenOf& seen_of) {
  Tensor out(DType::kF32, {video.tokens(), video.heads, video.head_dim});
  const int64_t size = video.size(), group = video.heads / video.kv_heads;
  const bool composing = step < scope.global_steps;
  const auto remapped = [&](int64_t frame) {
    return video.frames == 1 ? 0.0
                             : static_cast<double>(frame) * static_cast<double>(scope.trained - 1) /
                                   static_cast<double>(video.frames - 1);
  };
  for (int64_t token = 0; token < video.tokens(); ++token)
    for (int64_t head = 0; head < video.heads; ++head) {
      const int64_t frame = token / size;
      std::vector<double> logits;
      std::vector<const float*> values;
      const auto see = [&](int64_t other, bool global) {
        const Features& from = seen_of(frame, other);
        const double bias = global == composing ? scope.bias : 0;
        const auto query = clip_turned(video, own.q, token, head,
                                       global ? remapped(frame) : static_cast<double>(frame));
        for (int64_t key = other * size; key < (other + 1) * size; ++key) {
          const auto turned_key =
              clip_turned(video, from.k, key, head / group,
                          global ? remapped(other) : static_cast<double>(other));
          double logit = 0;
          for (int64_t i = 0; i < video.head_dim; ++i) logit += query[i] * turned_key[i];
          logits.push_back(logit * video.scale() + bias);
          values.push_back(from.v.as<float>() +
                           (key * video.kv_heads + head / group) * video.head_dim);
        }
      };
      for (int64_t other = frame - scope.window; other <= frame + scope.window; ++other)
        if (other >= 0 && other < video.frames) see(other, false);
      for (int64_t j = 0; j < scope.global; ++j) see(j * video.frames / scope.global, true);
      softmax_mean(logits, values, video.head_dim,
                   out.as<float>() + (token * video.heads + head) * video.head_dim);
    }
  return out;
}

Tensor dual_scope_by_definition(const Video& video, const DualScope& scope, int step) {
  const Features own(video, step);
  return dual_scope_by_definition(video, scope, step, own,
                                  [&](int64_t, int64_t) -> const Features& { return own; });
}

const std::vector<DualScope> kScopes = {
    {.window = 2, .global = 2, .trained = 5, .bias = 2, .global_steps = 1},
    {.window = 0, .global = 1, .trained = 3, .bias = -1},
    {.window = 1, .global = 0, .trained = 5, .bias = 10, .global_steps = 1},
    {.window = 3, .global = 5, .trained = 4, .bias = 10, .global_steps = 1},
    {.window = 9, .global = 7, .trained = 21, .bias = 2}};

// Law 24, and the definition: clips of any length, and windows that reach further than a clip.
TEST(DualScope, EveryNumberOfClipsGivesTheSameBits) {
  for (const int64_t frames : {7, 11})
    for (const DualScope& scope : kScopes) {
      const Video video{.frames = frames};
      const Tensor one = run_once(video, scope, clips(1));
      EXPECT_LE(relative_l2(one, dual_scope_by_definition(video, scope, 0)), 1e-6) << scope.window;
      for (int count = 2; count <= 7; ++count)
        EXPECT_TRUE(same_bits(run_once(video, scope, clips(count), 0, {.rendezvous = true}), one))
            << frames << " frames, " << count << " clips, window " << scope.window;
      for (const auto& [count, ulysses] : {std::pair{2, 2}, {3, 2}, {2, 4}, {1, 3}})
        EXPECT_TRUE(same_bits(run_once(video, scope, clips(count, ulysses)), one))
            << count << " clips, ulysses " << ulysses;
    }
}

// The fast ops, and bf16, whose states are f32 and rounded once.
TEST(DualScope, FastOpsAreWithinTheirBounds) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const DualScope& scope : kScopes) {
      const Video video{.frames = 11, .height = 3, .width = 5, .dtype = dtype, .ops = &cpu_ops()};
      const Tensor one = run_once(video, scope, clips(1));
      const Tensor reference =
          run_once({.frames = 11, .height = 3, .width = 5, .dtype = dtype}, scope, clips(1));
      EXPECT_LE(relative_l2(one, reference), dtype == DType::kF32 ? 1e-6 : 8e-3);
      for (int count = 2; count <= 4; ++count)
        EXPECT_LE(relative_l2(run_once(video, scope, clips(count)), one), 1e-6)
            << count << " clips";
    }
}

// Bug 1 of Video-Infinity: zero keys and values before the first and after the last frame. It is
// planted as frames of zeros around the video. Law 24 fails by it.
TEST(DualScope, ZerosThatAreNotMaskedFailTheLaw) {
  const DualScope scope{.window = 2, .global = 0};
  const Video video, padded{.frames = video.frames + 2 * scope.window};
  std::vector<Features> values = features_of_steps(padded, {0});
  Features own(video, 0);
  Stream stream = Stream::cpu(1);
  for (auto member : {&Features::q, &Features::k, &Features::v}) {
    fill_zero(stream, values[0].*member);
    copy(stream, (own.*member).view(),
         (values[0].*member).view().slice(0, scope.window * video.size(), video.tokens()));
  }
  const Tensor whole = dual_scope_by_definition(video, scope, 0);
  const Tensor bug = std::move(run_dual_scope(padded, scope, clips(1), {{}}, values)[0]);
  const auto error = [&](int64_t frame) {
    return relative_l2(bug.view().slice(0, (frame + scope.window) * video.size(), video.size()),
                       whole.view().slice(0, frame * video.size(), video.size()));
  };
  EXPECT_LE(error(3), 1e-6);  // sees no edge
  for (const int64_t edge : {0, 1, 5, 6}) EXPECT_GE(error(edge), 1e-2) << edge;
}

// Law 25: no frame outside the window and the global frames matters, each one inside does.
TEST(DualScope, AFrameSeesItsWindowAndTheGlobalFrames) {
  const DualScope scope{.window = 1, .global = 2, .trained = 5, .bias = 0};
  const Video video{.frames = 9};
  const Tensor plain = run_once(video, scope, clips(2));
  const std::set<int64_t> global{0, 4};
  for (int64_t changed = 0; changed < video.frames; ++changed) {
    std::vector<Features> values = features_of_steps(video, {0});
    for (const Tensor* x : {&values[0].k, &values[0].v}) {
      const TensorView rows = x->view().slice(0, changed * video.size(), video.size());
      for (int64_t i = 0; i < rows.count(); ++i) rows.as<float>()[i] += 1;
    }
    const Tensor out = std::move(run_dual_scope(video, scope, clips(2), {{}}, values)[0]);
    for (int64_t frame = 0; frame < video.frames; ++frame) {
      const auto rows = [&](const Tensor& x) {
        return x.view().slice(0, frame * video.size(), video.size());
      };
      const bool sees = std::abs(frame - changed) <= scope.window || global.contains(changed);
      EXPECT_EQ(!same_bits(rows(out), rows(plain)), sees) << frame << " sees " << changed;
    }
  }
}

// Law 25: without global frames, three layers reach three windows.
TEST(DualScope, LayersReachTheirWindowsTogether) {
  const DualScope scope{.window = 1, .global = 0};
  const Video video{.frames = 9, .kv_heads = 4};
  const auto three_layers = [&](bool changed) {
    std::vector<Features> values = features_of_steps(video, {0});
    if (changed)
      for (int64_t i = 0; i < video.size() * video.heads * video.head_dim; ++i)
        values[0].v.as<float>()[i] += 1;
    for (int layer = 0; layer < 3; ++layer)
      values[0].v = std::move(run_dual_scope(video, scope, clips(2), {{}}, values)[0]);
    return std::move(values[0].v);
  };
  const Tensor plain = three_layers(false), changed = three_layers(true);
  for (int64_t frame = 0; frame < video.frames; ++frame)
    EXPECT_EQ(!same_bits(plain.view().slice(0, frame * video.size(), video.size()),
                         changed.view().slice(0, frame * video.size(), video.size())),
              frame <= 3)
        << frame;
}

// Law 26: a window of the whole video, and global frames of all of it at their positions, are full
// attention.
TEST(DualScope, WideScopesAreFullAttention) {
  const AttentionCase c{.grid = {7, 2, 2}, .kv_heads = 2};
  const SequenceRun full(c);
  const Tensor whole = full.whole();
  for (const DualScope& scope :
       {DualScope{.window = 6, .global = 0},
        DualScope{.window = 0, .global = 7, .trained = 7, .bias = 1e4, .global_steps = 100}})
    for (int count = 1; count <= 3; ++count) {
      const auto make = [&](Communicator& world) {
        return make_mixer(
            describe_clips({}, scope, clips(count), world.rank()),
            [&](const std::vector<int>& ranks, int) { return world.group(ranks, 7); });
      };
      const SequenceMap map = SequenceMap::clips({c.tokens(), 7}, count);
      EXPECT_LE(relative_l2(full.run(count, map, make), whole), 1e-6) << count;
    }
}

// Laws 27 and 29: a large bias leaves one part alone, biases of both parts are relative, and the
// parts change their roles after the global steps.
TEST(DualScope, TheBiasWeighsThePartOfItsPhase) {
  const Video video;
  const DualScope near{.window = 2, .global = 3, .trained = 5, .bias = 1.5};
  DualScope global = near, alone = near;
  global.global_steps = 1;
  global.bias = -near.bias;
  EXPECT_LE(relative_l2(run_once(video, near, clips(2)), run_once(video, global, clips(2))), 1e-6);
  alone.global = 0;
  for (const double bias : {1e3, 1e30}) {
    DualScope hard = near;
    hard.bias = bias;
    EXPECT_TRUE(same_bits(run_once(video, hard, clips(2)), run_once(video, alone, clips(2))));
    hard.global_steps = 1;
    EXPECT_GE(relative_l2(run_once(video, hard, clips(2)), run_once(video, alone, clips(2))), 0.1);
  }
  global.bias = near.bias;
  global.global_steps = 3;
  for (int step = 1; step < 5; ++step)
    EXPECT_LE(relative_l2(run_once(video, global, clips(2), step),
                          dual_scope_by_definition(video, global, step)),
              1e-6);
}

// Law 28. Bug 4 of Video-Infinity, planted: shares of the clips depend on how many there are.
TEST(DualScope, GlobalFramesIgnoreTheNumberOfClips) {
  const auto shares = [](int64_t frames, int64_t wanted, int count) {
    std::vector<int64_t> set;
    const int64_t share = wanted / count, length = frames / count;
    const int64_t stride = std::max<int64_t>(length / std::max<int64_t>(share, 1), 1);
    for (int clip = 0; clip < count; ++clip)
      for (int64_t f = 0; f < length; f += stride) set.push_back(clip * length + f);
    set.resize(std::min<size_t>(set.size(), wanted));
    return set;
  };
  EXPECT_NE(shares(21, 4, 3), shares(21, 4, 2));
  for (const int64_t frames : {5, 12, 21})
    for (int64_t wanted = 0; wanted <= frames; ++wanted) {
      std::vector<int64_t> expected;
      for (int64_t j = 0; j < wanted; ++j) expected.push_back(j * frames / wanted);
      for (int count = 1; count <= 5; ++count) {
        const ClipFrames clips(SequenceMap::clips({frames * 3, frames}, count),
                               {frames * 3, frames}, {.global = wanted});
        std::vector<int64_t> held;
        for (int clip = 0; clip < count; ++clip)
          for (int64_t j = clips.globals(clip).begin; j < clips.globals(clip).end; ++j) {
            held.push_back(clips.global(j));
            EXPECT_TRUE(held.back() >= clips.clip(clip).begin &&
                        held.back() < clips.clip(clip).end);
          }
        EXPECT_EQ(held, expected) << frames << " frames, " << wanted << ", " << count << " clips";
        if (wanted > 0 && frames % count == 0 && wanted % count == 0 &&
            frames / count % (wanted / count) == 0) {
          EXPECT_EQ(shares(frames, wanted, count), expected);
        }
      }
    }
}

// Law 30. run() compares the counters with the formula for every layout; here is the formula in
// the words of the paper, and nothing but keys and values travels.
TEST(DualScope, BytesAreThoseOfTheNeighboursAndTheGlobalFrames) {
  const Video video{.frames = 12};
  const DualScope scope{.window = 2, .global = 4, .trained = 5};
  const int64_t row = 2 * video.size() * video.kv_heads * video.head_dim * 4;
  run_dual_scope(
      video, scope, clips(4), {{}}, features_of_steps(video, {0}), {}, [&](Communicator& world) {
        const int neighbours = world.rank() % 3 == 0 ? 1 : 2;  // of four clips
        const CommCounters& counters = world.counters();
        EXPECT_EQ(counters.total_sent().bytes, row * (neighbours * scope.window + 3 * 1));
        EXPECT_EQ(counters.sent[static_cast<size_t>(Payload::kKeyValue)], counters.total_sent());
        EXPECT_EQ(counters.total_sent().messages, neighbours + 3);
      });
}

// Law 33: other ranks' frames are those of the step before, exactly, from the end of the warm-up
// on; an expert's first step and the first step of a run see the present ones.
TEST(DualScope, StaleFramesAreThoseOfTheStepBefore) {
  const Video video{.frames = 8};
  const std::vector<Pass> passes{{.step = 3},
                                 {.step = 4},
                                 {.step = 5},
                                 {.step = 6},
                                 {.model = 1, .step = 7},
                                 {.model = 1, .step = 8}};
  const std::vector<Features> values = features_of_steps(video, {3, 4, 5, 6, 7, 8});
  for (const int warmup : {0, 5})
    for (int count = 1; count <= 4; ++count) {
      const DualScope scope{
          .window = 2, .global = 3, .trained = 5, .bias = 1, .stale = 1, .warmup = warmup};
      const std::vector<Tensor> out = run_dual_scope(video, scope, clips(count), passes, values);
      const SequenceMap map = SequenceMap::clips(video.sequence(), count);
      const auto clip_of = [&](int64_t frame) {
        int clip = 0;
        while (map[clip].ranges[0].end <= frame * video.size()) ++clip;
        return clip;
      };
      for (size_t i = 0; i < passes.size(); ++i) {
        const bool fresh = i == 0 || i == 4 || passes[i].step < warmup;
        const Tensor expected = dual_scope_by_definition(
            video, scope, passes[i].step, values[i],
            [&](int64_t query, int64_t key) -> const Features& {
              return fresh || clip_of(query) == clip_of(key) ? values[i] : values[i - 1];
            });
        EXPECT_LE(relative_l2(out[i], expected), 1e-6) << count << " clips, pass " << i;
        if (count > 1 && !fresh) {
          EXPECT_GE(relative_l2(out[i],
                                dual_scope_by_definition(video, scope, passes[i].step, values[i],
                                                         [&](int64_t, int64_t) -> const Features& {
                                                           return values[i];
                                                         })),
                    1e-3);
        }
      }
    }
}

TEST(DualScope, AWarmUpOfAllStepsIsTheFreshMethod) {
  const Video video{.frames = 7};
  const std::vector<Pass> passes{{.step = 0}, {.step = 1}, {.branch = 1, .step = 1}};
  const std::vector<Features> values = features_of_steps(video, {0, 1, 2});
  const DualScope fresh{.window = 2, .global = 3, .trained = 5};
  DualScope stale = fresh;
  stale.stale = 1;
  stale.warmup = 2;
  const std::vector<Tensor> expected = run_dual_scope(video, fresh, clips(1), passes, values);
  for (int count = 2; count <= 4; ++count) {
    const std::vector<Tensor> out = run_dual_scope(video, stale, clips(count), passes, values);
    for (size_t i = 0; i < passes.size(); ++i) EXPECT_TRUE(same_bits(out[i], expected[i])) << i;
  }
}

TEST(DualScope, DelaysChangeNoBit) {
  const Video video{.frames = 6};
  const std::vector<Pass> passes{{.step = 0}, {.branch = 1, .step = 0}, {.step = 1}, {.step = 2}};
  const std::vector<Features> values = features_of_steps(video, {0, 1, 2, 3});
  for (const int stale : {0, 1}) {
    const DualScope scope{.window = 3, .global = 2, .trained = 5, .stale = stale};
    const std::vector<Tensor> plain = run_dual_scope(video, scope, clips(3), passes, values);
    for (uint64_t seed = 1; seed <= 50; ++seed) {
      const std::vector<Tensor> out =
          run_dual_scope(video, scope, clips(3), passes, values,
                         {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50});
      for (size_t i = 0; i < passes.size(); ++i) EXPECT_TRUE(same_bits(out[i], plain[i])) << seed;
    }
  }
}

TEST(DualScope, RefusesWhatIsNotLegalByNameAndValue) {
  EXPECT_EQ(refuse(DualScope{}, 21), "");
  EXPECT_EQ(refuse(DualScope{.window = 0, .global = 21, .trained = 1}, 21), "");
  EXPECT_EQ(refuse(DualScope{.window = -1}, 21), "window is -1, legal: 0 or more latent frames");
  EXPECT_EQ(refuse(DualScope{.global = 22}, 21),
            "global is 22, legal: 0 ... 21, the latent frames of the video");
  EXPECT_NE(refuse(DualScope{.global = -1}, 21), "");
  EXPECT_EQ(refuse(DualScope{.trained = 0}, 21), "trained is 0, legal: 1 or more latent frames");
  EXPECT_TRUE(contains(refuse(DualScope{.bias = INFINITY}, 21), "legal: a finite number"));
  EXPECT_EQ(refuse(DualScope{.stale = 2}, 21), "stale is 2, legal: 0 or 1 steps");
  EXPECT_EQ(refuse(DualScope{.warmup = -1}, 21), "warmup is -1, legal: 0 or more steps");
}

TEST(DualScopeDeathTest, ClipsAreWholeFramesAndNeedTheMethod) {
  EXPECT_DEATH(ClipFrames(SequenceMap::contiguous(12, 2), {12, 3}, {.global = 0}), "clip");
  MixerDescription description = describe_clips({}, {}, clips(2), 0);
  description.dual_scope.reset();
  EXPECT_DEATH(make_mixer(description, {}), "clips of full attention");
}

}  // namespace
}  // namespace weft::test
