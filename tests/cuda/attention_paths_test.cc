// Tests which kernel attention chooses on a CUDA device, and each kernel at the edges of its tiles.
// It runs on the emulated device and on a real one.
#include "kernels/cuda/attention_paths.h"

#include <array>
#include <limits>
#include <numeric>

#include "kernels/attention.h"
#include "kernels/cuda/device.h"
#include "kernels/cuda/flash.h"
#include "tests/cuda/first_device.h"
#include "tests/kernels/definitions.h"
#include "tests/kernels/row_ops.h"

namespace weft::test {
namespace {

Tensor to_device(const Tensor& host) {
  Tensor out(host.view().dtype, host.view().shape(), kCuda);
  if (host.count() > 0)
    WEFT_CUDA_CHECK(
        cudaMemcpy(out.view().data, host.view().data, host.view().bytes(), cudaMemcpyHostToDevice));
  // A small copy may still be on its way, and our streams do not wait for the default one.
  WEFT_CUDA_CHECK(cudaStreamSynchronize(nullptr));
  return out;
}

// Returns the part of `device` (a copy of `host`) that corresponds to `view` of `host`.
TensorView in_copy(TensorView view, const Tensor& host, const Tensor& device) {
  if (view.count() > 0)
    view.data = static_cast<char*>(device.view().data) +
                (static_cast<char*>(view.data) - static_cast<char*>(host.view().data));
  else
    view.data = device.view().data;
  view.device = kCuda;
  return view;
}

struct PathCase {
  int64_t queries, heads, kv_heads, e;
  std::vector<int64_t> keys;  // per segment
  int64_t gap = 0;            // rows between segments of one buffer
  bool causal = false, bias = false, lse = true;
  int64_t query_position = 0;
  float log_bias = 0;  // of the last segment
  int64_t pad = 0;     // elements after every row of q, k, v and out
  bool state = false;  // f32 out
  float sign = 1;      // of the scale; 0 makes it 0
};

// One call on the device and its definition on the host. Keys and values lie in one buffer.
class Call {
 public:
  Call(const PathCase& c, DType dtype) : case_(c) {
    const int64_t rows = std::accumulate(c.keys.begin(), c.keys.end(), int64_t{0}) +
                         c.gap * static_cast<int64_t>(c.keys.size());
    const DType out_type = c.state ? DType::kF32 : dtype;
    host_ = std::array<Tensor, 6>{
        make_normal(dtype, {c.queries, c.heads * c.e + c.pad}, 1),
        make_normal(dtype, {rows, c.kv_heads * c.e + c.pad}, 2),
        make_normal(dtype, {rows, c.kv_heads * c.e + c.pad}, 3),
        make_normal(out_type, {c.queries, c.heads * c.e + c.pad}, 4),
        make_normal(DType::kF32, {c.heads, c.queries}, 5),
        make_normal(DType::kF32, {c.heads, c.queries, c.bias ? rows : 0}, 6, 2)};
    for (const Tensor& tensor : host_) device_.push_back(to_device(tensor));
    args_ = make_args(segments_, [&](int i, TensorView view) {
      return in_copy(view, host_[static_cast<size_t>(i)], device_[static_cast<size_t>(i)]);
    });
  }

  const AttentionArgs& args() const { return args_; }
  void run(Stream& stream) { attention(stream, args_); }

  // Compares the device's results with the definition, and checks that nothing outside them was
  // written. The library's result is rounded once more where a key is added to it.
  void check(Stream& stream, BoundReport* report = nullptr, bool adds_key = false) {
    stream.sync();
    std::vector<KVSegment> segments;
    const AttentionArgs args = host_args(segments);
    ExpectedAttention expected = expect_attention(args);
    if (args.q.dtype == DType::kBF16) allow_rounded_probabilities(expected);
    if (adds_key) allow_rounded_probabilities(expected);
    Tensor before = clone(host_[3]);
    for (int i : {3, 4}) from_device(i);
    EXPECT_TRUE(within(args.out, expected.out, report));
    if (case_.lse) {
      EXPECT_TRUE(within(args.lse, expected.lse));
    }
    const int64_t width = case_.heads * case_.e;
    EXPECT_TRUE(bitwise_equal(clone_columns(before, width), clone_columns(host_[3], width)));
  }

