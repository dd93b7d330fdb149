#include "kernels/norm.h"

#include <functional>
#include <numeric>

#include "kernels/copy.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

constexpr float kEps = 1e-6f;

double sum_abs(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0,
                         [](double sum, double value) { return sum + std::fabs(value); });
}

double sum_of_squares(const std::vector<double>& x) {
  return std::inner_product(x.begin(), x.end(), x.begin(), 0.0);
}

// Expects (x - mean) / sqrt(var + eps) * w + b in two passes. The error of the mean affects every
// difference and, through the sum of squares, the scale; the rest is a rounding per operation.
std::vector<Bounded> expect_layer_norm(const std::vector<double>& x, const std::vector<double>& w,
                                       const std::vector<double>& b) {
  const int64_t d = static_cast<int64_t>(x.size());
  const double mean = std::accumulate(x.begin(), x.end(), 0.0) / d;
  const double mean_error = sum_bound(d, sum_abs(x)) / d + kUnit32 * std::fabs(mean);
  std::vector<double> difference(x);
  for (double& value : difference) value -= mean;
  const double variance = sum_of_squares(difference) / d;
  const double variance_error = sum_bound(d + 4, variance) +
                                2 * mean_error * sum_abs(difference) / d + mean_error * mean_error;
  const double scale = 1 / std::sqrt(variance + kEps);
  const double scale_error = variance_error / (2 * (variance + kEps)) + 4 * kUnit32;
  std::vector<Bounded> out;
  for (int64_t i = 0; i < d; ++i) {
    const double product = difference[i] * scale * w[i];
    out.push_back({product + b[i], std::fabs(scale * w[i]) * mean_error * (1 + scale_error) +
                                       std::fabs(product) * (scale_error + 4 * kUnit32) +
                                       kUnit32 * (std::fabs(product) + std::fabs(b[i]))});
  }
  return out;
}

// Expects x * scale * w, where the sum of squares after `scale` has a relative error.
std::vector<Bounded> expect_scaled(const std::vector<double>& x, double scale, double sum_relative,
                                   const std::vector<double>& w) {
  std::vector<Bounded> out;
  for (size_t i = 0; i < x.size(); ++i) {
    const double y = x[i] * scale * w[i];
    out.push_back({y, std::fabs(y) * (sum_relative / 2 + 6 * kUnit32)});
  }
  return out;
}

TEST(Norm, LayerNormWithAndWithoutWeights) {
  check_row_op(
      {.name = "layer_norm",
       .vectors = 2,
       .run = [](Stream& stream, const auto& in, const auto& v,
                 const TensorView& out) { layer_norm(stream, in[0], v[0], v[1], kEps, out); },
       .expect = [](const auto& in,
                    const auto& v) { return expect_layer_norm(in[0], v[0], v[1]); }});
  check_row_op({.name = "layer_norm plain",
                .run = [](Stream& stream, const auto& in, const auto&,
                          const TensorView& out) { layer_norm(stream, in[0], {}, {}, kEps, out); },
                .expect =
                    [](const auto& in, const auto&) {
                      const std::vector<double> one(in[0].size(), 1), zero(in[0].size(), 0);
                      return expect_layer_norm(in[0], one, zero);
                    }});
}

TEST(Norm, ModulatedLayerNorm) {
  check_row_op({.name = "modulated_layer_norm",
                .vectors = 2,
                .run =
                    [](Stream& stream, const auto& in, const auto& v, const TensorView& out) {
                      modulated_layer_norm(stream, in[0], v[0], v[1], kEps, out);
                    },
                .expect =
                    [](const auto& in, const auto& v) {
                      std::vector<double> weight(v[0]);
                      for (double& value : weight) value += 1;
                      std::vector<Bounded> out = expect_layer_norm(in[0], weight, v[1]);
                      // 1 + scale may cancel: the absolute rounding error is that of 1.
                      const std::vector<Bounded> unit =
                          expect_layer_norm(in[0], std::vector<double>(weight.size(), 1),
                                            std::vector<double>(v[1].size()));
                      for (size_t i = 0; i < out.size(); ++i)
                        out[i].bound += kUnit32 * std::fabs(weight[i] * unit[i].value);
                      return out;
                    }});
}

