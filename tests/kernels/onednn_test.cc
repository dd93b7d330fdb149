// The "cpu" table where it differs from the others: the kernels it chooses, the memory it keeps,
// and that threads, row counts and concurrent calls do not change results.
#include "kernels/cpu/onednn.h"

#include <cstring>
#include <thread>

#include "kernels/cpu/cpu_isa.h"
#include "kernels/cpu/implementation.h"
#include "kernels/cpu/linear_panels.h"
#include "tests/kernels/row_ops.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// True for AVX-512 without a cap, which the tests of chosen kernels below assume.
bool has_vendor_f32() { return cpu::cpu_cap() != cpu::CpuCap::kReference && cpu::has_avx512(); }

Tensor absolute(const TensorView& x) {
  Tensor out = clone(x);
  for (int64_t i = 0; i < out.count(); ++i)
    store(out, i, std::fabs(x.dtype == DType::kF32 ? x.as<float>()[i] : to_float(x.as<bf16>()[i])));
  return out;
}

// Returns the reference's result with the bound of an f32 chain of `terms`. sum_abs comes from the
// reference run on absolute values; the factor covers its own rounding to f32.
std::vector<Bounded> bounded(const TensorView& value, const TensorView& sum_abs, int64_t terms) {
  const std::vector<double> v = to_f64(value), s = to_f64(sum_abs);
  std::vector<Bounded> out;
  for (size_t i = 0; i < v.size(); ++i)
    out.push_back({v[i], chain_bound(terms, s[i]) * (1 + kUnitBf16) + rounding(value.dtype, v[i])});
  return out;
}

TEST(CpuIsa, CapsAreTheDocumentedNames) {
  EXPECT_EQ(cpu::parse_cpu_cap(nullptr), cpu::CpuCap::kNone);
  EXPECT_EQ(cpu::parse_cpu_cap(""), cpu::CpuCap::kNone);
  EXPECT_EQ(cpu::parse_cpu_cap("ref"), cpu::CpuCap::kReference);
  EXPECT_EQ(cpu::parse_cpu_cap("avx2"), cpu::CpuCap::kAvx2);
  EXPECT_EQ(cpu::parse_cpu_cap("avx512"), cpu::CpuCap::kAvx512);
  EXPECT_EQ(cpu::parse_cpu_cap("amx"), cpu::CpuCap::kNone);
  const std::string what = thrown_error([] { cpu::parse_cpu_cap("sse9"); }, ErrorKind::kUsage);
  EXPECT_TRUE(contains(what, "sse9"));
  EXPECT_TRUE(contains(what, "avx512"));
}

TEST(CpuLinear, OneLayoutServesEveryRowCountWithAFastKernel) {
  if (!has_vendor_f32()) GTEST_SKIP() << "needs AVX-512";
  for (Determinism determinism : {Determinism::kFast, Determinism::kFixed}) {
    Stream stream = Stream::cpu(2, determinism, &cpu_ops());
    for (auto [in, out] : {std::pair{64, 192}, {100, 37}, {5, 7}, {512, 128}, {1536, 256}}) {
      Tensor weight = make_normal(DType::kF32, {out, in}, 1);
      const PackedLinear packed = pack_linear(stream, weight, {}, DType::kF32);
      for (int64_t rows : {1, 3, 4, 5, 16, 17, 64, 65, 448, 1560})
        for (LinearActivation activation :
             {LinearActivation::kNone, LinearActivation::kGeluTanh, LinearActivation::kSilu}) {
          const std::string name =
              cpu::linear_implementation(stream, packed, rows, activation, DType::kF32);
          EXPECT_TRUE(rows <= 16 ? name == "panels" : name.starts_with("brg"))
              << name << " for " << rows << " x " << in << " x " << out;
        }
    }
  }
}