  // Returns the call on the host; its out is a copy of the device's initial out.
  AttentionArgs host_args(std::vector<KVSegment>& segments) {
    return make_args(segments, [](int, TensorView view) { return view; });
  }

  Tensor out() { return result(3); }
  Tensor lse() { return result(4); }

 private:
  template <class Place>
  AttentionArgs make_args(std::vector<KVSegment>& segments, Place place) {
    const PathCase& c = case_;
    const auto heads = [&](int i, int64_t count) {
      TensorView view = host_[static_cast<size_t>(i)].view();
      view.rank = 3;
      view.extent = {view.extent[0], count, c.e};
      view.stride = {view.stride[0], c.e, 1};
      return view;
    };
    int64_t row = 0, position = 0, total = 0;
    for (int64_t n : c.keys) {
      segments.push_back({.k = place(1, heads(1, c.kv_heads).slice(0, row, n)),
                          .v = place(2, heads(2, c.kv_heads).slice(0, row, n)),
                          .position = position});
      row += n + c.gap;
      position += n;
      total += n;
    }
    if (!segments.empty()) segments.back().log_bias = c.log_bias;
    return {.q = place(0, heads(0, c.heads)),
            .segments = segments,
            .bias = c.bias ? place(5, host_[5].view().slice(2, 0, total)) : TensorView(),
            .scale = c.sign * static_cast<float>(1 / std::sqrt(c.e)),
            .causal = c.causal,
            .query_position = c.query_position,
            .out = place(3, heads(3, c.heads)),
            .lse = c.lse ? place(4, host_[4].view()) : TensorView()};
  }

  static Tensor clone_columns(const Tensor& x, int64_t begin) {
    Tensor out(x.view().dtype, {x.view()[0], x.view()[1] - begin});
    const size_t element_bytes = size_of(x.view().dtype),
                 bytes = static_cast<size_t>(out.view()[1]) * element_bytes;
    for (int64_t r = 0; r < x.view()[0] && bytes > 0; ++r)
      std::memcpy(static_cast<char*>(out.view().data) + static_cast<size_t>(r) * bytes,
                  static_cast<char*>(x.view().data) +
                      static_cast<size_t>(r * x.view()[1] + begin) * element_bytes,
                  bytes);
    return out;
  }

  Tensor result(int i) {
    from_device(i);
    return clone(host_[static_cast<size_t>(i)]);
  }

  void from_device(int i) {
    const auto at = static_cast<size_t>(i);
    WEFT_CUDA_CHECK(cudaMemcpy(host_[at].view().data, device_[at].view().data,
                               host_[at].view().bytes(), cudaMemcpyDeviceToHost));
  }

