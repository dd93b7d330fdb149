#pragma once
// The numeric policy. Every test takes its bound from here.
//
//   movement, packing, exchange, slicing, noise    bitwise_equal
//   f32 op vs f64 evaluation                        kUnit32 x (terms in sequence + log2 lanes) x
//   sum
//                                                   of absolute terms, per output: sum_bound()
//   bf16 op vs f64 on the same bf16 inputs          the line above plus one bf16 rounding: within()
//                                                   adds it
//   any op, all outputs together                    similar(): similarity_error below kSimilarity32
//                                                   or kSimilarityBf16
//   attention merged of parts vs one part           similarity_error below kSimilarityMerge
//   exact parallel methods vs one rank, f32         relative_l2 below kParallelL2
//   golden per tensor                               the relative L2 bound in the case file
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "kernels/tensor.h"

namespace weft::test {

// Unit roundoff: the largest relative error of one rounding to nearest.
inline constexpr double kUnit32 = 0x1p-24;
inline constexpr double kUnitBf16 = 0x1p-8;

// An error of r relative to the norm is a similarity error of r^2 / 2. bf16: one rounding is at
// most 2^-8, so 7.6e-6. f32: 4.5e-5, 750 roundings that all point the same way.
inline constexpr double kSimilarityBf16 = 1e-5;
inline constexpr double kSimilarity32 = 1e-9;
inline constexpr double kSimilarityMerge = 1e-9;
inline constexpr double kParallelL2 = 1e-5;

// Vectors have at least this many f32 lanes on any machine.
inline constexpr int64_t kMinLanes = 4;

// Bound of an f32 sum of n terms kept in kMinLanes partial sums; `sum_abs` is the sum of |terms|.
inline double sum_bound(int64_t n, double sum_abs) {
  return kUnit32 * (std::ceil(static_cast<double>(n) / kMinLanes) + 2) * sum_abs;
}

// Bound of an f32 sum of n products accumulated one after the other (GEMM, convolution).
inline double chain_bound(int64_t n, double sum_abs) { return kUnit32 * (n + 1.0) * sum_abs; }

// The exact value of an output and how far f32 arithmetic may be from it.
struct Bounded {
  double value = 0, bound = 0;
};

// Returns the elements in row-major order as f64, from a view of f32, bf16 or f64 with any strides.
inline std::vector<double> to_f64(const TensorView& view) {
  std::vector<double> out;
  const int64_t n = view.count();
  out.reserve(n);
  for (int64_t i = 0; i < n; ++i) {
    int64_t offset = 0, rest = i;
    for (int dim = view.rank - 1; dim >= 0; --dim) {
      offset += rest % view.extent[dim] * view.stride[dim];
      rest /= view.extent[dim];
    }
    if (view.dtype == DType::kF64)
      out.push_back(view.as<double>()[offset]);
    else if (view.dtype == DType::kF32)
      out.push_back(view.as<float>()[offset]);
    else
      out.push_back(to_float(view.as<bf16>()[offset]));
  }
  return out;
}

// "[1, 0, 7]": the coordinate of row-major element i.
inline std::string coordinate(const TensorView& view, int64_t i) {
  std::string text;
  for (int dim = view.rank - 1; dim >= 0; --dim) {
    text = std::to_string(i % view.extent[dim]) + (text.empty() ? "" : ", ") + text;
    i /= view.extent[dim];
  }
  return "[" + text + "]";
}

inline double relative_l2(std::span<const double> measured, std::span<const double> expected) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    difference += (measured[i] - expected[i]) * (measured[i] - expected[i]);
    norm += expected[i] * expected[i];
  }
  return norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
}

// 1 - 2 <x, y> / (<x, x> + <y, y>), in the form that does not cancel; 0 for two zero vectors.
inline double similarity_error(std::span<const double> x, std::span<const double> y) {
  double difference = 0, norms = 0;
  for (size_t i = 0; i < y.size(); ++i) {
    difference += (x[i] - y[i]) * (x[i] - y[i]);
    norms += x[i] * x[i] + y[i] * y[i];
  }
  return norms > 0 ? difference / norms : 0;
}

