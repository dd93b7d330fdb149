#include "kernels/pointwise.h"

#include "kernels/ops.h"
#include "kernels/view_checks.h"

namespace weft {

namespace {
void check_pair(const Stream& stream, const TensorView& x, const TensorView& out) {
  CHECK(is_rows(stream, x) && is_rows(stream, out) && same_shape(x, out), "x", x.to_string_shape(),
        "out", out.to_string_shape());
}

void check_same(const Stream& stream, const TensorView& x, const TensorView& out) {
  check_pair(stream, x, out);
  CHECK(x.dtype == out.dtype, "x", x.to_string_shape(), "out", out.to_string_shape());
}
}  // namespace

void add(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  check_same(stream, a, out);
  check_same(stream, b, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.add(stream, a, b, out);
}

void gated_add(Stream& stream, const TensorView& x, const TensorView& y, const TensorView& gate,
               const TensorView& out) {
  check_same(stream, x, out);
  check_pair(stream, y, out);
  CHECK(y.dtype == x.dtype || y.dtype == DType::kF32, "y", y.to_string_shape());
  CHECK(is_vector(stream, gate, x[-1]), "gate", gate.to_string_shape());
  if (out.count() == 0) return;
  stream.ops().pointwise.gated_add(stream, x, y, gate, out);
}

void add_bias(Stream& stream, const TensorView& x, const TensorView& bias, const TensorView& out) {
  check_pair(stream, x, out);
  CHECK(x.dtype == out.dtype || x.dtype == DType::kF32, "x", x.to_string_shape());
  CHECK(is_vector(stream, bias, x[-1]), "bias", bias.to_string_shape());
  if (out.count() == 0) return;
  stream.ops().pointwise.add_bias(stream, x, bias, out);
}

void silu(Stream& stream, const TensorView& x, const TensorView& out) {
  check_same(stream, x, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.silu(stream, x, out);
}

void tanh(Stream& stream, const TensorView& x, const TensorView& out) {
  check_same(stream, x, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.tanh(stream, x, out);
}

void gelu_tanh(Stream& stream, const TensorView& x, const TensorView& out) {
  check_same(stream, x, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.gelu_tanh(stream, x, out);
}

void gelu_erf(Stream& stream, const TensorView& x, const TensorView& out) {
  check_same(stream, x, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.gelu_erf(stream, x, out);
}

void gelu_quick(Stream& stream, const TensorView& x, const TensorView& out) {
  check_same(stream, x, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.gelu_quick(stream, x, out);
}

void gelu_tanh_mul(Stream& stream, const TensorView& a, const TensorView& b,
                   const TensorView& out) {
  check_same(stream, a, out);
  check_same(stream, b, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.gelu_tanh_mul(stream, a, b, out);
}

void silu_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  check_same(stream, a, out);
  check_same(stream, b, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.silu_mul(stream, a, b, out);
}

void sigmoid_mul(Stream& stream, const TensorView& a, const TensorView& b, const TensorView& out) {
  check_same(stream, a, out);
  check_same(stream, b, out);
  if (out.count() == 0) return;
  stream.ops().pointwise.sigmoid_mul(stream, a, b, out);
}

void axpby(Stream& stream, float a, const TensorView& x, float b, const TensorView& y,
           const TensorView& out) {
  check_same(stream, x, out);
  check_same(stream, y, out);
  CHECK(out.dtype == DType::kF32, "out", out.to_string_shape());
  if (out.count() == 0) return;
  stream.ops().pointwise.axpby(stream, a, x, b, y, out);
}

void combine(Stream& stream, std::span<const Term> terms, const TensorView& out) {
  CHECK(!terms.empty() && terms.size() <= kMaxTerms, "terms", terms.size());
  for (const Term& term : terms) check_same(stream, term.x, out);
  for (const Term& term : terms) CHECK(term.x.contiguous(), "x", term.x.to_string_shape());
  CHECK(out.dtype == DType::kF32 && out.contiguous(), "out", out.to_string_shape());
  if (out.count() == 0) return;
  stream.ops().pointwise.combine(stream, terms, out);
}

void clamp(Stream& stream, const TensorView& x, float low, float high, const TensorView& out) {
  check_same(stream, x, out);
  CHECK(out.dtype == DType::kF32 && x.contiguous() && out.contiguous() && low <= high, "out",
        out.to_string_shape(), "between", low, high);
  if (out.count() == 0) return;
  stream.ops().pointwise.clamp(stream, x, low, high, out);
}

int64_t first_non_finite(Stream& stream, const TensorView& x) {
  CHECK(is_compute(x.dtype) && x.contiguous() && x.device == stream.device(), "x",
        x.to_string_shape());
  if (x.count() == 0) return -1;
  return stream.ops().pointwise.first_non_finite(stream, x);
}

void note_non_finite(Stream& stream, const TensorView& x, const TensorView& slot) {
  CHECK(is_compute(x.dtype) && x.contiguous() && x.device == stream.device(), "x",
        x.to_string_shape());
  CHECK(slot.dtype == DType::kI64 && slot.count() == 1 && slot.device == stream.device(), "slot",
        slot.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().pointwise.note_non_finite(stream, x, slot);
}

}  // namespace weft