  PathCase case_;
  std::array<Tensor, 6> host_;  // q, k, v, out, lse, bias
  std::vector<Tensor> device_;
  std::vector<KVSegment> segments_;
  AttentionArgs args_;
};

enum class Way { kLibrary, kFlash, kSplit, kChained, kGemm };

Way way_of(const cuda::AttentionPaths& before, const cuda::AttentionPaths& after) {
  if (after.library > before.library) return Way::kLibrary;
  if (after.gemm > before.gemm) return Way::kGemm;
  if (after.chained > before.chained) return Way::kChained;
  return after.split > before.split ? Way::kSplit : Way::kFlash;
}

// The expected kernel for bf16, with the library asked from 2^20 multiplications on; f32 has no
// library.
struct Expected {
  PathCase c;
  Way way;
};

std::vector<int64_t> pages(size_t count, int64_t keys) { return std::vector(count, keys); }

const Expected kCases[] = {
    {{.queries = 130, .heads = 2, .kv_heads = 1, .e = 64, .keys = {129}}, Way::kLibrary},
    {{.queries = 128, .heads = 2, .kv_heads = 2, .e = 80, .keys = {100, 28}, .pad = 16},
     Way::kLibrary},
    // The library takes the first segment, and one more key is added to its result.
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {127, 1}, .log_bias = 2},
     Way::kLibrary},
    {{.queries = 131,
      .heads = 4,
      .kv_heads = 2,
      .e = 80,
      .keys = {60, 1},
      .gap = 3,
      .lse = false,
      .log_bias = 5},
     Way::kLibrary},
    {{.queries = 65,
      .heads = 2,
      .kv_heads = 2,
      .e = 128,
      .keys = {100, 1},
      .gap = 1,
      .log_bias = -3,
      .pad = 8},
     Way::kLibrary},
    // Each of these has one property that the library does not take.
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {128}, .state = true},
     Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {128}, .bias = true},
     Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {128}, .causal = true},
     Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {128}, .log_bias = 1},
     Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {127, 2}, .log_bias = 2},
     Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {1, 127}, .log_bias = 2},
     Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {65, 65}, .gap = 1}, Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {128}, .pad = 1}, Way::kFlash},
    {{.queries = 127, .heads = 1, .kv_heads = 1, .e = 64, .keys = {128}}, Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 64, .keys = {128}, .sign = -1}, Way::kFlash},
    {{.queries = 128, .heads = 1, .kv_heads = 1, .e = 136, .keys = {128}}, Way::kFlash},
    // These are the edges of tiles and of blocks.
    {{.queries = 63, .heads = 1, .kv_heads = 1, .e = 40, .keys = {1}}, Way::kFlash},
    {{.queries = 64, .heads = 1, .kv_heads = 1, .e = 96, .keys = {63}}, Way::kFlash},
    {{.queries = 65, .heads = 1, .kv_heads = 1, .e = 128, .keys = {65}}, Way::kFlash},
    {{.queries = 17, .heads = 2, .kv_heads = 2, .e = 256, .keys = {33}}, Way::kFlash},
    {{.queries = 22, .heads = 12, .kv_heads = 2, .e = 16, .keys = {31, 32, 33}, .gap = 2},
     Way::kFlash},
    {{.queries = 40,
      .heads = 1,
      .kv_heads = 1,
      .e = 64,
      .keys = {50, 50},
      .causal = true,
      .query_position = 37},
     Way::kFlash},
    {{.queries = 5, .heads = 1, .kv_heads = 1, .e = 8, .keys = {}}, Way::kFlash},
    // These have few queries.
    {{.queries = 1, .heads = 12, .kv_heads = 2, .e = 128, .keys = {700}}, Way::kSplit},
    {{.queries = 3,
      .heads = 2,
      .kv_heads = 1,
      .e = 64,
      .keys = pages(7, 64),
      .gap = 3,
      .causal = true,
      .query_position = 444},
     Way::kSplit},
    {{.queries = 2, .heads = 2, .kv_heads = 2, .e = 40, .keys = {300}, .bias = true, .pad = 3},
     Way::kSplit},
    {{.queries = 16, .heads = 1, .kv_heads = 1, .e = 96, .keys = {513}, .lse = false}, Way::kSplit},
    // These have more segments than a launch takes.
    {{.queries = 20, .heads = 1, .kv_heads = 1, .e = 16, .keys = pages(40, 3), .gap = 1},
     Way::kChained},
    {{.queries = 4,
      .heads = 2,
      .kv_heads = 1,
      .e = 64,
      .keys = pages(70, 2),
      .gap = 1,
      .causal = true,
      .query_position = 80,
      .state = true},
     Way::kChained},
    // These have large heads.
    {{.queries = 70, .heads = 1, .kv_heads = 1, .e = 384, .keys = {70}}, Way::kGemm},
    {{.queries = 5,
      .heads = 4,
      .kv_heads = 2,
      .e = 257,
      .keys = {65, 1, 2},
      .gap = 1,
      .causal = true,
      .bias = true,
      .query_position = 63,
      .log_bias = 1},
     Way::kGemm},
    {{.queries = 3, .heads = 1, .kv_heads = 1, .e = 264, .keys = pages(35, 2), .gap = 1},
     Way::kGemm},
    {{.queries = 3, .heads = 1, .kv_heads = 1, .e = 300, .keys = {}, .state = true}, Way::kGemm},
};

