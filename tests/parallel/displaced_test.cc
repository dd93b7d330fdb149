// The laws of displaced patches (DistriFusion, PCPP): against a slow reference by definition, the
// same bits for every number of ranks, with the bytes and the memory of their formulas.
#include "parallel/methods/patches/displaced.h"

#include <map>

#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/displaced_run.h"

namespace weft::test {
namespace {

// The definition (laws L-D5, L-X1 and L-P4: which version of which rows a patch sees), and that the
// patches belong to the result and the ranks do not.
TEST(Displaced, EveryNumberOfRanksGivesTheBitsOfOne) {
  const Shapes shapes;
  const int steps = 5;
  const std::vector<Features> values = features(shapes, steps);
  for (const Displaced& method : kMethods) {
    const auto count = static_cast<int>(method.patches.size());
    const auto one = run(shapes, method, {count}, passes(steps), values);
    for (int step = 0; step < steps; ++step)
      EXPECT_LE(relative_l2(one[step], by_definition(shapes, method, values, step)), 1e-6) << step;
    std::vector<std::vector<int>> splits{std::vector<int>(count, 1)};
    if (count == 3) splits.insert(splits.end(), {{2, 1}, {1, 2}});
    if (count == 4) splits.insert(splits.end(), {{2, 2}, {1, 3}, {1, 2, 1}});
    for (const std::vector<int>& split : splits)
      for (const bool rendezvous : {false, true}) {
        const auto some =
            run(shapes, method, split, passes(steps), values, {.rendezvous = rendezvous});
        for (int step = 0; step < steps; ++step)
          EXPECT_TRUE(same_bits(some[step], one[step])) << split.size() << " ranks, step " << step;
      }
  }
}

TEST(Displaced, FastOpsAreWithinTheirBounds) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Displaced& method : kMethods) {
      const Shapes reference{.dtype = dtype}, fast{.dtype = dtype, .ops = &cpu_ops()};
      const std::vector<Features> values = features(reference, 3);
      const auto count = static_cast<int>(method.patches.size());
      const auto expected = run(reference, method, {count}, passes(3), values);
      const auto actual = run(fast, method, std::vector<int>(count, 1), passes(3), values);
      for (int step = 0; step < 3; ++step)
        EXPECT_LE(relative_l2(actual[step], expected[step]), dtype == DType::kF32 ? 1e-6 : 8e-3);
    }
}

// Laws L-D1 and L-P5: with all steps exact it is full attention. Law L-D3: so it is with one patch,
// in the same bits.
TEST(Displaced, ExactStepsAndOnePatchAreFullAttention) {
  const AttentionCase c{.grid = {4, 3, 2}, .kv_heads = 2};
  const SequenceRun full(c);
  const Tensor whole = full.whole();  // of step 2
  for (Displaced method : kMethods) {
    method.warmup = 3;
    const PatchRows rows(method, ranks_of(method, std::vector<int>(method.patches.size(), 1)));
    std::vector<Range> ranks;
    for (int rank = 0; rank < rows.ranks(); ++rank) ranks.push_back(rows.rank(rank));
    const auto make = [&](Communicator& world) { return displaced_mixer(world, rows); };
    const Tensor out = full.run(rows.ranks(), SequenceMap(ranks), make);
    EXPECT_LE(relative_l2(out, whole), 1e-6);
    if (rows.patches() == 1) {
      EXPECT_TRUE(same_bits(out, whole));
    }
  }
  const Shapes shapes;
  const std::vector<Features> values = features(shapes, 4);
  const auto displaced = run(shapes, {.patches = {24}, .warmup = 0}, {1}, passes(4), values);
  const auto exact = run(shapes, {.patches = {24}, .warmup = 9}, {1}, passes(4), values);
  for (int step = 0; step < 4; ++step) EXPECT_TRUE(same_bits(displaced[step], exact[step]));
}

// Law L-D2: where nothing changes from step to step, the step before is the present one.
TEST(Displaced, ConstantFeaturesGiveTheExactStep) {
  const Shapes shapes;
  std::vector<Features> values;
  for (int step = 0; step < 4; ++step) values.emplace_back(shapes, 0);
  for (const Displaced& method : kMethods) {
    if (method.widest()) continue;  // sees fewer tokens
    const auto out =
        run(shapes, method, std::vector<int>(method.patches.size(), 1), passes(4), values);
    for (int step = 1; step < 4; ++step) EXPECT_TRUE(same_bits(out[step], out[0])) << step;
  }
}