// Weights are converted to the layouts of bf16 kernels block by block; converting the whole at once
// must give the same.
TEST(CpuLinear, WeightsReorderedInBlocksAreTheWhole) {
  using dnnl::memory;
  Stream stream = Stream::cpu(1, Determinism::kFast, &cpu_ops());
  for (memory::format_tag tag : {memory::format_tag::BA16a64b2a, memory::format_tag::BA16a16b2a,
                                 memory::format_tag::ab, memory::format_tag::ba})
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{64, 192}, {96, 1000}, {33, 450}}) {
      const Tensor weight = make_normal(DType::kBF16, {out, in}, 5);
      const memory::desc desc({in, out}, memory::data_type::bf16, tag);
      const auto bytes = static_cast<int64_t>(desc.get_size());
      const Tensor whole(DType::kU8, {bytes}), blocks(DType::kU8, {bytes});
      memory from({{in, out}, memory::data_type::bf16, memory::dims{1, in}}, cpu::onednn_engine(),
                  weight.view().data);
      memory to(desc, cpu::onednn_engine(), whole.view().data);
      dnnl::reorder(from, to).execute(cpu::onednn_stream(), from, to);
      cpu::onednn_stream().wait();
      cpu::reorder_weight(stream, weight, desc, blocks.view().data);
      EXPECT_EQ(std::memcmp(whole.view().data, blocks.view().data, bytes), 0) << in << " " << out;
    }
}

TEST(CpuLinear, PanelsOfPairsHaveTheBitsOfPanels) {
  Stream stream = Stream::cpu(2, Determinism::kFast, &simd_ops());
  constexpr int64_t kIn = 70, kOut = 100, kDepth = 96;  // kIn rounded up to 32
  Tensor weight = make_normal(DType::kBF16, {kOut, kIn}, 3),
         bias = make_normal(DType::kF32, {kOut}, 4);
  const cpu::LinearPanels panels(stream, weight, DType::kBF16);
  Tensor pairs(DType::kBF16, {2, kDepth / 2, 64, 2});
  for (int64_t o = 0; o < kOut; ++o)
    for (int64_t i = 0; i < kIn; ++i)
      pairs.as<bf16>()[((o / 64 * kDepth + i / 2 * 2) * 64) + o % 64 * 2 + i % 2] =
          weight.as<bf16>()[o * kIn + i];
  for (int64_t rows = 1; rows <= 16; ++rows)
    for (DType out : {DType::kF32, DType::kBF16}) {
      Tensor x = make_normal(DType::kBF16, {rows, kIn}, 5), expected(out, {rows, kOut}),
             found(out, {rows, kOut});
      panels.run(stream, x, bias.as<float>(), LinearActivation::kSilu, expected);
      cpu::LinearPanels::run_pairs(stream, pairs.view().data, x, bias.as<float>(),
                                   LinearActivation::kSilu, found);
      EXPECT_TRUE(bitwise_equal(found, expected)) << rows << " rows";
    }
}

TEST(CpuLinear, Bf16NeverRunsOnAnEmulation) {
  Stream stream = Stream::cpu(2, Determinism::kFast, &cpu_ops());
  if (cpu::cpu_cap() == cpu::CpuCap::kReference) GTEST_SKIP() << "capped to the reference";
  Tensor weight = make_normal(DType::kBF16, {192, 64}, 2);
  const PackedLinear packed = pack_linear(stream, weight, {}, DType::kBF16);
  for (int64_t rows : {1, 64, 448}) {
    const std::string name =
        cpu::linear_implementation(stream, packed, rows, LinearActivation::kNone, DType::kBF16);
    EXPECT_TRUE(name == "panels" || name.starts_with("brg") ||
                (cpu::cpu_cap() == cpu::CpuCap::kEmulatedBf16 && name.starts_with("gemm")))
        << name;
    if (!cpu_has_bf16()) {
      EXPECT_EQ(name, "panels");
    }
  }
}

