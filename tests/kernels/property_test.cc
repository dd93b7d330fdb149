// Ops under random shapes, strides, dtypes and threads: every table against the definition or the
// reference. Outputs, and the memory around every view, hold NaN before the call: an op must write
// all of the former and none of the latter.
#include <cstring>

#include "kernels/cpu/implementation.h"
#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

constexpr int kPoison = 0xff;  // in every byte: NaN, or -1

Tensor poisoned(DType dtype, std::span<const int64_t> shape) {
  Tensor tensor(dtype, shape);
  if (tensor.count() > 0) std::memset(tensor.view().data, kPoison, tensor.view().bytes());
  return tensor;
}

template <class F>
void for_bytes(const TensorView& view, F&& f) {
  const int64_t size = static_cast<int64_t>(size_of(view.dtype));
  for (int64_t i = 0; i < view.count(); ++i) {
    int64_t at = 0, rest = i;
    for (int dim = view.rank - 1; dim >= 0; --dim) {
      at += rest % view.extent[dim] * view.stride[dim];
      rest /= view.extent[dim];
    }
    for (int64_t byte = 0; byte < size; ++byte)
      f(static_cast<unsigned char*>(view.data) + at * size + byte);
  }
}

// A Box is a poisoned view inside poisoned storage, with gaps around the dimensions in `gaps`.
class Box {
 public:
  Box() = default;
  Box(Draw& draw, DType dtype, std::span<const int64_t> shape, std::initializer_list<int> gaps) {
    std::vector<int64_t> outer(shape.begin(), shape.end()), begin(shape.size());
    for (const int dim : gaps) {
      if (dim >= static_cast<int>(shape.size()) || draw.maybe(0.5)) continue;
      begin[dim] = draw.below(4);
      outer[dim] += begin[dim] + draw.below(4);
    }
    storage_ = poisoned(dtype, outer);
    view_ = storage_;
    for (size_t dim = 0; dim < shape.size(); ++dim)
      view_ = view_.slice(static_cast<int>(dim), begin[dim], shape[dim]);
  }
  Box(Draw& draw, DType dtype, std::initializer_list<int64_t> shape,
      std::initializer_list<int> gaps)
      : Box(draw, dtype, std::span<const int64_t>(shape.begin(), shape.size()), gaps) {}

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }

  // Fills a view of a float dtype.
  Box& fill(Draw& draw, double magnitude = 1) {
    Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
    Tensor dense(DType::kF32, view_.shape());
    fill_normal(dense, draw, magnitude);
    copy(stream, dense, view_);
    return *this;
  }
  Box& fill_bytes(Draw& draw) {
    for_bytes(view_,
              [&](unsigned char* byte) { *byte = static_cast<unsigned char>(draw.below(256)); });
    return *this;
  }
  // Checks that the memory around the view is untouched.
  ::testing::AssertionResult intact() const {
    const Tensor copy = clone(storage_);
    const auto shift =
        static_cast<const char*>(copy.view().data) - static_cast<const char*>(storage_.view().data);
    for_bytes(view_, [&](unsigned char* byte) { byte[shift] = kPoison; });
    const auto* bytes = static_cast<const unsigned char*>(copy.view().data);
    for (size_t i = 0; i < copy.view().bytes(); ++i)
      if (bytes[i] != kPoison) return ::testing::AssertionFailure() << "byte " << i << " around";
    return ::testing::AssertionSuccess();
  }

 private:
  Tensor storage_;
  TensorView view_;
};

std::string describe(const Table& table, std::initializer_list<TensorView> views) {
  std::string text = table.name;
  for (const TensorView& view : views) {
    text += ", " + (view ? view.to_string_shape() : "none") + " strides";
    for (int dim = 0; dim < view.rank; ++dim) text += " " + std::to_string(view.stride[dim]);
  }
  return text;
}

Stream any_stream(Draw& draw, const Ops* ops) {
  return Stream::cpu(static_cast<int>(1 + draw.below(3)),
                     draw.one_of({Determinism::kFast, Determinism::kFixed}), ops);
}

