// The laws of displaced patches (DistriFusion, PCPP): against a slow reference by definition, the
// same bits for every number of ranks, with the bytes and the memory of their formulas.
#include "parallel/methods/patches/displaced.h"

#include "kernels/fp8.h"
#include "tests/parallel/attention_by_definition.h"
#include "tests/parallel/methods.h"

namespace weft::test {
namespace {

struct Shapes {
  std::array<int64_t, 3> grid{4, 3, 2};
  int64_t heads = 4, kv_heads = 2, head_dim = 12;
  int64_t replicated = 0;
  bool rope = true;
  DType dtype = DType::kF32;
  const Ops* ops = &reference_ops();

  int64_t tokens() const { return grid[0] * grid[1] * grid[2]; }
  AttendShape shape() const { return {heads, kv_heads, head_dim, dtype, replicated}; }
  float scale() const { return 1 / std::sqrt(static_cast<float>(head_dim)); }
};

// The queries, keys and values of one step: of the tokens, then of the replicated rows.
struct Features {
  Tensor q, k, v;
  Features(const Shapes& s, int step)
      : q(random_values(s.dtype, {s.tokens() + s.replicated, s.heads, s.head_dim}, 100 * step + 1,
                        1.5f)),
        k(random_values(s.dtype, {s.tokens() + s.replicated, s.kv_heads, s.head_dim},
                        100 * step + 2, 1.5f)),
        v(random_values(s.dtype, {s.tokens() + s.replicated, s.kv_heads, s.head_dim},
                        100 * step + 3, 1)) {}
};

std::vector<Features> features(const Shapes& shapes, int steps) {
  std::vector<Features> all;
  for (int step = 0; step < steps; ++step) all.emplace_back(shapes, step);
  return all;
}

std::vector<Pass> passes(int steps, int branch = 0) {
  std::vector<Pass> all;
  for (int step = 0; step < steps; ++step) all.push_back({.branch = branch, .step = step});
  return all;
}

// Ranks that hold `patches_of[i]` patches each.
std::vector<Range> ranks_of(const Displaced& method, const std::vector<int>& patches_of) {
  std::vector<Range> ranks;
  int64_t at = 0;
  size_t patch = 0;
  for (const int count : patches_of) {
    int64_t end = at;
    for (int i = 0; i < count; ++i) end += method.patches[patch++];
    ranks.push_back({at, end});
    at = end;
  }
  return ranks;
}

using After = std::function<void(Communicator&, const PatchRows&)>;

// The output of every pass: of the tokens, then of rank 0's replicated rows.
std::vector<Tensor> run(const Shapes& shapes, const Displaced& method,
                        const std::vector<int>& patches_of, const std::vector<Pass>& passes,
                        const std::vector<Features>& values, const LocalOptions& options = {},
                        const After& after = {}) {
  std::vector<Tensor> out;
  for (const Features& one : values) out.emplace_back(shapes.dtype, one.q.view().shape());
  const Rope rope = make_rope(shapes.grid, {}, static_cast<int>(shapes.head_dim));
  const PatchRows rows(method, ranks_of(method, patches_of));
  run_ranks(
      rows.ranks(),
      [&](Communicator& world) {
        std::vector<int> all;
        for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
        std::optional<Communicator> group;
        if (world.size() > 1) group = world.group(all, 7);
        DisplacedMixer mixer(std::move(group), rows);
        Stream stream = Stream::cpu(1, Determinism::kFast, shapes.ops);
        IdentityReducer reducer;
        IdentityHalo halo;
        const Range own = rows.rank(world.rank());
        const int64_t text = shapes.replicated, tokens = shapes.tokens();
        const auto cut = [&](const TensorView& x) {
          Tensor part(x.dtype, {own.size() + text, x[1], x[2]});
          copy(stream, x.slice(0, own.begin, own.size()), part.view().slice(0, 0, own.size()));
          copy(stream, x.slice(0, tokens, text), part.view().slice(0, own.size(), text));
          return part;
        };
        for (size_t i = 0; i < passes.size(); ++i) {
          Arena arena(size_t{1} << 26);
          Context context{stream, arena, mixer, reducer, halo, passes[i], {{own}, tokens}};
          mixer.begin(passes[i]);
          const Tensor q = cut(values[i].q), k = cut(values[i].k), v = cut(values[i].v);
          const Tensor result(shapes.dtype, q.view().shape());
          mixer.attend(context, {.layer = 3,
                                 .q = q,
                                 .k = k,
                                 .v = v,
                                 .out = result,
                                 .rope = shapes.rope ? &rope : nullptr,
                                 .scale = shapes.scale(),
                                 .replicated = text});
          copy(stream, result.view().slice(0, 0, own.size()),
               out[i].view().slice(0, own.begin, own.size()));
          if (world.rank() == 0)
            copy(stream, result.view().slice(0, own.size(), text),
                 out[i].view().slice(0, tokens, text));
        }
        mixer.finish();
        if (after) after(world, rows);
      },
      options);
  return out;
}

// Row t of x turned to its position in f64. Replicated rows are not turned.
std::vector<double> turned(const Shapes& s, const Tensor& x, int64_t token, int64_t head) {
  const float* in = x.as<float>() + (token * x.view()[1] + head) * s.head_dim;
  if (token >= s.tokens() || !s.rope) return {in, in + s.head_dim};
  return turned_head(
      in, s.head_dim,
      {static_cast<double>(token / (s.grid[1] * s.grid[2])),
       static_cast<double>(token / s.grid[2] % s.grid[1]), static_cast<double>(token % s.grid[2])});
}

// x - base in 8 bits with a power of two for each row, added to the base again, by definition.
Tensor coded(const Tensor& x, const Tensor* base) {
  Tensor out(DType::kF32, x.view().shape());
  const int64_t d = x.view()[1] * x.view()[2];
  for (int64_t row = 0; row < x.view()[0]; ++row) {
    std::vector<float> change(x.as<float>() + row * d, x.as<float>() + (row + 1) * d);
    float most = 0;
    for (int64_t i = 0; i < d; ++i) {
      if (base) change[i] -= base->as<float>()[row * d + i];
      most = std::max(most, std::abs(change[i]));
    }
    int n = most > 0 ? -118 : 0;
    while (std::ldexp(448, n) < most) ++n;
    for (int64_t i = 0; i < d; ++i)
      out.as<float>()[row * d + i] = (base ? base->as<float>()[row * d + i] : 0) +
                                     std::ldexp(from_e4m3(to_e4m3(std::ldexp(change[i], -n))), n);
  }
  return out;
}

// The features of every step as other patches see them one step later.
std::vector<Features> seen_later(const Shapes& s, const Displaced& method,
                                 const std::vector<Features>& values) {
  std::vector<Features> seen;
  for (size_t step = 0; step < values.size(); ++step) {
    Features& own = seen.emplace_back(s, 0);
    const bool exact = step == 0 || method.exact(static_cast<int>(step));
    for (auto member : {&Features::k, &Features::v}) {
      const Tensor& present = values[step].*member;
      const bool residual = method.code == WireCode::kResidualFp8;
      if (method.code == WireCode::kFp8 || (residual && !exact))
        own.*member = coded(present, residual ? &(seen[step - 1].*member) : nullptr);
      else
        std::memcpy((own.*member).as<float>(), present.as<float>(), present.view().bytes());
    }
  }
  return seen;
}

// By definition: a token of patch i sees the present keys of its patch and, in a displaced step,
// those of the step before of the tokens that it sees of other patches; in an exact step the
// present ones of all. Replicated rows are rows of every patch. `later` are the features as they
// are seen one step later.
Tensor by_definition(const Shapes& s, const Displaced& method, const std::vector<Features>& values,
                     const std::vector<Features>& later, int step) {
  Tensor out(DType::kF32, values[0].q.view().shape());
  const bool exact = step == 0 || method.exact(step);
  std::vector<Range> patches;
  for (const int64_t size : method.patches) {
    const int64_t at = patches.empty() ? 0 : patches.back().end;
    patches.push_back({at, at + size});
  }
  const auto patch_of = [&](int64_t token) {
    if (token >= s.tokens()) return 0;  // the replicated rows of patch 0 are compared
    int patch = 0;
    while (token >= patches[patch].end) ++patch;
    return patch;
  };
  const auto sees = [&](int patch, int64_t key) {
    const std::optional<double> window = method.window_of(step);
    if (exact || !window || key >= s.tokens() || patch_of(key) == patch) return true;
    const int other = patch_of(key);
    const auto nearest =
        static_cast<int64_t>(std::ceil(*window * static_cast<double>(patches[other].size())));
    if (other == patch - 1) return key >= patches[other].end - nearest;
    return other == patch + 1 && key < patches[other].begin + nearest;
  };
  const int64_t rows = s.tokens() + s.replicated, group = s.heads / s.kv_heads;
  for (int64_t token = 0; token < rows; ++token)
    for (int64_t head = 0; head < s.heads; ++head) {
      const int patch = patch_of(token);
      const auto query = turned(s, values[step].q, token, head);
      std::vector<double> logits;
      std::vector<const float*> seen;
      for (int64_t key = 0; key < rows; ++key) {
        if (!sees(patch, key)) continue;
        const bool fresh = exact || key >= s.tokens() || patch_of(key) == patch;
        const Features& from = fresh ? values[step] : later[step - 1];
        const auto turned_key = turned(s, from.k, key, head / group);
        double logit = 0;
        for (int64_t i = 0; i < s.head_dim; ++i) logit += query[i] * turned_key[i];
        logits.push_back(logit * s.scale());
        seen.push_back(from.v.as<float>() + (key * s.kv_heads + head / group) * s.head_dim);
      }
      softmax_mean(logits, seen, s.head_dim,
                   out.as<float>() + (token * s.heads + head) * s.head_dim);
    }
  return out;
}

Tensor by_definition(const Shapes& s, const Displaced& method, const std::vector<Features>& values,
                     int step) {
  return by_definition(s, method, values, values, step);
}

const std::vector<Displaced> kMethods = {
    {.patches = {8, 8, 8}, .warmup = 1},
    {.patches = {9, 7, 8}, .warmup = 2},
    {.patches = {8, 8, 8}, .window = 0.3, .warmup = 1},
    {.patches = {9, 7, 8}, .window = 0.25, .warmup = 0},
    {.patches = {5, 1, 11, 7}, .window = 1, .warmup = 2},
    {.patches = {9, 7, 8}, .windows = {1, 0.9, 0.6, 0.2, 0}, .warmup = 1, .steps = 5},
    {.patches = {24}, .warmup = 1}};

constexpr WireCode kCodes[] = {WireCode::kFp8, WireCode::kResidualFp8};

std::vector<Displaced> with_codes() {
  std::vector<Displaced> methods;
  for (const WireCode code : kCodes)
    for (Displaced method : kMethods) {
      method.code = code;
      methods.push_back(method);
      method.resync = 3;
      methods.push_back(method);
    }
  return methods;
}

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
    const auto make = [&](Communicator& world) {
      std::vector<int> all;
      for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
      std::optional<Communicator> group;
      if (world.size() > 1) group = world.group(all, 7);
      return std::make_unique<DisplacedMixer>(std::move(group), rows);
    };
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
    return relative_l2(out[1], by_definition(shapes, {.patches = {24}}, values, 1));
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

// Laws L-P3 and the memory of every method, to the byte.
TEST(Displaced, BytesAndMemoryAreTheFormulas) {
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
  // Eight equal patches: PCPP sends ceil(p n) rows to each neighbour, DistriFusion n to each rank.
  const std::vector<int64_t> eight(8, 1000);
  const auto equal = [&](std::optional<double> window) {
    const Displaced method{.patches = eight, .window = window};
    return PatchRows(method, ranks_of(method, std::vector<int>(8, 1)));
  };
  const PatchRows all = equal({}), near = equal(0.3);
  const AttendShape shape{.heads = 4, .kv_heads = 2, .head_dim = 16, .dtype = DType::kBF16};
  double inner = 0, mean = 0;
  for (int rank = 0; rank < 8; ++rank) {
    const auto share = static_cast<double>(displaced_sent_bytes(near, rank, shape, 0.3)) /
                       static_cast<double>(displaced_sent_bytes(all, rank, shape, {}));
    if (rank == 3) inner = share;
    mean += share / 8;
    const int64_t neighbours = rank % 7 == 0 ? 1 : 2;
    EXPECT_EQ(displaced_cache_bytes(near, rank, shape),
              static_cast<size_t>(2 * 2 * 16 * 2 * (1000 + neighbours * 300)));
    EXPECT_EQ(displaced_cache_bytes(all, rank, shape), size_t{2 * 2 * 16 * 2 * 8000});
    const auto by_code = [&](WireCode code) {
      return PatchRows({.patches = eight, .code = code},
                       ranks_of({.patches = eight}, std::vector<int>(8, 1)));
    };
    for (const WireCode code : kCodes)
      EXPECT_EQ(displaced_sent_bytes(by_code(code), rank, shape, {}), 2 * (2 * 16 + 1) * 7000);
    EXPECT_EQ(displaced_cache_bytes(by_code(WireCode::kFp8), rank, shape),
              size_t{2 * (2 * 16 + 1) * 8000});
    EXPECT_EQ(displaced_cache_bytes(by_code(WireCode::kResidualFp8), rank, shape),
              size_t{2 * (2 * 16 + 1 + 2 * 16 * 2) * 8000});
  }
  EXPECT_NEAR(inner, 0.0857, 1e-4);
  EXPECT_NEAR(mean, 0.075, 1e-4);
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

// A rank codes what it keeps of its own patches as it codes what it sends: the same bits for every
// number of ranks and for all delays, so that what a sender and a receiver decoded is the same (law
// L-Q1).
TEST(DisplacedCode, EveryNumberOfRanksGivesTheBitsOfOne) {
  const Shapes shapes{.rope = false};
  const int steps = 5;
  const std::vector<Features> values = features(shapes, steps);
  uint64_t seed = 0;
  for (const Displaced& method : with_codes()) {
    const auto count = static_cast<int>(method.patches.size());
    const auto one = run(shapes, method, {count}, passes(steps), values);
    const std::vector<Features> later = seen_later(shapes, method, values);
    for (int step = 0; step < steps; ++step)
      EXPECT_LE(relative_l2(one[step], by_definition(shapes, method, values, later, step)), 1e-6)
          << step;
    std::vector<std::vector<int>> splits{std::vector<int>(count, 1)};
    if (count == 3) splits.insert(splits.end(), {{2, 1}, {1, 2}});
    if (count == 4) splits.insert(splits.end(), {{2, 2}, {1, 3}, {1, 2, 1}});
    for (const std::vector<int>& split : splits)
      for (int round = 0; round < 5; ++round) {
        ++seed;
        const auto some =
            run(shapes, method, split, passes(steps), values,
                {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50});
        for (int step = 0; step < steps; ++step)
          EXPECT_TRUE(same_bits(some[step], one[step])) << split.size() << " ranks, step " << step;
      }
  }
}

TEST(DisplacedCode, FastOpsAreWithinTheirBounds) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const Displaced& method : with_codes()) {
      const Shapes reference{.rope = false, .dtype = dtype},
          fast{.rope = false, .dtype = dtype, .ops = &cpu_ops()};
      const std::vector<Features> values = features(reference, 4);
      const auto count = static_cast<int>(method.patches.size());
      const auto expected = run(reference, method, {count}, passes(4), values);
      const auto actual = run(fast, method, std::vector<int>(count, 1), passes(4), values);
      for (int step = 0; step < 4; ++step)
        EXPECT_LE(relative_l2(actual[step], expected[step]), dtype == DType::kF32 ? 1e-6 : 8e-3);
    }
}

// Law L-Q1: a code that loses nothing changes nothing. Whole numbers up to 16 and their differences
// fit in 8 bits.
TEST(DisplacedCode, WithoutLossItGivesTheBitsOfNone) {
  const Shapes shapes{.rope = false};
  std::vector<Features> values = features(shapes, 5);
  for (Features& one : values)
    for (auto member : {&Features::k, &Features::v})
      for (int64_t i = 0; i < (one.*member).count(); ++i) {
        float& value = (one.*member).as<float>()[i];
        value = std::round(std::clamp(2 * value, -8.0f, 8.0f));
      }
  for (Displaced method : with_codes()) {
    const std::vector<int> split(method.patches.size(), 1);
    const auto out = run(shapes, method, split, passes(5), values);
    method.code = WireCode::kNone;
    const auto plain = run(shapes, method, split, passes(5), values);
    for (int step = 0; step < 5; ++step) EXPECT_TRUE(same_bits(out[step], plain[step])) << step;
  }
}

// Laws L-Q1 and L-Q2: where nothing changes after step 1, what a residual leaves out falls by the
// error of 8 bits in every step. Without residuals it stays.
TEST(DisplacedCode, ResidualsCatchUpWithWhatStays) {
  const Shapes shapes;
  std::vector<Features> values;
  for (int step = 0; step < 6; ++step) values.emplace_back(shapes, step == 0 ? 1 : 2);
  const auto errors = [&](WireCode code) {
    Displaced method{.patches = {9, 7, 8}, .warmup = 1};
    const auto plain = run(shapes, method, {1, 1, 1}, passes(6), values);
    method.code = code;
    const auto out = run(shapes, method, {1, 1, 1}, passes(6), values);
    std::vector<double> all;
    for (int step = 0; step < 6; ++step) all.push_back(relative_l2(out[step], plain[step]));
    return all;
  };
  const std::vector<double> fp8 = errors(WireCode::kFp8), residual = errors(WireCode::kResidualFp8);
  EXPECT_EQ(fp8[0], 0);
  EXPECT_EQ(residual[1], 0);  // sees the exact step
  for (const double error : {fp8[1], fp8[2], residual[2]}) {
    EXPECT_GT(error, 1e-3);
    EXPECT_LT(error, 1.0 / 16);
  }
  EXPECT_EQ(fp8[5], fp8[2]);
  EXPECT_LT(residual[3], residual[2] / 16);
  EXPECT_LT(residual[4], residual[3] / 16);
}

TEST(Displaced, SettingsThatCannotWorkAreRefused) {
  EXPECT_EQ(refuse({.patches = {12, 12}}, 24), "");
  EXPECT_EQ(refuse({}, 24), "there are no patches, legal: 1 or more");
  EXPECT_EQ(refuse({.patches = {24, 0}}, 24), "a patch has 0 tokens, legal: 1 or more");
  EXPECT_EQ(refuse({.patches = {12, 11}}, 24), "the patches have 23 tokens, legal: 24");
  EXPECT_EQ(refuse({.patches = {24}, .window = 1.5}, 24), "window is 1.500000, legal: 0 ... 1");
  const Displaced growing{.patches = {24}, .windows = {1, 0.5, 0.6}, .warmup = 1};
  EXPECT_EQ(refuse(growing, 24), "");
  Displaced residual = growing;
  residual.code = WireCode::kResidualFp8;
  EXPECT_EQ(refuse(residual, 24),
            "the window of step 2 is wider than the one before, legal with code=residual-fp8: as "
            "wide at most");
  EXPECT_EQ(refuse({.patches = {24}, .warmup = -1}, 24), "warmup is -1, legal: 0 or more steps");
}

}  // namespace
}  // namespace weft::test