TEST(CpuLinear, FixedBitsDoNotDependOnThreads) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor x = make_normal(dtype, {203, 130}, 3), weight = make_normal(dtype, {150, 130}, 4, 0.1);
    Tensor bias = make_normal(DType::kF32, {150}, 5);
    std::vector<Tensor> outs;
    for (int threads : {1, 2, 3}) {
      Stream stream = Stream::cpu(threads, Determinism::kFixed, &cpu_ops());
      const PackedLinear packed = pack_linear(stream, weight, bias, dtype);
      outs.emplace_back(dtype, std::initializer_list<int64_t>{203, 150});
      linear(stream, x, packed, LinearActivation::kGeluTanh, outs.back());
      EXPECT_TRUE(bitwise_equal(outs[0], outs.back())) << threads << " threads";
    }
  }
}

TEST(CpuLinear, MoreRowCountsThanTheCacheHolds) {
  Stream stream = Stream::cpu(1, Determinism::kFast, &cpu_ops());
  Tensor weight = make_normal(DType::kF32, {40, 24}, 6, 0.2);
  const PackedLinear packed = pack_linear(stream, weight, {}, DType::kF32);
  Tensor x = make_normal(DType::kF32, {80, 24}, 7), all(DType::kF32, {80, 40});
  linear(stream, x, packed, LinearActivation::kNone, all);
  for (int pass = 0; pass < 2; ++pass)
    for (int64_t rows = 1; rows < 80; ++rows) {
      Tensor out(DType::kF32, {rows, 40});
      linear(stream, x.view().slice(0, 0, rows), packed, LinearActivation::kNone, out);
      ASSERT_LT(relative_l2(to_f64(out), to_f64(all.view().slice(0, 0, rows))),
                2 * chain_bound(24, 24))
          << rows << " rows";
    }
}

TEST(CpuLinear, CallsFromSeveralThreadsShareOneWeight) {
  Tensor weight = make_normal(DType::kF32, {70, 48}, 8, 0.2),
         x = make_normal(DType::kF32, {90, 48}, 9);
  Stream stream = Stream::cpu(1, Determinism::kFixed, &cpu_ops());
  const PackedLinear packed = pack_linear(stream, weight, {}, DType::kF32);
  std::vector<Tensor> expected, outs;
  for (int64_t rows : {20, 50, 90}) {
    expected.emplace_back(DType::kF32, std::initializer_list<int64_t>{rows, 70});
    outs.emplace_back(DType::kF32, std::initializer_list<int64_t>{rows, 70});
    linear(stream, x.view().slice(0, 0, rows), packed, LinearActivation::kSilu, expected.back());
  }
  const PackedLinear fresh = pack_linear(stream, weight, {}, DType::kF32);
  std::vector<std::thread> threads;
  for (size_t i = 0; i < outs.size(); ++i)
    threads.emplace_back([&, i] {
      Stream own = Stream::cpu(1, Determinism::kFixed, &cpu_ops());
      for (int repeat = 0; repeat < 20; ++repeat)
        linear(own, x.view().slice(0, 0, outs[i].view()[0]), fresh, LinearActivation::kSilu,
               outs[i]);
    });
  for (std::thread& thread : threads) thread.join();
  for (size_t i = 0; i < outs.size(); ++i) EXPECT_TRUE(bitwise_equal(outs[i], expected[i])) << i;
}

TEST(CpuLinear, PacksFromAnyByteAddress) {
  for (const Ops* ops : all_ops()) {
    if (ops == &reference_ops()) continue;
    for (DType source : {DType::kF32, DType::kBF16, DType::kF16, DType::kF64})
      for (DType dtype : {DType::kF32, DType::kBF16}) {
        SCOPED_TRACE(ops->name + " " + std::string(to_string(source)));
        Stream stream = Stream::cpu(2, Determinism::kFixed, ops);
        Tensor exact = make_normal(DType::kF32, {70, 33}, 10), aligned(source, {70, 33});
        copy(stream, exact, aligned);
        std::vector<char> file(aligned.view().bytes() + 1);
        std::memcpy(file.data() + 1, aligned.view().data, aligned.view().bytes());
        const TensorView odd(file.data() + 1, source, {70, 33});
        const PackedLinear from_file = pack_linear(stream, odd, {}, dtype);
        const PackedLinear from_memory = pack_linear(stream, aligned, {}, dtype);
        file.assign(file.size(), 0);
        Tensor x = make_normal(dtype, {7, 33}, 11), a(dtype, {7, 70}), b(dtype, {7, 70});
        linear(stream, x, from_file, LinearActivation::kNone, a);
        linear(stream, x, from_memory, LinearActivation::kNone, b);
        EXPECT_TRUE(bitwise_equal(a, b));
      }
  }
}

