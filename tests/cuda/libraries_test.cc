// Tests who computes GEMMs and convolutions: the library, its epilogues, or our own kernels after a
// refusal. Every path gives the op's results. And what a profiler's library is told.
#include <gtest/gtest.h>

#include "kernels/cuda/device.h"
#include "kernels/cuda/plan_cache.h"
#include "kernels/device_plan.h"
#include "kernels/pointwise.h"
#include "kernels/trace.h"
#include "kernels/transfer.h"
#include "tests/cuda/emulated_libraries.h"
#include "tests/cuda/emulated_nvtx.h"
#include "tests/cuda/emulator.h"
#include "tests/cuda/first_device.h"
#include "tests/kernels/attention_inputs.h"
#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"
#include "tests/support/hosted_ops.h"

namespace weft::test {
namespace {

// Restores the emulated libraries and resets their counters when a test ends.
class Libraries : public ::testing::Test {
 protected:
  ~Libraries() override {
    libraries_ = {};
    linear_block_bytes = block_bytes_;
  }
  EmulatedLibraries& libraries_ = emulated_libraries() = {};
  const int64_t block_bytes_ = linear_block_bytes;
  Stream stream_ = Stream::cpu(1, Determinism::kFixed, &hosted_ops());

  struct Problem {
    int64_t rows = 40, in = 48, out = 32;
    DType dtype = DType::kBF16, out_dtype = DType::kBF16;
    WeightFormat format = WeightFormat::kCompute;
    bool bias = true, aligned = false;  // aligned: the library may write to the rows of out
    LinearActivation activation = LinearActivation::kNone;
  };
  // Runs the problem, checks the result, and returns how many GEMMs the library did.
  int64_t library_gemms(const Problem& p) {
    const Tensor x = make_normal(p.dtype, {p.rows, p.in}, 1),
                 weight = make_normal(p.dtype, {p.out, p.in}, 2, 0.2),
                 bias = make_normal(DType::kF32, {p.out}, 3);
    const TensorView b = p.bias ? bias.view() : TensorView();
    Tensor out(p.out_dtype, {p.rows, p.out + (p.aligned ? 16 : 5)});
    const TensorView part = out.view().slice(1, 0, p.out);
    const int64_t before = libraries_.gemms;
    linear(stream_, x, pack_linear(stream_, weight, b, p.dtype, p.format), p.activation, part);
    const bool fused = !libraries_.refuse_gemm && p.format != WeightFormat::kInt8;
    EpilogueErrors errors =
        fused ? epilogue_errors(hosted_ops(), p.rows, p.bias, p.out_dtype, p.activation)
              : EpilogueErrors{};
    if (p.format == WeightFormat::kFp8) errors.tanh = 0;  // GELU is our own there
    if (p.format == WeightFormat::kCompute) {
      EXPECT_TRUE(within(part, expect_linear(x, weight, b, p.activation, errors)));
    } else {
      // The 8-bit values are the reference's; their sums are f32.
      Stream reference = Stream::cpu(1, Determinism::kFixed, &reference_ops());
      const PackedLinear packed = pack_linear(reference, weight, b, p.dtype, p.format);
      Tensor sums(DType::kF32, {p.rows, p.out}), results(DType::kF32, {p.rows, p.out});
      linear(reference, x, packed, LinearActivation::kNone, sums);
      linear(reference, x, packed, p.activation, results);
      std::vector<Bounded> expected;
      for (int64_t i = 0; i < sums.count(); ++i) {
        const double value = results.as<float>()[i], sum = sums.as<float>()[i],
                     product = sum - (p.bias ? bias.as<float>()[i % p.out] : 0.0f);
        expected.push_back({value, 1e-5 * (1 + std::fabs(value)) +
                                       std::fabs(sum) / 2 * errors.tanh +
                                       1.13 * errors.product * std::fabs(product)});
      }
      EXPECT_TRUE(within(part, expected));
    }
    return libraries_.gemms - before;
  }
};

constexpr WeightFormat kFormats[] = {WeightFormat::kCompute, WeightFormat::kInt8,
                                     WeightFormat::kFp8, WeightFormat::kFp8Tensor};

TEST_F(Libraries, GemvIsOurOwn) {
  EXPECT_EQ(library_gemms({.rows = 16}), 0);
  EXPECT_EQ(library_gemms({.rows = 17}), 1);
  EXPECT_EQ(library_gemms({.rows = 4, .dtype = DType::kF32, .out_dtype = DType::kF32}), 0);
  EXPECT_EQ(library_gemms({.rows = 5, .dtype = DType::kF32, .out_dtype = DType::kF32}), 1);
  EXPECT_EQ(library_gemms({.rows = 16, .format = WeightFormat::kFp8}), 0);
  EXPECT_EQ(library_gemms({.rows = 17, .format = WeightFormat::kFp8}), 1);
  EXPECT_EQ(library_gemms({.rows = 1, .format = WeightFormat::kInt8}), 1);
}

TEST_F(Libraries, EveryEpilogueGivesTheResults) {
  for (WeightFormat format : kFormats)
    for (DType out_dtype : {DType::kBF16, DType::kF32})
      for (bool bias : {false, true})
        for (bool aligned : {false, true})
          for (LinearActivation activation :
               {LinearActivation::kNone, LinearActivation::kGeluTanh, LinearActivation::kSilu})
            EXPECT_EQ(library_gemms({.out_dtype = out_dtype,
                                     .format = format,
                                     .bias = bias,
                                     .aligned = aligned,
                                     .activation = activation}),
                      1);
}

// The random biases are f32 values that bf16 does not hold.
TEST_F(Libraries, AddEveryBiasButThatOfSilu) {
  for (const WeightFormat format : {WeightFormat::kCompute, WeightFormat::kFp8Tensor})
    for (const LinearActivation activation :
         {LinearActivation::kNone, LinearActivation::kGeluTanh, LinearActivation::kSilu}) {
      const int64_t before = libraries_.biases;
      library_gemms({.format = format, .aligned = true, .activation = activation});
      EXPECT_EQ(libraries_.biases - before, activation != LinearActivation::kSilu);
    }
}

// One call of the library gives what one for each part does.
TEST(JoinedLinears, GiveTheResultsOfTheirParts) {
  const EmulatedLibraries& libraries = emulated_libraries() = {};
  Stream stream = cuda_stream(0, Determinism::kFixed, 1);
  constexpr int64_t kRows = 40, kIn = 48;
  for (const auto& [format, out, joins] : {std::tuple{WeightFormat::kCompute, 32, true},
                                           {WeightFormat::kCompute, 21, true},
                                           {WeightFormat::kInt8, 32, true},
                                           {WeightFormat::kInt8, 24, false},
                                           {WeightFormat::kFp8, 32, true},
                                           {WeightFormat::kFp8Tensor, 32, false}})
    for (const DType dtype : {DType::kBF16, DType::kF32})
      for (const bool bias : {false, true}) {
        SCOPED_TRACE(to_string(dtype).data() + std::to_string(static_cast<int>(format)));
        const Tensor host = make_normal(dtype, {kRows, kIn}, 1), x(dtype, {kRows, kIn}, kCuda);
        copy(stream, host, x);
        const auto pack = [&](int part) {
          const Tensor weight = make_normal(dtype, {out, kIn}, 2 + part, 0.2),
                       b = make_normal(DType::kF32, {out}, 5 + part);
          return pack_linear(stream, weight, bias ? b.view() : TensorView(), dtype, format);
        };
        std::array<PackedLinear, 3> parts{pack(0), pack(1), pack(2)},
            given{pack(0), pack(1), pack(2)};
        const size_t bytes = 3 * parts[0].bytes();
        const PackedLinear joined = join_linears(stream, given);
        ASSERT_EQ(static_cast<bool>(joined), joins);
        for (const PackedLinear& part : given) EXPECT_EQ(static_cast<bool>(part), !joins);
        if (!joins) continue;
        EXPECT_EQ(joined.bytes(), bytes);
        EXPECT_EQ(joined.out(), 3 * out);
        const Tensor all(dtype, {kRows, 3 * out}, kCuda), whole(dtype, {kRows, 3 * out});
        const int64_t before = libraries.gemms;
        linear(stream, x, joined, LinearActivation::kNone, all);
        EXPECT_EQ(libraries.gemms - before, 1);
        copy(stream, all, whole);
        for (int part = 0; part < 3; ++part) {
          const Tensor own(dtype, {kRows, out}, kCuda), alone(dtype, {kRows, out});
          linear(stream, x, parts[part], LinearActivation::kNone, own);
          copy(stream, own, alone);
          EXPECT_TRUE(bitwise_equal(whole.view().slice(1, part * out, out), alone)) << part;
        }
      }
}

// Matrices of a host, of other extents or types, or with a low-rank term stay apart.
TEST(JoinedLinears, StayApartWhereTheyDiffer) {
  Stream device = cuda_stream(0, Determinism::kFixed, 1), host = Stream::cpu(1);
  const auto pack = [](Stream& stream, int64_t in, DType dtype, bool bias) {
    return pack_linear(stream, Tensor(DType::kF32, {16, in}),
                       bias ? Tensor(DType::kF32, {16}).view() : TensorView(), dtype);
  };
  const auto joins = [&](Stream& stream, PackedLinear other) {
    std::array<PackedLinear, 2> parts{pack(stream, 16, DType::kBF16, true), std::move(other)};
    return static_cast<bool>(join_linears(stream, parts));
  };
  EXPECT_TRUE(joins(device, pack(device, 16, DType::kBF16, true)));
  EXPECT_FALSE(joins(device, pack(device, 24, DType::kBF16, true)));
  EXPECT_FALSE(joins(device, pack(device, 16, DType::kF32, true)));
  EXPECT_FALSE(joins(device, pack(device, 16, DType::kBF16, false)));
  EXPECT_FALSE(joins(host, pack(host, 16, DType::kBF16, true)));
  PackedLinear changed = pack(device, 16, DType::kBF16, true);
  changed.add_term(device.device(), pack(device, 16, DType::kBF16, false),
                   pack(device, 16, DType::kBF16, false), std::make_shared<SharedScratch>());
  EXPECT_FALSE(joins(device, std::move(changed)));
}

TEST_F(Libraries, BlocksOfRowsGiveTheWholeResult) {
  linear_block_bytes = 1;  // makes blocks of 128 rows
  for (WeightFormat format : kFormats)
    EXPECT_EQ(library_gemms({.rows = 300,
                             .in = 20,
                             .out = 16,
                             .format = format,
                             .activation = LinearActivation::kSilu}),
              3);
}

// NaN or Inf in one row reaches the scale of all rows, in whichever block they are computed.
TEST_F(Libraries, OneTensorScaleCoversAllBlocks) {
  linear_block_bytes = 1;
  const Tensor x = make_normal(DType::kF32, {300, 32}, 1),
               weight = make_normal(DType::kF32, {16, 32}, 2);
  x.as<float>()[299 * 32] = NAN;
  Tensor out(DType::kF32, {300, 16});
  linear(stream_, x, pack_linear(stream_, weight, {}, DType::kF32, WeightFormat::kFp8Tensor),
         LinearActivation::kNone, out);
  for (double value : to_f64(out)) ASSERT_TRUE(std::isnan(value));
}

TEST_F(Libraries, OurKernelsHandleRefusals) {
  libraries_.refuse_gemm = true;
  for (int64_t rows : {1, 15, 33})
    for (int64_t in : {7, 64, 100})
      for (WeightFormat format : kFormats)
        for (DType dtype : {DType::kF32, DType::kBF16})
          for (DType out_dtype : {dtype, DType::kF32})
            EXPECT_EQ(library_gemms({.rows = rows,
                                     .in = in,
                                     .out = 21,
                                     .dtype = dtype,
                                     .out_dtype = out_dtype,
                                     .format = format,
                                     .activation = LinearActivation::kSilu}),
                      0);
}

TEST_F(Libraries, AddsInBlocksOfRowsAfterARefusal) {
  linear_block_bytes = 20 * 32 * 4;  // of 40 rows
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (bool refused : {false, true}) {
      libraries_.refuse_gemm = refused;
      const Tensor x = make_normal(dtype, {300, 48}, 1),
                   weight = make_normal(dtype, {32, 48}, 2, 0.2),
                   bias = make_normal(DType::kF32, {32}, 3),
                   sum = make_normal(DType::kF32, {300, 32}, 4), product(DType::kF32, {300, 32});
      const PackedLinear packed = pack_linear(stream_, weight, bias, dtype);
      linear(stream_, x, packed, LinearActivation::kNone, product);
      std::vector<Bounded> expected;
      for (int64_t i = 0; i < sum.count(); ++i)
        expected.push_back({double{sum.as<float>()[i]} + product.as<float>()[i], 1e-5});
      const int64_t before = libraries_.gemms;
      linear_add(stream_, x, packed, sum);
      EXPECT_TRUE(within(sum, expected)) << to_string(dtype) << " refused " << refused;
      EXPECT_EQ(libraries_.gemms - before, refused ? 0 : 1);
    }
}

TEST_F(Libraries, EightBitFloatsWithoutScalesOrWithoutHardware) {
  libraries_.refuse_scales = true;
  EXPECT_EQ(library_gemms({.format = WeightFormat::kFp8, .aligned = true}), 1);
  EXPECT_EQ(library_gemms({.format = WeightFormat::kFp8Tensor, .aligned = true}), 1);
  libraries_.refuse_fp8 = true;
  EXPECT_EQ(library_gemms({.format = WeightFormat::kFp8Tensor, .aligned = true}), 1);
  EXPECT_EQ(library_gemms({.format = WeightFormat::kFp8, .aligned = true}), 1);
  EXPECT_EQ(library_gemms({.out = 33, .format = WeightFormat::kFp8}), 1);
}

TEST_F(Libraries, OurConvolutionHandlesRefusals) {
  struct Case {
    std::array<int64_t, 4> x;
    int64_t out;
    std::array<int64_t, 3> kernel;
    ConvArgs args;
  };
  // The cases cover channels for each width of block, several blocks of pixels, and every edge.
  const Case cases[] = {
      {{2, 9, 17, 24}, 72, {1, 3, 3}, {.pad_h = {1, 1}, .pad_w = {1, 1}}},
      {{3, 7, 9, 8}, 40, {3, 3, 3}, {.pad_front = 2, .pad_h = {1, 1}, .pad_w = {1, 1}}},
      {{5, 6, 5, 16}, 8, {3, 1, 1}, {.stride = {2, 1, 1}}},
      {{2, 13, 11, 8}, 136, {1, 3, 3}, {.stride = {1, 2, 2}, .pad_h = {0, 1}, .pad_w = {0, 1}}},
      {{1, 12, 12, 3}, 96, {3, 3, 3}, {.pad_front = 2, .pad_h = {1, 1}, .pad_w = {1, 1}}},
  };
  for (bool refused : {false, true})
    for (const Case& c : cases)
      for (DType dtype : {DType::kBF16, DType::kF32}) {
        libraries_.refuse_conv = refused;
        SCOPED_TRACE(std::to_string(&c - cases) + (refused ? " refused" : ""));
        const int64_t taps = c.kernel[0] * c.kernel[1] * c.kernel[2];
        const Tensor x = make_normal(dtype, {c.x[0], c.x[1], c.x[2], c.x[3]}, 4);
        const Tensor weight =
            make_normal(dtype, {c.out, c.x[3], c.kernel[0], c.kernel[1], c.kernel[2]}, 5,
                        1 / std::sqrt(static_cast<double>(c.x[3] * taps)));
        const Tensor bias = make_normal(DType::kF32, {c.out}, 6);
        const PackedConv packed = pack_conv(stream_, weight, bias, dtype);
        const std::array<int64_t, 4> shape = conv_output_shape(x, packed, c.args);
        Tensor out(dtype, std::span<const int64_t>(shape));
        const int64_t before = libraries_.convs;
        conv3d(stream_, x, packed, c.args, out);
        EXPECT_EQ(libraries_.convs - before, !refused && c.x[3] % 8 == 0);
        EXPECT_TRUE(within(out, expect_conv(x, weight, bias, c.args, shape)));
      }
}

TEST_F(Libraries, PointwiseConvolutionsAreGemms) {
  const Tensor x = make_normal(DType::kBF16, {2, 4, 5, 6}, 7),
               weight = make_normal(DType::kBF16, {9, 6, 1, 1, 1}, 8);
  const PackedConv packed = pack_conv(stream_, weight, {}, DType::kBF16);
  Tensor out(DType::kBF16, {2, 4, 5, 9});
  conv3d(stream_, x, packed, {}, out);
  EXPECT_EQ(libraries_.gemms, 1);
  EXPECT_EQ(libraries_.convs, 0);
  EXPECT_TRUE(within(out, expect_conv(x, weight, {}, {}, {2, 4, 5, 9})));
}

// Compute capabilities 8.6, 8.9 and 12.0 have 99 KiB of shared memory for a block.
TEST(SmallDevices, AttentionOfLargeHeadsFitsTheirSharedMemory) {
  const struct Small {
    Small() { emulated::set_shared_per_block(99 << 10); }
    ~Small() { emulated::set_shared_per_block(227 << 10); }
  } small;
  Stream stream = cuda_stream(0);
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const int64_t e : {64, 128, 129, 192, 256, 300}) {
      SCOPED_TRACE(std::string(to_string(dtype)) + ", heads of " + std::to_string(e));
      const AttentionProblem problem{
          .queries = 70, .heads = 2, .kv_heads = 1, .e = e, .keys = {40, 33}, .causal = true};
      AttentionInputs inputs(problem, dtype);
      const ExpectedAttention expected = expect_attention(inputs.args(problem), hosted_ops());
      const Tensor q = on_device(stream, clone(inputs.q)),
                   out = on_device(stream, clone(inputs.out)),
                   lse = on_device(stream, clone(inputs.lse));
      std::vector<Tensor> rows;
      std::vector<KVSegment> segments = inputs.segments;
      for (size_t s = 0; s < segments.size(); ++s) {
        segments[s].k = rows.emplace_back(on_device(stream, clone(inputs.k[s]))).view();
        segments[s].v = rows.emplace_back(on_device(stream, clone(inputs.v[s]))).view();
      }
      AttentionArgs args = inputs.args(problem);
      args.q = q;
      args.segments = segments;
      args.out = out;
      args.lse = lse;
      attention(stream, args);
      copy(stream, out, inputs.out);
      EXPECT_TRUE(within(inputs.out, expected.out));
    }
}

TEST(PlanCache, PreparesAShapeOnce) {
  cuda::PlanCache<int, int> cache;
  int made = 0;
  for (int key : {1, 2, 1, 1, 2})
    EXPECT_EQ(cache.get(key, [&] { return ++made, 10 * key; }), 10 * key);
  EXPECT_EQ(made, 2);
  EXPECT_EQ(cache.misses(), 2);
  EXPECT_EQ(cache.hits(), 3);
  EXPECT_TRUE(cache.has(2));
  EXPECT_FALSE(cache.has(3));
}

TEST(Profilers, SeeTheZonesOfARecorder) {
  Stream stream = cuda_stream(0);
  const Tensor x(DType::kF32, {8}, kCuda), y(DType::kF32, {8}, kCuda);
  Recorder recorder(Recorder::Keep::kTotals);
  const MeterScope scope(recorder);
  Stream metered = stream.with(metered_ops());
  ranges() = {};
  {
    const ZoneScope zone(Zone::kDenoise);
    const ZoneScope inner(Zone::kStep, 0);
    add(metered, x, y, y);
    EXPECT_EQ(ranges().open, (std::vector<std::string>{"denoise", "step"}));
  }
  EXPECT_TRUE(ranges().open.empty());
  EXPECT_EQ(ranges().pushed, (std::map<std::string, int>{{"denoise", 1}, {"step", 1}, {"add", 1}}));
  EXPECT_EQ(recorder.profile().of(Zone::kDenoise, Zone::kPointwise).calls, 1);
}

}  // namespace
}  // namespace weft::test
