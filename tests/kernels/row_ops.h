#pragma once
// One parameter list serves every op over rows: tables x dtypes x shapes x layouts x magnitudes.
#include <algorithm>
#include <cstring>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "hwy/targets.h"
#include "kernels/ops.h"
#include "tests/support/compare.h"
#include "tests/support/draw.h"

namespace weft::test {

inline void store(const TensorView& view, int64_t offset, double value) {
  if (view.dtype == DType::kF32)
    view.as<float>()[offset] = static_cast<float>(value);
  else
    view.as<bf16>()[offset] = to_bf16(static_cast<float>(value));
}

inline void fill_normal(const TensorView& contiguous, Random& random, double magnitude = 1,
                        double offset = 0) {
  for (int64_t i = 0; i < contiguous.count(); ++i)
    store(contiguous, i, magnitude * (random.normal() + offset));
}

inline Tensor make_normal(DType dtype, std::initializer_list<int64_t> shape, uint32_t seed,
                          double magnitude = 1) {
  Tensor tensor(dtype, shape);
  Random random(seed);
  fill_normal(tensor, random, magnitude);
  return tensor;
}

inline Tensor clone(const TensorView& contiguous) {
  Tensor out(contiguous.dtype, contiguous.shape());
  if (contiguous.count() > 0) std::memcpy(out.view().data, contiguous.data, contiguous.bytes());
  return out;
}

struct LinearShape {
  int64_t rows, in, out;
};

// An op table, and for the SIMD table the Highway target it uses (0: the machine's best).
struct Table {
  std::string name;
  const Ops* ops;
  int64_t target = 0;
};

// Returns every table; the SIMD table, if it is one of them, comes once for every target that this
// machine can run.
inline std::vector<Table> all_tables() {
  std::vector<Table> tables;
  for (const Ops* ops : all_ops()) tables.push_back({ops->name, ops});
  if (std::ranges::count(all_ops(), &simd_ops()) == 0) return tables;
  for (int64_t target : hwy::SupportedAndGeneratedTargets())
    tables.push_back({std::string("simd ") + hwy::TargetName(target), &simd_ops(), target});
  return tables;
}

// Chooses a table's target for the scope's lifetime.
class UseTarget {
 public:
  explicit UseTarget(const Table& table) { choose(table.target); }
  ~UseTarget() { choose(0); }
  UseTarget(const UseTarget&) = delete;
  UseTarget& operator=(const UseTarget&) = delete;

 private:
  static void choose(int64_t target) {
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().DeInit();
  }
};

enum class Layout { kDense, kStrided, kAliased, kPitched };

// A Rows view is [rows, d]: dense, or with five guard elements after every row that no op may
// touch, or with sixteen, so that rows stay aligned (pitched).
class Rows {
 public:
  Rows(DType dtype, int64_t rows, int64_t d, Layout layout)
      : d_(d), storage_(dtype, {rows, d + guard(layout)}) {
    for (int64_t i = 0; i < storage_.count(); ++i) store(storage_, i, kMark);
    view_ = storage_.view().slice(1, 0, d);
  }
  const TensorView& view() const { return view_; }
  void fill(Random& random, double magnitude, double offset) {
    for (int64_t r = 0; r < view_[0]; ++r)
      for (int64_t i = 0; i < d_; ++i)
        store(view_, r * view_.stride[0] + i, magnitude * (random.normal() + offset));
  }
  bool guard_intact() const {
    const std::vector<double> all = to_f64(storage_);
    const int64_t width = storage_.view()[1];
    for (int64_t i = 0; i < storage_.count(); ++i)
      if (i % width >= d_ && all[i] != kMark) return false;
    return true;
  }

