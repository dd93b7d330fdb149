#pragma once
// Samples the next token from its logits.
#include <cstdint>
#include <span>

namespace weft {

struct TokenSampling {
  double temperature = 0;  // 0: the most likely token
  double top_p = 1;        // keep the likeliest tokens whose probabilities add up to it
  int top_k = 0;           // 0: all
  uint64_t seed = 0;

  // Throws Error(kUsage) that names the field, its value and the legal values.
  void check() const;
};

// Chooses the token at `position` of request `request`. The random number (32 bits of
// Philox4x32-10) depends on (seed, request, position) alone, not on the batch or the layout. Ties
// go to the lower id. Softmax and sums are f64. A logit that is not finite throws
// Error(kNonFinite).
int32_t choose_token(std::span<const float> logits, const TokenSampling& sampling, uint32_t request,
                     uint32_t position);

}  // namespace weft
