#include "models/blocks.h"

#include <gtest/gtest.h>

#include <cmath>

#include "kernels/ops.h"
#include "tests/models/slices_testing.h"
#include "tests/support/compare.h"

namespace weft::test {
namespace {

// Acts as the other one of two ranks: adds the values that this rank would send.
struct TwoParts final : Reducer {
  explicit TwoParts(const TensorView& other) : other(other) {}
  int parts() const override { return 2; }
  void sum(Context& context, const TensorView& partial) override {
    add(context.stream, partial, other, partial);
  }
  void gather(Context&, const TensorView&, int, const TensorView&) override {}
  TensorView other;
};

class Blocks : public testing::Test {
 protected:
  Context context(Reducer& reducer, const TokenRanges& tokens = TokenRanges::all(1)) {
    return {stream, arena, seams.mixer, reducer, seams.halo, {}, tokens};
  }
  Stream stream = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  Arena arena{size_t{1} << 20};
  SerialSeams seams;
};

// The sum of two halves of the input width, plus the bias once, equals the result of the whole
// width.
TEST_F(Blocks, BiasComesAfterTheSum) {
  const int64_t n = 5, in = 8, out = 6;
  const Tensor x = waves({n, in}, 0.3), weight = waves({out, in}, 0.7), bias = waves({out}, 1.1);
  Tensor halves[4];
  for (int part = 0; part < 2; ++part) {
    halves[part] = Tensor(DType::kF32, {n, in / 2});
    copy(stream, x.view().slice(1, part * in / 2, in / 2), halves[part]);
    halves[2 + part] = Tensor(DType::kF32, {out, in / 2});
    copy(stream, weight.view().slice(1, part * in / 2, in / 2), halves[2 + part]);
  }
  Tensor theirs(DType::kF32, {n, out}), ours(DType::kF32, {n, out}), whole(DType::kF32, {n, out});
  linear(stream, halves[1], pack_linear(stream, halves[3], {}, DType::kF32),
         LinearActivation::kNone, theirs);
  TwoParts two(theirs);
  Context split = context(two);
  row_linear(split, halves[0],
             {.packed = pack_linear(stream, halves[2], {}, DType::kF32),
              .bias = f32_copy(stream, bias, {out})},
             ours);
  Context one = context(seams.reducer);
  row_linear(one, x, {.packed = pack_linear(stream, weight, bias, DType::kF32), .bias = {}}, whole);
  EXPECT_LT(relative_l2(to_f64(ours), to_f64(whole)), kParallelL2);
}

TEST_F(Blocks, RmsNormOfHalfAWidthUsesTheWhole) {
  const int64_t n = 4, d = 8;
  const Tensor x = waves({n, d}, 0.3), weight = waves({d}, 0.9);
  Tensor whole = f32_copy(stream, x, {n, d});
  Context one = context(seams.reducer);
  full_rms_norm(one, whole, d, weight, 1e-6f);
  Tensor half(DType::kF32, {n, d / 2}), sums(DType::kF32, {n}), rest(DType::kF32, {n, d / 2});
  copy(stream, x.view().slice(1, 0, d / 2), half);
  copy(stream, x.view().slice(1, d / 2, d / 2), rest);
  sum_squares(stream, rest, sums);
  TwoParts two(sums);
  Context split = context(two);
  full_rms_norm(split, half, d, weight.view().slice(0, 0, d / 2), 1e-6f);
  EXPECT_LT(relative_l2(to_f64(half), to_f64(whole.view().slice(1, 0, d / 2))), kParallelL2);
}

// patchify has the order of a strided convolution's weight, and unpatchify is
// its inverse.
TEST_F(Blocks, PatchOrder) {
  const Tensor latent = waves({3, 2, 4, 6}, 0.3);  // [C, F, H, W]
  const TokenRanges all = TokenRanges::all(2 * 2 * 3);
  Tensor rows(DType::kF32, {12, 12}), back(DType::kF32, {3, 2, 4, 6});
  patchify(stream, latent, {1, 2, 2}, all, rows);
  const auto at = [&](int64_t c, int64_t f, int64_t h, int64_t w) {
    return latent.as<float>()[((c * 2 + f) * 4 + h) * 6 + w];
  };
  for (int64_t t = 0; t < 12; ++t)
    for (int64_t i = 0; i < 12; ++i)
      ASSERT_EQ(rows.as<float>()[t * 12 + i],
                at(i / 4, t / 6, t / 3 % 2 * 2 + i / 2 % 2, t % 3 * 2 + i % 2));
  unpatchify(stream, rows, {1, 2, 2}, all, back);
  EXPECT_TRUE(bitwise_equal(latent, back));
}

// For any ranges in any order, each row is the row of its token.
TEST_F(Blocks, PatchesOfTokenRanges) {
  const Tensor latent = waves({2, 4, 6, 8}, 0.3);  // patches of 2 frames too
  const std::array<int64_t, 3> patch{2, 2, 2};
  const int64_t total = 2 * 3 * 4, width = 2 * 8;
  Tensor whole(DType::kF32, {total, width});
  patchify(stream, latent, patch, TokenRanges::all(total), whole);
  for (const TokenRanges& tokens :
       {TokenRanges{{{0, 1}}, total}, TokenRanges{{{3, 17}}, total}, TokenRanges{{{5, 5}}, total},
        TokenRanges{{{20, 24}, {2, 11}}, total}, TokenRanges{{{0, 12}, {12, 24}}, total}}) {
    Tensor rows(DType::kF32, {tokens.size(), width});
    patchify(stream, latent, patch, tokens, rows);
    int64_t row = 0;
    for (const Range& range : tokens.ranges) {
      EXPECT_TRUE(bitwise_equal(rows.view().slice(0, row, range.size()),
                                whole.view().slice(0, range.begin, range.size())));
      row += range.size();
    }
    // The patches of these tokens are the same as when all tokens are written.
    Tensor mine(DType::kF32, {2, 4, 6, 8}), all(DType::kF32, {2, 4, 6, 8});
    unpatchify(stream, rows, patch, tokens, mine);
    Tensor only(DType::kF32, {total, width});
    for (const Range& range : tokens.ranges)
      copy(stream, whole.view().slice(0, range.begin, range.size()),
           only.view().slice(0, range.begin, range.size()));
    unpatchify(stream, only, patch, TokenRanges::all(total), all);
    EXPECT_TRUE(bitwise_equal(mine, all));
  }
}

TEST_F(Blocks, PlacedPatchesGiveTheLatentBackAndLeaveTheRestAlone) {
  Tensor latent(DType::kF32, {3, 2, 4, 6}), back(DType::kF32, {3, 2, 4, 6});
  for (int64_t i = 0; i < latent.count(); ++i) latent.as<float>()[i] = static_cast<float>(i + 1);
  const TokenRanges first{{{0, 5}}, 12}, second{{{5, 12}}, 12};
  for (const TokenRanges* tokens : {&first, &second}) {
    Tensor rows(DType::kF32, {tokens->size(), 12});
    patchify(stream, latent, {1, 2, 2}, *tokens, rows);
    unpatchify(stream, rows, {1, 2, 2}, *tokens, back);
    int64_t placed = 0;
    for (int64_t i = 0; i < back.count(); ++i) placed += back.as<float>()[i] != 0;
    EXPECT_EQ(placed, tokens == &first ? 5 * 12 : back.count());
  }
  for (int64_t i = 0; i < back.count(); ++i) EXPECT_EQ(back.as<float>()[i], latent.as<float>()[i]);
}

TEST_F(Blocks, ArenaBytesAreWhatAnArenaTakes) {
  for (int64_t n : {0, 1, 15, 16, 17, 1000}) {
    const size_t before = arena.used();
    arena.alloc(DType::kBF16, {n, 3});
    EXPECT_EQ(arena.used() - before, arena_bytes(DType::kBF16, {n, 3}));
  }
}

}  // namespace
}  // namespace weft::test
