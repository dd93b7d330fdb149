// Expansion of stored blocks in Highway. The arithmetic is the reference's, value by value.
#include "kernels/convert.h"
#include "kernels/stored_blocks.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/stored_blocks_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

using Tag = TileTag;
using IntTag = hn::RebindToSigned<Tag>;
using BitTag = hn::RebindToUnsigned<Tag>;
using Ints = hn::Vec<IntTag>;
using Bits = hn::Vec<BitTag>;

HWY_INLINE int64_t tag_lanes() { return static_cast<int64_t>(hn::Lanes(Tag())); }

HWY_INLINE float read_half(const uint8_t* in) {
  return half_to_float({static_cast<uint16_t>(in[0] | in[1] << 8)});
}

HWY_INLINE Ints load_u8(const uint8_t* in) {
  return hn::PromoteTo(IntTag(), hn::LoadU(hn::Rebind<uint8_t, Tag>(), in));
}
HWY_INLINE Ints load_i8(const uint8_t* in) {
  return hn::PromoteTo(IntTag(),
                       hn::LoadU(hn::Rebind<int8_t, Tag>(), reinterpret_cast<const int8_t*>(in)));
}
HWY_INLINE Ints low_nibbles(Ints bytes) { return hn::And(bytes, hn::Set(IntTag(), 15)); }

// Stores scale * code.
HWY_INLINE void store_scaled(Ints code, TileVec scale, float* out) {
  hn::StoreU(hn::Mul(scale, hn::ConvertTo(Tag(), code)), Tag(), out);
}

// Calls f(i) for the offset of every vector of 16 or 32 values.
template <int64_t kValues, class F>
HWY_INLINE void for_vectors(F&& f) {
  for (int64_t i = 0; i < kValues; i += tag_lanes()) f(i);
}

void expand_q8_0(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 34, out += 32) {
    const TileVec scale = hn::Set(Tag(), read_half(in));
    for_vectors<32>([&](int64_t i) { store_scaled(load_i8(in + 2 + i), scale, out + i); });
  }
}

void expand_q4_0(const uint8_t* in, int64_t blocks, float* out) {
  const Ints middle = hn::Set(IntTag(), 8);
  for (int64_t b = 0; b < blocks; ++b, in += 18, out += 32) {
    const TileVec scale = hn::Set(Tag(), read_half(in));
    for_vectors<16>([&](int64_t i) {
      const Ints bytes = load_u8(in + 2 + i);
      store_scaled(hn::Sub(low_nibbles(bytes), middle), scale, out + i);
      store_scaled(hn::Sub(hn::ShiftRight<4>(bytes), middle), scale, out + 16 + i);
    });
  }
}

// Stores scale * code + least, each rounded.
HWY_INLINE void store_raised(Ints code, TileVec scale, TileVec least, float* out) {
  hn::StoreU(hn::Add(hn::Mul(scale, hn::ConvertTo(Tag(), code)), least), Tag(), out);
}

void expand_q4_1(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 20, out += 32) {
    const TileVec scale = hn::Set(Tag(), read_half(in)), least = hn::Set(Tag(), read_half(in + 2));
    for_vectors<16>([&](int64_t i) {
      const Ints bytes = load_u8(in + 4 + i);
      store_raised(low_nibbles(bytes), scale, least, out + i);
      store_raised(hn::ShiftRight<4>(bytes), scale, least, out + 16 + i);
    });
  }
}

HWY_INLINE uint32_t read_32(const uint8_t* in) {
  return in[0] | in[1] << 8 | in[2] << 16 | static_cast<uint32_t>(in[3]) << 24;
}

// Bit i + lane of `bits`, as 16 or 0.
HWY_INLINE Ints fifth_bits(uint32_t bits, int64_t i) {
  const Bits own = hn::Shr(hn::Set(BitTag(), bits >> i), hn::Iota(BitTag(), 0));
  return hn::BitCast(IntTag(), hn::ShiftLeft<4>(hn::And(own, hn::Set(BitTag(), 1u))));
}

