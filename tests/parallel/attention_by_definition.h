#pragma once
// Rotary positions and softmax in f64, as the definitions of attention in these tests read them.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

namespace weft {

// One head of one row [head_dim], turned to the position (frame, row, column) in f64.
inline std::vector<double> turned_head(const float* x, int64_t head_dim,
                                       const std::array<double, 3>& position) {
  const int64_t side = head_dim / 6, pairs[3] = {head_dim / 2 - 2 * side, side, side};
  std::vector<double> out;
  for (int axis = 0; axis < 3; ++axis)
    for (int64_t j = 0; j < pairs[axis]; ++j, x += 2) {
      const double angle =
          position[axis] * std::pow(10000.0, -static_cast<double>(j) / pairs[axis]);
      out.push_back(x[0] * std::cos(angle) - x[1] * std::sin(angle));
      out.push_back(x[0] * std::sin(angle) + x[1] * std::cos(angle));
    }
  return out;
}

// out [head_dim] = the mean of the values [head_dim], weighted by the softmax of the logits, in
// f64.
inline void softmax_mean(const std::vector<double>& logits, const std::vector<const float*>& values,
                         int64_t head_dim, float* out) {
  const double top = *std::ranges::max_element(logits);
  double total = 0;
  std::vector<double> sum(head_dim);
  for (size_t key = 0; key < logits.size(); ++key) {
    const double p = std::exp(logits[key] - top);
    total += p;
    for (int64_t i = 0; i < head_dim; ++i) sum[i] += p * values[key][i];
  }
  for (int64_t i = 0; i < head_dim; ++i) out[i] = static_cast<float>(sum[i] / total);
}

}  // namespace weft