TEST(AttentionFlash, EveryWayEqualsTheDefinition) {
  Stream stream = cuda_stream(0);
  auto& paths = cuda_queue(stream).part<cuda::AttentionPaths>();
  paths.library_from = int64_t{1} << 20;
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    BoundReport report("cuda attention's ways " + std::string(to_string(dtype)));
    for (const Expected& expected : kCases) {
      SCOPED_TRACE(std::string(to_string(dtype)) + " case " + std::to_string(&expected - kCases));
      Call call(expected.c, dtype);
      const cuda::AttentionPaths before = paths;
      call.run(stream);
      Way wanted = expected.way;
      if (wanted == Way::kLibrary && dtype == DType::kF32) wanted = Way::kFlash;
      const Way way = way_of(before, paths);
      EXPECT_TRUE(way == wanted || (wanted == Way::kFlash && way == Way::kSplit))
          << static_cast<int>(way);
      call.check(stream, &report, way == Way::kLibrary && expected.c.keys.back() == 1);
    }
  }
}

TEST(AttentionFlash, RunsHaveTheSameBits) {
  Stream stream = cuda_stream(0, Determinism::kFixed);
  cuda_queue(stream).part<cuda::AttentionPaths>().library_from = 0;
  for (int i : {0, 3, 23, 28, 29}) {
    Call call(kCases[i].c, DType::kBF16);
    call.run(stream);
    stream.sync();
    const Tensor first = call.out();
    call.run(stream);
    stream.sync();
    EXPECT_TRUE(bitwise_equal(first, call.out())) << i;
  }
}

// Compares the library with the unrounded state of both of our kernels, at a size that only a real
// device can handle: all round their probabilities to bf16, so two of them differ by twice that.
TEST(AttentionFlash, TheLibraryAgreesWithTheFlashKernels) {
  Stream stream = cuda_stream(0);
  auto& paths = cuda_queue(stream).part<cuda::AttentionPaths>();
  paths.library_from = 0;
  const bool real = cuda_queue(stream).properties().multiprocessors > 8;
  const bool hopper = cuda_queue(stream).properties().major == 9;
  PathCase c{.queries = real ? 4099 : 66,
             .heads = 4,
             .kv_heads = 2,
             .e = 128,
             .keys = {real ? 32760 : 130}};
  Call library(c, DType::kBF16);
  library.run(stream);
  stream.sync();
  EXPECT_EQ(paths.library, 1);
  c.state = true;
  for (const bool wgmma : {false, true}) {
    if (wgmma && !hopper) continue;
    paths.sm90_from = wgmma ? 0 : std::numeric_limits<int64_t>::max();
    const int64_t before = wgmma ? paths.sm90 : paths.flash;
    Call flash(c, DType::kBF16);
    flash.run(stream);
    stream.sync();
    EXPECT_EQ((wgmma ? paths.sm90 : paths.flash) - before, 1) << "wgmma " << wgmma;
    constexpr double kLargest = 6;  // of the normally distributed inputs
    std::vector<Bounded> out, lse;
    for (double value : to_f64(flash.out())) out.push_back({value, 2 * kUnitBf16 * kLargest});
    EXPECT_TRUE(within(library.out(), out)) << "wgmma " << wgmma;
    EXPECT_LT(similarity_error(to_f64(library.out()), to_f64(flash.out())), 2 * kSimilarityBf16);
    // Logits are sums of 128 products that all may be about 1, scaled by 1 / sqrt(128); softmax in
    // base two instead of e would be off by a third.
    for (double value : to_f64(flash.lse())) lse.push_back({value, 2 * chain_bound(128 + 12, 12)});
    EXPECT_TRUE(within(library.lse(), lse)) << "wgmma " << wgmma;
  }
}

