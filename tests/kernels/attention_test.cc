#include "kernels/attention.h"

#include <numeric>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/implementation.h"
#include "tests/kernels/attention_inputs.h"
#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

using Problem = AttentionProblem;
using Inputs = AttentionInputs;

const Problem kProblems[] = {
    {.queries = 1, .heads = 1, .kv_heads = 1, .e = 8, .keys = {1}},
    {.queries = 5, .heads = 3, .kv_heads = 3, .e = 16, .keys = {7}},
    {.queries = 33, .heads = 2, .kv_heads = 1, .e = 24, .keys = {20, 1, 44}},
    {.queries = 70, .heads = 2, .kv_heads = 2, .e = 64, .keys = {130}},
    {.queries = 17, .heads = 4, .kv_heads = 2, .e = 128, .keys = {65, 0, 3}},
    {.queries = 40, .heads = 1, .kv_heads = 1, .e = 12, .keys = {40}, .causal = true},
    {.queries = 9,
     .heads = 2,
     .kv_heads = 2,
     .e = 16,
     .keys = {6, 9},
     .causal = true,
     .query_position = 6},
    {.queries = 9, .heads = 2, .kv_heads = 2, .e = 17, .keys = {5, 20}, .bias = true},
    {.queries = 20, .heads = 2, .kv_heads = 2, .e = 64, .keys = {33}, .causal = true, .bias = true},
    {.queries = 6, .heads = 1, .kv_heads = 1, .e = 32, .keys = {50}, .magnitude = 30},
    {.queries = 0, .heads = 2, .kv_heads = 2, .e = 8, .keys = {4}},
    // Few queries over keys of several parts: a decode step, a short chunk, parts that the mask
    // hides entirely, and the most rows.
    {.queries = 1,
     .heads = 7,
     .kv_heads = 1,
     .e = 64,
     .keys = {64, 64, 200, 1, 0, 300},
     .causal = true,
     .query_position = 628},
    {.queries = 5,
     .heads = 4,
     .kv_heads = 2,
     .e = 128,
     .keys = {256, 256, 70, 37},
     .causal = true,
     .query_position = 600},
    {.queries = 3,
     .heads = 2,
     .kv_heads = 2,
     .e = 16,
     .keys = {300, 300},
     .causal = true,
     .query_position = 10},
    {.queries = 16, .heads = 4, .kv_heads = 2, .e = 80, .keys = {900, 303}, .bias = true},
    {.queries = 1, .heads = 2, .kv_heads = 1, .e = 32, .keys = {601}, .magnitude = 30},
    // Large enough for oneDNN's GEMMs: several blocks of queries and keys, the last ones short.
    {.queries = 300, .heads = 2, .kv_heads = 1, .e = 32, .keys = {70, 1, 0, 530}},
    {.queries = 65, .heads = 4, .kv_heads = 2, .e = 128, .keys = {64}},
    {.queries = 67,
     .heads = 1,
     .kv_heads = 1,
     .e = 48,
     .keys = {30, 77},
     .causal = true,
     .query_position = 20},
    {.queries = 66,
     .heads = 2,
     .kv_heads = 2,
     .e = 64,
     .keys = {601},
     .causal = true,
     .bias = true},
    // Pages of a cache; the last block of keys lies after the first block of queries.
    {.queries = 260,
     .heads = 2,
     .kv_heads = 1,
     .e = 32,
     .keys = {128, 128, 128, 128, 128, 128, 128, 60},
     .causal = true,
     .query_position = 700},
    {.queries = 300, .heads = 1, .kv_heads = 1, .e = 32, .keys = {100, 20, 600}, .causal = true},
    {.queries = 90, .heads = 1, .kv_heads = 1, .e = 32, .keys = {99}, .magnitude = 30},
};
constexpr size_t kFirstLarge = 16;

bool has_gemm_attention() { return cpu::cpu_cap() != cpu::CpuCap::kReference && cpu::has_avx512(); }

