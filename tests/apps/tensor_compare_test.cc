#include "apps/tensor_compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace weft {
namespace {

Tensor row(std::vector<float> values) {
  Tensor tensor(DType::kF32, {static_cast<int64_t>(values.size())});
  std::copy(values.begin(), values.end(), tensor.as<float>());
  return tensor;
}

TEST(TensorCompare, NumbersAreWhatTheirNamesSay) {
  const Comparison c = compare(row({3, 4.5}), row({3, 4}));
  EXPECT_DOUBLE_EQ(c.rel_l2, 0.5 / 5);
  EXPECT_DOUBLE_EQ(c.max_abs, 0.5);
  EXPECT_EQ(c.worst, "[1]");
  EXPECT_NEAR(c.cosine, (9 + 18) / (5 * std::hypot(3, 4.5)), 1e-12);
}

TEST(TensorCompare, OffsetIsTakenFromBoth) {
  EXPECT_DOUBLE_EQ(compare(row({1.0f, 0.5f}), row({0.75f, 0.5f}), 0.5).rel_l2, 1.0);
}

TEST(TensorCompare, NonFiniteIsSeen) {
  EXPECT_FALSE(compare(row({std::numeric_limits<float>::quiet_NaN()}), row({1})).finite);
  EXPECT_FALSE(compare(row({std::numeric_limits<float>::infinity()}), row({1})).finite);
}

TEST(TensorCompare, ZeroReference) {
  EXPECT_DOUBLE_EQ(compare(row({0, 0}), row({0, 0})).rel_l2, 0);
  EXPECT_DOUBLE_EQ(compare(row({3, 4}), row({0, 0})).rel_l2, 5);
}

}  // namespace
}  // namespace weft