TEST(Norm, RmsNorm) {
  check_row_op({.name = "rms_norm",
                .vectors = 1,
                .run = [](Stream& stream, const auto& in, const auto& v,
                          const TensorView& out) { rms_norm(stream, in[0], v[0], kEps, out); },
                .expect =
                    [](const auto& in, const auto& v) {
                      const int64_t d = static_cast<int64_t>(in[0].size());
                      const double scale = 1 / std::sqrt(sum_of_squares(in[0]) / d + kEps);
                      return expect_scaled(in[0], scale, sum_bound(d + 4, 1), v[0]);
                    }});
}

TEST(Norm, RmsNormPerHeadKeepsHeadsApart) {
  Tensor x = make_normal(DType::kF32, {5, 3, 16}, 1), weight = make_normal(DType::kF32, {16}, 2);
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    Tensor whole(DType::kF32, {5, 3, 16}), parts(DType::kF32, {5, 3, 16});
    rms_norm(stream, x, weight, kEps, whole);
    for (int64_t head = 0; head < 3; ++head)
      rms_norm(stream, x.view().select(1, head), weight, kEps, parts.view().select(1, head));
    EXPECT_TRUE(bitwise_equal(whole, parts)) << ops->name;
  }
}

// The rows of queries are strided where keys and values of the same matrix lie beside them.
TEST(Norm, RmsNormTakesStridedRowsOfHeads) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    for (const DType dtype : {DType::kF32, DType::kBF16})
      for (const auto& [n, heads, e] : std::vector<std::array<int64_t, 3>>{
               {5, 3, 16}, {1, 2, 128}, {7, 1, 24}, {3, 4, 7}, {40, 2, 300}, {0, 2, 8}}) {
        Stream stream = Stream::cpu(2, Determinism::kFixed, table.ops);
        const Tensor all = make_normal(dtype, {n, 3 * heads, e}, 1),
                     weight = make_normal(DType::kF32, {e}, 2), dense(dtype, {n, heads, e}),
                     expected(dtype, {n, heads, e}), alone(dtype, {n, heads, e});
        const TensorView part = all.view().slice(1, heads, heads);
        copy(stream, part, dense);
        rms_norm(stream, dense, weight, kEps, expected);
        rms_norm(stream, part, weight, kEps, alone);
        rms_norm(stream, part, weight, kEps, part);
        EXPECT_TRUE(bitwise_equal(alone, expected)) << table.name << " " << e;
        EXPECT_TRUE(bitwise_equal(part, expected)) << table.name << " " << e;
      }
  }
}

TEST(Norm, RmsScaleOfAWiderRow) {
  constexpr double kSums = 12.5;
  check_row_op({.name = "rms_scale",
                .vectors = 1,
                .run =
                    [](Stream& stream, const auto& in, const auto& v, const TensorView& out) {
                      Tensor sums(DType::kF32, {in[0][0]});
                      for (int64_t i = 0; i < in[0][0]; ++i) sums.template as<float>()[i] = kSums;
                      rms_scale(stream, in[0], sums, 3 * in[0][1], v[0], kEps, out);
                    },
                .expect =
                    [](const auto& in, const auto& v) {
                      const double width = 3.0 * static_cast<double>(in[0].size());
                      return expect_scaled(in[0], 1 / std::sqrt(kSums / width + kEps), 2 * kUnit32,
                                           v[0]);
                    }});
}

TEST(Norm, SumSquares) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BoundReport report(ops->name + " sum_squares " + std::string(to_string(dtype)));
      for (const RowCase& shape : row_cases()) {
        if (shape.layout == Layout::kAliased) continue;
        SCOPED_TRACE(ops->name + " d " + std::to_string(shape.d));
        Rows x(dtype, shape.rows, shape.d, shape.layout);
        Random random(3);
        x.fill(random, shape.magnitude, shape.offset);
        Tensor sums(DType::kF32, {shape.rows}), again(DType::kF32, {shape.rows});
        Stream one = Stream::cpu(1, Determinism::kFixed, ops);
        Stream three = Stream::cpu(3, Determinism::kFixed, ops);
        sum_squares(one, x.view(), sums);
        sum_squares(three, x.view(), again);
        std::vector<Bounded> expected;
        for (int64_t r = 0; r < shape.rows; ++r) {
          const double sum = sum_of_squares(to_f64(x.view().select(0, r)));
          expected.push_back({sum, sum_bound(shape.d + 4, sum)});
        }
        EXPECT_TRUE(within(sums, expected, &report));
        EXPECT_TRUE(bitwise_equal(sums, again));
      }
    }
}