TEST(Attention, EqualsTheDefinition) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    const Ops* ops = table.ops;
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BoundReport out_report(table.name + " attention " + std::string(to_string(dtype)));
      BoundReport lse_report(table.name + " attention lse " + std::string(to_string(dtype)));
      for (const Problem& problem : kProblems) {
        SCOPED_TRACE(table.name + " " + std::string(to_string(dtype)) + " problem " +
                     std::to_string(&problem - kProblems));
        Inputs setup(problem, dtype);
        const AttentionArgs args = setup.args(problem);
        const ExpectedAttention expected = expect_attention(args, *ops);
        Stream one = Stream::cpu(1, Determinism::kFixed, ops);
        attention(one, args);
        EXPECT_TRUE(within(setup.out, expected.out, &out_report));
        EXPECT_TRUE(within(setup.lse, expected.lse, &lse_report));
        EXPECT_TRUE(similar(setup.out, expected.out));
        Tensor out = clone(setup.out), lse = clone(setup.lse);
        Stream three = Stream::cpu(3, Determinism::kFixed, ops);
        attention(three, args);
        EXPECT_TRUE(bitwise_equal(setup.out, out)) << "three threads against one";
        EXPECT_TRUE(bitwise_equal(setup.lse, lse));
      }
    }
  }
}

// Attention by oneDNN's GEMMs itself: with operands in either type, whichever kernels oneDNN has
// here.
TEST(Attention, ByGemmEqualsTheDefinition) {
  if (!has_gemm_attention()) GTEST_SKIP() << "needs AVX-512";
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (DType compute : {DType::kF32, DType::kBF16}) {
      if (dtype == DType::kF32 && compute == DType::kBF16) continue;
      for (size_t i = kFirstLarge; i < std::size(kProblems); ++i) {
        SCOPED_TRACE(std::string(to_string(dtype)) + " by " + std::string(to_string(compute)) +
                     " problem " + std::to_string(i));
        Inputs setup(kProblems[i], dtype);
        setup.segments.back().log_bias = 1.5f;
        const AttentionArgs args = setup.args(kProblems[i]);
        ExpectedAttention expected = expect_attention(args);
        if (compute == DType::kBF16) allow_rounded_probabilities(expected);
        EXPECT_TRUE(cpu::takes_gemm_attention(args));
        Stream one = Stream::cpu(1), two = Stream::cpu(2);
        cpu::attention_by_gemm(one, args, compute);
        EXPECT_TRUE(within(setup.out, expected.out));
        EXPECT_TRUE(within(setup.lse, expected.lse));
        EXPECT_TRUE(similar(setup.out, expected.out));
        const Tensor out = clone(setup.out), lse = clone(setup.lse);
        cpu::attention_by_gemm(two, args, compute);
        EXPECT_TRUE(bitwise_equal(setup.out, out)) << "two threads against one";
        EXPECT_TRUE(bitwise_equal(setup.lse, lse));
      }
    }
}

TEST(Attention, LseIsOptional) {
  for (const Ops* ops : all_ops()) {
    Inputs setup(kProblems[2], DType::kF32);
    AttentionArgs args = setup.args(kProblems[2]);
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    attention(stream, args);
    Tensor out = clone(setup.out);
    args.lse = {};
    attention(stream, args);
    EXPECT_TRUE(bitwise_equal(setup.out, out)) << ops->name;
  }
}

TEST(Attention, SegmentsEqualOneSegment) {
  // The same keys in three segments must stay within the bound of one segment, which holds for any
  // order of the sums.
  const Problem whole{.queries = 12, .heads = 2, .kv_heads = 2, .e = 32, .keys = {90}};
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Inputs setup(whole, dtype);
      AttentionArgs args = setup.args(whole);
      const ExpectedAttention expected = expect_attention(args, *ops);
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      std::vector<KVSegment> parts;
      for (auto [begin, n] : {std::pair<int64_t, int64_t>{0, 41}, {41, 1}, {42, 48}})
        parts.push_back({.k = setup.k[0].view().slice(0, begin, n),
                         .v = setup.v[0].view().slice(0, begin, n),
                         .position = begin});
      args.segments = parts;
      attention(stream, args);
      EXPECT_TRUE(within(setup.out, expected.out)) << ops->name;
      EXPECT_TRUE(within(setup.lse, expected.lse)) << ops->name;
    }
}

TEST(Attention, StridedQueriesKeysAndOutput) {
  // q, k, v are slices of one fused projection [N, 3, A, E]; the output goes into a wider buffer.
  constexpr int64_t kTokens = 21, kHeads = 2, kE = 24;
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      Tensor fused = make_normal(dtype, {kTokens, 3, kHeads, kE}, 41);
      Tensor wide(dtype, {kTokens, kHeads + 1, kE});
      const KVSegment segment{.k = fused.view().select(1, 1), .v = fused.view().select(1, 2)};
      const AttentionArgs args{.q = fused.view().select(1, 0),
                               .segments = {&segment, 1},
                               .scale = 0.2f,
                               .out = wide.view().slice(1, 0, kHeads)};
      attention(stream, args);
      EXPECT_TRUE(within(args.out, expect_attention(args, *ops).out)) << ops->name;
      for (double value : to_f64(wide.view().slice(1, kHeads, 1))) ASSERT_EQ(value, 0);
    }
}