// Law L-D6: the error of a displaced step is of the order of the change since the step before.
TEST(Displaced, TheErrorHalvesWithTheChange) {
  const Shapes shapes;
  const Displaced method{.patches = {8, 8, 8}, .warmup = 1};
  const Features other(shapes, 5);
  const auto error = [&](float change) {
    std::vector<Features> values;
    values.emplace_back(shapes, 0);
    values.emplace_back(shapes, 0);
    for (auto member : {&Features::k, &Features::v})
      for (int64_t i = 0; i < (values[0].*member).count(); ++i)
        (values[0].*member).as<float>()[i] += change * (other.*member).as<float>()[i];
    const auto out = run(shapes, method, {1, 1, 1}, passes(2), values);
    return relative_l2(out[1], by_definition(shapes, Displaced{.patches = {24}}, values, 1));
  };
  EXPECT_NEAR(error(0.01f) / error(0.005f), 2, 0.1);
  EXPECT_GT(error(0.01f), 1e-4);
}

// Law L-P1: a window of whole neighbours is DistriFusion where there are no others. Law L-P2:
// without a window a patch sees itself alone.
TEST(Displaced, WindowsReachFromOnePatchToAll) {
  const Shapes shapes;
  const std::vector<Features> values = features(shapes, 4);
  const auto all = run(shapes, {.patches = {11, 13}, .warmup = 1}, {1, 1}, passes(4), values);
  const auto wide =
      run(shapes, {.patches = {11, 13}, .window = 1, .warmup = 1}, {1, 1}, passes(4), values);
  for (int step = 0; step < 4; ++step) EXPECT_TRUE(same_bits(wide[step], all[step])) << step;

  const Displaced alone{.patches = {11, 13}, .window = 0, .warmup = 1};
  const auto naive = run(shapes, alone, {1, 1}, passes(4), values);
  std::vector<Features> changed = features(shapes, 4);
  for (int step = 0; step < 4; ++step)
    for (int64_t i = 0; i < 11 * shapes.kv_heads * shapes.head_dim; ++i)
      changed[step].v.as<float>()[i] += 1;
  const auto other = run(shapes, alone, {1, 1}, passes(4), changed);
  for (int step = 1; step < 4; ++step)
    EXPECT_TRUE(same_bits(other[step].view().slice(0, 11, 13), naive[step].view().slice(0, 11, 13)))
        << step;
  EXPECT_FALSE(same_bits(other[0].view().slice(0, 11, 13), naive[0].view().slice(0, 11, 13)));
}

// The first step of another expert, and steps that were left out, are exact. The branches of
// guidance have keys of their own.
TEST(Displaced, OtherExpertsAndGapsAreExact) {
  const Shapes shapes;
  const Displaced method{.patches = {9, 7, 8}, .warmup = 0};
  const std::vector<Features> values = features(shapes, 4);
  const Displaced always{.patches = {9, 7, 8}, .warmup = 100};
  const auto exact = run(shapes, always, {1, 1, 1}, passes(4), values);
  const std::vector<Pass> experts{{.model = 0, .step = 0},
                                  {.model = 0, .step = 1},
                                  {.model = 1, .step = 2},
                                  {.model = 1, .step = 3}};
  const auto out = run(shapes, method, {1, 1, 1}, experts, values);
  for (const int step : {0, 2}) EXPECT_TRUE(same_bits(out[step], exact[step])) << step;
  for (const int step : {1, 3}) EXPECT_FALSE(same_bits(out[step], exact[step])) << step;
  const auto gap = run(shapes, method, {1, 1, 1}, {{.step = 0}, {.step = 1}, {.step = 5}}, values);
  EXPECT_TRUE(same_bits(gap[2], exact[2]));

  // Branch 1 has the features of the steps in reverse; branch 0 does not notice.
  std::vector<Pass> both;
  std::vector<Features> mixed;
  for (int step = 0; step < 4; ++step)
    for (int branch = 0; branch < 2; ++branch) {
      both.push_back({.branch = branch, .step = step});
      mixed.emplace_back(shapes, branch ? 3 - step : step);
    }
  const auto alone = run(shapes, method, {1, 1, 1}, passes(4), values);
  const auto beside = run(shapes, method, {1, 1, 1}, both, mixed);
  for (int step = 0; step < 4; ++step)
    EXPECT_TRUE(same_bits(beside[2 * step], alone[step])) << step;
}

