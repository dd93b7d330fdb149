#include "engine/token_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/philox.h"

namespace weft {

namespace {

constexpr uint32_t kTokenStream = 0x30000000u;  // apart from the streams of noise

// Uniform in (0, 1), of 32 bits.
double uniform(uint64_t seed, uint32_t request, uint32_t position) {
  const PhiloxCounter bits =
      philox4x32_10({position, request, kTokenStream, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (bits[0] + 0.5) * 0x1p-32;
}

[[noreturn]] void refuse(const char* field, double value, const char* legal) {
  throw Error(ErrorKind::kUsage,
              std::string(field) + " is " + std::to_string(value) + ", legal: " + legal);
}

}  // namespace

void TokenSampling::check() const {
  if (!(temperature >= 0) || !std::isfinite(temperature))
    refuse("temperature", temperature, "a finite number of at least 0");
  if (!(top_p > 0 && top_p <= 1)) refuse("top-p", top_p, "above 0, at most 1");
  if (top_k < 0) refuse("top-k", top_k, "a whole number of at least 0");
}

int32_t choose_token(std::span<const float> logits, const TokenSampling& sampling, uint32_t request,
                     uint32_t position) {
  CHECK(!logits.empty(), "no logits");
  for (size_t i = 0; i < logits.size(); ++i)
    if (!std::isfinite(logits[i]))
      throw Error(ErrorKind::kNonFinite, "the logit of token " + std::to_string(i) +
                                             " at position " + std::to_string(position) +
                                             " is not finite");
  const auto best = std::ranges::max_element(logits) - logits.begin();
  if (sampling.temperature == 0) return static_cast<int32_t>(best);

  std::vector<int32_t> order(logits.size());
  std::iota(order.begin(), order.end(), 0);
  const auto likelier = [&](int32_t a, int32_t b) {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  };
  if (sampling.top_k > 0 && sampling.top_k < static_cast<int>(order.size())) {
    std::nth_element(order.begin(), order.begin() + sampling.top_k, order.end(), likelier);
    order.resize(sampling.top_k);
  }
  std::sort(order.begin(), order.end(), likelier);
  std::vector<double> weight(order.size());
  for (size_t i = 0; i < order.size(); ++i)
    weight[i] =
        std::exp((static_cast<double>(logits[order[i]]) - logits[best]) / sampling.temperature);
  const double all = std::accumulate(weight.begin(), weight.end(), 0.0);
  size_t kept = 0;
  double sum = 0;
  while (kept < weight.size() && (kept == 0 || sum < sampling.top_p * all)) sum += weight[kept++];
  double left = uniform(sampling.seed, request, position) * sum;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= weight[i];
    if (left < 0) return order[i];
  }
  return order[kept - 1];
}

}  // namespace weft
