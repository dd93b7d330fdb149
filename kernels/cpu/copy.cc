// Reference data movement and conversion.
#include "kernels/copy.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/convert.h"
#include "kernels/cpu/parallel_for.h"
#include "kernels/cpu/tables.h"
#include "kernels/ops.h"

namespace weft::cpu {

namespace {

// Returns the element offset of row r, the row-major index over all dimensions but the last.
int64_t row_offset(const TensorView& x, int64_t r) {
  int64_t offset = 0;
  for (int i = x.rank - 2; i >= 0; --i) {
    offset += r % x.extent[i] * x.stride[i];
    r /= x.extent[i];
  }
  return offset;
}

// Calls row(element offset in x, element offset in out) for every innermost row.
template <class Row>
void for_row_offsets(Stream& stream, const TensorView& x, const TensorView& out, Row&& row) {
  parallel_for(stream, x.rows(), row_grain(x[-1]), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(row_offset(x, r), row_offset(out, r));
  });
}

void move(Stream& stream, const TensorView& x, const TensorView& out) {
  const int64_t size = static_cast<int64_t>(size_of(x.dtype)), last = x.rank - 1;
  const int64_t x_step = x.stride[last] * size, out_step = out.stride[last] * size;
  for_row_offsets(stream, x, out, [&](int64_t from, int64_t to) {
    const char* source = static_cast<const char*>(x.data) + from * size;
    char* target = static_cast<char*>(out.data) + to * size;
    if (x_step == size && out_step == size)
      std::memcpy(target, source, x.extent[last] * size);
    else
      for (int64_t i = 0; i < x.extent[last]; ++i)
        std::memcpy(target + i * out_step, source + i * x_step, size);
  });
}

void copy(Stream& stream, const TensorView& x, const TensorView& out) {
  if (x.rank == 0) {
    const TensorView one(x.data, x.dtype, {1}), to(out.data, out.dtype, {1});
    return cpu::copy(stream, one, to);
  }
  if (x.dtype == out.dtype) return move(stream, x, out);
  visit_float(x.dtype, [&](auto x_tag) {
    visit_float(out.dtype, [&](auto out_tag) {
      using From = decltype(x_tag);
      using To = decltype(out_tag);
      const int64_t last = x.rank - 1;
      for_row_offsets(stream, x, out, [&](int64_t from, int64_t to) {
        const From* source = static_cast<const From*>(x.data) + from;
        To* target = static_cast<To*>(out.data) + to;
        for (int64_t i = 0; i < x.extent[last]; ++i)
          target[i * out.stride[last]] = convert<To>(source[i * x.stride[last]]);
      });
    });
  });
}

void fill_zero(Stream& stream, const TensorView& out) {
  const int64_t size = static_cast<int64_t>(size_of(out.dtype)), last = out.rank - 1;
  if (out.contiguous()) {
    std::memset(out.data, 0, out.bytes());
    return;
  }
  for_row_offsets(stream, out, out, [&](int64_t, int64_t to) {
    for (int64_t i = 0; i < out.extent[last]; ++i)
      std::memset(static_cast<char*>(out.data) + (to + i * out.stride[last]) * size, 0, size);
  });
}

void gather_rows(Stream& stream, const TensorView& table, const TensorView& ids,
                 const TensorView& out) {
  const int32_t* id = ids.as<int32_t>();
  for (int64_t i = 0; i < ids[0]; ++i) cpu::copy(stream, table.select(0, id[i]), out.select(0, i));
}

void frames_to_rgb8(Stream& stream, const TensorView& x, const TensorView& out) {
  const int64_t pixels = x[2] * x[3];
  parallel_for(stream, x[0], row_grain(3 * pixels), [&](int64_t begin, int64_t end) {
    for (int64_t f = begin; f < end; ++f) {
      const float* planes = static_cast<const float*>(x.as<float>()) + f * 3 * pixels;
      uint8_t* rgb = out.as<uint8_t>() + f * 3 * pixels;
      for (int64_t k = 0; k < pixels; ++k)
        for (int64_t c = 0; c < 3; ++c) {
          const float unit = std::clamp(planes[c * pixels + k] * 0.5f + 0.5f, 0.0f, 1.0f);
          rgb[3 * k + c] = static_cast<uint8_t>(std::nearbyint(unit * 255.0f));
        }
    }
  });
}

}  // namespace

void fill_copy_reference(Ops& ops) {
  ops.copy = {.copy = copy,
              .fill_zero = fill_zero,
              .gather_rows = gather_rows,
              .frames_to_rgb8 = frames_to_rgb8};
}

}  // namespace weft::cpu