TEST(CpuLinear, KeepsOneCopyOfTheWeights) {
  for (const Ops* ops : all_ops())
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      if (ops == &reference_ops()) continue;
      Stream stream = Stream::cpu(1, Determinism::kFast, ops);
      constexpr int64_t kIn = 1024, kOut = 2048;
      constexpr size_t kRounding = 64;  // of an allocation, in bytes
      Tensor weight(DType::kF32, {kOut, kIn}), x(dtype, {8, kIn}), out(dtype, {8, kOut});
      const size_t before = tensor_bytes_live();
      reset_tensor_bytes_peak();
      const PackedLinear packed = pack_linear(stream, weight, {}, dtype);
      const size_t weights = kIn * kOut * size_of(dtype);
      EXPECT_EQ(packed.bytes(), weights) << ops->name;
      EXPECT_LE(tensor_bytes_live() - before, weights + kRounding) << ops->name;
      // The conversion's temporary has at most 192 rows.
      EXPECT_LE(tensor_bytes_peak() - before, weights + 2 * kRounding + 192 * kIn * size_of(dtype))
          << ops->name;
      linear(stream, x, packed, LinearActivation::kNone, out);
      EXPECT_LE(tensor_bytes_live() - before, weights + kRounding) << ops->name;
    }
}

struct ConvShape {
  int64_t in, out, kt, k, frames, height, width, stride = 1, front = 0;
};

ConvArgs same_padding(const ConvShape& shape) {
  // At stride two the padding is below and to the right only, as in autoencoders.
  const int64_t before = shape.stride == 1 ? shape.k / 2 : 0, after = shape.k / 2;
  return {.stride = {1, shape.stride, shape.stride},
          .pad_front = shape.front,
          .pad_h = {before, after},
          .pad_w = {before, after}};
}

Tensor convolve(const Ops& ops, int threads, Determinism determinism, const ConvShape& shape,
                const TensorView& x, const TensorView& weight, const TensorView& bias) {
  Stream stream = Stream::cpu(threads, determinism, &ops);
  const PackedConv packed = pack_conv(stream, weight, bias, x.dtype);
  const auto extent = conv_output_shape(x, packed, same_padding(shape));
  Tensor out(x.dtype, extent);
  conv3d(stream, x, packed, same_padding(shape), out);
  return out;
}

// These are the channel counts and kernels of the autoencoders in use.
const ConvShape kConvs[] = {
    {3, 96, 3, 3, 3, 9, 10},      {16, 384, 3, 3, 3, 5, 6},  {12, 40, 3, 3, 5, 7, 6, 1, 2},
    {24, 24, 1, 3, 3, 11, 9},     {48, 24, 3, 3, 6, 8, 7},   {96, 3, 3, 3, 3, 9, 33},
    {96, 96, 1, 3, 2, 9, 9, 2},   {192, 96, 1, 3, 1, 6, 16}, {24, 48, 3, 1, 5, 6, 6},
    {10, 7, 3, 3, 5, 9, 9, 2, 2}, {16, 32, 1, 1, 2, 5, 5},   {16, 20, 1, 1, 2, 6, 5, 2},
};

