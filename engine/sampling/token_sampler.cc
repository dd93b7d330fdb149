#include "engine/sampling/token_sampler.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <numeric>
#include <string>
#include <vector>

#include "kernels/check.h"
#include "kernels/philox.h"

namespace weft {

namespace {

constexpr uint32_t kTokenStream = 0x30000000u;  // differs from the streams of noise

// Draws a uniform number in (0, 1) with 32 random bits.
double uniform(uint64_t seed, uint32_t request, uint32_t position) {
  const PhiloxCounter bits =
      philox4x32_10({position, request, kTokenStream, 0},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)});
  return (bits[0] + 0.5) * 0x1p-32;
}

struct Likelier {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    return logits[a] != logits[b] ? logits[a] > logits[b] : a < b;
  }
};

// Reduces `kept` to the fewest likeliest tokens whose weights add up to `enough`, in falling order,
// and returns the sum of their weights. Usually few tokens are enough, so only those are sorted.
template <class Weight>
double keep_likeliest(std::span<const float> logits, const Weight& weight, double enough,
                      std::vector<int32_t>& kept) {
  const auto all = static_cast<int64_t>(kept.size());
  double sum = 0;
  for (int64_t sorted = 0, count = 0; sorted < all;) {
    const int64_t next = std::min(all, std::max<int64_t>(256, 8 * sorted));
    if (next < all)
      std::nth_element(kept.begin() + sorted, kept.begin() + next, kept.end(), Likelier{logits});
    std::sort(kept.begin() + sorted, kept.begin() + next, Likelier{logits});
    for (sorted = next; count < sorted;) {
      sum += weight(kept[count++]);
      if (sum < enough) continue;
      kept.resize(count);
      return sum;
    }
  }
  return sum;
}

// The largest logit, or NaN where one is not finite: x - x is 0 for every finite x. Several lanes
// leave no chain of comparisons to wait for.
float largest(std::span<const float> logits) {
  constexpr size_t kLanes = 16;
  std::array<float, kLanes> most, lost{};
  most.fill(logits[0]);
  size_t i = 0;
  for (; i + kLanes <= logits.size(); i += kLanes)
    for (size_t lane = 0; lane < kLanes; ++lane) {
      const float x = logits[i + lane];
      most[lane] = x > most[lane] ? x : most[lane];
      lost[lane] += x - x;
    }
  for (; i < logits.size(); ++i) {
    most[0] = std::max(most[0], logits[i]);
    lost[0] += logits[i] - logits[i];
  }
  return std::ranges::max(most) + std::accumulate(lost.begin(), lost.end(), 0.0f);
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
  const float most = largest(logits);
  for (size_t i = 0; std::isnan(most) && i < logits.size(); ++i)
    if (!std::isfinite(logits[i]))
      throw Error(ErrorKind::kNonFinite, "the logit of token " + std::to_string(i) +
                                             " at position " + std::to_string(position) +
                                             " is not finite");
  const auto best = std::ranges::find(logits, most) - logits.begin();
  if (sampling.temperature == 0) return static_cast<int32_t>(best);

  const auto weight = [&](int32_t id) {
    return std::exp((static_cast<double>(logits[id]) - logits[best]) / sampling.temperature);
  };
  // Together the others weigh less than 2^-33 of the likeliest, and a draw has 32 bits.
  const double reach = std::log(static_cast<double>(logits.size())) + 33 * std::numbers::ln2;
  const auto least = static_cast<float>(most - reach * sampling.temperature);
  std::vector<int32_t> kept(logits.size());
  size_t count = 0;
  for (size_t i = 0; i < logits.size(); ++i) {  // no branch: which tokens stay is hard to predict
    kept[count] = static_cast<int32_t>(i);
    count += logits[i] >= least;
  }
  kept.resize(count);
  double all = 0;
  if (sampling.top_k > 0 && sampling.top_k < static_cast<int64_t>(kept.size())) {
    std::nth_element(kept.begin(), kept.begin() + sampling.top_k, kept.end(), Likelier{logits});
    kept.resize(sampling.top_k);
    std::sort(kept.begin(), kept.end());
  }
  for (int32_t id : kept) all += weight(id);
  double sum = all;
  if (sampling.top_p < 1) sum = keep_likeliest(logits, weight, sampling.top_p * all, kept);
  double left = uniform(sampling.seed, request, position) * sum;
  for (size_t i = 0; i + 1 < kept.size(); ++i) {
    left -= weight(kept[i]);
    if (left < 0) return kept[i];
  }
  return kept.back();
}

}  // namespace weft
