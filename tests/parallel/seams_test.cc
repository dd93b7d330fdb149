// The serial answers of the seams against the ops they are made of.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops.h"
#include "parallel/context.h"
#include "tests/support/compare.h"

namespace weft {
namespace {

using test::bitwise_equal;

// Values that differ everywhere and stay near 1.
Tensor waves(std::initializer_list<int64_t> shape, double step) {
  Tensor out(DType::kF32, shape);
  for (int64_t i = 0; i < out.count(); ++i)
    out.as<float>()[i] = static_cast<float>(std::sin(step * static_cast<double>(i + 1)));
  return out;
}

Tensor clone(const Tensor& x) {
  Stream stream = Stream::cpu(1);
  Tensor out(x.view().dtype, x.view().shape());
  copy(stream, x, out);
  return out;
}

constexpr int64_t kSeamTokens = 12, kSeamHeads = 2, kHeadDim = 12;

struct Attention {
  Tensor q = waves({kSeamTokens, kSeamHeads, kHeadDim}, 0.7),
         k = waves({kSeamTokens, kSeamHeads, kHeadDim}, 1.3),
         v = waves({kSeamTokens, kSeamHeads, kHeadDim}, 2.1),
         out = waves({kSeamTokens, kSeamHeads, kHeadDim}, 0);
  Rope rope = make_rope({3, 2, 2}, {0, 0, 0}, kHeadDim);
};

Tensor mixed(const TokenRanges& tokens, Attention& a, Mask mask = Mask::kFull,
             ContextKV* past = nullptr) {
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  Arena arena(size_t{1} << 20);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, tokens);
  context.mixer.attend(context, {.layer = 0,
                                 .q = a.q,
                                 .k = a.k,
                                 .v = a.v,
                                 .out = a.out,
                                 .rope = &a.rope,
                                 .mask = mask,
                                 .scale = 0.3f,
                                 .past = past});
  return clone(a.out);
}

TEST(FullMixer, IsRopeThenAttention) {
  Attention a, b;
  const Tensor got = mixed(TokenRanges::all(kSeamTokens), a);
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  apply_rope(stream, b.q, b.rope, 0, b.q);
  apply_rope(stream, b.k, b.rope, 0, b.k);
  const KVSegment own{.k = b.k, .v = b.v};
  attention(stream, {.q = b.q, .segments = {&own, 1}, .scale = 0.3f, .out = b.out});
  EXPECT_TRUE(bitwise_equal(got, b.out));
}

TEST(FullMixer, RangesGiveThePositions) {
  Attention a, b, c;
  const Tensor whole = mixed(TokenRanges::all(kSeamTokens), a);
  EXPECT_TRUE(bitwise_equal(whole, mixed({{{0, 5}, {5, kSeamTokens}}, kSeamTokens}, b)));
  // Other positions, other result: rows 0..6 stand for tokens 5..11 here.
  const Tensor swapped = mixed({{{5, kSeamTokens}, {0, 5}}, kSeamTokens}, c);
  EXPECT_FALSE(bitwise_equal(whole, swapped));
}

TEST(FullMixer, SeesThePastFirst) {
  Attention a, b;
  const Tensor k = waves({3, kSeamHeads, kHeadDim}, 0.4), v = waves({3, kSeamHeads, kHeadDim}, 0.9);
  ContextKV past{.segments = {{.k = k, .v = v}}};
  const Tensor got = mixed(TokenRanges::all(kSeamTokens), a, Mask::kFull, &past);
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  apply_rope(stream, b.q, b.rope, 0, b.q);
  apply_rope(stream, b.k, b.rope, 0, b.k);
  const KVSegment segments[] = {{.k = k, .v = v}, {.k = b.k, .v = b.v}};
  attention(stream, {.q = b.q, .segments = segments, .scale = 0.3f, .out = b.out});
  EXPECT_TRUE(bitwise_equal(got, b.out));
  EXPECT_EQ(past.segments.size(), 1u);
}

TEST(FullMixer, CausalRowsIgnoreWhatComesLater) {
  Attention a, b;
  const Tensor first = mixed(TokenRanges::all(kSeamTokens), a, Mask::kCausal);
  for (int64_t i = 0; i < kSeamHeads * kHeadDim; ++i) {  // the last token alone changes
    b.k.as<float>()[(kSeamTokens - 1) * kSeamHeads * kHeadDim + i] += 1;
    b.v.as<float>()[(kSeamTokens - 1) * kSeamHeads * kHeadDim + i] += 1;
  }
  const Tensor second = mixed(TokenRanges::all(kSeamTokens), b, Mask::kCausal);
  EXPECT_TRUE(bitwise_equal(first.view().slice(0, 0, kSeamTokens - 1),
                            second.view().slice(0, 0, kSeamTokens - 1)));
  EXPECT_FALSE(bitwise_equal(first.view().slice(0, kSeamTokens - 1, 1),
                             second.view().slice(0, kSeamTokens - 1, 1)));
}

// Replicated rows are the last ones, at positions of their own: one attention over all rows.
TEST(FullMixer, RotatesReplicatedRowsByTheirOwnRope) {
  constexpr int64_t kReplicated = 4, kPlaced = 3;  // the last one has no position
  const Rope text = make_rope({kPlaced, 1, 1}, {5, 0, 0}, kHeadDim);
  Attention a, b;
  a.rope = make_rope({2, 2, 2}, {0, 0, 0}, kHeadDim);
  b.rope = make_rope({2, 2, 2}, {0, 0, 0}, kHeadDim);
  const int64_t own = kSeamTokens - kReplicated;
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  Arena arena(size_t{1} << 20);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(own));
  context.mixer.attend(context, {.q = a.q,
                                 .k = a.k,
                                 .v = a.v,
                                 .out = a.out,
                                 .rope = &a.rope,
                                 .scale = 0.3f,
                                 .replicated = kReplicated,
                                 .replicated_rope = &text});
  for (const Tensor* x : {&b.q, &b.k}) {
    const TensorView tokens = x->view().slice(0, 0, own), rows = x->view().slice(0, own, kPlaced);
    apply_rope(stream, tokens, b.rope, 0, tokens);
    apply_rope(stream, rows, text, 0, rows);
  }
  const KVSegment all{.k = b.k, .v = b.v};
  attention(stream, {.q = b.q, .segments = {&all, 1}, .scale = 0.3f, .out = b.out});
  EXPECT_TRUE(bitwise_equal(a.out, b.out));
}

