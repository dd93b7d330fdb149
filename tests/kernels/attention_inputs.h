#pragma once
// Attention calls over normally distributed inputs, for the attention tests.
#include <cmath>
#include <vector>

#include "kernels/attention.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {

struct AttentionProblem {
  int64_t queries, heads, kv_heads, e;
  std::vector<int64_t> keys;  // per segment
  bool causal = false, bias = false;
  int64_t query_position = 0;
  double magnitude = 1;
};

// Owns the tensors of one call.
struct AttentionInputs {
  Tensor q, out, lse, bias;
  std::vector<Tensor> k, v;
  std::vector<KVSegment> segments;

  AttentionInputs(const AttentionProblem& p, DType dtype) {
    q = make_normal(dtype, {p.queries, p.heads, p.e}, 31, p.magnitude);
    out = make_normal(dtype, {p.queries, p.heads, p.e}, 32);
    lse = Tensor(DType::kF32, {p.heads, p.queries});
    int64_t position = 0;
    uint32_t seed = 33;
    for (int64_t n : p.keys) {
      k.push_back(make_normal(dtype, {n, p.kv_heads, p.e}, seed++));
      v.push_back(make_normal(dtype, {n, p.kv_heads, p.e}, seed++));
      segments.push_back({.k = k.back(), .v = v.back(), .position = position});
      position += n;
    }
    if (p.bias) bias = make_normal(DType::kF32, {p.heads, p.queries, position}, 99, 2);
  }
  AttentionArgs args(const AttentionProblem& p) {
    return {.q = q,
            .segments = segments,
            .bias = p.bias ? bias.view() : TensorView(),
            .scale = static_cast<float>(1 / std::sqrt(p.e)),
            .causal = p.causal,
            .query_position = p.query_position,
            .out = out,
            .lse = lse};
  }
};

}  // namespace weft::test