// Long sequences take flash_sm90 where the device has it, others the library.
TEST(AttentionPaths, LongKeysComeBeforeTheLibrary) {
  Stream stream = cuda_stream(0);
  auto& paths = cuda_queue(stream).part<cuda::AttentionPaths>();
  paths.library_from = paths.sm90_from = 0;
  paths.long_from = 200;
  const bool hopper = cuda_queue(stream).properties().major == 9;
  for (const int64_t keys : {199, 200}) {
    Call call({.queries = 64, .heads = 1, .kv_heads = 1, .e = 128, .keys = {keys}}, DType::kBF16);
    const int64_t before = paths.sm90;
    call.run(stream);
    call.check(stream);
    EXPECT_EQ(paths.sm90 - before, hopper && keys == 200 ? 1 : 0) << keys;
  }
}

// The relative error that the tensor cores' sums cause in attention in e4m3 with heads of 64, as
// their arithmetic gives it. A logit has two instructions of 33 terms. Each term loses up to 2^-13
// of a power of two, which is at most the largest of 32 products: for normal values seldom above 4,
// times a scale of 1/8. Such losses are uniform and independent: in the mean square a third of the
// most.
const double kLogitError = std::sqrt(2 * 33 / 3.0) * 0x1p-13 * 4 / 8;
// A probability p that is off by kLogitError * p crosses a boundary between two values of e4m3,
// which lie up to 2^-3 p apart, that often that the mean square of what it moves is at most
// kLogitError * 2^-3 p^2. Then come the sums of values.
const double kEightBitSums = std::sqrt(kLogitError * 0x1p-3) + kSumErrorE4m3;

// In 8 bits: more segments than one launch takes, with the keys of each launch cut in parts.
TEST(AttentionPaths, EightBitsHaveKernelsOfTheirOwn) {
  Stream stream = cuda_stream(0);
  if (cuda_queue(stream).properties().major != 9) GTEST_SKIP() << "needs compute capability 9.0";
  const PathCase c{.queries = 20,
                   .heads = 2,
                   .kv_heads = 1,
                   .e = 64,
                   .keys = std::vector<int64_t>(40, 17),
                   .gap = 1,
                   .causal = true,
                   .query_position = 620,
                   .log_bias = 1.5f,
                   .pad = 3};
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    Call call(c, dtype);
    const cuda::AttentionPaths before = cuda_queue(stream).part<cuda::AttentionPaths>();
    AttentionArgs args = call.args();
    args.format = AttentionFormat::kFp8;
    attention(stream, args);
    stream.sync();
    const cuda::AttentionPaths& after = cuda_queue(stream).part<cuda::AttentionPaths>();
    EXPECT_EQ(after.sm90 - before.sm90, 1);
    EXPECT_EQ(after.flash, before.flash);
    EXPECT_EQ(after.chained - before.chained, 1);
    EXPECT_EQ(after.split - before.split, 2);
    std::vector<KVSegment> segments;
    AttentionArgs expected = call.host_args(segments);
    expected.format = AttentionFormat::kFp8;
    const Tensor measured = call.out();
    Stream host = Stream::cpu(1, Determinism::kFixed, &reference_ops());
    attention(host, expected);
    EXPECT_LT(relative_l2(to_f64(measured.view().slice(1, 0, c.heads * c.e)), to_f64(expected.out)),
              dtype == DType::kF32 ? kEightBitSums : 2 * kUnitBf16);
  }
}