Stream reference_stream() { return Stream::cpu(1, Determinism::kFixed, &reference_ops()); }

DType any_compute(Draw& draw) { return draw.one_of({DType::kF32, DType::kBF16}); }

DType any_property_float(Draw& draw) {
  return draw.one_of({DType::kF32, DType::kBF16, DType::kF16, DType::kF64});
}

TEST(Property, ABoxTellsWhenItsSurroundingsAreTouched) {
  Draw draw(3);
  Box box;
  while (!box.view() || box.view().stride[0] == 5) box = Box(draw, DType::kF32, {4, 5}, {1});
  EXPECT_TRUE(box.fill(draw).intact());
  for (double value : to_f64(box)) EXPECT_TRUE(std::isfinite(value));
  box.view().as<float>()[5] = 0;  // just after the first row
  EXPECT_FALSE(box.intact());
}

TEST(Property, LinearEqualsItsDefinition) {
  for_cases(60, [](Draw& draw) {
    const DType dtype = any_compute(draw);
    const int64_t rows = draw.size(150), in = draw.size(300), columns = draw.size(200);
    Box x(draw, dtype, {rows, in}, {1}), bias;
    Box weight(draw, any_property_float(draw), {columns, in}, {0, 1});
    x.fill(draw);
    weight.fill(draw, 1 / std::sqrt(in));
    if (draw.maybe(0.5)) (bias = Box(draw, any_property_float(draw), {columns}, {})).fill(draw);
    const DType out_dtype = draw.one_of({dtype, DType::kF32});
    const auto activation = draw.one_of(
        {LinearActivation::kNone, LinearActivation::kGeluTanh, LinearActivation::kSilu});
    const Tensor wide = bias.view() ? converted(bias, DType::kF32) : Tensor();
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      SCOPED_TRACE(describe(table, {x, weight, bias}));
      Stream stream = any_stream(draw, table.ops);
      Box out(draw, out_dtype, {rows, columns}, {1});
      linear(stream, x, pack_linear(stream, weight, bias, dtype), activation, out);
      const std::vector<Bounded> expected = expect_linear(
          x, converted(weight, dtype), wide, activation,
          epilogue_errors(*table.ops, rows, static_cast<bool>(bias.view()), out_dtype, activation));
      EXPECT_TRUE(within(out, expected));
      EXPECT_TRUE(similar(out, expected));
      EXPECT_TRUE(out.intact());
    }
  });
}

// Sums of integers are exact, so every table has the same bits.
TEST(Property, LinearInt8EqualsTheReference) {
  for_cases(40, [](Draw& draw) {
    const DType dtype = any_compute(draw);
    const int64_t rows = draw.size(150), in = draw.size(300), columns = draw.size(200);
    Box x(draw, dtype, {rows, in}, {1}),
        weight(draw, any_property_float(draw), {columns, in}, {0, 1}), bias;
    x.fill(draw);
    weight.fill(draw, 0.1);
    if (draw.maybe(0.5)) (bias = Box(draw, DType::kF32, {columns}, {})).fill(draw);
    const DType out_dtype = draw.one_of({dtype, DType::kF32});
    const auto run = [&](Stream stream, const TensorView& out) {
      const PackedLinear packed = pack_linear(stream, weight, bias, dtype, WeightFormat::kInt8);
      linear(stream, x, packed, LinearActivation::kNone, out);
    };
    Tensor expected(out_dtype, {rows, columns});
    run(reference_stream(), expected);
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      SCOPED_TRACE(describe(table, {x, weight, bias}));
      Box out(draw, out_dtype, {rows, columns}, {1});
      run(any_stream(draw, table.ops), out);
      EXPECT_TRUE(bitwise_equal(out, expected));
      EXPECT_TRUE(out.intact());
    }
  });
}

// An AttentionCase holds everything an attention call may be given, and its tensors.
struct AttentionCase {
  Box q, bias;
  std::vector<Box> k, v;
  std::vector<KVSegment> segments;
  AttentionArgs args;
  bool with_lse = false;
  DType out_dtype = DType::kF32;

