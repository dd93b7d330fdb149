#include "engine/sampling/noise.h"

#include <array>
#include <cmath>
#include <cstring>

#include "io/nearest.h"
#include "kernels/philox.h"

namespace weft {
namespace {

constexpr std::array<std::string_view, static_cast<size_t>(Rng::kCount)> kNames = {"portable",
                                                                                   "torch-cpu"};

// Mersenne Twister 19937 (Matsumoto & Nishimura 1998) with the 1812433253 initialisation.
class Mt19937 {
 public:
  explicit Mt19937(uint32_t seed) {
    state_[0] = seed;
    for (uint32_t k = 1; k < kSize; ++k) {
      state_[k] = 1812433253u * (state_[k - 1] ^ (state_[k - 1] >> 30)) + k;
    }
  }

  uint32_t next() {
    if (at_ == kSize) refill();
    uint32_t y = state_[at_++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
  }

 private:
  static constexpr uint32_t kSize = 624, kShift = 397;

  void refill() {
    for (uint32_t k = 0; k < kSize; ++k) {
      const uint32_t y = (state_[k] & 0x80000000u) | (state_[(k + 1) % kSize] & 0x7fffffffu);
      state_[k] = state_[(k + kShift) % kSize] ^ (y >> 1) ^ ((y & 1u) ? 0x9908b0dfu : 0u);
    }
    at_ = 0;
  }

  std::array<uint32_t, kSize> state_;
  uint32_t at_ = kSize;
};

// Turns sixteen uniforms into sixteen normals in place, in pairs (j, j + 8). As in torch the angle
// is rounded to f32. The functions are evaluated in f64.
void box_muller_16(float* values) {
  constexpr float kTwoPi = 2.0f * 3.14159265358979323846f;
  for (int j = 0; j < 8; ++j) {
    const float u = 1.0f - values[j];
    const float angle = kTwoPi * values[j + 8];
    const double radius = std::sqrt(-2.0 * std::log(static_cast<double>(u)));
    values[j] = static_cast<float>(radius * std::cos(static_cast<double>(angle)));
    values[j + 8] = static_cast<float>(radius * std::sin(static_cast<double>(angle)));
  }
}

void torch_few(Mt19937& generator, float* values, int64_t count) {
  const auto uniform = [&] {
    const uint64_t high = generator.next(), low = generator.next();
    return static_cast<double>(((high << 32) | low) & ((uint64_t{1} << 53) - 1)) * 0x1p-53;
  };
  double cached = 0;
  for (int64_t k = 0; k < count; ++k) {
    if (k % 2 == 1) {
      values[k] = static_cast<float>(cached);
      continue;
    }
    const double angle = 2.0 * M_PI * uniform();
    const double radius = std::sqrt(-2.0 * std::log1p(-uniform()));
    values[k] = static_cast<float>(radius * std::cos(angle));
    cached = radius * std::sin(angle);
  }
}

}  // namespace

std::string_view to_string(Rng rng) { return kNames[static_cast<size_t>(rng)]; }

Rng rng_from_name(std::string_view name) { return value_named<Rng>(kNames, name, "rng"); }

std::vector<float> torch_cpu_randn(uint64_t seed, int64_t count) {
  Mt19937 generator(static_cast<uint32_t>(seed));
  std::vector<float> values(static_cast<size_t>(count));
  constexpr int kBlock = 16;
  if (count < kBlock) {
    torch_few(generator, values.data(), count);
    return values;
  }
  const auto uniform = [&] { return static_cast<float>(generator.next() & 0xFFFFFFu) * 0x1p-24f; };
  for (float& value : values) value = uniform();
  for (int64_t k = 0; k + kBlock <= count; k += kBlock) box_muller_16(&values[k]);
  if (count % kBlock != 0) {
    float* last = values.data() + count - kBlock;
    for (int j = 0; j < kBlock; ++j) last[j] = uniform();
    box_muller_16(last);
  }
  return values;
}

// u = 2^e m with m in [sqrt(1/2), sqrt(2)); ln m = 2 atanh(s), s = (m - 1) / (m + 1), |s| <=
// 0.1716, by the odd series to s^9 (the omitted terms are below 2.3e-9 of the result). m - 1 is
// exact, so the result keeps its relative precision near u = 1. ln 2 is split so that e * kLn2High
// is exact.
float portable_log(uint32_t bits) {
  // (bits + 1/2) 2^-32: the product with a power of two is exact, so one rounding follows the
  // conversion's, fused or not.
  const float u = static_cast<float>(bits) * 0x1p-32f + 0x1p-33f;
  uint32_t raw;
  std::memcpy(&raw, &u, sizeof raw);
  int exponent = static_cast<int>(raw >> 23) - 127;
  raw = (raw & 0x007fffffu) | 0x3f800000u;
  float m;
  std::memcpy(&m, &raw, sizeof m);
  if (m > 1.41421354f) {
    m *= 0.5f;
    ++exponent;
  }
  const float s = (m - 1.0f) / (m + 1.0f);
  const float z = s * s;
  float poly = z * 0.111111111f + 0.142857143f;
  poly = z * poly + 0.2f;
  poly = z * poly + 0.333333333f;
  const float twice = s + s;
  const float log_m = twice + twice * (z * poly);
  constexpr float kLn2High = 0.693145752f;   // ln 2 to 16 bits: 0x1.62e4p-1
  constexpr float kLn2Low = 1.42860677e-6f;  // ln 2 - kLn2High
  const float e = static_cast<float>(exponent);
  return e * kLn2High + (e * kLn2Low + log_m);
}

// Integer arithmetic splits off quarter turns exactly: bits = q 2^30 + rest, rest in
// [-2^29, 2^29). For t = rest 2^-30 in [-1/2, 1/2) it evaluates the Taylor polynomials of
// sin(pi t / 2) to t^9 and cos(pi t / 2) to t^10 (the omitted terms are below 2e-9 and 2e-10).
void portable_sincos(uint32_t bits, float* sine, float* cosine) {
  const uint32_t shifted = bits + 0x20000000u;  // wraps: a whole turn
  const uint32_t quadrant = shifted >> 30;
  const int32_t rest = static_cast<int32_t>(shifted & 0x3fffffffu) - 0x20000000;
  const float t = static_cast<float>(rest) * 0x1p-30f;
  const float z = t * t;
  float s = z * 1.60441185e-4f - 4.68175414e-3f;
  s = z * s + 7.96926262e-2f;
  s = z * s - 6.45964098e-1f;
  s = t * (z * s + 1.57079633f);
  float c = z * -2.52020424e-5f + 9.19260274e-4f;
  c = z * c - 2.08634807e-2f;
  c = z * c + 2.53669508e-1f;
  c = z * c - 1.23370055f;
  c = z * c + 1.0f;
  *sine = quadrant == 0 ? s : quadrant == 1 ? c : quadrant == 2 ? -s : -c;
  *cosine = quadrant == 0 ? c : quadrant == 1 ? -s : quadrant == 2 ? -c : s;
}

std::array<float, 4> normals_of_segment(uint64_t seed, uint32_t element_block, uint32_t frame,
                                        uint32_t stream) {
  const PhiloxKey key = {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)};
  const PhiloxCounter words = philox4x32_10({element_block, frame, stream, 0}, key);
  std::array<float, 4> normals;
  for (int pair = 0; pair < 2; ++pair) {
    const float radius = std::sqrt(-2.0f * portable_log(words[2 * pair]));
    float sine, cosine;
    portable_sincos(words[2 * pair + 1], &sine, &cosine);
    normals[2 * pair] = radius * cosine;
    normals[2 * pair + 1] = radius * sine;
  }
  return normals;
}

NoiseField::NoiseField(Rng rng, uint64_t seed, std::array<int64_t, 4> shape, uint32_t stream)
    : rng_(rng), seed_(seed), shape_(shape), stream_(stream) {
  // The counter has one 32-bit word for the block index of an element.
  CHECK(shape[0] * shape[2] * shape[3] / 4 < (int64_t{1} << 32), "elements of a frame");
  if (rng == Rng::kTorchCpu) {
    drawn_ = torch_cpu_randn(seed + stream, shape[0] * shape[1] * shape[2] * shape[3]);
  }
}

void NoiseField::fill(const TensorView& out, int64_t frame, int64_t y, int64_t x) const {
  CHECK(out.rank == 4 && out[0] == shape_[0], out.to_string_shape());
  const auto [channels, frames, height, width] = shape_;
  CHECK(frame >= 0 && y >= 0 && x >= 0 && frame + out[1] <= frames && y + out[2] <= height &&
            x + out[3] <= width,
        "noise block", frame, y, x, out.to_string_shape());
  float* data = out.as<float>();
  int64_t cached_block = -1, cached_frame = -1;
  std::array<float, 4> normals{};
  for (int64_t c = 0; c < out[0]; ++c) {
    for (int64_t f = 0; f < out[1]; ++f) {
      for (int64_t h = 0; h < out[2]; ++h) {
        for (int64_t w = 0; w < out[3]; ++w) {
          float value;
          if (rng_ == Rng::kTorchCpu) {
            value = drawn_[((c * frames + frame + f) * height + y + h) * width + x + w];
          } else {
            const int64_t element = (c * height + y + h) * width + x + w;
            if (element / 4 != cached_block || frame + f != cached_frame) {
              cached_block = element / 4;
              cached_frame = frame + f;
              normals = normals_of_segment(seed_, static_cast<uint32_t>(cached_block),
                                           static_cast<uint32_t>(cached_frame), stream_);
            }
            value = normals[element % 4];
          }
          data[c * out.stride[0] + f * out.stride[1] + h * out.stride[2] + w * out.stride[3]] =
              value;
        }
      }
    }
  }
}

}  // namespace weft
