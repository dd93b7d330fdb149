#include "kernels/norm.h"

#include "kernels/meter.h"
#include "kernels/ops.h"
#include "kernels/pointwise.h"
#include "kernels/view_checks.h"

namespace weft {

namespace {
enum class Out : uint8_t { kLikeX, kOrBF16 };
void check_alike(const TensorView& x, const TensorView& out, bool rows, Out dtype) {
  CHECK(rows && same_shape(x, out) &&
            (x.dtype == out.dtype || (dtype == Out::kOrBF16 && x.dtype == DType::kF32)),
        "x", x.to_string_shape(), "out", out.to_string_shape());
}
void check_rows(const Stream& stream, const TensorView& x, const TensorView& out,
                Out dtype = Out::kLikeX) {
  check_alike(x, out, is_rows(stream, x) && is_rows(stream, out), dtype);
}
}  // namespace

void layer_norm(Stream& stream, const TensorView& x, const TensorView& weight,
                const TensorView& bias, float eps, const TensorView& out) {
  check_rows(stream, x, out, Out::kOrBF16);
  CHECK(!weight || is_vector(stream, weight, x[-1]), "weight", weight.to_string_shape());
  CHECK(!bias || is_vector(stream, bias, x[-1]), "bias", bias.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().norm.layer_norm(stream, x, weight, bias, eps, out);
}

void modulated_layer_norm(Stream& stream, const TensorView& x, const TensorView& scale,
                          const TensorView& shift, float eps, const TensorView& out) {
  check_rows(stream, x, out, Out::kOrBF16);
  CHECK(is_vector(stream, scale, x[-1]), "scale", scale.to_string_shape());
  CHECK(is_vector(stream, shift, x[-1]), "shift", shift.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().norm.modulated_layer_norm(stream, x, scale, shift, eps, out);
}

void gated_add_norm(Stream& stream, const TensorView& sum, const TensorView& y,
                    const TensorView& gate, const LayerNorm& norm, const TensorView& out) {
  const auto& [weight, bias, eps, modulated] = norm;
  if (!computes_on_device(stream)) {
    gated_add(stream, sum, y, gate, sum);
    return modulated ? modulated_layer_norm(stream, sum, weight, bias, eps, out)
                     : layer_norm(stream, sum, weight, bias, eps, out);
  }
  check_rows(stream, sum, out, Out::kOrBF16);
  check_rows(stream, sum, y);
  CHECK(sum.dtype == DType::kF32 && is_vector(stream, gate, sum[-1]), "gate",
        gate.to_string_shape());
  for (const TensorView& vector : {weight, bias})
    CHECK(vector ? is_vector(stream, vector, sum[-1]) : !modulated, "norm",
          vector.to_string_shape());
  if (sum.count() == 0) return;
  stream.ops().fused.gated_add_norm(stream, sum, y, gate, norm, out);
}

void rms_norm(Stream& stream, const TensorView& x, const TensorView& weight, float eps,
              const TensorView& out) {
  const auto rows = [&](const TensorView& view) {
    return is_rows(stream, view) || is_heads(stream, view);
  };
  check_alike(x, out, rows(x) && rows(out), Out::kOrBF16);
  CHECK(is_vector(stream, weight, x[-1]), "weight", weight.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().norm.rms_norm(stream, x, weight, eps, out);
}

void sum_squares(Stream& stream, const TensorView& x, const TensorView& sums) {
  CHECK(x.rank == 2 && is_rows(stream, x), "x", x.to_string_shape());
  CHECK(is_vector(stream, sums, x[0]), "sums", sums.to_string_shape());
  if (x[0] == 0) return;
  CHECK(x[1] > 0, "x", x.to_string_shape());
  stream.ops().norm.sum_squares(stream, x, sums);
}

void rms_scale(Stream& stream, const TensorView& x, const TensorView& sums, int64_t width,
               const TensorView& weight, float eps, const TensorView& out) {
  check_rows(stream, x, out);
  CHECK(x.rank == 2 && width >= x[1], "x", x.to_string_shape(), "width", width);
  CHECK(is_vector(stream, sums, x[0]), "sums", sums.to_string_shape());
  CHECK(is_vector(stream, weight, x[1]), "weight", weight.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().norm.rms_scale(stream, x, sums, width, weight, eps, out);
}

void channel_rms_norm(Stream& stream, const TensorView& x, const TensorView& gamma,
                      Activation activation, const TensorView& out) {
  check_rows(stream, x, out);
  CHECK(is_vector(stream, gamma, x[-1]), "gamma", gamma.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().norm.channel_rms_norm(stream, x, gamma, activation, out);
}

namespace {
// Returns the number of groups.
int64_t check_groups(const Stream& stream, const TensorView& x, const TensorView& sums) {
  CHECK(x.rank == 2 && is_rows(stream, x), "x", x.to_string_shape());
  const int64_t groups = sums.rank == 1 ? sums[0] - 1 : 0;
  CHECK(groups > 0 && is_vector(stream, sums, groups + 1) && x[1] > 0 && x[1] % groups == 0, "sums",
        sums.to_string_shape(), "of x", x.to_string_shape());
  return groups;
}
}  // namespace

void group_sums(Stream& stream, const TensorView& x, const TensorView& sums) {
  check_groups(stream, x, sums);
  CHECK(x[0] > 0, "x", x.to_string_shape());
  stream.ops().norm.group_sums(stream, x, sums);
}

void group_squares(Stream& stream, const TensorView& x, const TensorView& sums,
                   const TensorView& squares) {
  const int64_t groups = check_groups(stream, x, sums);
  CHECK(x[0] > 0 && is_vector(stream, squares, groups), "squares", squares.to_string_shape());
  stream.ops().norm.group_squares(stream, x, sums, squares);
}

void group_norm(Stream& stream, const TensorView& x, const TensorView& sums,
                const TensorView& squares, const TensorView& weight, const TensorView& bias,
                float eps, Activation activation, const TensorView& out) {
  check_rows(stream, x, out);
  const int64_t groups = check_groups(stream, x, sums);
  CHECK(is_vector(stream, squares, groups), "squares", squares.to_string_shape());
  CHECK(is_vector(stream, weight, x[1]) && is_vector(stream, bias, x[1]), "weight",
        weight.to_string_shape(), "bias", bias.to_string_shape());
  if (x.count() == 0) return;
  stream.ops().norm.group_norm(stream, x, sums, squares, weight, bias, eps, activation, out);
}

}  // namespace weft