// Section 1.6 of the field's rule for joint text: every patch has its own rows of it, fresh.
TEST(Displaced, ReplicatedRowsBelongToTheirPatch) {
  const Shapes shapes{.replicated = 3};
  const std::vector<Features> values = features(shapes, 3);
  for (const Displaced& method : {Displaced{.patches = {11, 13}, .warmup = 1},
                                  Displaced{.patches = {9, 7, 8}, .window = 0.3, .warmup = 1},
                                  Displaced{.patches = {24}, .warmup = 0}}) {
    const auto out =
        run(shapes, method, std::vector<int>(method.patches.size(), 1), passes(3), values);
    for (int step = 0; step < 3; ++step)
      EXPECT_LE(relative_l2(out[step], by_definition(shapes, method, values, step)), 1e-6) << step;
  }
}

// The bytes of every method (law L-P3).
TEST(Displaced, BytesAreTheFormulas) {
  const Shapes shapes;
  const std::vector<Features> values = features(shapes, 4);
  std::vector<Displaced> methods = with_codes();
  methods.insert(methods.end(), kMethods.begin(), kMethods.end());
  for (const Displaced& method : methods)
    run(shapes, method, std::vector<int>(method.patches.size(), 1), passes(4), values, {},
        [&](Communicator& world, const PatchRows& rows) {
          // The rows of the last exact step are taken from what was gathered. The last step of all
          // sends nothing where it is known.
          int64_t sent = 0;
          for (int step = 0; step < 4; ++step)
            if (step == 0 || method.exact(step))
              sent += exact_sent_bytes(rows, world.rank(), shapes.shape());
            else if (step + 1 != method.steps)
              sent += displaced_sent_bytes(rows, world.rank(), shapes.shape(),
                                           method.window_of(step + 1));
          EXPECT_EQ(world.counters().total_sent().bytes, sent);
        });
}

// The tensor bytes that a rank still holds after a step, counted. Nothing arrives from others.
int64_t kept_bytes(const Shapes& shapes, const PatchRows& rows, int rank) {
  const auto live = static_cast<int64_t>(tensor_bytes_live());
  Communicator world(std::make_shared<SilentTransport>(rank, rows.ranks()));
  const auto mixer = displaced_mixer(world, rows);
  {
    const auto tensor = [&](int64_t heads) {
      return Tensor(shapes.dtype, {rows.rank(rank).size(), heads, shapes.head_dim});
    };
    const Tensor q = tensor(shapes.heads), k = tensor(shapes.kv_heads), v = tensor(shapes.kv_heads),
                 out = tensor(shapes.heads);
    Stream stream = Stream::cpu(1, Determinism::kFast, shapes.ops);
    Arena arena(size_t{1} << 26);
    SerialSeams seams;
    Context context{
        stream, arena, *mixer, seams.reducer, seams.halo, {}, {{rows.rank(rank)}, rows.tokens()}};
    mixer->begin({});
    mixer->attend(context, {.layer = 3, .q = q, .k = k, .v = v, .out = out, .scale = 1});
  }
  return static_cast<int64_t>(tensor_bytes_live()) - live;
}

// Law L-P3 for eight equal patches: PCPP sends ceil(p n) rows to each neighbour, DistriFusion n to
// each rank. The sent bytes and the tensors that a rank keeps are counted.
TEST(Displaced, AWindowSendsAndKeepsItsShareOnEightRanks) {
  // Patches of 20 tokens. Step 0 is exact; steps 1 and 2 send what the next one sees.
  const Shapes shapes{.grid = {8, 4, 5}};
  const std::vector<Features> values = features(shapes, 4);
  const std::vector<int64_t> patches(8, 20);
  std::map<bool, std::array<int64_t, 8>> sent;
  const auto live = static_cast<int64_t>(tensor_bytes_live());
  const Tensor one(DType::kU8, {64});
  const int64_t alignment = static_cast<int64_t>(tensor_bytes_live()) - live - 64;
  for (const bool window : {false, true}) {
    Displaced method{.patches = patches, .warmup = 1, .steps = 4};
    if (window) method.window = 0.3;
    const PatchRows rows(method, ranges_of(patches));
    for (int rank = 0; rank < 8; ++rank) {
      const int64_t row = 2 * 2 * 12 * 4, neighbours = rank % 7 == 0 ? 1 : 2;
      const int64_t bytes = row * (20 + (window ? 6 * neighbours : 7 * 20));
      EXPECT_EQ(displaced_cache_bytes(rows, rank, shapes.shape()), static_cast<size_t>(bytes));
      const int64_t tensors = 1 + (window ? neighbours : 7);
      EXPECT_EQ(kept_bytes(shapes, rows, rank), bytes + tensors * alignment);
    }
    run(shapes, method, std::vector<int>(8, 1), passes(4), values, {},
        [&](Communicator& world, const PatchRows& rows) {
          sent[window][world.rank()] = world.counters().total_sent().bytes -
                                       exact_sent_bytes(rows, world.rank(), shapes.shape());
        });
  }
  double mean = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const int64_t row = 2 * 2 * 12 * 4, steps = 2, neighbours = rank % 7 == 0 ? 1 : 2;
    EXPECT_EQ(sent[false][rank], steps * 7 * 20 * row);
    EXPECT_EQ(sent[true][rank], steps * neighbours * 6 * row);
    const auto share =
        static_cast<double>(sent[true][rank]) / static_cast<double>(sent[false][rank]);
    EXPECT_NEAR(share, rank % 7 == 0 ? 0.0429 : 0.0857, 1e-4);
    mean += share / 8;
  }
  EXPECT_NEAR(mean, 0.075, 1e-4);
}

