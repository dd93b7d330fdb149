#include "kernels/copy.h"

#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

void copy(Stream& stream, const TensorView& x, const TensorView& out) {
  CHECK(same_shape(x, out), "x", x.to_string_shape(), "out", out.to_string_shape());
  CHECK(x.dtype == out.dtype || (is_float(x.dtype) && is_float(out.dtype)), "x", to_string(x.dtype),
        "out", to_string(out.dtype));
  CHECK((x.device == stream.device() && is_near(stream, out)) ||
            (is_near(stream, x) && out.device == stream.device()),
        "device");
  if (x.count() == 0) return;
  stream.ops().copy.copy(stream, x, out);
}

void fill_zero(Stream& stream, const TensorView& out) {
  CHECK(out.device == stream.device(), "device");
  if (out.count() == 0) return;
  stream.ops().copy.fill_zero(stream, out);
}

void gather_rows(Stream& stream, const TensorView& table, const TensorView& ids,
                 const TensorView& out) {
  CHECK(table.rank == 2 && is_float(table.dtype) && (table[1] <= 1 || table.stride[1] == 1),
        "table", table.to_string_shape());
  CHECK(ids.rank == 1 && ids.contiguous(), "ids", ids.to_string_shape());
  CHECK(out.rank == 2 && is_float(out.dtype) && out[0] == ids[0] && out[1] == table[1] &&
            (out[1] <= 1 || out.stride[1] == 1),
        "out", out.to_string_shape(), "table", table.to_string_shape());
  CHECK(out.device == stream.device() && is_near(stream, table) && is_near(stream, ids) &&
            (table.device == stream.device() || ids.device == Device{}),
        "device");
  const int32_t* id = ids.as<int32_t>();
  for (int64_t i = 0; ids.device == Device{} && i < ids[0]; ++i)
    CHECK(id[i] >= 0 && id[i] < table[0], "id", id[i], "at", i, "of", table[0]);
  if (out.count() == 0) return;
  stream.ops().copy.gather_rows(stream, table, ids, out);
}

void frames_to_rgb8(Stream& stream, const TensorView& x, const TensorView& out) {
  CHECK(x.rank == 4 && x[1] == 3 && x.dtype == DType::kF32 && x.contiguous() &&
            x.device == stream.device(),
        "x", x.to_string_shape());
  CHECK(out.rank == 4 && out[0] == x[0] && out[1] == x[2] && out[2] == x[3] && out[3] == 3 &&
            out.dtype == DType::kU8 && out.contiguous() && out.device == stream.device(),
        "out", out.to_string_shape(), "x", x.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().copy.frames_to_rgb8(stream, x, out);
}

}  // namespace weft
