#pragma once
// Helpers of the reference implementations.
#include "kernels/linear.h"
#include "kernels/tensor.h"

namespace weft::cpu {

// Returns the sum of a[i] * b[i] in f64, in four chains, so that an addition does not wait for the
// previous one.
template <class A, class B>
double dot(const A* a, const B* b, int64_t n) {
  double sum[4] = {0, 0, 0, 0};
  int64_t i = 0;
  for (; i + 4 <= n; i += 4)
    for (int lane = 0; lane < 4; ++lane)
      sum[lane] += static_cast<double>(to_float(a[i + lane])) * to_float(b[i + lane]);
  for (; i < n; ++i) sum[0] += static_cast<double>(to_float(a[i])) * to_float(b[i]);
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// silu_exact() is x sigmoid(x), gelu_tanh_exact() the tanh form of GELU (Hendrycks & Gimpel 2016),
// both in f64.
double silu_exact(double x);
double gelu_tanh_exact(double x);

// The weights in their own layout, or with the taps of a convolution first.
struct PlainWeights : PackedStorage {
  Tensor weight;
  void for_buffers(const BufferVisitor& visit) override { visit(weight); }
};

inline double activate_exact(double x, LinearActivation activation) {
  if (activation == LinearActivation::kGeluTanh) return gelu_tanh_exact(x);
  if (activation == LinearActivation::kSilu) return silu_exact(x);
  return x;
}

}  // namespace weft::cpu