void expand_q5_0(const uint8_t* in, int64_t blocks, float* out) {
  const Ints middle = hn::Set(IntTag(), 16);
  for (int64_t b = 0; b < blocks; ++b, in += 22, out += 32) {
    const TileVec scale = hn::Set(Tag(), read_half(in));
    const uint32_t high = read_32(in + 2);
    for_vectors<16>([&](int64_t i) {
      const Ints bytes = load_u8(in + 6 + i);
      const Ints first = hn::Or(low_nibbles(bytes), fifth_bits(high, i));
      const Ints second = hn::Or(hn::ShiftRight<4>(bytes), fifth_bits(high, i + 16));
      store_scaled(hn::Sub(first, middle), scale, out + i);
      store_scaled(hn::Sub(second, middle), scale, out + 16 + i);
    });
  }
}

void expand_q5_1(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 24, out += 32) {
    const TileVec scale = hn::Set(Tag(), read_half(in)), least = hn::Set(Tag(), read_half(in + 2));
    const uint32_t high = read_32(in + 4);
    for_vectors<16>([&](int64_t i) {
      const Ints bytes = load_u8(in + 8 + i);
      store_raised(hn::Or(low_nibbles(bytes), fifth_bits(high, i)), scale, least, out + i);
      store_raised(hn::Or(hn::ShiftRight<4>(bytes), fifth_bits(high, i + 16)), scale, least,
                   out + 16 + i);
    });
  }
}

// Stores scale * code - least, each rounded.
HWY_INLINE void store_shifted(Ints code, TileVec scale, TileVec least, float* out) {
  hn::StoreU(hn::Sub(hn::Mul(scale, hn::ConvertTo(Tag(), code)), least), Tag(), out);
}

// The scale and the minimum of a group of 32 values in the 12 bytes after a block's d and dmin.
struct GroupVectors {
  TileVec scale, least;
  HWY_INLINE GroupVectors(const uint8_t* packed, int group, float d, float dmin) {
    const uint8_t* at = packed + (group & 3);
    const bool early = group < 4;
    const int s = early ? at[0] & 63 : (at[8] & 15) | at[0] >> 6 << 4;
    const int m = early ? at[4] & 63 : at[8] >> 4 | at[4] >> 6 << 4;
    scale = hn::Set(Tag(), d * static_cast<float>(s));
    least = hn::Set(Tag(), dmin * static_cast<float>(m));
  }
};

void expand_q4_k(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 144) {
    const float d = read_half(in), dmin = read_half(in + 2);
    for (int pair = 0; pair < 4; ++pair, out += 64) {
      const GroupVectors first(in + 4, 2 * pair, d, dmin), second(in + 4, 2 * pair + 1, d, dmin);
      const uint8_t* q = in + 16 + pair * 32;
      for_vectors<32>([&](int64_t i) {
        const Ints bytes = load_u8(q + i);
        store_shifted(low_nibbles(bytes), first.scale, first.least, out + i);
        store_shifted(hn::ShiftRight<4>(bytes), second.scale, second.least, out + 32 + i);
      });
    }
  }
}

// Bit `at` of every value, as 16 or 0.
HWY_INLINE Ints bit_as_16(Ints bytes, int at) {
  const Ints bit = hn::And(hn::ShiftRightSame(bytes, at), hn::Set(IntTag(), 1));
  return hn::ShiftLeft<4>(bit);
}

void expand_q5_k(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 176) {
    const float d = read_half(in), dmin = read_half(in + 2);
    for (int pair = 0; pair < 4; ++pair, out += 64) {
      const GroupVectors first(in + 4, 2 * pair, d, dmin), second(in + 4, 2 * pair + 1, d, dmin);
      const uint8_t* q = in + 48 + pair * 32;
      for_vectors<32>([&](int64_t i) {
        const Ints bytes = load_u8(q + i), high = load_u8(in + 16 + i);
        store_shifted(hn::Or(low_nibbles(bytes), bit_as_16(high, 2 * pair)), first.scale,
                      first.least, out + i);
        store_shifted(hn::Or(hn::ShiftRight<4>(bytes), bit_as_16(high, 2 * pair + 1)), second.scale,
                      second.least, out + 32 + i);
      });
    }
  }
}