TEST(IdentityReducer, LeavesSumsAndCopiesParts) {
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 20);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(1));
  EXPECT_EQ(context.reducer.parts(), 1);
  const Tensor x = waves({3, 4}, 0.5), same = clone(x);
  context.reducer.sum(context, x);
  EXPECT_TRUE(bitwise_equal(x, same));
  const Tensor whole(DType::kF32, {3, 4});
  context.reducer.gather(context, x, 1, whole);
  EXPECT_TRUE(bitwise_equal(x, whole));
}

TEST(IdentityHalo, AddsNothing) {
  Stream stream = Stream::cpu(1);
  Arena arena(size_t{1} << 20);
  SerialSeams seams;
  Context context = seams.context(stream, arena, {}, TokenRanges::all(1));
  const Tensor x = waves({1, 3, 4, 2}, 0.5);
  const HaloView halo = context.halo.exchange(context, x, 1, 1, 1);
  EXPECT_EQ(halo.view.data, x.view().data);
  EXPECT_EQ(halo.before + halo.after, 0);
}

TEST(Pass, PrintsWhatIsNotZero) {
  EXPECT_EQ(to_string(Pass{}), "step 0");
  EXPECT_EQ(to_string(Pass{.model = 1, .branch = 1, .step = 7}), "step 7 model 1 branch 1");
}

}  // namespace
}  // namespace weft
