// The codes of displaced patches on the wire: against their definition, the same bits for every
// number of ranks, and what they lose.
#include "kernels/fp8.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/displaced_run.h"

namespace weft::test {
namespace {

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

TEST(DisplacedCode, BytesAreTheFormulas) {
  const std::vector<int64_t> eight(8, 1000);
  const AttendShape shape{.heads = 4, .kv_heads = 2, .head_dim = 16, .dtype = DType::kBF16};
  for (int rank = 0; rank < 8; ++rank) {
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
}

}  // namespace
}  // namespace weft::test