TEST(Attention, LogBiasOfACountEqualsRepeatedRows) {
  constexpr int64_t kCount = 5, kE = 16;
  const Problem problem{.queries = 7, .heads = 2, .kv_heads = 2, .e = kE, .keys = {11, 1}};
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    Inputs setup(problem, DType::kF32);
    setup.segments[1].log_bias = std::log(static_cast<float>(kCount));
    attention(stream, setup.args(problem));
    Tensor out = clone(setup.out), lse = clone(setup.lse);
    Tensor k(DType::kF32, {kCount, 2, kE}), v(DType::kF32, {kCount, 2, kE});
    for (int64_t i = 0; i < kCount; ++i) {
      copy(stream, setup.k[1], k.view().slice(0, i, 1));
      copy(stream, setup.v[1], v.view().slice(0, i, 1));
    }
    setup.segments[1] = {.k = k, .v = v, .position = 11};
    const AttentionArgs args = setup.args(problem);
    const ExpectedAttention expected = expect_attention(args);
    attention(stream, args);
    EXPECT_TRUE(within(setup.out, expected.out));
    EXPECT_TRUE(within(out, expected.out)) << ops->name;
    EXPECT_TRUE(within(lse, expected.lse)) << ops->name;
  }
}

TEST(Attention, AQueryWithoutKeysGivesTheIdentity) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(ops->name);
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      // The cases are no segment, one without rows, and keys that the mask hides from the first
      // queries.
      const Problem none{.queries = 4, .heads = 2, .kv_heads = 2, .e = 16, .keys = {}};
      const Problem empty{.queries = 4, .heads = 2, .kv_heads = 2, .e = 16, .keys = {0}};
      const Problem hidden{
          .queries = 4, .heads = 2, .kv_heads = 2, .e = 16, .keys = {9}, .causal = true};
      for (const Problem& problem : {none, empty, hidden}) {
        Inputs setup(problem, dtype);
        AttentionArgs args = setup.args(problem);
        for (KVSegment& segment : setup.segments) segment.position = 2;
        const ExpectedAttention expected = expect_attention(args, *ops);
        attention(stream, args);
        EXPECT_TRUE(within(setup.out, expected.out));
        EXPECT_TRUE(within(setup.lse, expected.lse));
        EXPECT_EQ(setup.lse.as<float>()[0], -std::numeric_limits<float>::infinity());
        EXPECT_EQ(to_f64(setup.out)[0], 0);
      }
    }
}

TEST(Attention, LogitsOfTenThousandAreSafe) {
  for (const Ops* ops : all_ops())
    for (float logit : {1e4f, -1e4f}) {
      SCOPED_TRACE(ops->name + " logit " + std::to_string(logit));
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      const Problem problem{.queries = 3, .heads = 1, .kv_heads = 1, .e = 8, .keys = {40, 2}};
      Inputs setup(problem, DType::kF32);
      setup.segments[0].log_bias = logit;
      setup.segments[1].log_bias = logit;
      const AttentionArgs args = setup.args(problem);
      const ExpectedAttention expected = expect_attention(args);
      attention(stream, args);
      EXPECT_TRUE(within(setup.out, expected.out));
      EXPECT_TRUE(within(setup.lse, expected.lse));
    }
}

// Makes two f32 states over disjoint keys.
struct StateOfParts {
  Tensor out, lse;
};

StateOfParts make_state(int64_t rows, int64_t heads, int64_t e, uint32_t seed,
                        double lse_magnitude) {
  StateOfParts state{make_normal(DType::kF32, {rows, heads, e}, seed),
                     make_normal(DType::kF32, {heads, rows}, seed + 1, lse_magnitude)};
  return state;
}

StateOfParts clone_state(const StateOfParts& state) {
  return {test::clone(state.out.view()), test::clone(state.lse.view())};
}