  explicit AttentionCase(Draw& draw) {
    const DType dtype = any_compute(draw);
    const int64_t queries = draw.size(90), kv_heads = draw.size(3), group = draw.size(4);
    const int64_t e = draw.maybe(0.7) ? 8 * draw.size(20) : draw.size(100);
    q = Box(draw, dtype, {queries, kv_heads * group, e}, {1, 2});
    q.fill(draw, draw.one_of({0.1, 1.0, 8.0}));
    int64_t keys = 0, position = draw.below(20);
    for (int64_t left = draw.below(5); left > 0; --left) {
      const int64_t n = draw.maybe(0.15) ? 0 : draw.size(draw.maybe(0.1) ? 600 : 70);
      k.emplace_back(draw, dtype, std::initializer_list<int64_t>{n, kv_heads, e},
                     std::initializer_list<int>{1, 2});
      v.emplace_back(draw, dtype, std::initializer_list<int64_t>{n, kv_heads, e},
                     std::initializer_list<int>{1, 2});
      k.back().fill(draw);
      v.back().fill(draw);
      const float log_bias = draw.maybe(0.3) ? static_cast<float>(3 * draw.normal()) : 0;
      segments.push_back(
          {.k = k.back(), .v = v.back(), .position = position, .log_bias = log_bias});
      keys += n;
      position += n + (draw.maybe(0.3) ? draw.below(30) : 0);
    }
    if (keys > 0 && draw.maybe(0.3)) {
      bias = Box(draw, DType::kF32, {q.view()[1], queries, keys}, {0, 1, 2});
      bias.fill(draw, 2);
    }
    with_lse = draw.maybe(0.6);
    out_dtype = draw.one_of({dtype, DType::kF32});
    args = {.q = q,
            .segments = segments,
            .bias = bias,
            .scale = static_cast<float>(1 / std::sqrt(e)),
            .causal = draw.maybe(0.5),
            .query_position = draw.below(position + 1),
            .out = q};  // replaced
  }
};

TEST(Property, AttentionEqualsItsDefinition) {
  for_cases(60, [](Draw& draw) {
    AttentionCase problem(draw);
    AttentionArgs args = problem.args;
    const ExpectedAttention exact = expect_attention(args);
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      SCOPED_TRACE(describe(table, {args.q, args.bias}) + ", " +
                   std::to_string(args.segments.size()) + " segments" +
                   (args.causal ? ", causal" : ""));
      Box out(draw, problem.out_dtype, args.q.shape(), {1, 2}), lse;
      if (problem.with_lse) lse = Box(draw, DType::kF32, {args.q[1], args.q[0]}, {0, 1});
      args.out = out;
      args.lse = lse;
      ExpectedAttention expected = exact;
      if (rounds_probabilities(*table.ops, args)) allow_rounded_probabilities(expected);
      Stream stream = any_stream(draw, table.ops);
      attention(stream, args);
      EXPECT_TRUE(within(out, expected.out));
      EXPECT_TRUE(out.intact());
      if (!problem.with_lse) continue;
      EXPECT_TRUE(within(lse, expected.lse));
      EXPECT_TRUE(lse.intact());
    }
  });
}

TEST(Property, MergedAttentionHasTheBitsOfTheReference) {
  for_cases(60, [](Draw& draw) {
    const int64_t rows = draw.size(40), heads = draw.size(6), e = draw.size(140);
    const Tensor a = make_normal(DType::kF32, {rows, heads, e}, 1);
    const Tensor lse_a = make_normal(DType::kF32, {heads, rows}, 2, draw.one_of({1.0, 30.0}));
    for (int64_t i = 0; i < lse_a.count(); ++i)
      if (draw.maybe(0.1)) store(lse_a, i, -std::numeric_limits<double>::infinity());
    Box b(draw, DType::kF32, {rows, heads, e}, {1, 2}),
        lse_b(draw, DType::kF32, {heads, rows}, {1});
    b.fill(draw);
    lse_b.fill(draw, 10);
    const Tensor expected = clone(a), expected_lse = clone(lse_a);
    Stream reference = reference_stream();
    merge_attention(reference, expected, expected_lse, b, lse_b);
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      SCOPED_TRACE(describe(table, {b, lse_b}));
      Box out(draw, DType::kF32, a.view().shape(), {1, 2}),
          lse(draw, DType::kF32, {heads, rows}, {1});
      copy(reference, a, out);
      copy(reference, lse_a, lse);
      Stream stream = any_stream(draw, table.ops);
      merge_attention(stream, out, lse, b, lse_b);
      expect_merged(*table.ops, out, lse, expected, expected_lse, a, b);
      EXPECT_TRUE(out.intact());
      EXPECT_TRUE(lse.intact());
    }
  });
}