// Two bits of every value, from bit `at` on.
HWY_INLINE Ints two_bits(Ints bytes, int at) {
  return hn::And(hn::ShiftRightSame(bytes, at), hn::Set(IntTag(), 3));
}

void expand_q6_k(const uint8_t* in, int64_t blocks, float* out) {
  const Ints middle = hn::Set(IntTag(), 32);
  for (int64_t b = 0; b < blocks; ++b, in += 210) {
    const float d = read_half(in + 208);
    for (int group = 0; group < 8; ++group, out += 32) {
      const int half = group / 4, within = group % 4;
      const uint8_t* low = in + half * 64 + within % 2 * 32;
      const uint8_t* high = in + 128 + half * 32;
      for (int64_t part = 0; part < 2; ++part) {
        const auto scale = static_cast<float>(static_cast<int8_t>(in[192 + group * 2 + part]));
        const TileVec unit = hn::Set(Tag(), d * scale);
        for_vectors<16>([&](int64_t i) {
          const int64_t at = part * 16 + i;
          const Ints four = low_nibbles(hn::ShiftRightSame(load_u8(low + at), within / 2 * 4));
          const Ints two = two_bits(load_u8(high + at), within * 2);
          store_scaled(hn::Sub(hn::Or(four, hn::ShiftLeft<4>(two)), middle), unit, out + at);
        });
      }
    }
  }
}

void expand_q2_k(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 84) {
    const float d = read_half(in + 80), dmin = read_half(in + 82);
    for (int part = 0; part < 16; ++part, out += 16) {
      const TileVec scale = hn::Set(Tag(), d * static_cast<float>(in[part] & 15)),
                    least = hn::Set(Tag(), dmin * static_cast<float>(in[part] >> 4));
      const uint8_t* q = in + 16 + part / 8 * 32 + part % 2 * 16;
      for_vectors<16>([&](int64_t i) {
        store_shifted(two_bits(load_u8(q + i), part / 2 % 4 * 2), scale, least, out + i);
      });
    }
  }
}

void expand_q3_k(const uint8_t* in, int64_t blocks, float* out) {
  const Ints middle = hn::Set(IntTag(), 4);
  for (int64_t b = 0; b < blocks; ++b, in += 110) {
    const float d = read_half(in + 108);
    for (int part = 0; part < 16; ++part, out += 16) {
      const uint8_t* packed = in + 96;
      const int low = part < 8 ? packed[part] & 15 : packed[part - 8] >> 4;
      const int code = (low | (packed[8 + part % 4] >> part / 4 * 2 & 3) << 4) - 32;
      const TileVec scale = hn::Set(Tag(), d * static_cast<float>(code));
      const uint8_t* q = in + 32 + part / 8 * 32 + part % 2 * 16;
      const uint8_t* high = in + part % 2 * 16;
      for_vectors<16>([&](int64_t i) {
        const Ints third = hn::ShiftRight<2>(bit_as_16(load_u8(high + i), part / 2));
        const Ints value = hn::Or(two_bits(load_u8(q + i), part / 2 % 4 * 2), third);
        store_scaled(hn::Sub(value, middle), scale, out + i);
      });
    }
  }
}

// Writes count values, of which `one(in)` gives a vector's from the bytes at `in`, kBytes a value.
template <int64_t kBytes, class One>
HWY_INLINE void expand_values(const uint8_t* in, int64_t count, float* out, One&& one) {
  const int64_t step = tag_lanes();
  int64_t i = 0;
  for (; i + step <= count; i += step) hn::StoreU(one(in + i * kBytes), Tag(), out + i);
  const int64_t left = count - i;
  if (left <= 0) return;
  uint8_t rest[16 * kBytes] = {};
  float values[16];
  std::copy_n(in + i * kBytes, left * kBytes, rest);
  hn::StoreU(one(rest), Tag(), values);
  std::copy_n(values, left, out + i);
}

HWY_INLINE TileVec load_f16(const uint8_t* in) {
  const hn::Rebind<hwy::float16_t, Tag> half;
  return hn::PromoteTo(Tag(), hn::LoadU(half, reinterpret_cast<const hwy::float16_t*>(in)));
}