// flash_sm90 in bf16: edges of its tiles, more tiles than shared memory holds, masks, pages, more
// segments than a launch takes.
TEST(AttentionSm90, EveryEdgeEqualsTheDefinition) {
  Stream stream = cuda_stream(0);
  auto& paths = cuda_queue(stream).part<cuda::AttentionPaths>();
  if (cuda_queue(stream).properties().major != 9) GTEST_SKIP() << "needs compute capability 9.0";
  paths.sm90_from = 0;
  const PathCase cases[] = {
      {.queries = 64, .heads = 1, .kv_heads = 1, .e = 128, .keys = {1}, .state = true},
      {.queries = 129, .heads = 2, .kv_heads = 2, .e = 128, .keys = {129}, .state = true},
      {.queries = 65,
       .heads = 1,
       .kv_heads = 1,
       .e = 128,
       .keys = {300},
       .state = true,
       .sign = -1},
      {.queries = 65, .heads = 1, .kv_heads = 1, .e = 128, .keys = {300}, .state = true, .sign = 0},
      {.queries = 70, .heads = 4, .kv_heads = 2, .e = 72, .keys = {127, 1}, .log_bias = 2},
      {.queries = 80,
       .heads = 1,
       .kv_heads = 1,
       .e = 96,
       .keys = {900},
       .lse = false,
       .state = true},
      {.queries = 66, .heads = 3, .kv_heads = 1, .e = 80, .keys = {65, 300}, .gap = 1, .pad = 1},
      {.queries = 300, .heads = 1, .kv_heads = 1, .e = 128, .keys = {300}, .causal = true},
      {.queries = 130,
       .heads = 2,
       .kv_heads = 1,
       .e = 128,
       .keys = pages(9, 64),
       .gap = 2,
       .causal = true,
       .query_position = 440},
      {.queries = 64, .heads = 1, .kv_heads = 1, .e = 100, .keys = pages(40, 5), .gap = 1},
      {.queries = 65, .heads = 1, .kv_heads = 1, .e = 128, .keys = {}, .state = true},
  };
  BoundReport report("cuda attention by warpgroups");
  for (const PathCase& c : cases) {
    SCOPED_TRACE("case " + std::to_string(&c - cases));
    Call call(c, DType::kBF16);
    const int64_t before = paths.sm90;
    call.run(stream);
    EXPECT_EQ(paths.sm90 - before, 1);
    call.check(stream, &report);
  }
}

// Covers the instantiations that a device of another size would choose.
TEST(AttentionFlash, EveryBlockOfRowsEqualsTheDefinition) {
  using cuda::FlashRows;
  Stream stream = cuda_stream(0);
  for (FlashRows rows : {FlashRows::k16, FlashRows::k64, FlashRows::k128})
    for (int64_t e : {40, 64, 96, 128, 200}) {
      SCOPED_TRACE(std::to_string(static_cast<int>(rows)) + " rows of " + std::to_string(e));
      // The rows of the second block see keys that the mask hides from the first block.
      const PathCase c{.queries = 45,
                       .heads = 3,
                       .kv_heads = 1,
                       .e = e,
                       .keys = {70},
                       .causal = true,
                       .query_position = 20};
      Call call(c, DType::kBF16);
      const AttentionArgs& args = call.args();
      const int keys = cuda::flash_tile_keys(DType::kBF16, static_cast<int>(rows), e);
      const KVSegment& segment = args.segments[0];
      cuda::FlashArgs flash{.q = args.q.data,
                            .q_row = args.q.stride[0],
                            .q_head = e,
                            .out = args.out.data,
                            .out_row = args.out.stride[0],
                            .out_head = e,
                            .lse = args.lse.as<float>(),
                            .lse_row = 1,
                            .lse_head = c.queries,
                            .scale = args.scale * 1.44269504f,
                            .queries = static_cast<int>(c.queries),
                            .share = 3,
                            .size = static_cast<int>(e),
                            .segments = 1,
                            .tiles = (70 + keys - 1) / keys,
                            .parts = 1,
                            .causal = true,
                            .aligned = true};
      flash.segment[0] = {.k = segment.k.data,
                          .v = segment.v.data,
                          .k_row = segment.k.stride[0],
                          .k_head = e,
                          .v_row = segment.v.stride[0],
                          .v_head = e,
                          .keys = 70,
                          .diagonal = 20};
      cuda::launch_flash(stream, DType::kBF16, rows, 1, flash);
      call.check(stream);
    }
}

}  // namespace
}  // namespace weft::test