TEST(CpuConv, ChannelsOfTheModelsEqualTheReference) {
  for (const Ops* ops : {&simd_ops(), &cpu_ops()})
    for (DType dtype : {DType::kF32, DType::kBF16}) {
      BoundReport report(ops->name + " conv " + std::string(to_string(dtype)));
      for (const ConvShape& s : kConvs) {
        SCOPED_TRACE(ops->name + " " + std::to_string(s.in) + " to " + std::to_string(s.out));
        Tensor x = make_normal(dtype, {s.frames, s.height, s.width, s.in}, 12);
        Tensor weight = make_normal(dtype, {s.out, s.in, s.kt, s.k, s.k}, 13, 0.1);
        // The reference sums in f64, so this is the exact result in f32 for any dtype of the
        // inputs.
        Stream copier = Stream::cpu(1, Determinism::kFixed, &reference_ops());
        const Tensor bias = rounded_bias(copier, make_normal(DType::kF32, {s.out}, 14), dtype);
        Tensor wide_x(DType::kF32, x.view().shape()), wide_w(DType::kF32, weight.view().shape());
        copy(copier, x, wide_x);
        copy(copier, weight, wide_w);
        Tensor value = convolve(reference_ops(), 2, Determinism::kFixed, s, wide_x, wide_w, bias);
        Tensor sum_abs = convolve(reference_ops(), 2, Determinism::kFixed, s, absolute(wide_x),
                                  absolute(wide_w), absolute(bias));
        const auto expected = bounded(value, sum_abs, s.in * s.kt * s.k * s.k + 1);
        Tensor one = convolve(*ops, 1, Determinism::kFixed, s, x, weight, bias);
        EXPECT_TRUE(within(one, expected, &report));
        for (int threads : {2, 3}) {
          Tensor more = convolve(*ops, threads, Determinism::kFixed, s, x, weight, bias);
          EXPECT_TRUE(bitwise_equal(one, more)) << threads << " threads";
        }
        Tensor fast = convolve(*ops, 2, Determinism::kFast, s, x, weight, bias);
        EXPECT_TRUE(within(fast, expected, &report));
      }
    }
}

TEST(CpuConv, HeavyShapesTakeAFastKernel) {
  if (!has_vendor_f32()) GTEST_SKIP() << "needs AVX-512";
  Stream stream = Stream::cpu(2, Determinism::kFast, &cpu_ops());
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    if (dtype == DType::kBF16 && !cpu::has_bf16_dot_products()) continue;
    // These are the autoencoder's stages for a 480p picture.
    for (const ConvShape& s : {ConvShape{384, 384, 3, 3, 3, 60, 104},
                               {192, 192, 3, 3, 3, 120, 208},
                               {96, 96, 3, 3, 3, 240, 416},
                               {16, 384, 3, 3, 3, 60, 104},
                               {384, 192, 1, 3, 2, 120, 208},
                               {96, 3, 3, 3, 3, 480, 832}}) {
      Tensor weight(dtype, {s.out, s.in, s.kt, s.k, s.k});
      const PackedConv packed = pack_conv(stream, weight, {}, dtype);
      // Only the extents are used.
      const TensorView x(weight.view().data, dtype, {s.frames, s.height, s.width, s.in});
      const std::string name = cpu::conv_implementation(stream, packed, x, same_padding(s));
      EXPECT_TRUE(name.starts_with(cpu::cpu_cap() == cpu::CpuCap::kEmulatedBf16 ? "" : "brg"))
          << name << " for " << s.in << " to " << s.out;
      EXPECT_LE(packed.bytes(), weight.view().bytes() * (s.out < 16 ? 16 : 1.25));
    }
  }
}

