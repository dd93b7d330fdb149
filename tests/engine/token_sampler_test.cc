// Draws follow the softmax and depend on (seed, request, position). Logits that cannot be sampled
// are refused.
#include "engine/sampling/token_sampler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

const std::vector<float> kLogits{1.5f, -2.0f, 3.0f, 0.0f, 3.0f, 2.25f, -8.0f};

std::map<int32_t, double> shares(std::span<const float> logits, const TokenSampling& sampling,
                                 int draws = 40000) {
  std::map<int32_t, double> counts;
  for (int i = 0; i < draws; ++i)
    ++counts[choose_token(logits, sampling, 1, static_cast<uint32_t>(i))];
  for (auto& [id, count] : counts) count /= draws;
  return counts;
}

// The softmax of the logits over `kept` ids.
std::map<int32_t, double> softmax(std::span<const float> logits, double temperature,
                                  const std::vector<int32_t>& kept) {
  std::map<int32_t, double> weights;
  double sum = 0;
  for (int32_t id : kept) sum += weights[id] = std::exp(logits[id] / temperature);
  for (auto& [id, weight] : weights) weight /= sum;
  return weights;
}

void expect_shares(const std::map<int32_t, double>& drawn, const std::map<int32_t, double>& exact,
                   int draws = 40000) {
  for (const auto& [id, share] : drawn) EXPECT_TRUE(exact.count(id)) << "drew " << id;
  for (const auto& [id, share] : exact) {
    const double sigma = std::sqrt(share * (1 - share) / draws);
    const auto found = drawn.find(id);
    EXPECT_NEAR(found == drawn.end() ? 0 : found->second, share, 5 * sigma + 1e-12) << id;
  }
}

TEST(TokenSampler, GreedyTakesTheFirstOfTheBest) {
  EXPECT_EQ(choose_token(kLogits, {}, 0, 0), 2);
  EXPECT_EQ(choose_token(std::vector<float>{5.0f}, {}, 0, 0), 0);
}

TEST(TokenSampler, FollowsTheSoftmax) {
  for (const double temperature : {0.5, 1.0, 3.0})
    expect_shares(shares(kLogits, {.temperature = temperature, .seed = 3}),
                  softmax(kLogits, temperature, {0, 1, 2, 3, 4, 5, 6}));
}

TEST(TokenSampler, KeepsTheLikeliest) {
  // At temperature 1 the ids 2 and 4 have 0.36 each and 5 has 0.17.
  expect_shares(shares(kLogits, {.temperature = 1, .top_k = 3}), softmax(kLogits, 1, {2, 4, 5}));
  expect_shares(shares(kLogits, {.temperature = 1, .top_k = 1}), {{2, 1.0}});
  expect_shares(shares(kLogits, {.temperature = 1, .top_k = 99}),
                softmax(kLogits, 1, {0, 1, 2, 3, 4, 5, 6}));
  expect_shares(shares(kLogits, {.temperature = 1, .top_p = 1e-9}), {{2, 1.0}});
  expect_shares(shares(kLogits, {.temperature = 1, .top_p = 0.5}), softmax(kLogits, 1, {2, 4}));
  expect_shares(shares(kLogits, {.temperature = 1, .top_p = 0.8}), softmax(kLogits, 1, {2, 4, 5}));
  // top_p applies to the tokens that top_k keeps.
  expect_shares(shares(kLogits, {.temperature = 1, .top_p = 0.8, .top_k = 2}),
                softmax(kLogits, 1, {2, 4}));
}

// There are more tokens than are sorted at once, and nearly all of them are kept.
TEST(TokenSampler, KeepsTheLikeliestOfManyEqualOnes) {
  std::vector<float> logits(5000, 0.25f);
  logits[4321] = 0.5f;
  const TokenSampling sampling{.temperature = 1, .top_p = 0.9};
  int low = 0, drawn = 0;
  for (uint32_t i = 0; i < 3000; ++i) {
    const int32_t id = choose_token(logits, sampling, 0, i);
    drawn += id == 4321;
    low += id < 2500;
    EXPECT_TRUE(id == 4321 || id < 4501) << "equal ones are kept from the lowest id on";
  }
  EXPECT_LT(drawn, 20);
  EXPECT_NEAR(low / 3000.0, 2500.0 / 4500, 0.05);
}

TEST(TokenSampler, BelongsToSeedRequestAndPosition) {
  const TokenSampling sampling{.temperature = 1, .seed = 1};
  const auto drawn = [&](uint64_t seed, uint32_t request) {
    std::vector<int32_t> ids;
    TokenSampling one = sampling;
    one.seed = seed;
    for (uint32_t position = 0; position < 64; ++position)
      ids.push_back(choose_token(kLogits, one, request, position));
    return ids;
  };
  EXPECT_EQ(drawn(1, 0), drawn(1, 0));
  EXPECT_NE(drawn(1, 0), drawn(2, 0));
  EXPECT_NE(drawn(1, 0), drawn(1, 1));
  EXPECT_NE(drawn(1, 0), drawn(uint64_t{1} << 32 | 1, 0));
}

TEST(TokenSampler, TinyTemperaturesAreGreedy) {
  const std::vector<float> logits{1.0f, 1.0001f, 0.0f};
  EXPECT_EQ(choose_token(logits, {.temperature = std::numeric_limits<double>::denorm_min()}, 0, 0),
            1);
  EXPECT_EQ(choose_token(logits, {.temperature = 1e-9}, 0, 7), 1);
}

TEST(TokenSampler, RefusesWhatCannotBe) {
  for (const float bad :
       {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    std::vector<float> logits = kLogits;
    logits[4] = bad;
    expect_error(ErrorKind::kNonFinite, "token 4 at position 17",
                 [&] { choose_token(logits, {}, 0, 17); });
  }
  const auto refused = [](const TokenSampling& sampling) {
    return error_of([&] { sampling.check(); });
  };
  EXPECT_TRUE(contains(refused({.temperature = -0.5}), "temperature is -0.5"));
  EXPECT_TRUE(contains(refused({.temperature = std::nan("")}), "temperature"));
  EXPECT_TRUE(contains(refused({.top_p = 0}), "top-p is 0"));
  EXPECT_TRUE(contains(refused({.top_p = 1.5}), "top-p is 1.5"));
  EXPECT_TRUE(contains(refused({.top_k = -1}), "top-k is -1"));
  EXPECT_EQ(refused({.temperature = 2, .top_p = 1, .top_k = 3}), "");
}

}  // namespace
}  // namespace weft::test