TEST(Norm, RoundsOnTheWay) {
  using Run = std::function<void(Stream&, const TensorView& x, const TensorView& out)>;
  for (const int64_t d : {1, 7, 16, 33, 1536, 5121}) {
    constexpr int64_t kRows = 5;
    const Tensor x = make_normal(DType::kF32, {kRows, d}, 6);
    const Tensor a = make_normal(DType::kF32, {d}, 7), b = make_normal(DType::kF32, {d}, 8);
    const Run runs[] = {[&](Stream& s, const TensorView& in, const TensorView& out) {
                          layer_norm(s, in, a, b, kEps, out);
                        },
                        [&](Stream& s, const TensorView& in, const TensorView& out) {
                          modulated_layer_norm(s, in, a, b, kEps, out);
                        },
                        [&](Stream& s, const TensorView& in, const TensorView& out) {
                          rms_norm(s, in, a, kEps, out);
                        }};
    for (const Ops* ops : all_ops())
      for (const Run& run : runs) {
        Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
        Tensor wide(DType::kF32, {kRows, d}), rounded(DType::kBF16, {kRows, d});
        Tensor straight(DType::kBF16, {kRows, d});
        run(stream, x, wide);
        copy(stream, wide, rounded);
        run(stream, x, straight);
        EXPECT_TRUE(bitwise_equal(straight, rounded)) << ops->name << " d " << d;
      }
  }
}

TEST(Norm, SplitRmsNormEqualsTheWholeOne) {
  constexpr int64_t kRows = 7, kWidth = 96, kCut = 40;
  Tensor x = make_normal(DType::kF32, {kRows, kWidth}, 4);
  Tensor weight = make_normal(DType::kF32, {kWidth}, 5);
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    Tensor whole(DType::kF32, {kRows, kWidth}), parts(DType::kF32, {kRows, kWidth});
    rms_norm(stream, x, weight, kEps, whole);
    Tensor left(DType::kF32, {kRows}), right(DType::kF32, {kRows}), sums(DType::kF32, {kRows});
    const auto part = [&](const TensorView& view, int rank) {
      return view.slice(-1, rank ? kCut : 0, rank ? kWidth - kCut : kCut);
    };
    sum_squares(stream, part(x, 0), left);
    sum_squares(stream, part(x, 1), right);
    add(stream, left, right, sums);
    for (int rank : {0, 1})
      rms_scale(stream, part(x, rank), sums, kWidth, part(weight, rank), kEps, part(parts, rank));
    EXPECT_LT(relative_l2(to_f64(parts), to_f64(whole)), 10 * kUnit32) << ops->name;
  }
}

TEST(Norm, ChannelRmsNorm) {
  for (Activation activation : {Activation::kNone, Activation::kSilu})
    check_row_op(
        {.name = activation == Activation::kSilu ? "channel_rms_norm silu" : "channel_rms_norm",
         .vectors = 1,
         .run =
             [activation](Stream& stream, const auto& in, const auto& v, const TensorView& out) {
               channel_rms_norm(stream, in[0], v[0], activation, out);
             },
         .expect =
             [activation](const auto& in, const auto& v) {
               const int64_t d = static_cast<int64_t>(in[0].size());
               const double norm = std::max(std::sqrt(sum_of_squares(in[0])), 1e-12);
               std::vector<Bounded> out =
                   expect_scaled(in[0], std::sqrt(double(d)) / norm, sum_bound(d + 6, 1), v[0]);
               if (activation == Activation::kNone) return out;
               for (Bounded& y : out) {
                 const double sigmoid = 1 / (1 + std::exp(-y.value));
                 // |silu'| < 1.1, then an exponential, a sum and a quotient.
                 y = {y.value * sigmoid,
                      1.1 * y.bound + 8 * kUnit32 * std::fabs(y.value * sigmoid)};
               }
               return out;
             }});
}

