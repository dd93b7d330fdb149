// The reference expansion of stored blocks.
#include "kernels/stored_blocks.h"

#include "kernels/convert.h"
#include "kernels/fp8.h"

namespace weft {
namespace {

float read_half(const uint8_t* in) {
  return half_to_float({static_cast<uint16_t>(in[0] | in[1] << 8)});
}

// d [f16], q [32 x i8]: d q.
void expand_q8_0(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 34, out += 32) {
    const float scale = read_half(in);
    for (int i = 0; i < 32; ++i)
      out[i] = scale * static_cast<float>(static_cast<signed char>(in[2 + i]));
  }
}

// d [f16], q [16 bytes]: d (q - 8). The low four bits of the bytes are the first 16 values.
void expand_q4_0(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 18, out += 32) {
    const float scale = read_half(in);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>((in[2 + i] & 15) - 8);
      out[i + 16] = scale * static_cast<float>((in[2 + i] >> 4) - 8);
    }
  }
}

// d, m [f16], q [16 bytes]: d q + m.
void expand_q4_1(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 20, out += 32) {
    const float scale = read_half(in), least = read_half(in + 2);
    for (int i = 0; i < 16; ++i) {
      out[i] = scale * static_cast<float>(in[4 + i] & 15) + least;
      out[i + 16] = scale * static_cast<float>(in[4 + i] >> 4) + least;
    }
  }
}

// Bit `at` of 32, as 16 or 0.
int fifth_bit(const uint8_t* bits, int at) { return (bits[at / 8] >> at % 8 & 1) << 4; }

// d [f16], the fifth bits of q [32 bits], q [16 bytes]: d (q - 16).
void expand_q5_0(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 22, out += 32) {
    const float scale = read_half(in);
    for (int i = 0; i < 16; ++i) {
      const int first = (in[6 + i] & 15) | fifth_bit(in + 2, i);
      const int second = in[6 + i] >> 4 | fifth_bit(in + 2, i + 16);
      out[i] = scale * static_cast<float>(first - 16);
      out[i + 16] = scale * static_cast<float>(second - 16);
    }
  }
}

// d, m [f16], the fifth bits of q [32 bits], q [16 bytes]: d q + m.
void expand_q5_1(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 24, out += 32) {
    const float scale = read_half(in), least = read_half(in + 2);
    for (int i = 0; i < 16; ++i) {
      const int first = (in[8 + i] & 15) | fifth_bit(in + 4, i);
      const int second = in[8 + i] >> 4 | fifth_bit(in + 4, i + 16);
      out[i] = scale * static_cast<float>(first) + least;
      out[i + 16] = scale * static_cast<float>(second) + least;
    }
  }
}

// Scales and minima [16 bytes, four bits each], q [64 bytes, two bits each], d, dmin [f16]:
// d s q - dmin m. A block has two halves, a half four groups of 32, and a group two scales.
void expand_q2_k(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 84) {
    const float d = read_half(in + 80), dmin = read_half(in + 82);
    for (int part = 0; part < 16; ++part, out += 16) {
      const float scale = d * static_cast<float>(in[part] & 15),
                  least = dmin * static_cast<float>(in[part] >> 4);
      const uint8_t* q = in + 16 + part / 8 * 32 + part % 2 * 16;
      for (int i = 0; i < 16; ++i)
        out[i] = scale * static_cast<float>(q[i] >> part / 2 % 4 * 2 & 3) - least;
    }
  }
}

// The scale of one of 16 parts of a block, six bits in 12 bytes, less 32.
int six_bit_scale(const uint8_t* packed, int part) {
  const int low = part < 8 ? packed[part] & 15 : packed[part - 8] >> 4;
  return (low | (packed[8 + part % 4] >> part / 4 * 2 & 3) << 4) - 32;
}

// High bits [32 bytes], q [64 bytes, two bits each], scales [12 bytes], d [f16]: d s (q - 4), in
// parts as those of Q2_K. Bit g of a high byte is the third bit of a value of group g.
void expand_q3_k(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 110) {
    const float d = read_half(in + 108);
    for (int part = 0; part < 16; ++part, out += 16) {
      const float scale = d * static_cast<float>(six_bit_scale(in + 96, part));
      const uint8_t* q = in + 32 + part / 8 * 32 + part % 2 * 16;
      const uint8_t* high = in + part % 2 * 16;
      for (int i = 0; i < 16; ++i) {
        const int code = (q[i] >> part / 2 % 4 * 2 & 3) | (high[i] >> part / 2 & 1) << 2;
        out[i] = scale * static_cast<float>(code - 4);
      }
    }
  }
}