TEST(CpuConv, PicturesOfSeveralSizesShareOneWeight) {
  // One layout serves all sizes: sizes that oneDNN would have packed otherwise use another path.
  Stream stream = Stream::cpu(2, Determinism::kFast, &cpu_ops());
  Tensor weight = make_normal(DType::kF32, {64, 32, 3, 3, 3}, 15, 0.05);
  const PackedConv packed = pack_conv(stream, weight, {}, DType::kF32);
  for (auto [h, w] : {std::pair{1, 1}, {2, 3}, {8, 8}, {15, 17}, {33, 64}, {60, 104}}) {
    const ConvShape shape{32, 64, 3, 3, 3, h, w};
    Tensor x = make_normal(DType::kF32, {3, h, w, 32}, 16);
    const auto extent = conv_output_shape(x, packed, same_padding(shape));
    Tensor out(DType::kF32, extent);
    conv3d(stream, x, packed, same_padding(shape), out);
    Tensor expected = convolve(simd_ops(), 2, Determinism::kFast, shape, x, weight, {});
    EXPECT_LT(similarity_error(to_f64(out), to_f64(expected)), 1e-12) << h << " x " << w;
  }
}

TEST(CpuAttention, ManyKeyBlocksEqualTheReference) {
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor q = make_normal(dtype, {300, 4, 40}, 17), k = make_normal(dtype, {1000, 2, 40}, 18),
           v = make_normal(dtype, {1000, 2, 40}, 19);
    const KVSegment segment{.k = k, .v = v};
    struct Result {
      Tensor out, lse;
    };
    const auto attend = [&](const Ops& ops, int threads) {
      Result result{Tensor(dtype, {300, 4, 40}), Tensor(DType::kF32, {4, 300})};
      Stream stream = Stream::cpu(threads, Determinism::kFast, &ops);
      attention(stream, {.q = q,
                         .segments = {&segment, 1},
                         .scale = 0.5f,
                         .causal = true,
                         .query_position = 650,
                         .out = result.out,
                         .lse = result.lse});
      return result;
    };
    const Result expected = attend(reference_ops(), 2), one = attend(cpu_ops(), 1);
    const double bound = dtype == DType::kF32 ? kSimilarityMerge : kSimilarityBf16;
    EXPECT_LT(similarity_error(to_f64(one.out), to_f64(expected.out)), bound);
    EXPECT_LT(similarity_error(to_f64(one.lse), to_f64(expected.lse)), kSimilarityMerge);
    for (int threads : {2, 3}) {
      const Result more = attend(cpu_ops(), threads);
      EXPECT_TRUE(bitwise_equal(one.out, more.out)) << threads << " threads";
      EXPECT_TRUE(bitwise_equal(one.lse, more.lse)) << threads << " threads";
    }
  }
}

TEST(CpuAttention, MaskedKeysOfTwoSegmentsHaveTheBitsOfOne) {
  // A block of keys in one segment hides those after the query by their number, others by terms.
  Stream stream = Stream::cpu(2, Determinism::kFast, &cpu_ops());
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Tensor q = make_normal(dtype, {300, 4, 32}, 23), k = make_normal(dtype, {420, 2, 32}, 24),
           v = make_normal(dtype, {420, 2, 32}, 25), one(dtype, {300, 4, 32}),
           two(dtype, {300, 4, 32});
    const KVSegment whole{.k = k, .v = v};
    const KVSegment parts[] = {
        {.k = k.view().slice(0, 0, 77), .v = v.view().slice(0, 0, 77)},
        {.k = k.view().slice(0, 77, 343), .v = v.view().slice(0, 77, 343), .position = 77}};
    const auto attend = [&](std::span<const KVSegment> segments, const TensorView& out) {
      attention(stream, {.q = q,
                         .segments = segments,
                         .scale = 0.5f,
                         .causal = true,
                         .query_position = 100,
                         .out = out});
    };
    attend({&whole, 1}, one);
    attend(parts, two);
    EXPECT_TRUE(bitwise_equal(one, two)) << to_string(dtype);
  }
}

