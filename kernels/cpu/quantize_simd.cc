#include <cmath>

#include "kernels/cpu/linear_int8.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/quantize_simd.cc"
#include "hwy/foreach_target.h"
// Highway's order: this header sees every target.
#include "kernels/cpu/exponential-inl.h"

HWY_BEFORE_NAMESPACE();
namespace weft::cpu::HWY_NAMESPACE {

float quantize(const float* x, int64_t count, uint8_t* out) {
  const TileTag d;
  const hn::Rebind<uint8_t, TileTag> d8;
  const hn::RebindToSigned<TileTag> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  TileVec largest = hn::Zero(d), zeros = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const TileVec value = hn::LoadU(d, x + i);
    largest = hn::Max(largest, hn::Abs(value));
    zeros = hn::MulAdd(value, hn::Zero(d), zeros);
  }
  float most = hn::GetLane(hn::MaxOfLanes(d, largest)),
        poison = hn::GetLane(hn::SumOfLanes(d, zeros));
  for (int64_t j = i; j < count; ++j) {
    most = std::fmax(most, std::fabs(x[j]));
    poison += x[j] * 0;  // NaN if x[j] is NaN or Inf
  }
  if (!(poison == 0)) {
    for (int64_t j = 0; j < count; ++j) out[j] = 128;
    return poison;
  }
  const float to_unit = most > 0 ? 127 / most : 0;
  const TileVec unit = hn::Set(d, to_unit);
  for (i = 0; i + lanes <= count; i += lanes) {
    const auto number = hn::NearestInt(hn::Mul(hn::LoadU(d, x + i), unit));
    hn::StoreU(hn::DemoteTo(d8, hn::Add(number, hn::Set(di, 128))), d8, out + i);
  }
  for (; i < count; ++i)
    out[i] = static_cast<uint8_t>(static_cast<int>(std::nearbyint(x[i] * to_unit)) + 128);
  return most / 127;
}

HWY_INLINE TileVec finish_vector(const FinishInt8& row, TileVec sum, TileVec scale, TileVec bias) {
  const TileTag d;
  const TileVec product = hn::Mul(sum, hn::Mul(hn::Set(d, row.scale), scale));
  return activate(row.activation, hn::Add(product, bias));
}

void finish(const FinishInt8& row) {
  const TileTag d;
  const hn::RebindToSigned<TileTag> di;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= row.count; i += lanes) {
    const auto sum = hn::Sub(hn::LoadU(di, row.sums + i), hn::LoadU(di, row.corrections + i));
    const TileVec bias = row.bias ? hn::LoadU(d, row.bias + i) : hn::Zero(d);
    hn::StoreU(finish_vector(row, hn::ConvertTo(d, sum), hn::LoadU(d, row.scales + i), bias), d,
               row.out + i);
  }
  for (; i < row.count; ++i) {
    const auto sum = static_cast<float>(row.sums[i] - row.corrections[i]);
    row.out[i] = hn::GetLane(finish_vector(row, hn::Set(d, sum), hn::Set(d, row.scales[i]),
                                           hn::Set(d, row.bias ? row.bias[i] : 0.0f)));
  }
}

}  // namespace weft::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace weft::cpu {

HWY_EXPORT(quantize);
HWY_EXPORT(finish);

float quantize_row(const float* x, int64_t count, uint8_t* out) {
  return HWY_DYNAMIC_DISPATCH(quantize)(x, count, out);
}
void finish_int8(const FinishInt8& row) { HWY_DYNAMIC_DISPATCH(finish)(row); }

}  // namespace weft::cpu
#endif