// The scale and the minimum of one of a block's eight groups, six bits each, in 12 bytes.
struct GroupScale {
  float scale, least;
  GroupScale(const uint8_t* packed, int group, float d, float dmin) {
    const uint8_t* at = packed + (group & 3);
    const bool early = group < 4;
    const int s = early ? at[0] & 63 : (at[8] & 15) | at[0] >> 6 << 4;
    const int m = early ? at[4] & 63 : at[8] >> 4 | at[4] >> 6 << 4;
    scale = d * static_cast<float>(s);
    least = dmin * static_cast<float>(m);
  }
};

// d, dmin [f16], groups [12 bytes], q [128 bytes]: d s q - dmin m, in eight groups of 32. Two
// groups share 32 bytes.
void expand_q4_k(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 144) {
    const float d = read_half(in), dmin = read_half(in + 2);
    for (int group = 0; group < 8; ++group, out += 32) {
      const GroupScale unit(in + 4, group, d, dmin);
      const uint8_t* q = in + 16 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i)
        out[i] = unit.scale * static_cast<float>(q[i] >> shift & 15) - unit.least;
    }
  }
}

// A block is one of Q4_K with 32 more bytes: bit g of byte i is the fifth bit of the value i of
// group g.
void expand_q5_k(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 176) {
    const float d = read_half(in), dmin = read_half(in + 2);
    const uint8_t* high = in + 16;
    for (int group = 0; group < 8; ++group, out += 32) {
      const GroupScale unit(in + 4, group, d, dmin);
      const uint8_t* q = in + 48 + group / 2 * 32;
      const int shift = group % 2 * 4;
      for (int i = 0; i < 32; ++i) {
        const int code = (q[i] >> shift & 15) | (high[i] >> group & 1) << 4;
        out[i] = unit.scale * static_cast<float>(code) - unit.least;
      }
    }
  }
}

// Low four bits [128 bytes], high two bits [64 bytes], scales [16 x i8], d [f16]: d s (q - 32). A
// block has two halves, a half four groups of 32, and a group two scales.
void expand_q6_k(const uint8_t* in, int64_t blocks, float* out) {
  for (int64_t b = 0; b < blocks; ++b, in += 210) {
    const float d = read_half(in + 208);
    for (int group = 0; group < 8; ++group, out += 32) {
      const int half = group / 4, within = group % 4;
      const uint8_t* low = in + half * 64 + within % 2 * 32;
      const uint8_t* high = in + 128 + half * 32;
      const int low_shift = within / 2 * 4, high_shift = within * 2;
      for (int i = 0; i < 32; ++i) {
        const float s = static_cast<signed char>(in[192 + group * 2 + i / 16]);
        const int code = (low[i] >> low_shift & 15) | (high[i] >> high_shift & 3) << 4;
        out[i] = d * s * static_cast<float>(code - 32);
      }
    }
  }
}

// Writes f(i) for every value.
template <class F>
void expand_each(int64_t count, float* out, F&& f) {
  for (int64_t i = 0; i < count; ++i) out[i] = f(i);
}

uint16_t read_16(const uint8_t* in) { return static_cast<uint16_t>(in[0] | in[1] << 8); }

}  // namespace

void expand_blocks_reference(BlockType type, const uint8_t* in, int64_t blocks, float* out) {
  switch (type) {
    case BlockType::kF16:
      return expand_each(blocks, out, [&](int64_t i) { return read_half(in + 2 * i); });
    case BlockType::kBF16:
      return expand_each(blocks, out,
                         [&](int64_t i) { return to_float(bf16{read_16(in + 2 * i)}); });
    case BlockType::kF8E4M3:
      return expand_each(blocks, out, [&](int64_t i) { return from_e4m3(in[i]); });
    case BlockType::kF8E5M2:  // the upper byte of an f16
      return expand_each(blocks, out, [&](int64_t i) {
        return half_to_float({static_cast<uint16_t>(in[i] << 8)});
      });
    case BlockType::kI8:
      return expand_each(blocks, out,
                         [&](int64_t i) { return static_cast<float>(static_cast<int8_t>(in[i])); });
    case BlockType::kQ8_0:
      return expand_q8_0(in, blocks, out);
    case BlockType::kQ4_0:
      return expand_q4_0(in, blocks, out);
    case BlockType::kQ5_0:
      return expand_q5_0(in, blocks, out);
    case BlockType::kQ4_K:
      return expand_q4_k(in, blocks, out);
    case BlockType::kQ5_K:
      return expand_q5_k(in, blocks, out);
    case BlockType::kQ6_K:
      return expand_q6_k(in, blocks, out);
    case BlockType::kQ4_1:
      return expand_q4_1(in, blocks, out);
    case BlockType::kQ5_1:
      return expand_q5_1(in, blocks, out);
    case BlockType::kQ2_K:
      return expand_q2_k(in, blocks, out);
    case BlockType::kQ3_K:
      return expand_q3_k(in, blocks, out);
    case BlockType::kCount:
      break;
  }
  CHECK(false, "block type", static_cast<int>(type));
}

}  // namespace weft