 private:
  static int64_t guard(Layout layout) {
    return layout == Layout::kStrided ? 5 : layout == Layout::kPitched ? 16 : 0;
  }
  static constexpr double kMark = -7;
  int64_t d_;
  Tensor storage_;
  TensorView view_;
};

struct RowCase {
  int64_t rows, d;
  Layout layout = Layout::kDense;
  double magnitude = 1, offset = 0;
};

// The cases cover zero rows, one row, widths around and off every vector length, strides, in-place
// calls, huge and tiny values, a mean far from zero, enough rows for several threads, and random
// draws.
inline std::vector<RowCase> row_cases() {
  std::vector<RowCase> cases{{0, 16}, {1, 1}, {1, 1537}, {400, 100}, {3, 64, Layout::kAliased}};
  for (int64_t d : {2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 259}) {
    cases.push_back({5, d, Layout::kDense});
    cases.push_back({3, d, Layout::kStrided});
    cases.push_back({2, d, Layout::kAliased});
  }
  // These are the widths of models, and one that no block holds.
  for (int64_t d : {128, 384, 520, 1536, 5120}) cases.push_back({2, d, Layout::kPitched});
  cases.push_back({1, 17000});
  for (double magnitude : {1e15, 1e-15}) cases.push_back({4, 131, Layout::kDense, magnitude});
  cases.push_back({4, 131, Layout::kDense, 1, 30});
  for_cases(8, [&](Draw& draw) {
    cases.push_back({.rows = draw.size(70),
                     .d = draw.size(700),
                     .layout = draw.one_of({Layout::kDense, Layout::kStrided, Layout::kAliased}),
                     .magnitude = std::exp2(draw.uniform() * 20),
                     .offset = draw.maybe(0.3) ? 5 * draw.normal() : 0});
  });
  return cases;
}

struct RowOp {
  std::string name;
  int inputs = 1;          // tensors [rows, d]
  int vectors = 0;         // f32 [d]
  bool f32_input = false;  // the last input is f32 whatever the case's dtype
  std::vector<DType> dtypes{DType::kF32, DType::kBF16};
  // Runs the op; in[0] is out if the layout is aliased.
  std::function<void(Stream&, const std::vector<TensorView>& in,
                     const std::vector<TensorView>& vectors, const TensorView& out)>
      run;
  // Returns the exact outputs of one row; in[i] and vectors[i] hold d values each.
  std::function<std::vector<Bounded>(const std::vector<std::vector<double>>& in,
                                     const std::vector<std::vector<double>>& vectors)>
      expect;
};

inline std::vector<Bounded> expected_rows(const RowOp& op, const std::vector<Rows>& inputs,
                                          const std::vector<std::vector<double>>& vectors) {
  std::vector<Bounded> all;
  for (int64_t r = 0; r < inputs[0].view()[0]; ++r) {
    std::vector<std::vector<double>> in;
    for (const Rows& rows : inputs) in.push_back(to_f64(rows.view().select(0, r)));
    const std::vector<Bounded> row = op.expect(in, vectors);
    all.insert(all.end(), row.begin(), row.end());
  }
  return all;
}

inline void check_row_case(const RowOp& op, const Ops& ops, const RowCase& shape, DType dtype,
                           BoundReport& report) {
  const bool aliased = shape.layout == Layout::kAliased;
  Random random(static_cast<uint32_t>(shape.rows * 1000 + shape.d));
  std::vector<Rows> inputs;
  for (int i = 0; i < op.inputs; ++i) {
    const bool wide = op.f32_input && i == op.inputs - 1;
    inputs.emplace_back(wide ? DType::kF32 : dtype, shape.rows, shape.d, shape.layout);
    inputs.back().fill(random, shape.magnitude, shape.offset);
  }
  std::vector<Tensor> vectors;
  std::vector<TensorView> in, vector_views;
  std::vector<std::vector<double>> exact_vectors;
  for (int i = 0; i < op.vectors; ++i) {
    vectors.emplace_back(DType::kF32, std::initializer_list<int64_t>{shape.d});
    fill_normal(vectors.back(), random);
    exact_vectors.push_back(to_f64(vectors.back()));
    vector_views.push_back(vectors.back());
  }
  for (const Rows& rows : inputs) in.push_back(rows.view());
  const std::vector<Bounded> expected = expected_rows(op, inputs, exact_vectors);

  Rows threaded(dtype, shape.rows, shape.d, shape.layout);
  Stream three = Stream::cpu(3, Determinism::kFixed, &ops);
  op.run(three, in, vector_views, threaded.view());
  Rows separate(dtype, shape.rows, shape.d, shape.layout);
  const Rows& out = aliased && in[0].dtype == dtype ? inputs[0] : separate;
  Stream one = Stream::cpu(1, Determinism::kFixed, &ops);
  op.run(one, in, vector_views, out.view());

  EXPECT_TRUE(within(out.view(), expected, &report));
  EXPECT_TRUE(bitwise_equal(out.view(), threaded.view())) << "three threads against one";
  EXPECT_TRUE(out.guard_intact());
  // An exponential below the smallest normal number may become zero.
  const bool visible = std::ranges::any_of(expected, [](const Bounded& y) {
    return std::fabs(y.value) >= std::numeric_limits<float>::min();
  });
  if (visible) {
    EXPECT_TRUE(similar(out.view(), expected));
  }
}

inline void check_row_op(const RowOp& op) {
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    for (DType dtype : op.dtypes) {
      const std::string name = table.name + " " + op.name + " " + std::string(to_string(dtype));
      BoundReport report(name);
      for (const RowCase& shape : row_cases()) {
        SCOPED_TRACE(name + " rows " + std::to_string(shape.rows) + " d " +
                     std::to_string(shape.d) + " layout " +
                     std::to_string(static_cast<int>(shape.layout)) + " magnitude " +
                     std::to_string(shape.magnitude));
        check_row_case(op, *table.ops, shape, dtype, report);
      }
    }
  }
}

}  // namespace weft::test