// The largest error of one rounding to `dtype`, including subnormal steps.
inline double rounding(DType dtype, double value) {
  constexpr double kSmallestF32 = 0x1p-149, kSmallestBf16 = 0x1p-133;
  return dtype == DType::kBF16 ? kUnitBf16 * std::fabs(value) + kSmallestBf16
                               : kUnit32 * std::fabs(value) + kSmallestF32;
}

// Records the largest ratio of error to bound over the comparisons of one op. The destructor prints
// it, so that a reader can judge the bound: a ratio far below 0.1 everywhere means that it is
// loose.
class BoundReport {
 public:
  explicit BoundReport(std::string name) : name_(std::move(name)) {}
  ~BoundReport() {
    std::printf("[   bound  ] %s: %ld values, worst %.3g of its bound%s%s\n", name_.c_str(),
                static_cast<long>(values_), worst_, where_.empty() ? "" : " at ", where_.c_str());
  }
  BoundReport(const BoundReport&) = delete;
  BoundReport& operator=(const BoundReport&) = delete;
  void add(double ratio, const std::string& where) {
    if (ratio > worst_) {
      worst_ = ratio;
      where_ = where;
    }
  }
  void count(int64_t values) { values_ += values; }

 private:
  std::string name_, where_;
  double worst_ = 0;
  int64_t values_ = 0;
};

// Checks that every element of `out` is within bound + one rounding to its dtype of its exact
// value.
inline ::testing::AssertionResult within(const TensorView& out, std::span<const Bounded> expected,
                                         BoundReport* report = nullptr) {
  const std::vector<double> measured = to_f64(out);
  if (measured.size() != expected.size())
    return ::testing::AssertionFailure()
           << measured.size() << " values, expected " << expected.size();
  double worst = 0;
  size_t at = 0;
  for (size_t i = 0; i < measured.size(); ++i) {
    // The f32 error may occur before the rounding, so it is rounded with the value.
    const double bound =
        expected[i].bound + rounding(out.dtype, std::fabs(expected[i].value) + expected[i].bound);
    const double error = std::fabs(measured[i] - expected[i].value);
    const double ratio = measured[i] == expected[i].value ? 0 : error / bound;
    if (!(ratio <= worst)) {  // NaN counts as the worst
      worst = ratio;
      at = i;
    }
  }
  if (report) {
    report->count(static_cast<int64_t>(measured.size()));
    if (!measured.empty()) report->add(worst, coordinate(out, static_cast<int64_t>(at)));
  }
  if (worst <= 1) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << "worst at " << coordinate(out, static_cast<int64_t>(at)) << " of "
         << out.to_string_shape() << ": measured " << measured[at] << ", expected "
         << expected[at].value << ", bound "
         << expected[at].bound + rounding(out.dtype, expected[at].value) << ", " << worst
         << " of the bound";
}

// Checks that all outputs together are as close as their dtype allows.
inline ::testing::AssertionResult similar(const TensorView& out,
                                          std::span<const Bounded> expected) {
  std::vector<double> exact;
  for (const Bounded& value : expected) exact.push_back(value.value);
  const double error = similarity_error(to_f64(out), exact);
  const double bound = out.dtype == DType::kBF16 ? kSimilarityBf16 : kSimilarity32;
  if (error < bound) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << "similarity error " << error << ", bound " << bound;
}

// Checks that two views have the same bits, element by element (one dtype and shape, any strides).
inline ::testing::AssertionResult bitwise_equal(const TensorView& a, const TensorView& b) {
  if (a.dtype != b.dtype || a.count() != b.count())
    return ::testing::AssertionFailure() << a.to_string_shape() << " and " << b.to_string_shape();
  const size_t size = size_of(a.dtype);
  for (int64_t i = 0; i < a.count(); ++i) {
    int64_t at_a = 0, at_b = 0, rest = i;
    for (int dim = a.rank - 1; dim >= 0; --dim) {
      at_a += rest % a.extent[dim] * a.stride[dim];
      at_b += rest % a.extent[dim] * b.stride[dim];
      rest /= a.extent[dim];
    }
    if (std::memcmp(static_cast<const char*>(a.data) + at_a * static_cast<int64_t>(size),
                    static_cast<const char*>(b.data) + at_b * static_cast<int64_t>(size), size))
      return ::testing::AssertionFailure()
             << "first difference at " << coordinate(a, i) << " of " << a.to_string_shape();
  }
  return ::testing::AssertionSuccess();
}

}  // namespace weft::test