TEST(Property, ConvEqualsItsDefinition) {
  for_cases(50, [](Draw& draw) {
    const DType dtype = any_compute(draw);
    const auto pad = [&] { return draw.maybe(0.5) ? draw.below(3) : 0; };
    const ConvArgs args{.stride = {draw.size(2), draw.size(3), draw.size(3)},
                        .pad_front = pad(),
                        .pad_h = {pad(), pad()},
                        .pad_w = {pad(), pad()}};
    const int64_t in = draw.size(40), columns = draw.size(40), kh = draw.size(4);
    Box x(draw, dtype, {draw.size(4), draw.size(12), draw.size(12), in}, {0});
    Box weight(draw, any_property_float(draw), {columns, in, draw.size(3), kh, draw.size(4)},
               {0, 1, 2, 3, 4});
    Box bias;
    x.fill(draw);
    weight.fill(draw, 0.2);
    if (draw.maybe(0.5)) (bias = Box(draw, any_property_float(draw), {columns}, {})).fill(draw);
    const Tensor wide = bias.view() ? converted(bias, DType::kF32) : Tensor();
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      SCOPED_TRACE(describe(table, {x, weight, bias}));
      Stream stream = any_stream(draw, table.ops);
      const PackedConv packed = pack_conv(stream, weight, bias, dtype);
      const auto shape = conv_output_shape(x, packed, args);
      const std::vector<Bounded> expected =
          expect_conv(x, converted(weight, dtype), wide, args, shape,
                      pointwise_errors(*table.ops, x.view().count() / x.view()[3],
                                       packed.kernel()[0] * packed.kernel()[1] * packed.kernel()[2],
                                       static_cast<bool>(bias.view()), dtype));
      Box out(draw, dtype, shape, {0});
      conv3d(stream, x, packed, args, out);
      EXPECT_TRUE(within(out, expected));
      EXPECT_TRUE(out.intact());
    }
  });
}

TEST(Property, RopeHasTheBitsOfTheReference) {
  for_cases(60, [](Draw& draw) {
    const DType dtype = any_compute(draw);
    const int64_t e = 2 * (2 + draw.size(80)), heads = draw.size(5);
    const std::array<int64_t, 3> grid{draw.size(5), draw.size(9), draw.size(9)};
    const Rope rope =
        make_rope(grid, {draw.below(50) - 10, draw.below(5), draw.below(5)}, static_cast<int>(e));
    const int64_t all = grid[0] * grid[1] * grid[2], first = draw.below(all);
    Box x(draw, dtype, {draw.below(all - first + 1), heads, e}, {1, 2});
    x.fill(draw);
    Tensor expected(dtype, x.view().shape());
    Stream reference = reference_stream();
    apply_rope(reference, x, rope, first, expected);
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      SCOPED_TRACE(describe(table, {x}));
      Box out(draw, dtype, x.view().shape(), {1, 2});
      const bool in_place = draw.maybe(0.4);
      if (in_place) copy(reference, x, out);
      Stream stream = any_stream(draw, table.ops);
      apply_rope(stream, in_place ? out.view() : x.view(), rope, first, out);
      EXPECT_TRUE(bitwise_equal(out, expected));
      EXPECT_TRUE(out.intact());
    }
  });
}

