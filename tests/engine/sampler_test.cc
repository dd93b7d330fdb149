// Compares samplers with published check values and with trajectories computed by hand, and checks
// that they are pure functions of the step and the slice.
#include "engine/sampling/sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <functional>

#include "tests/support/error_of.h"

namespace weft::test {
namespace {

SamplerConfig sampler_config_of(SolverKind kind, double shift) {
  SamplerConfig config;
  config.kind = kind;
  config.shift = shift;
  return config;
}

// Returns x after every step for the scalar model v(x, sigma) = 0.3 x + sigma, starting at x = 1.
std::vector<float> trajectory(const Sampler& sampler) {
  Stream stream = Stream::cpu(1);
  Arena arena;
  Tensor x(DType::kF32, {1}), v(DType::kF32, {1});
  SamplerState state(1);
  std::vector<float> points;
  *x.as<float>() = 1.0f;
  for (int i = 0; i < sampler.steps(); ++i) {
    *v.as<float>() = 0.3f * *x.as<float>() + sampler.sigmas()[i];
    sampler.step(stream, arena, i, v, x, state);
    points.push_back(*x.as<float>());
  }
  return points;
}

struct Known {
  SolverKind kind;
  double shift;
  std::vector<double> sigmas, timesteps, x;  // rounded to 6 digits; timesteps empty: not whole
};

class KnownTrajectory : public testing::TestWithParam<Known> {};

TEST_P(KnownTrajectory, FourSteps) {
  const Known& known = GetParam();
  const Sampler sampler(sampler_config_of(known.kind, known.shift), 4);
  constexpr double kHalfDigit = 0.6e-6;  // six digits shown, f32 state
  ASSERT_EQ(sampler.sigmas().size(), 5u);
  EXPECT_EQ(sampler.sigmas()[4], 0.0f);
  const std::vector<float> x = trajectory(sampler);
  for (int i = 0; i < 4; ++i) {
    if (!known.sigmas.empty()) {
      EXPECT_NEAR(sampler.sigmas()[i], known.sigmas[i], kHalfDigit) << i;
    }
    if (!known.timesteps.empty()) {
      EXPECT_EQ(sampler.timesteps()[i], known.timesteps[i]) << i;
    }
    EXPECT_NEAR(x[i], known.x[i], kHalfDigit) << i;
  }
}

using K = SolverKind;
INSTANTIATE_TEST_SUITE_P(
    , KnownTrajectory,
    testing::Values(Known{K::kUniPCOriginal,
                          5,
                          {0.999800, 0.937265, 0.833055, 0.624687},
                          {999, 937, 833, 624},
                          {0.918718, 0.795442, 0.592322, 0.091083}},
                    Known{K::kUniPCOriginal, 3, {}, {}, {0.869999, 0.703067, 0.497811, 0.173523}},
                    Known{K::kUniPCDiffusers,
                          5,
                          {0.999999, 0.937578, 0.833611, 0.625936},
                          {999, 937, 833, 625},
                          {0.918853, 0.795420, 0.593134, 0.089959}},
                    Known{K::kDpmppOriginal,
                          5,
                          {1, 0.9375, 0.833333, 0.625},
                          {1000, 937, 833, 625},
                          {0.918750, 0.792383, 0.584047, 0.083914}},
                    Known{K::kDpmppDiffusers,
                          5,
                          {0.999800, 0.937265, 0.833055, 0.624687},
                          {999, 937, 833, 624},
                          {0.918718, 0.793178, 0.584920, 0.085068}},
                    Known{K::kEuler,
                          5,
                          {1, 0.909707, 0.717317, 0.024414},
                          {},
                          {0.882619, 0.656659, 0.023127, 0.022361}},
                    Known{K::kDistill4,
                          5,
                          {1, 0.9375, 0.833333, 0.625},
                          {},
                          {0.918750, 0.792383, 0.569248, 0.071889}}));

// A pipeline that names the sigmas itself has them shifted once: 3 s / (1 + 2 s).
TEST(Sampler, EvenSigmasAreShiftedOnce) {
  SamplerConfig config = sampler_config_of(K::kEuler, 3);
  config.even_sigmas = true;
  const Sampler sampler(config, 4);
  const double expected[] = {1, 0.9, 0.75, 0.5, 0};
  ASSERT_EQ(sampler.sigmas().size(), 5u);
  for (int i = 0; i < 5; ++i) EXPECT_FLOAT_EQ(sampler.sigmas()[i], expected[i]) << i;
  EXPECT_FLOAT_EQ(sampler.timesteps()[1], 900);
}

// The shift follows from the number of tokens: e^0.5 at 256 and e^0.9 at 8192 in this file. Then
// the sigmas are stretched until the last one is 0.02.
TEST(Sampler, AShiftThatFollowsTheSize) {
  SamplerConfig config = sampler_config_of(K::kEuler, 1);
  config.even_sigmas = true;
  config.dynamic = DynamicShift{.max_shift = 0.9, .max_tokens = 8192};
  EXPECT_NEAR(config.for_tokens(256).shift, std::exp(0.5), 1e-12);
  EXPECT_NEAR(config.for_tokens(4224).shift, std::exp(0.7), 1e-12);
  EXPECT_NEAR(config.for_tokens(8192).shift, std::exp(0.9), 1e-12);
  EXPECT_NEAR(config.for_tokens(16128).shift, std::exp(1.3), 1e-12);
  const double s = std::exp(0.7);
  const auto shifted = [&](double sigma) { return s * sigma / (1 + (s - 1) * sigma); };
  const Sampler plain(config.for_tokens(4224), 4);
  for (int i = 0; i < 4; ++i) EXPECT_NEAR(plain.sigmas()[i], shifted(1 - i / 4.0), 1e-7) << i;

  config.shift_terminal = 0.02;
  const Sampler stretched(config.for_tokens(4224), 4);
  const double factor = 0.98 / (1 - shifted(0.25));
  for (int i = 0; i < 4; ++i)
    EXPECT_NEAR(stretched.sigmas()[i], 1 - (1 - shifted(1 - i / 4.0)) * factor, 1e-7) << i;
  EXPECT_FLOAT_EQ(stretched.sigmas()[3], 0.02f);
  EXPECT_EQ(stretched.sigmas()[4], 0);
  EXPECT_EQ(Sampler(config.for_tokens(4224), 1).sigmas(), (std::vector<float>{1, 0}));
  // A shift that is given stands for any size, without the stretch: 3 s / (1 + 2 s).
  EXPECT_FLOAT_EQ(Sampler(config.with_shift(3), 4).sigmas()[3], 0.5f);

  config.dynamic->exponential = false;
  EXPECT_NEAR(config.for_tokens(4224).shift, 0.7, 1e-12);
  EXPECT_EQ(error_kind([&] { Sampler(config, 4); }), ErrorKind::kUsage);
  config.even_sigmas = false;
  EXPECT_EQ(error_kind([&] { config.for_tokens(4224); }), ErrorKind::kModel);
}

TEST(Sampler, EulerKeepsFractionalTimesteps) {
  const Sampler sampler(sampler_config_of(K::kEuler, 5), 4);
  for (int i = 0; i < 4; ++i) EXPECT_EQ(sampler.timesteps()[i], sampler.sigmas()[i] * 1000.0f);
  EXPECT_NE(sampler.timesteps()[1], std::trunc(sampler.timesteps()[1]));
}

// Two slices that are stepped separately, with their own histories, equal the whole bit for bit.
TEST(Sampler, SlicesAreIndependent) {
  constexpr int64_t kCount = 10, kSplit = 3;
  Stream stream = Stream::cpu(1);
  Arena arena;
  for (int kind = 0; kind < static_cast<int>(K::kCount); ++kind) {
    const Sampler sampler(sampler_config_of(static_cast<K>(kind), 3),
                          kind == int(K::kDistill4) ? 4 : 7);
    Tensor whole(DType::kF32, {kCount}), parts(DType::kF32, {kCount}), v(DType::kF32, {kCount});
    for (int64_t k = 0; k < kCount; ++k) {
      whole.as<float>()[k] = parts.as<float>()[k] = std::sin(3.0f * k);
    }
    SamplerState state(kCount), left(kSplit), right(kCount - kSplit);
    for (int i = 0; i < sampler.steps(); ++i) {
      for (int64_t k = 0; k < kCount; ++k)
        v.as<float>()[k] = std::cos(2.0f * whole.as<float>()[k] + i);
      sampler.step(stream, arena, i, v, whole, state);
      sampler.step(stream, arena, i, v.view().slice(0, 0, kSplit), parts.view().slice(0, 0, kSplit),
                   left);
      sampler.step(stream, arena, i, v.view().slice(0, kSplit, kCount - kSplit),
                   parts.view().slice(0, kSplit, kCount - kSplit), right);
      ASSERT_EQ(0, std::memcmp(whole.as<float>(), parts.as<float>(), kCount * sizeof(float)));
    }
  }
}

// A state that is restored from its tensors continues with the same bits.
TEST(Sampler, HistoryIsWholeInItsTensors) {
  const Sampler sampler(sampler_config_of(K::kUniPCDiffusers, 3), 6);
  Tensor x(DType::kF32, {1}), v(DType::kF32, {1});
  SamplerState state(1), restored(1);
  Stream stream = Stream::cpu(1);
  Arena arena;
  *x.as<float>() = 0.7f;
  float at_three = 0;
  const auto run = [&](int from, int to, SamplerState& history) {
    for (int i = from; i < to; ++i) {
      *v.as<float>() = 0.3f * *x.as<float>() + sampler.sigmas()[i];
      sampler.step(stream, arena, i, v, x, history);
    }
  };
  run(0, 3, state);
  at_three = *x.as<float>();
  for (size_t k = 0; k < state.tensors().size(); ++k) {
    *restored.tensors()[k].second.as<float>() = *state.tensors()[k].second.as<float>();
  }
  run(3, 6, state);
  const float uninterrupted = *x.as<float>();
  *x.as<float>() = at_three;
  run(3, 6, restored);
  EXPECT_EQ(*x.as<float>(), uninterrupted);
}

// A linear model dx/dsigma = 0.3 x + sigma has a closed solution; order 2 must approach it with the
// square of the step, order 1 with the step.
TEST(Sampler, ConvergesAtItsOrder) {
  const double a = 0.3;
  // x(s) = C e^(a s) - s/a - 1/a^2 with x(1) = 1, at s = 0.
  const double c = (1 + 1 / a + 1 / (a * a)) / std::exp(a);
  const double exact = c - 1 / (a * a);
  const auto error = [&](K kind, int order, int steps) {
    SamplerConfig config = sampler_config_of(kind, 3);
    config.order = order;
    std::vector<double> grid;  // even: isolates the rule from the grid
    for (int k = 0; k < steps; ++k) grid.push_back(1.0 - double(k) / steps);
    return std::abs(trajectory(Sampler(config, steps, grid)).back() - exact);
  };
  // Four times the steps make the error 16 times smaller, except in the first and last step,
  // which have order 1.
  EXPECT_GT(error(K::kUniPCDiffusers, 2, 32) / error(K::kUniPCDiffusers, 2, 128), 8.0);
  for (K kind : {K::kUniPCDiffusers, K::kDpmppOriginal}) {
    EXPECT_LT(error(kind, 2, 32), error(kind, 1, 32) / 4) << to_string(kind);
  }
  EXPECT_NEAR(error(K::kEuler, 2, 16) / error(K::kEuler, 2, 32), 2.0, 0.3);
}

TEST(Sampler, ExplicitSigmasStandAsGiven) {
  const Sampler sampler(sampler_config_of(K::kUniPCDiffusers, 5), 99, {1.0, 0.75, 0.25});
  EXPECT_EQ(sampler.sigmas(), (std::vector<float>{1.0f, 0.75f, 0.25f, 0.0f}));
  EXPECT_EQ(sampler.timesteps(), (std::vector<float>{1000, 750, 250}));
  for (float x : trajectory(sampler)) EXPECT_TRUE(std::isfinite(x));
}

TEST(Sampler, CountsTheStepsOfAtLeastASigma) {
  const Sampler sampler({}, 4, {1, 0.9, 0.5, 0.1});
  for (const auto& [sigma, steps] :
       {std::pair{2.0, 0}, {1.0, 1}, {0.95, 1}, {0.9, 2}, {0.1, 4}, {0.0, 4}})
    EXPECT_EQ(sampler.steps_from(sigma), steps) << sigma;
}

TEST(Sampler, RefusesIllegalArguments) {
  const SamplerConfig config = sampler_config_of(K::kEuler, 3);
  EXPECT_EQ(error_kind([&] { Sampler(config, 0); }), ErrorKind::kUsage);
  EXPECT_EQ(error_kind([&] { Sampler(config, 1001); }), ErrorKind::kUsage);
  EXPECT_EQ(error_kind([&] { Sampler(sampler_config_of(K::kEuler, 0), 4); }), ErrorKind::kUsage);
  EXPECT_EQ(error_kind([&] { Sampler(config, 2, {0.5, 0.5}); }), ErrorKind::kUsage);
  EXPECT_EQ(error_kind([&] { Sampler(config, 2, {1.5, 0.5}); }), ErrorKind::kUsage);
  EXPECT_EQ(error_kind([&] { Sampler(config, 2, {0.5, std::nan("")}); }), ErrorKind::kUsage);
  EXPECT_EQ(error_kind([&] { solver_from_name("ddim"); }), ErrorKind::kUsage);
  for (int kind = 0; kind < static_cast<int>(K::kCount); ++kind) {
    EXPECT_EQ(solver_from_name(to_string(static_cast<K>(kind))), static_cast<K>(kind));
  }
}

}  // namespace
}  // namespace weft::test