struct GroupCase {
  int64_t pixels, channels, groups;
  Layout layout = Layout::kDense;
  double offset = 0;
};

const GroupCase kGroupCases[] = {{1, 1, 1},
                                 {1, 6, 3},
                                 {5, 32, 32},
                                 {7, 48, 16, Layout::kStrided},
                                 {70, 33, 11, Layout::kAliased},
                                 {900, 64, 32, Layout::kDense, 5},
                                 {9000, 20, 4},
                                 {3, 512, 32, Layout::kPitched},
                                 {300, 520, 8, Layout::kStrided, -3}};

// The sum of a group's values, or of their squared differences from `mean`.
double group_total(const std::vector<double>& x, const GroupCase& shape, int64_t group,
                   bool absolute, const double* mean = nullptr) {
  const int64_t channels = shape.channels / shape.groups;
  double total = 0;
  for (int64_t r = 0; r < shape.pixels; ++r)
    for (int64_t c = group * channels; c < (group + 1) * channels; ++c) {
      const double value = x[r * shape.channels + c] - (mean ? *mean : 0);
      total += mean ? value * value : absolute ? std::fabs(value) : value;
    }
  return total;
}

// Checks the three steps for one table, each step on the exact results of the step before.
void check_group_norm(const Ops& ops, const GroupCase& shape, DType dtype, Activation activation,
                      BoundReport& report) {
  const int64_t groups = shape.groups, count = shape.pixels * shape.channels / groups;
  Rows x(dtype, shape.pixels, shape.channels, shape.layout);
  Rows separate(dtype, shape.pixels, shape.channels, shape.layout);
  Rows again(dtype, shape.pixels, shape.channels, shape.layout);
  Random random(17);
  x.fill(random, 1, shape.offset);
  const std::vector<double> exact = to_f64(x.view());
  Tensor weight = make_normal(DType::kF32, {shape.channels}, 8);
  Tensor bias = make_normal(DType::kF32, {shape.channels}, 9);
  Tensor sums(DType::kF32, {groups + 1}), squares(DType::kF32, {groups});
  Tensor sums_3(DType::kF32, {groups + 1}), squares_3(DType::kF32, {groups});
  Stream one = Stream::cpu(1, Determinism::kFixed, &ops);
  Stream three = Stream::cpu(3, Determinism::kFixed, &ops);

  group_sums(one, x.view(), sums);
  group_sums(three, x.view(), sums_3);
  std::vector<Bounded> expected;
  for (int64_t g = 0; g < groups; ++g)
    expected.push_back({group_total(exact, shape, g, false),
                        sum_bound(count + 4, group_total(exact, shape, g, true))});
  expected.push_back({double(shape.pixels), 0});
  EXPECT_TRUE(within(sums, expected, &report));
  EXPECT_TRUE(bitwise_equal(sums, sums_3));

  group_squares(one, x.view(), sums, squares);
  group_squares(three, x.view(), sums, squares_3);
  expected.clear();
  std::vector<double> means(groups), scales(groups), scale_errors(groups);
  for (int64_t g = 0; g < groups; ++g) {
    means[g] = double{sums.as<float>()[g]} / count;
    const double total = group_total(exact, shape, g, false, &means[g]);
    const double mean_error = 2 * kUnit32 * std::fabs(means[g]);
    expected.push_back({total, sum_bound(count + 6, total) +
                                   2 * mean_error * std::sqrt(total * count) +
                                   mean_error * mean_error * count});
    scales[g] = 1 / std::sqrt(double{squares.as<float>()[g]} / count + kEps);
  }
  EXPECT_TRUE(within(squares, expected, &report));
  EXPECT_TRUE(bitwise_equal(squares, squares_3));

  group_norm(three, x.view(), sums, squares, weight, bias, kEps, activation, again.view());
  const Rows& out = shape.layout == Layout::kAliased ? x : separate;
  group_norm(one, x.view(), sums, squares, weight, bias, kEps, activation, out.view());
  expected.clear();
  for (int64_t i = 0; i < shape.pixels * shape.channels; ++i) {
    const int64_t c = i % shape.channels, g = c / (shape.channels / groups);
    const double factor = scales[g] * weight.as<float>()[c], offset = bias.as<float>()[c];
    const double y = (exact[i] - means[g]) * factor + offset;
    const double bound =
        8 * kUnit32 *
        (std::fabs(exact[i] * factor) + std::fabs(means[g] * factor) + std::fabs(offset));
    const double sigmoid = 1 / (1 + std::exp(-y));
    if (activation == Activation::kSilu)
      expected.push_back({y * sigmoid, 1.1 * bound + 8 * kUnit32 * std::fabs(y * sigmoid)});
    else
      expected.push_back({y, bound});
  }
  EXPECT_TRUE(within(out.view(), expected, &report));
  EXPECT_TRUE(bitwise_equal(out.view(), again.view()));
  EXPECT_TRUE(out.guard_intact());
}

