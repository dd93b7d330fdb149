// Reference coding of rows in 8 bits.
#include "kernels/row_code.h"

#include <algorithm>
#include <bit>

#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tables.h"
#include "kernels/int8_row.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

// Calls f(row of x, row of base or null, row of code) with the elements of x's dtype.
template <class F>
void for_rows(Stream& stream, const TensorView& x, const TensorView& base, const TensorView& code,
              const F& f) {
  visit_dtype(x.dtype, [&](auto tag) {
    using T = decltype(tag);
    parallel_for(stream, x.rows(), row_grain(x[-1]), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row)
        f(x.as<T>() + row * x.row_stride(), base ? base.as<T>() + row * base.row_stride() : nullptr,
          static_cast<int8_t*>(code.data) + row * code.row_stride());
    });
  });
}

template <class Row>
void encode_as(Stream& stream, const TensorView& x, const TensorView& base,
               const TensorView& code) {
  for_rows(stream, x, base, code, [d = x[-1]](const auto* from, const auto* before, int8_t* to) {
    const auto difference = [&](int64_t i) {
      return before ? to_float(from[i]) - to_float(before[i]) : to_float(from[i]);
    };
    uint32_t most = 0;
    for (int64_t i = 0; i < d; ++i) most = std::max(most, magnitude_bits(difference(i)));
    const Row row(most);
    for (int64_t i = 0; i < d; ++i) to[i] = Row::code(difference(i) * row.unit());
    to[d] = row.exponent;
  });
}

template <class Row>
void decode_as(Stream& stream, const TensorView& code, const TensorView& base,
               const TensorView& out) {
  for_rows(stream, out, base, code,
           [d = out[-1]](auto* to, const auto* before, const int8_t* from) {
             using T = std::remove_pointer_t<decltype(to)>;
             const float scale = Row::scale(from[d]);
             for (int64_t i = 0; i < d; ++i) {
               const float value = Row::number(from[i]) * scale;
               to[i] = from_float<T>(before ? to_float(before[i]) + value : value);
             }
           });
}

void encode_rows(Stream& stream, const TensorView& x, const TensorView& base,
                 const TensorView& code, RowCode kind) {
  const auto encode = kind == RowCode::kInt8 ? encode_as<Int8Row> : encode_as<E4m3Row>;
  encode(stream, x, base, code);
}

void decode_rows(Stream& stream, const TensorView& code, const TensorView& base,
                 const TensorView& out, RowCode kind) {
  const auto decode = kind == RowCode::kInt8 ? decode_as<Int8Row> : decode_as<E4m3Row>;
  decode(stream, code, base, out);
}

}  // namespace

void fill_row_code_reference(Ops& ops) {
  ops.row_code = {.encode_rows = encode_rows, .decode_rows = decode_rows};
}

}  // namespace weft::cpu