// Views of up to five dimensions in any order are moved or converted.
TEST(Property, CopiesHaveTheBitsOfTheReference) {
  for_cases(150, [](Draw& draw) {
    const bool converts = draw.maybe(0.5);
    const DType from = converts ? any_property_float(draw)
                                : static_cast<DType>(draw.below(static_cast<int>(DType::kCount)));
    const DType to = converts ? any_property_float(draw) : from;
    std::vector<int64_t> shape;
    for (int64_t rank = draw.below(kMaxRank + 1); rank > 0; --rank)
      shape.push_back(draw.maybe(0.03) ? 0 : draw.size(draw.maybe(0.2) ? 70 : 9));
    const auto make = [&](DType dtype) { return Box(draw, dtype, shape, {0, 1, 2, 3, 4}); };
    Box x = make(from);
    if (converts)
      x.fill(draw, std::exp2(20 * draw.uniform()));
    else
      x.fill_bytes(draw);
    const TensorView dense = x;
    std::array<int, kMaxRank> order{0, 1, 2, 3, 4};
    for (size_t i = shape.size(); i > 1; --i) std::swap(order[i - 1], order[draw.below(i)]);
    const auto permuted = [&](const TensorView& view) {
      TensorView out = view;
      for (int dim = 0; dim < view.rank; ++dim) {
        out.extent[dim] = view.extent[order[dim]];
        out.stride[dim] = view.stride[order[dim]];
      }
      return out;
    };
    const bool into = draw.maybe(0.5);  // the permuted one is the target
    const TensorView source = into ? dense : permuted(dense);
    Stream reference = reference_stream();
    Tensor expected = poisoned(to, source.shape());
    copy(reference, source, expected);
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      Box out = make(to);
      const TensorView target = into ? out.view() : permuted(out);
      SCOPED_TRACE(describe(table, {source, target}));
      Stream stream = any_stream(draw, table.ops);
      copy(stream, source, target);
      EXPECT_TRUE(bitwise_equal(target, expected));
      EXPECT_TRUE(out.intact());
    }
  });
}

TEST(Property, GatheredAndClearedRowsAndDoubledPixels) {
  for_cases(60, [](Draw& draw) {
    const int64_t vocabulary = draw.size(50), rows = draw.size(40), d = draw.size(140);
    Box table_of_rows(draw, any_property_float(draw), {vocabulary, d}, {0, 1});
    table_of_rows.fill(draw);
    Tensor ids(DType::kI32, {rows});
    for (int64_t i = 0; i < rows; ++i)
      ids.as<int32_t>()[i] = static_cast<int32_t>(draw.below(vocabulary));
    const DType dtype = any_property_float(draw), pixel = any_compute(draw);
    Box x(draw, pixel, {draw.size(3), draw.size(9), draw.size(9), draw.size(70)}, {0});
    x.fill(draw);
    Stream reference = reference_stream();
    Tensor gathered(dtype, {rows, d});
    Tensor doubled(pixel, {x.view()[0], 2 * x.view()[1], 2 * x.view()[2], x.view()[3]});
    gather_rows(reference, table_of_rows, ids, gathered);
    upsample_nearest2(reference, x, doubled);
    for (const Table& table : all_tables()) {
      const UseTarget use(table);
      SCOPED_TRACE(describe(table, {table_of_rows, x}));
      Stream stream = any_stream(draw, table.ops);
      Box out(draw, dtype, {rows, d}, {0, 1}), pixels(draw, pixel, doubled.view().shape(), {0});
      gather_rows(stream, table_of_rows, ids, out);
      upsample_nearest2(stream, x, pixels);
      EXPECT_TRUE(bitwise_equal(out, gathered));
      EXPECT_TRUE(bitwise_equal(pixels, doubled));
      fill_zero(stream, out);
      EXPECT_TRUE(bitwise_equal(out, Tensor(dtype, {rows, d})));
      EXPECT_TRUE(out.intact());
      EXPECT_TRUE(pixels.intact());
    }
  });
}

}  // namespace
}  // namespace weft::test
