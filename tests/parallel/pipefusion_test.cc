// The laws of PipeFusion's attention: against a slow reference by definition, the same under every
// split of a patch, with the bytes and the memory of their formulas.
#include "parallel/methods/patches/pipefusion.h"

#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/displaced_run.h"

namespace weft::test {
namespace {

using AfterRun = std::function<void(Communicator&, const MixerDescription&)>;

std::vector<Features> features_of_patches(const Shapes& shapes, const PipeFusion& method,
                                          int steps) {
  return test::features(shapes, steps, static_cast<int64_t>(method.patches.size()));
}

// The output of every step.
std::vector<Tensor> run_patches(const Shapes& s, const PipeFusion& method, const Layout& layout,
                                const std::vector<Features>& values,
                                const LocalOptions& options = {}, const AfterRun& after = {}) {
  StepRun run = pipefusion_run(s, method, layout, static_cast<int>(values.size()));
  run.options = options;
  if (after)
    run.after = [&](Communicator& world) { after(world, describe(method, layout, world.rank())); };
  return run_steps(s, run, values);
}

const std::vector<PipeFusion> kMethods = {{.patches = {8, 8, 8}, .warmup = 1},
                                          {.patches = {9, 7, 8}, .warmup = 2},
                                          {.patches = {5, 4, 8, 7}, .warmup = 0},
                                          {.patches = {24}, .warmup = 1}};

TEST(PipeFusion, PatchPartsCutEveryTokenOnce) {
  for (const PipeFusion& method : kMethods)
    for (int parts = 1; parts <= 4; ++parts) {
      const PatchParts cut(method, parts);
      std::vector<int> held(24);
      const SequenceMap all = cut.map(kAllPatches);
      for (int part = 0; part < parts; ++part) {
        TokenRanges own{{}, 24};
        for (int patch = 1; patch <= cut.patches(); ++patch) {
          const Range tokens = cut.tokens(patch, part);
          EXPECT_EQ(cut.map(patch)[part].ranges, std::vector{tokens});
          own.append(tokens);
          for (int64_t token = tokens.begin; token < tokens.end; ++token) {
            ++held[token];
            EXPECT_EQ(patch_of({}, method, token), patch);
          }
        }
        EXPECT_EQ(all[part].ranges, own.ranges);
      }
      EXPECT_EQ(held, std::vector<int>(24, 1));
    }
}

// The definition, laws L-PF4 and L-PF5: under every split the keys of every patch are of the right
// step, from the first displaced step on, and every token is seen once.
TEST(PipeFusion, IsItsDefinitionUnderEverySplitOfAPatch) {
  const int steps = 4;
  for (const int64_t text : {0, 3})
    for (const int64_t kv_heads : {4, 2}) {
      const Shapes shapes{.kv_heads = kv_heads, .replicated = text};
      for (const PipeFusion& method : kMethods) {
        const std::vector<Features> values = features_of_patches(shapes, method, steps);
        for (const auto& [ring, ulysses] :
             std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {1, 4}, {2, 1}, {2, 2}, {4, 1}}) {
          const auto out = run_patches(shapes, method, split(ring, ulysses), values);
          for (int step = 0; step < steps; ++step)
            EXPECT_LE(relative_l2(out[step], by_definition(shapes, method, values, step)), 1e-6)
                << "ring " << ring << " ulysses " << ulysses << " step " << step << " text " << text
                << " patches " << method.patches.size();
        }
      }
    }
}

TEST(PipeFusion, FastOpsAreWithinTheirBounds) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const PipeFusion& method : kMethods) {
      const Shapes reference{.replicated = 3, .dtype = dtype},
          fast{.replicated = 3, .dtype = dtype, .ops = &cpu_ops()};
      const std::vector<Features> values = features_of_patches(reference, method, 3);
      const auto expected = run_patches(reference, method, {}, values);
      const auto actual = run_patches(fast, method, split(2, 2), values);
      for (int step = 0; step < 3; ++step)
        EXPECT_LE(relative_l2(actual[step], expected[step]), dtype == DType::kF32 ? 1e-6 : 8e-3);
    }
}

// Law L-PF1: one patch is full attention, to the bit. Law L-PF2: so are steps of all tokens.
TEST(PipeFusion, OnePatchAndWarmupAreFullAttention) {
  const Shapes shapes{.replicated = 2};
  const PipeFusion one{.patches = {24}, .warmup = 1};
  const std::vector<Features> values = features_of_patches(shapes, one, 3);
  const auto displaced = run_patches(shapes, one, {}, values);
  const auto exact = run_patches(shapes, {.patches = {24}, .warmup = 3}, {}, values);
  for (int step = 0; step < 3; ++step) EXPECT_TRUE(same_bits(displaced[step], exact[step]));
  const Rope rope = make_rope(shapes.grid, {}, static_cast<int>(shapes.head_dim));
  for (int step = 0; step < 3; ++step) {
    Stream stream = Stream::cpu(1, Determinism::kFast, shapes.ops);
    Arena arena(size_t{1} << 26);
    SerialSeams seams;
    Context context = seams.context(stream, arena, {}, TokenRanges::all(24));
    const auto own = [&](const Tensor& x) {
      Tensor copied(x.view().dtype, x.view().shape());
      copy(stream, x, copied);
      return copied;
    };
    const Tensor q = own(values[step].q), k = own(values[step].k), v = own(values[step].v);
    const Tensor out(shapes.dtype, q.view().shape());
    seams.mixer.attend(context, {.layer = 3,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .out = out,
                                 .rope = &rope,
                                 .scale = shapes.scale(),
                                 .replicated = shapes.replicated});
    EXPECT_TRUE(same_bits(out, displaced[step])) << step;
  }
}