TEST(CpuAttention, QueriesDoNotDependOnTheirNeighbours) {
  // Any split of the queries gives the same bits; sequence parallelism relies on it.
  Stream stream = Stream::cpu(2, Determinism::kFast, &cpu_ops());
  Tensor q = make_normal(DType::kF32, {150, 2, 24}, 20),
         k = make_normal(DType::kF32, {200, 2, 24}, 21),
         v = make_normal(DType::kF32, {200, 2, 24}, 22), all(DType::kF32, {150, 2, 24});
  const KVSegment segment{.k = k, .v = v};
  attention(stream, {.q = q, .segments = {&segment, 1}, .out = all});
  for (auto [begin, count] : {std::pair{0, 1}, {37, 13}, {100, 50}}) {
    Tensor part(DType::kF32, {count, 2, 24});
    attention(stream,
              {.q = q.view().slice(0, begin, count), .segments = {&segment, 1}, .out = part});
    EXPECT_TRUE(bitwise_equal(all.view().slice(0, begin, count), part)) << begin;
  }
}

TEST(SimdGemm, EveryTargetEqualsTheReference) {
  const ConvShape shape{20, 37, 3, 3, 4, 6, 7, 1, 1};
  Tensor x = make_normal(DType::kF32, {4, 6, 7, 20}, 26);
  Tensor weight = make_normal(DType::kF32, {37, 20, 3, 3, 3}, 27, 0.1);
  Tensor matrix = make_normal(DType::kF32, {37, 300}, 28, 0.1);
  Tensor rows = make_normal(DType::kF32, {29, 300}, 29),
         q = make_normal(DType::kF32, {45, 2, 19}, 30);
  const KVSegment segment{.k = q, .v = q};
  const auto run = [&](const Ops& ops) {
    Stream stream = Stream::cpu(2, Determinism::kFixed, &ops);
    std::vector<std::vector<double>> results;
    results.push_back(to_f64(convolve(ops, 2, Determinism::kFixed, shape, x, weight, {})));
    for (int64_t count : {1, 2, 5, 11, 29}) {  // every height of the register tile
      Tensor out(DType::kF32, {count, 37});
      const PackedLinear packed = pack_linear(stream, matrix, {}, DType::kF32);
      linear(stream, rows.view().slice(0, 0, count), packed, LinearActivation::kGeluTanh, out);
      results.push_back(to_f64(out));
    }
    Tensor out(DType::kF32, {45, 2, 19});
    attention(stream, {.q = q, .segments = {&segment, 1}, .out = out});
    results.push_back(to_f64(out));
    return results;
  };
  const auto expected = run(reference_ops());
  for (const Table& table : all_tables()) {
    const UseTarget use(table);
    const auto results = run(*table.ops);
    for (size_t i = 0; i < expected.size(); ++i)
      EXPECT_LT(similarity_error(results[i], expected[i]), 1e-12) << table.name << " result " << i;
  }
}

TEST(CpuOps, PropagateNaN) {
  // A finite value in place of NaN would hide the first bad layer.
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const Ops* ops : all_ops()) {
    Stream stream = Stream::cpu(1, Determinism::kFast, ops);
    for (int64_t rows : {2, 20}) {
      Tensor x = make_normal(DType::kF32, {rows, 16}, 23),
             weight = make_normal(DType::kF32, {16, 16}, 24), out(DType::kF32, {rows, 16});
      x.as<float>()[16 + 3] = nan;
      const PackedLinear packed = pack_linear(stream, weight, {}, DType::kF32);
      for (LinearActivation activation :
           {LinearActivation::kNone, LinearActivation::kGeluTanh, LinearActivation::kSilu}) {
        linear(stream, x, packed, activation, out);
        EXPECT_TRUE(std::isnan(out.as<float>()[16])) << ops->name;
        EXPECT_TRUE(std::isfinite(out.as<float>()[0])) << ops->name;
      }
    }
    Tensor q = make_normal(DType::kF32, {3, 1, 8}, 25), out(DType::kF32, {3, 1, 8});
    q.as<float>()[8] = nan;
    const KVSegment segment{.k = q, .v = q};
    attention(stream, {.q = q, .segments = {&segment, 1}, .out = out});
    EXPECT_TRUE(std::isnan(out.as<float>()[8])) << ops->name;
  }
}

}  // namespace
}  // namespace weft::test
