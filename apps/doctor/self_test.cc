#include "apps/doctor/self_test.h"

#include <functional>

#include "apps/tensor_compare.h"

namespace weft {
namespace {

// Values in [-0.5, 0.5), the same for every table.
Tensor filled(DType dtype, std::initializer_list<int64_t> shape, uint32_t seed) {
  Tensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.count(); ++i) {
    seed = seed * 1664525u + 1013904223u;  // Numerical Recipes' generator: any values will do
    const float value = static_cast<float>(seed >> 8) * 0x1p-24f - 0.5f;
    visit_dtype(dtype, [&]<class T>(T) {
      if constexpr (std::is_same_v<T, float>)
        tensor.as<float>()[i] = value;
      else
        tensor.as<bf16>()[i] = to_bf16(value);
    });
  }
  return tensor;
}

// Runs an op of both tables and compares the results.
struct Bench {
  Stream measured, expected;
  DType dtype;
  std::vector<OpCheck> checks;

  void check(const char* family, const char* op, const Tensor& like,
             const std::function<void(Stream&, const Tensor& out)>& work) {
    const TensorView shape = like;
    const Tensor a(shape.dtype, shape.shape()), b(shape.dtype, shape.shape());
    work(measured, a);
    work(expected, b);
    const bool exact = std::string(family) == "copy";
    checks.push_back({.family = family,
                      .op = op,
                      .dtype = dtype,
                      .error = compare(a, b).rel_l2,
                      .bound = exact                  ? 0
                               : dtype == DType::kF32 ? 4.5e-5
                                                      : 4.5e-3});
  }
};

// Odd extents, so that main loops and tails both run.
void check_rows(Bench& bench) {
  const DType dtype = bench.dtype;
  const Tensor x = filled(dtype, {37, 100}, 1), y = filled(dtype, {37, 100}, 2);
  const Tensor scale = filled(DType::kF32, {100}, 3), shift = filled(DType::kF32, {100}, 4);
  bench.check("norm", "modulated_layer_norm", x, [&](Stream& stream, const Tensor& out) {
    modulated_layer_norm(stream, x, scale, shift, 1e-6f, out);
  });
  bench.check("norm", "rms_norm", x,
              [&](Stream& stream, const Tensor& out) { rms_norm(stream, x, scale, 1e-6f, out); });
  bench.check("pointwise", "gated_add", x,
              [&](Stream& stream, const Tensor& out) { gated_add(stream, x, y, scale, out); });
  bench.check("pointwise", "gelu_tanh", x,
              [&](Stream& stream, const Tensor& out) { gelu_tanh(stream, x, out); });
  bench.check("copy", "copy", filled(DType::kF32, {100, 37}, 0),
              [&](Stream& stream, const Tensor& out) {
                copy(stream, x.view().permute({1, 0}), out);
              });
  const Tensor weight = filled(dtype, {130, 100}, 5), bias = filled(DType::kF32, {130}, 6);
  bench.check("linear", "linear", filled(dtype, {37, 130}, 0),
              [&](Stream& stream, const Tensor& out) {
                const PackedLinear packed = pack_linear(stream, weight, bias, dtype);
                linear(stream, x, packed, LinearActivation::kNone, out);
              });
}

void check_tokens(Bench& bench) {
  const DType dtype = bench.dtype;
  const Tensor q = filled(dtype, {30, 2, 64}, 7), k = filled(dtype, {41, 2, 64}, 8),
               v = filled(dtype, {41, 2, 64}, 9);
  bench.check("attention", "attention", q, [&](Stream& stream, const Tensor& out) {
    const KVSegment segment{.k = k, .v = v};
    attention(stream, {.q = q, .segments = {&segment, 1}, .scale = 0.125f, .out = out});
  });
  const Rope rope = make_rope({2, 3, 5}, {0, 0, 0}, 64);
  bench.check("rope", "apply_rope", q,
              [&](Stream& stream, const Tensor& out) { apply_rope(stream, q, rope, 0, out); });
  const Tensor picture = filled(dtype, {3, 9, 7, 20}, 10);
  const Tensor weight = filled(dtype, {12, 20, 3, 3, 3}, 11), bias = filled(DType::kF32, {12}, 12);
  bench.check(
      "conv", "conv3d", filled(dtype, {3, 9, 7, 12}, 0), [&](Stream& stream, const Tensor& out) {
        const PackedConv packed = pack_conv(stream, weight, bias, dtype);
        const ConvArgs args{.stride = {1, 1, 1}, .pad_front = 2, .pad_h = {1, 1}, .pad_w = {1, 1}};
        conv3d(stream, picture, packed, args, out);
      });
}

}  // namespace

std::vector<OpCheck> self_test(const Ops& ops, const Ops& reference) {
  std::vector<OpCheck> all;
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Bench bench{.measured = Stream::cpu(1, Determinism::kFast, &ops),
                .expected = Stream::cpu(1, Determinism::kFast, &reference),
                .dtype = dtype,
                .checks = {}};
    check_rows(bench);
    check_tokens(bench);
    all.insert(all.end(), bench.checks.begin(), bench.checks.end());
  }
  return all;
}

}  // namespace weft