TEST(MergeAttention, PartsEqualTheWhole) {
  const Problem whole{.queries = 60, .heads = 3, .kv_heads = 3, .e = 40, .keys = {50}};
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    Inputs setup(whole, DType::kF32);
    const ExpectedAttention expected = expect_attention(setup.args(whole));
    std::vector<StateOfParts> parts;
    for (auto [begin, n] : {std::pair<int64_t, int64_t>{0, 20}, {20, 3}, {23, 27}}) {
      const KVSegment segment{.k = setup.k[0].view().slice(0, begin, n),
                              .v = setup.v[0].view().slice(0, begin, n)};
      AttentionArgs args = setup.args(whole);
      args.segments = {&segment, 1};
      attention(stream, args);
      parts.push_back({test::clone(setup.out.view()), test::clone(setup.lse.view())});
    }
    std::vector<double> exact;
    for (const Bounded& value : expected.out) exact.push_back(value.value);
    for (const auto& order : {std::array{0, 1, 2}, std::array{2, 0, 1}, std::array{1, 2, 0}}) {
      StateOfParts merged = clone_state(parts[order[0]]);
      for (int i : {1, 2})
        merge_attention(stream, merged.out, merged.lse, parts[order[i]].out, parts[order[i]].lse);
      EXPECT_LT(similarity_error(to_f64(merged.out), exact), kSimilarityMerge) << ops->name;
      for (Bounded value : expected.lse) ASSERT_TRUE(std::isfinite(value.value));
      std::vector<Bounded> lse(expected.lse);
      for (Bounded& value : lse) value.bound += 8 * kUnit32 * (1 + std::fabs(value.value));
      EXPECT_TRUE(within(merged.lse, lse)) << ops->name;
    }
  }
}

// A state that is to be merged holds the accumulated values unrounded.
TEST(Attention, F32OutOfBf16RoundsToTheBf16Out) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    const Ops* ops = table.ops;
    for (int64_t e : {16, 33, 128}) {
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      Tensor x[3];
      for (int i = 0; i < 3; ++i) {
        x[i] = Tensor(DType::kBF16, {13, 2, e});
        copy(stream, make_state(13, 2, e, 7 + static_cast<uint64_t>(i), 1).out, x[i]);
      }
      const KVSegment segment{.k = x[1], .v = x[2]};
      Tensor wide(DType::kF32, {13, 2, e}), narrow(DType::kBF16, {13, 2, e}),
          rounded(DType::kBF16, {13, 2, e});
      AttentionArgs args{.q = x[0], .segments = {&segment, 1}, .scale = 0.2f, .out = wide};
      attention(stream, args);
      args.out = narrow;
      attention(stream, args);
      copy(stream, wide, rounded);
      // bf16 values are exact in f32: the result must match the definition over them, unrounded.
      args.out = wide;
      EXPECT_TRUE(within(wide, expect_attention(args, *ops).out)) << table.name << " " << e;
      EXPECT_TRUE(bitwise_equal(rounded, narrow)) << table.name << " " << e;
      Tensor widened(DType::kF32, {13, 2, e});
      copy(stream, narrow, widened);
      EXPECT_FALSE(bitwise_equal(wide, widened)) << table.name << " " << e;
    }
  }
}

TEST(MergeAttention, PropagatesNaN) {
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    StateOfParts a = make_state(3, 2, 19, 5, 1);
    const StateOfParts b = make_state(3, 2, 19, 6, 1);
    a.lse.as<float>()[1] = std::numeric_limits<float>::quiet_NaN();
    b.lse.as<float>()[4] = std::numeric_limits<float>::quiet_NaN();
    merge_attention(stream, a.out, a.lse, b.out, b.lse);
    EXPECT_TRUE(std::isnan(a.lse.as<float>()[1])) << ops->name;
    EXPECT_TRUE(std::isnan(a.lse.as<float>()[4])) << ops->name;
    EXPECT_TRUE(std::isfinite(a.lse.as<float>()[0])) << ops->name;
  }
}

TEST(MergeAttention, IsSymmetricToTheBit) {
  for (const Ops* ops : all_ops())
    for (double magnitude : {0.0, 1.0, 30.0, 1e4}) {
      SCOPED_TRACE(ops->name + " lse " + std::to_string(magnitude));
      Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
      const StateOfParts a = make_state(37, 5, 67, 51, magnitude),
                         b = make_state(37, 5, 67, 61, magnitude);
      StateOfParts ab = clone_state(a), ba = clone_state(b);
      merge_attention(stream, ab.out, ab.lse, b.out, b.lse);
      merge_attention(stream, ba.out, ba.lse, a.out, a.lse);
      EXPECT_TRUE(bitwise_equal(ab.out, ba.out));
      EXPECT_TRUE(bitwise_equal(ab.lse, ba.lse));
      for (double value : to_f64(ab.out)) ASSERT_TRUE(std::isfinite(value));
    }
}

