#include "kernels/row_code.h"

#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

namespace {

void check_coded_rows(const Stream& stream, const TensorView& x, const TensorView& base,
                      const TensorView& code) {
  CHECK(is_rows(stream, x), "x", x.to_string_shape());
  CHECK(!base || (is_rows(stream, base) && same_shape(base, x) && base.dtype == x.dtype), "base",
        base.to_string_shape());
  CHECK(code.device == stream.device() && code.dtype == DType::kI8 && code.rows_collapse() &&
            code.rows() == x.rows() && code[-1] == x[-1] + 1,
        "code", code.to_string_shape(), "of", x.to_string_shape());
}

}  // namespace

void encode_rows(Stream& stream, const TensorView& x, const TensorView& base,
                 const TensorView& code, RowCode kind) {
  check_coded_rows(stream, x, base, code);
  if (x.count() == 0) return;
  stream.ops().row_code.encode_rows(stream, x, base, code, kind);
}

void decode_rows(Stream& stream, const TensorView& code, const TensorView& base,
                 const TensorView& out, RowCode kind) {
  check_coded_rows(stream, out, base, code);
  if (out.count() == 0) return;
  stream.ops().row_code.decode_rows(stream, code, base, out, kind);
}

}  // namespace weft