TEST(Norm, GroupNormInThreeSteps) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    for (DType dtype : {DType::kF32, DType::kBF16})
      for (Activation activation : {Activation::kNone, Activation::kSilu}) {
        BoundReport report(table.name + " group_norm " + std::string(to_string(dtype)));
        for (const GroupCase& shape : kGroupCases) {
          SCOPED_TRACE(table.name + " pixels " + std::to_string(shape.pixels) + " channels " +
                       std::to_string(shape.channels) + " groups " + std::to_string(shape.groups));
          check_group_norm(*table.ops, shape, dtype, activation, report);
        }
      }
  }
}

// The sums of two parts of a picture, added, give the norm of the whole picture.
TEST(Norm, SplitGroupNormEqualsTheWholeOne) {
  constexpr int64_t kPixels = 40, kCut = 13, kChannels = 24, kGroups = 6;
  const Tensor x = make_normal(DType::kF32, {kPixels, kChannels}, 4);
  const Tensor weight = make_normal(DType::kF32, {kChannels}, 5),
               bias = make_normal(DType::kF32, {kChannels}, 6);
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
    const auto norm = [&](const std::vector<TensorView>& parts, const TensorView& out) {
      Tensor sums(DType::kF32, {kGroups + 1}), squares(DType::kF32, {kGroups}),
          part_sums(DType::kF32, {kGroups + 1}), part_squares(DType::kF32, {kGroups});
      for (const TensorView& part : parts) {
        group_sums(stream, part, part_sums);
        add(stream, sums, part_sums, sums);
      }
      for (const TensorView& part : parts) {
        group_squares(stream, part, sums, part_squares);
        add(stream, squares, part_squares, squares);
      }
      group_norm(stream, x, sums, squares, weight, bias, kEps, Activation::kNone, out);
    };
    Tensor whole(DType::kF32, {kPixels, kChannels}), split(DType::kF32, {kPixels, kChannels});
    norm({x.view()}, whole);
    norm({x.view().slice(0, 0, kCut), x.view().slice(0, kCut, kPixels - kCut)}, split);
    EXPECT_LT(relative_l2(to_f64(split), to_f64(whole)), 10 * kUnit32) << ops->name;
  }
}

TEST(Norm, ZeroRowsStayFinite) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      SCOPED_TRACE(ops->name);
      Stream stream = Stream::cpu(1, Determinism::kFixed, ops);
      Tensor x(dtype, {2, 24}), out = make_normal(dtype, {2, 24}, 6);
      Tensor gamma = make_normal(DType::kF32, {24}, 7);
      const std::vector<Bounded> zeros(48);
      channel_rms_norm(stream, x, gamma, Activation::kSilu, out);
      EXPECT_TRUE(within(out, zeros));
      rms_norm(stream, x, gamma, kEps, out);
      EXPECT_TRUE(within(out, zeros));
      layer_norm(stream, x, gamma, {}, kEps, out);
      EXPECT_TRUE(within(out, zeros));
    }
}

}  // namespace
}  // namespace weft::test
