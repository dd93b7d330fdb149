#pragma once
// The choice of the next token from its logits.
#include <cstdint>
#include <span>

namespace weft {

struct TokenSampling {
  double temperature = 0;  // 0: the most likely token
  double top_p = 1;        // of the likeliest tokens, as many as together reach it
  int top_k = 0;           // 0: all
  uint64_t seed = 0;

  // Error(kUsage) that names the field, its value and what is legal.
  void check() const;
};

// The token at `position` of request `request`. What is drawn belongs to (seed, request, position)
// alone (one word of Philox4x32-10), not to the batch or the layout. Ties go to the lower id.
// Softmax and sums are f64. A logit that is not finite throws Error(kNonFinite).
int32_t choose_token(std::span<const float> logits, const TokenSampling& sampling, uint32_t request,
                     uint32_t position);

}  // namespace weft
