// Implements kernels/cuda/gemm.h in plain loops, in place of cuBLASLt.
#include <algorithm>
#include <cmath>
#include <vector>

#include "kernels/cuda/gemm.h"
#include "kernels/cuda/queue.h"
#include "kernels/fp8.h"
#include "tests/cuda/emulated_libraries.h"
#include "tests/cuda/emulator.h"

namespace weft {

namespace test {
EmulatedLibraries& emulated_libraries() {
  static EmulatedLibraries libraries;
  return libraries;
}
}  // namespace test

namespace cuda {

namespace {

float value_at(const GemmMatrix& matrix, int64_t at) {
  switch (matrix.dtype) {
    case DType::kF32:
      return static_cast<const float*>(matrix.data)[at];
    case DType::kBF16:
      return to_float(static_cast<const bf16*>(matrix.data)[at]);
    case DType::kI8:
      return static_cast<const int8_t*>(matrix.data)[at];
    default:
      return from_e4m3(static_cast<const uint8_t*>(matrix.data)[at]);
  }
}

// Returns rows of a matrix as floats, which hold every 8-bit and 16-bit value.
std::vector<float> values_of(const GemmMatrix& matrix, int64_t batch, int64_t rows, int64_t k) {
  std::vector<float> values(rows * k);
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t l = 0; l < k; ++l)
      values[i * k + l] = value_at(matrix, batch * matrix.batch_stride + i * matrix.row_stride + l);
  return values;
}

// The dot product of 8-bit integers; a float could not hold the sum of many.
int32_t whole_sum(const float* x, const float* w, int64_t k) {
  int32_t sum = 0;
  for (int64_t l = 0; l < k; ++l) sum += static_cast<int32_t>(x[l]) * static_cast<int32_t>(w[l]);
  return sum;
}

// Like tanh.approx.f32: the nearest of the values with 11 significant bits, which is at most 2^-11
// of the value away.
float coarse_tanh(float x) {
  int exponent = 0;
  const float fraction = std::frexp(std::tanh(x), &exponent);
  return std::ldexp(std::nearbyint(fraction * 0x1p11f), exponent - 11);
}

void store(const Gemm& g, int64_t out, int64_t i, int64_t j, float sum) {
  sum *= g.alpha;
  if (g.x_scales) sum *= g.x_scales[g.one_scale ? 0 : i] * g.w_scales[g.one_scale ? 0 : j];
  // cuBLASLt 13 was seen on an H200 to round a sum before it adds a bias or computes GELU.
  if ((g.bias || g.gelu) && g.out.dtype == DType::kBF16) sum = to_float(to_bf16(sum));
  if (g.bias) sum += value_at({const_cast<void*>(g.bias), g.out.dtype}, j);
  if (g.gelu)
    sum = 0.5f * sum * (1 + coarse_tanh(0.7978845608f * (sum + 0.044715f * sum * sum * sum)));
  if (g.out.dtype == DType::kF32)
    static_cast<float*>(g.out.data)[out] = sum + (g.add ? static_cast<float*>(g.out.data)[out] : 0);
  else
    static_cast<bf16*>(g.out.data)[out] = to_bf16(sum);
}

// Computes a few sums at a time, each in order, so that they do not wait for each other.
void compute_gemm(const Gemm& g, int64_t b) {
  constexpr int64_t kTogether = 8;
  const std::vector<float> x = values_of(g.x, b, g.m, g.k), w = values_of(g.w, b, g.n, g.k);
  for (int64_t i = 0; i < g.m; ++i) {
    const float* const row = x.data() + i * g.k;
    const int64_t out = b * g.out.batch_stride + i * g.out.row_stride;
    for (int64_t j = 0; j < g.n; j += kTogether) {
      const int64_t count = std::min(kTogether, g.n - j);
      if (g.out.dtype == DType::kI32) {
        for (int64_t c = 0; c < count; ++c)
          static_cast<int32_t*>(g.out.data)[out + j + c] =
              whole_sum(row, w.data() + (j + c) * g.k, g.k);
        continue;
      }
      float sums[kTogether] = {};
      const float* columns[kTogether];
      for (int64_t c = 0; c < kTogether; ++c)
        columns[c] = w.data() + (j + std::min(c, count - 1)) * g.k;
      for (int64_t l = 0; l < g.k; ++l)
        for (int64_t c = 0; c < kTogether; ++c) sums[c] += row[l] * columns[c][l];
      for (int64_t c = 0; c < count; ++c) store(g, out + j + c, i, j + c, sums[c]);
    }
  }
}

bool aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % 16 == 0; }

void check_contract(const Gemm& g) {
  const DType in = g.x.dtype, out = g.out.dtype;
  CHECK(g.m > 0 && g.n > 0 && g.k > 0 && g.batch > 0, g.m, g.n, g.k, g.batch);
  CHECK(in == g.w.dtype, "x", to_string(in), "w", to_string(g.w.dtype));
  CHECK((in == DType::kF32 && out == DType::kF32) ||
            ((in == DType::kBF16 || in == DType::kF8E4M3) &&
             (out == DType::kBF16 || out == DType::kF32)) ||
            (in == DType::kI8 && out == DType::kI32),
        "in", to_string(in), "out", to_string(out));
  CHECK(out != DType::kI32 || (g.alpha == 1 && !g.bias), "i8 has no epilogue");
  CHECK(!g.x_scales == !g.w_scales && (!g.x_scales || in == DType::kF8E4M3), "scales");
  CHECK(!g.one_scale || g.x_scales, "one scale of none");
  CHECK(g.x.row_stride >= g.k && g.w.row_stride >= g.k && g.out.row_stride >= g.n, "row strides");
  CHECK(!g.bias || aligned(g.bias), "bias");
  CHECK(!g.add || out == DType::kF32, "adds to", to_string(out));
  CHECK(!g.gelu || ((in == DType::kBF16 || g.one_scale) && out == DType::kBF16), "gelu to",
        to_string(out));
}

}  // namespace

bool gemm(const Stream& stream, const Gemm& g) {
  check_contract(g);
  test::EmulatedLibraries& libraries = test::emulated_libraries();
  if (libraries.refuse_gemm) return false;
  if (size_of(g.x.dtype) == 1 &&
      (g.k % 16 || g.n % 16 || g.x.row_stride % 16 || g.w.row_stride % 16 || !aligned(g.x.data) ||
       !aligned(g.w.data) || !aligned(g.out.data) ||
       g.out.row_stride * static_cast<int64_t>(size_of(g.out.dtype)) % 16))
    return false;
  if (g.x.dtype == DType::kF8E4M3 && libraries.refuse_fp8) return false;
  if (g.x_scales && !g.one_scale && libraries.refuse_scales) return false;
  cuda_queue(stream).scratch((g.scratch_used + 255) / 256 * 256 + kGemmWorkspace);
  WEFT_CUDA_CHECK(emulated::submit(cuda_queue(stream).stream(), [g] {
    for (int64_t b = 0; b < g.batch; ++b) compute_gemm(g, b);
  }));
  test::count(libraries.gemms);
  if (g.bias) test::count(libraries.biases);
  return true;
}

std::string gemm_refusal(const Stream&) {
  const test::EmulatedLibraries& libraries = test::emulated_libraries();
  return libraries.refuse_gemm || libraries.refuse_fp8 ? "no kernel, says the test" : "";
}

}  // namespace cuda
}  // namespace weft
