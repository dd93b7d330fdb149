// Noise: known values, the error of the portable functions, moments, and independence of slicing.
#include "engine/sampling/noise.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/philox.h"

namespace weft {
namespace {

// Known-answer vectors of the Random123 distribution (Salmon et al. 2011).
TEST(Philox, KnownAnswers) {
  EXPECT_EQ(philox4x32_10({0, 0, 0, 0}, {0, 0}),
            (PhiloxCounter{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  EXPECT_EQ(philox4x32_10({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (PhiloxCounter{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  EXPECT_EQ(philox4x32_10({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u},
                          {0xa4093822u, 0x299f31d0u}),
            (PhiloxCounter{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

// Compares the functions with f64, at the ends and in a dense sweep: they differ by a few units in
// the last place.
TEST(PortableFunctions, ErrorIsAFewUlp) {
  double worst_log = 0, worst_sin = 0;
  const auto look = [&](uint32_t bits) {
    const double u = static_cast<float>(bits) * 0x1p-32f + 0x1p-33f;
    const double log = std::log(u);
    if (log != 0) worst_log = std::max(worst_log, std::abs(portable_log(bits) / log - 1));
    float sine, cosine;
    portable_sincos(bits, &sine, &cosine);
    const double angle = 2 * M_PI * bits * 0x1p-32;
    worst_sin = std::max(worst_sin, std::abs(sine - std::sin(angle)));
    worst_sin = std::max(worst_sin, std::abs(cosine - std::cos(angle)));
  };
  for (uint32_t k = 0; k < 100000; ++k) {
    look(k);
    look(~k);
    look(k * 42949u);
    look(0x40000000u + k * 3 - 150000);
    look(0x20000000u + k * 3 - 150000);
  }
  const double ulp = 0x1p-23;
  EXPECT_LT(worst_log, 3 * ulp) << worst_log / ulp;    // relative
  EXPECT_LT(worst_sin, 1.5 * ulp) << worst_sin / ulp;  // absolute, on a range of 1
  EXPECT_GT(worst_log, ulp / 8);                       // proves that the measurement works
  float sine, cosine;
  portable_sincos(0x40000000u, &sine, &cosine);
  EXPECT_EQ(sine, 1.0f);
  EXPECT_EQ(cosine, 0.0f);
}

Tensor field_noise(Rng rng, uint64_t seed, std::array<int64_t, 4> shape,
                   uint32_t stream = kStreamInit) {
  Tensor out(DType::kF32, {shape[0], shape[1], shape[2], shape[3]});
  NoiseField(rng, seed, shape, stream).fill(out);
  return out;
}

// These bits are a contract and never change.
TEST(Noise, PortableValuesArePinned) {
  const Tensor a = field_noise(Rng::kPortable, 42, {2, 2, 3, 5});
  const Tensor b = field_noise(Rng::kPortable, 0x123456789abcdef0u, {1, 1, 1, 4}, 0x10000003u);
  const float* x = a.as<float>();
  uint64_t hash = 0xcbf29ce484222325u;  // FNV-1a over the bits
  for (int64_t k = 0; k < a.count(); ++k) {
    uint32_t bits;
    std::memcpy(&bits, &x[k], sizeof bits);
    hash = (hash ^ bits) * 0x100000001b3u;
  }
  EXPECT_FLOAT_EQ(x[0], -0.97018981f);
  EXPECT_FLOAT_EQ(x[59], -1.17869639f);
  EXPECT_FLOAT_EQ(b.as<float>()[3], 1.33189106f);
  EXPECT_EQ(hash, 0xe5fd97b5970aecadu);
}

TEST(Noise, MomentsAndTails) {
  const Tensor x = field_noise(Rng::kPortable, 7, {16, 8, 64, 64});
  const int64_t n = x.count();
  double m1 = 0, m2 = 0, m3 = 0, m4 = 0, lag1 = 0;
  int64_t beyond3 = 0;
  const float* v = x.as<float>();
  for (int64_t k = 0; k < n; ++k) {
    const double z = v[k];
    m1 += z, m2 += z * z, m3 += z * z * z, m4 += z * z * z * z;
    lag1 += k ? z * v[k - 1] : 0;
    beyond3 += std::abs(z) > 3;
  }
  // Five standard errors: the moments of a normal have variances 1, 2, 15, 96 over n.
  const double five = 5 / std::sqrt(static_cast<double>(n));
  EXPECT_NEAR(m1 / n, 0, five);
  EXPECT_NEAR(m2 / n, 1, five * std::sqrt(2.0));
  EXPECT_NEAR(m3 / n, 0, five * std::sqrt(15.0));
  EXPECT_NEAR(m4 / n, 3, five * std::sqrt(96.0));
  EXPECT_NEAR(lag1 / n, 0, five);
  const double tail = 0.0026998;
  EXPECT_NEAR(double(beyond3) / n, tail, five * std::sqrt(tail));
}

TEST(Noise, AnySliceIsThatSliceOfTheWhole) {
  const std::array<int64_t, 4> shape = {3, 5, 6, 7};
  for (Rng rng : {Rng::kPortable, Rng::kTorchCpu}) {
    const NoiseField field(rng, 99, shape);
    const Tensor whole = field_noise(rng, 99, shape);
    for (int64_t f : {0, 2}) {
      for (int64_t y : {0, 1, 3}) {
        for (int64_t x : {0, 2, 5}) {
          Tensor part(DType::kF32, {3, 2, 3, 2});
          field.fill(part, f, y, x);
          for (int64_t k = 0; k < part.count(); ++k) {
            const int64_t c = k / 12, df = k / 6 % 2, dy = k / 2 % 3, dx = k % 2;
            ASSERT_EQ(part.as<float>()[k],
                      whole.as<float>()[((c * 5 + f + df) * 6 + y + dy) * 7 + x + dx]);
          }
        }
      }
    }
  }
}

// A frame's noise does not depend on the number of frames.
TEST(Noise, PortableFrameIsIndependentOfFrameCount) {
  const Tensor few = field_noise(Rng::kPortable, 5, {4, 2, 3, 3});
  const Tensor many = field_noise(Rng::kPortable, 5, {4, 9, 3, 3});
  for (int64_t c = 0; c < 4; ++c) {
    EXPECT_EQ(0, std::memcmp(few.as<float>() + c * 18, many.as<float>() + c * 81, 18 * 4));
  }
}

TEST(Noise, SeedsStreamsAndFramesDiffer) {
  const Tensor base = field_noise(Rng::kPortable, 5, {1, 2, 4, 4});
  const auto equal = [&](const Tensor& other) {
    int64_t same = 0;
    for (int64_t k = 0; k < base.count(); ++k) same += base.as<float>()[k] == other.as<float>()[k];
    return same;
  };
  EXPECT_EQ(equal(field_noise(Rng::kPortable, 6, {1, 2, 4, 4})), 0);
  EXPECT_EQ(equal(field_noise(Rng::kPortable, 5 + (uint64_t{1} << 32), {1, 2, 4, 4})), 0);
  EXPECT_EQ(equal(field_noise(Rng::kPortable, 5, {1, 2, 4, 4}, 0x10000000u)), 0);
  EXPECT_NE(0, std::memcmp(base.as<float>(), base.as<float>() + 16, 64));
}

// The widely published first values of torch.manual_seed(0) and (42) on a CPU.
TEST(Noise, TorchCpuKnownValues) {
  const float seed0[] = {-1.1258f, -1.1524f, -0.2506f, -0.4339f, 0.8487f, 0.6920f,
                         -0.3160f, -2.1152f, 0.3223f,  -1.2633f, 0.3500f, 0.3081f,
                         0.1198f,  1.2377f,  1.1168f,  -0.2473f};
  const float seed42_20[] = {1.9269f,  1.4873f, 0.9007f,  -2.1055f, -0.7581f, 1.0783f,  0.8008f,
                             1.6806f,  0.3559f, -0.6866f, -0.4934f, 0.2415f,  -0.2316f, 0.0418f,
                             -0.2516f, 0.8599f, -0.3097f, -0.3957f, 0.8034f,  -0.6216f};
  const std::vector<float> a = torch_cpu_randn(0, 16), b = torch_cpu_randn(42, 20);
  for (int k = 0; k < 16; ++k) EXPECT_NEAR(a[k], seed0[k], 0.6e-4);
  for (int k = 0; k < 20; ++k) EXPECT_NEAR(b[k], seed42_20[k], 0.6e-4);
  EXPECT_EQ(torch_cpu_randn(3, 40), torch_cpu_randn(3 + (uint64_t{1} << 32), 40));
}

TEST(Noise, Names) {
  EXPECT_EQ(rng_from_name("torch-cpu"), Rng::kTorchCpu);
  EXPECT_EQ(to_string(Rng::kPortable), "portable");
  EXPECT_THROW(rng_from_name("cuda"), Error);
}

}  // namespace
}  // namespace weft