// Law L-PF3: where two steps have the same input, a displaced one is exact.
TEST(PipeFusion, ConstantInputIsExact) {
  const Shapes shapes;
  for (const PipeFusion& method : kMethods) {
    std::vector<Features> values;
    for (int step = 0; step < 4; ++step) values.emplace_back(shapes, 0, std::ssize(method.patches));
    PipeFusion exact = method;
    exact.warmup = 4;
    const auto out = run_patches(shapes, method, split(2, 2), values);
    const auto expected = run_patches(shapes, exact, {}, values);
    for (int step = 0; step < 4; ++step) EXPECT_LE(relative_l2(out[step], expected[step]), 1e-6);
  }
}

// A forward that comes too early or too late is noticed before it sees keys of another step.
TEST(PipeFusion, KeysOfAnotherStepAreRefused) {
  PatchKeys keys({{8}, {8}, {8}});
  Attend attend;
  const Tensor k(DType::kF32, {24, 2, 12});
  attend.k = k;
  const auto begin = [&](int step, int micro) {
    keys.begin({.step = step, .micro = micro}, attend);
  };
  EXPECT_DEATH(begin(0, 1), "patch 2 is of step -2");
  begin(0, kAllPatches);
  begin(1, 1);
  EXPECT_DEATH(begin(1, 3), "patch 2 is of step 0");
  begin(1, 2);
  EXPECT_DEATH(begin(2, 1), "patch 3 is of step 0");
  begin(1, 3);
  begin(2, 1);
  EXPECT_DEATH(begin(3, 1), "patch 2 is of step 1");
}

TEST(PipeFusion, BytesAndMemoryAreTheFormulas) {
  const Shapes shapes{.kv_heads = 2};
  for (const PipeFusion& method : kMethods)
    for (const auto& [ring, ulysses] :
         std::vector<std::pair<int, int>>{{1, 1}, {1, 2}, {2, 1}, {2, 2}, {4, 1}}) {
      const std::vector<Features> one = features_of_patches(shapes, method,
                                                            std::max(1, method.warmup)),
                                  two = features_of_patches(shapes, method,
                                                            std::max(1, method.warmup) + 1);
      std::vector<int64_t> exact(ring * ulysses);
      run_patches(shapes, method, split(ring, ulysses), one, {},
                  [&](Communicator& world, const MixerDescription&) {
                    exact[world.rank()] = world.counters().total_sent().bytes;
                  });
      run_patches(shapes, method, split(ring, ulysses), two, {},
                  [&](Communicator& world, const MixerDescription& description) {
                    EXPECT_EQ(world.counters().total_sent().bytes - exact[world.rank()],
                              mixer_sent_bytes(description, shapes.shape()))
                        << "ring " << ring << " ulysses " << ulysses;
                  });
    }
  // The stores of two layers in one branch, and of one layer in the other.
  const auto before = tensor_bytes_live();
  const Tensor half(DType::kF32, {24, 2, 12});        // the keys of one layer
  const auto counted = tensor_bytes_live() - before;  // alignment included
  PatchKeys keys({{8}, {8}, {8}});
  Attend attend;
  attend.k = half;
  for (const auto& [branch, layer] : std::vector<std::pair<int, int>>{{0, 1}, {0, 2}, {1, 1}}) {
    attend.layer = layer;
    for (const int patch : {kAllPatches, 1, 2, 3})
      keys.begin({.branch = branch, .step = patch > 0, .micro = patch}, attend);
  }
  EXPECT_EQ(tensor_bytes_live() - before, counted + 3 * 2 * counted);
  EXPECT_EQ(pipefusion_cache_bytes(24, {.heads = 4, .kv_heads = 2, .head_dim = 12}),
            2 * half.view().bytes());
}

TEST(PipeFusion, DelaysChangeNoBit) {
  const Shapes shapes{.replicated = 2};
  const PipeFusion method = kMethods[2];
  const std::vector<Features> values = features_of_patches(shapes, method, 3);
  const auto plain = run_patches(shapes, method, split(2, 2), values);
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const auto delayed =
        run_patches(shapes, method, split(2, 2), values,
                    {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50});
    for (int step = 0; step < 3; ++step) EXPECT_TRUE(same_bits(delayed[step], plain[step])) << seed;
  }
}

TEST(PipeFusion, SettingsThatCannotWorkAreRefused) {
  EXPECT_EQ(refuse(PipeFusion{.patches = {12, 12}}, 24), "");
  EXPECT_EQ(refuse(PipeFusion{.patches = {12, 11}}, 24), "the patches have 23 tokens, legal: 24");
  EXPECT_EQ(refuse(PipeFusion{.patches = {24}, .warmup = -1}, 24),
            "warmup is -1, legal: 0 or more steps");
  const LayoutLimits limits{
      .heads = 8, .layers = 4, .tokens = 24, .method = {SplitRule::kStagedPatches, 3}};
  EXPECT_EQ(refuse(split(1, 3), limits), "");
  EXPECT_EQ(refuse(split(2, 2), limits),
            "ring * ulysses is 4, but the smallest patch has 3 tokens");
  Layout token_ring;
  token_ring[Axis::kTokenRing] = 2;
  EXPECT_EQ(refuse(token_ring, limits),
            "token_ring=2 under --method pipefusion, whose patches see kept keys; legal: 1 (ring "
            "and ulysses split a patch)");
}

}  // namespace
}  // namespace weft::test