// Values of an 8-bit float with kFraction bits of fraction. Normal ones get f32's exponent by an
// addition, and subnormal ones are small integers times `least`, so no arithmetic sees a denormal.
// Magnitudes above `finite` are NaN or Inf: their fraction joins the bits `special`.
template <int kFraction, int kExponentOffset>
HWY_INLINE TileVec load_f8(const uint8_t* in, float least, int finite, uint32_t special) {
  const IntTag ints;
  const BitTag bits;
  const Ints code = load_u8(in);
  const Ints magnitude = hn::And(code, hn::Set(ints, 0x7f));
  const Ints normal =
      hn::Add(hn::ShiftLeft<23 - kFraction>(magnitude), hn::Set(ints, kExponentOffset << 23));
  const TileVec small = hn::Mul(hn::ConvertTo(Tag(), magnitude), hn::Set(Tag(), least));
  const Ints fraction = hn::And(magnitude, hn::Set(ints, (1 << kFraction) - 1));
  const Ints beyond =
      hn::Or(hn::BitCast(ints, hn::Set(bits, special)), hn::ShiftLeft<23 - kFraction>(fraction));
  Ints value = hn::IfThenElse(hn::Gt(hn::Set(ints, 1 << kFraction), magnitude),
                              hn::BitCast(ints, small), normal);
  value = hn::IfThenElse(hn::Gt(magnitude, hn::Set(ints, finite)), beyond, value);
  const Ints sign = hn::ShiftLeft<24>(hn::And(code, hn::Set(ints, 0x80)));
  return hn::BitCast(Tag(), hn::Or(value, sign));
}

void expand_f16(const uint8_t* in, int64_t count, float* out) {
  expand_values<2>(in, count, out, [](const uint8_t* at) { return load_f16(at); });
}
void expand_bf16(const uint8_t* in, int64_t count, float* out) {
  expand_values<2>(in, count, out,
                   [](const uint8_t* at) { return load(reinterpret_cast<const bf16*>(at)); });
}
void expand_e4m3(const uint8_t* in, int64_t count, float* out) {
  expand_values<1>(in, count, out, [](const uint8_t* at) {
    return load_f8<3, 120>(at, 0x1p-9f, 0x7e, 0x7fc00000u);
  });
}
void expand_e5m2(const uint8_t* in, int64_t count, float* out) {
  expand_values<1>(in, count, out, [](const uint8_t* at) {
    return load_f8<2, 112>(at, 0x1p-16f, 0x7b, 0x7f800000u);
  });
}
void expand_i8(const uint8_t* in, int64_t count, float* out) {
  expand_values<1>(in, count, out,
                   [](const uint8_t* at) { return hn::ConvertTo(Tag(), load_i8(at)); });
}

void expand(BlockType type, const uint8_t* in, int64_t blocks, float* out) {
  using Expand = void (*)(const uint8_t*, int64_t, float*);
  constexpr Expand kAll[] = {expand_f16,  expand_bf16, expand_e4m3, expand_e5m2, expand_i8,
                             expand_q8_0, expand_q4_0, expand_q5_0, expand_q4_k, expand_q5_k,
                             expand_q6_k, expand_q4_1, expand_q5_1, expand_q2_k, expand_q3_k};
  static_assert(sizeof(kAll) / sizeof(kAll[0]) == static_cast<size_t>(BlockType::kCount));
  kAll[static_cast<size_t>(type)](in, blocks, out);
}

void scale_values(float scale, int64_t count, float* out) {
  const TileVec factor = hn::Set(Tag(), scale);
  const int64_t step = tag_lanes();
  int64_t i = 0;
  for (; i + step <= count; i += step)
    hn::StoreU(hn::Mul(hn::LoadU(Tag(), out + i), factor), Tag(), out + i);
  for (; i < count; ++i) out[i] *= scale;
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft {
namespace cpu {
HWY_EXPORT(expand);
HWY_EXPORT(scale_values);
}  // namespace cpu

void expand_blocks(BlockType type, const uint8_t* in, int64_t blocks, float* out) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(expand)(type, in, blocks, out);
}

void scale_values(float scale, int64_t count, float* out) {
  using namespace cpu;
  HWY_DYNAMIC_DISPATCH(scale_values)(scale, count, out);
}

}  // namespace weft
#endif