// Law L-P4: what lies outside a patch's window changes no bit of the patch, in one layer.
TEST(Displaced, TokensOutsideAWindowChangeNoBit) {
  const Shapes shapes;
  const Displaced method{.patches = {8, 8, 8}, .window = 0.3, .warmup = 1};
  const auto run_with = [&](int64_t changed) {
    std::vector<Features> values = features(shapes, 2);
    for (const Tensor* x : {&values[0].k, &values[0].v})
      x->as<float>()[changed * shapes.kv_heads * shapes.head_dim] += 1;
    return std::move(run(shapes, method, {1, 1, 1}, passes(2), values)[1]);
  };
  // Patch 1 sees the last ceil(2.4) rows of patch 0 and the first ones of patch 2.
  const Tensor plain = std::move(run(shapes, method, {1, 1, 1}, passes(2), features(shapes, 2))[1]);
  for (int64_t token = 0; token < 24; ++token) {
    const Tensor out = run_with(token);
    const auto sees = [&](int patch) {
      return !same_bits(out.view().slice(0, 8 * patch, 8), plain.view().slice(0, 8 * patch, 8));
    };
    EXPECT_EQ(sees(0), token >= 8 && token < 11) << token;
    EXPECT_EQ(sees(1), (token >= 5 && token < 8) || (token >= 16 && token < 19)) << token;
    EXPECT_EQ(sees(2), token >= 13 && token < 16) << token;
  }
}

TEST(Displaced, DelaysChangeNoBit) {
  const Shapes shapes;
  const std::vector<Features> values = features(shapes, 4);
  for (const Displaced& method : {kMethods[1], kMethods[4]}) {
    const std::vector<int> split(method.patches.size(), 1);
    const auto plain = run(shapes, method, split, passes(4), values);
    for (uint64_t seed = 1; seed <= 100; ++seed) {
      const auto delayed =
          run(shapes, method, split, passes(4), values,
              {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50});
      for (int step = 0; step < 4; ++step)
        EXPECT_TRUE(same_bits(delayed[step], plain[step])) << seed << " step " << step;
    }
  }
}

TEST(Displaced, SettingsThatCannotWorkAreRefused) {
  EXPECT_EQ(refuse(Displaced{.patches = {12, 12}}, 24), "");
  EXPECT_EQ(refuse(Displaced{}, 24), "there are no patches, legal: 1 or more");
  EXPECT_EQ(refuse(Displaced{.patches = {24, 0}}, 24), "a patch has 0 tokens, legal: 1 or more");
  EXPECT_EQ(refuse(Displaced{.patches = {12, 11}}, 24), "the patches have 23 tokens, legal: 24");
  EXPECT_EQ(refuse(Displaced{.patches = {24}, .window = 1.5}, 24),
            "window is 1.500000, legal: 0 ... 1");
  const Displaced growing{.patches = {24}, .windows = {1, 0.5, 0.6}, .warmup = 1};
  EXPECT_EQ(refuse(growing, 24), "");
  Displaced residual = growing;
  residual.code = WireCode::kResidualFp8;
  EXPECT_EQ(refuse(residual, 24),
            "the window of step 2 is wider than the one before, legal with code=residual-fp8: as "
            "wide at most");
  EXPECT_EQ(refuse(Displaced{.patches = {24}, .warmup = -1}, 24),
            "warmup is -1, legal: 0 or more steps");
}

}  // namespace
}  // namespace weft::test