TEST(MergeAttention, EveryTableHasTheBitsOfTheReference) {
  constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    const Ops* ops = table.ops;
    for (int threads : {1, 3})
      for (int64_t e : {1, 3, 7, 8, 15, 16, 17, 31, 33, 67, 128})
        for (double magnitude : {1.0, 1e4}) {
          SCOPED_TRACE(table.name + " " + std::to_string(e));
          Stream reference = Stream::cpu(1, Determinism::kFixed, &reference_ops());
          Stream stream = Stream::cpu(threads, Determinism::kFixed, ops);
          StateOfParts a = make_state(13, 3, e, 101, magnitude),
                       b = make_state(13, 3, e, 111, magnitude);
          a.lse.as<float>()[0] = b.lse.as<float>()[1] = kMinusInfinity;  // one state is empty
          a.lse.as<float>()[2] = b.lse.as<float>()[2] = kMinusInfinity;  // both are empty
          StateOfParts expected = clone_state(a), actual = clone_state(a);
          merge_attention(reference, expected.out, expected.lse, b.out, b.lse);
          merge_attention(stream, actual.out, actual.lse, b.out, b.lse);
          expect_merged(*ops, actual.out, actual.lse, expected.out, expected.lse, a.out, b.out);
          for (double value : to_f64(actual.out)) ASSERT_TRUE(std::isfinite(value));
        }
  }
}

TEST(MergeAttention, EqualsItsFormula) {
  for (const Ops* ops : all_ops()) {
    BoundReport report(ops->name + " merge_attention");
    for (int64_t e : {1, 7, 16, 33, 128}) {
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      const StateOfParts a = make_state(9, 2, e, 71, 3), b = make_state(9, 2, e, 81, 3);
      StateOfParts merged = clone_state(a);
      merge_attention(stream, merged.out, merged.lse, b.out, b.lse);
      const std::vector<double> xa = to_f64(a.out), xb = to_f64(b.out), la = to_f64(a.lse),
                                lb = to_f64(b.lse);
      std::vector<Bounded> out, lse(la.size());
      for (int64_t i = 0; i < 9; ++i)
        for (int64_t h = 0; h < 2; ++h) {
          const double p = la[h * 9 + i], q = lb[h * 9 + i];
          const double exact = std::max(p, q) + std::log1p(std::exp(-std::fabs(p - q)));
          // The difference of the two lse rounds once, then come the exponential and the logarithm.
          const double relative = kUnit32 * (std::fabs(p - q) + 8);
          lse[h * 9 + i] = {exact, relative + kUnit32 * std::fabs(exact)};
          for (int64_t x = 0; x < e; ++x) {
            const double left = std::exp(p - exact) * xa[(i * 2 + h) * e + x];
            const double right = std::exp(q - exact) * xb[(i * 2 + h) * e + x];
            out.push_back({left + right, 2 * relative * (std::fabs(left) + std::fabs(right))});
          }
        }
      EXPECT_TRUE(within(merged.out, out, &report)) << ops->name;
      EXPECT_TRUE(within(merged.lse, lse)) << ops->name;
    }
  }
}

TEST(MergeAttention, TheEmptyStateIsTheIdentity) {
  for (const Ops* ops : all_ops()) {
    SCOPED_TRACE(ops->name);
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    const StateOfParts a = make_state(6, 2, 19, 91, 5);
    const auto empty = [] {
      StateOfParts state{Tensor(DType::kF32, {6, 2, 19}), Tensor(DType::kF32, {2, 6})};
      for (int i = 0; i < 12; ++i)
        state.lse.as<float>()[i] = -std::numeric_limits<float>::infinity();
      return state;
    };
    StateOfParts left = clone_state(a), right = empty(), both = empty();
    const StateOfParts none = empty();
    merge_attention(stream, left.out, left.lse, none.out, none.lse);
    EXPECT_TRUE(bitwise_equal(left.out, a.out));
    EXPECT_TRUE(bitwise_equal(left.lse, a.lse));
    merge_attention(stream, right.out, right.lse, a.out, a.lse);
    EXPECT_TRUE(bitwise_equal(right.out, a.out));
    EXPECT_TRUE(bitwise_equal(right.lse, a.lse));
    merge_attention(stream, both.out, both.lse, none.out, none.lse);
    EXPECT_TRUE(bitwise_equal(both.out, none.out));
    EXPECT_TRUE(bitwise_equal(both.lse, none.lse));
  }
}

}  // namespace
}  // namespace weft::test
