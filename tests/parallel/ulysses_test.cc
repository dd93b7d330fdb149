// Ulysses: one rank's result for any ranks, tokens and heads; bytes by the formula.
#include "parallel/methods/ulysses.h"

#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"

namespace weft::test {
namespace {

SequenceRun::Make ulysses(const std::vector<Range>& ranges) {
  return [ranges](Communicator& world) {
    std::vector<int> all;
    for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
    return std::make_unique<UlyssesMixer>(world.group(all, 1), ranges,
                                          std::make_unique<FullMixer>());
  };
}

TEST(Ulysses, EqualsOneRankToTheBit) {
  for (const AttentionCase& c :
       {AttentionCase{.heads = 8, .kv_heads = 8},
        AttentionCase{.grid = {1, 3, 7}, .heads = 9, .kv_heads = 9},
        AttentionCase{.heads = 16, .kv_heads = 8},  // grouped queries
        AttentionCase{.heads = 8, .kv_heads = 8, .mask = Mask::kCausal},
        AttentionCase{.heads = 8, .kv_heads = 8, .dtype = DType::kBF16},
        AttentionCase{.heads = 16, .kv_heads = 8, .format = AttentionFormat::kFp8}}) {
    const SequenceRun run(c);
    const Tensor whole = run.whole();
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const std::vector<Range> ranges = contiguous(c.tokens(), ranks);
      const auto bytes = [&](Communicator& world) {
        EXPECT_EQ(world.counters().total_sent().bytes,
                  ulysses_sent_bytes(ranges, world.rank(), c.shape()));
      };
      const Tensor out = run.run(ranks, ranges, ulysses(ranges), {.rendezvous = true}, bytes);
      EXPECT_TRUE(same_bits(out, whole)) << ranks << " ranks, " << relative_l2(out, whole);
    }
  }
}

TEST(Ulysses, MoreRanksThanKeyValueHeads) {
  for (const auto& [heads, kv_heads] : {std::pair{8, 2}, {6, 3}, {8, 1}}) {
    const AttentionCase c{.heads = heads, .kv_heads = kv_heads};
    const SequenceRun run(c);
    const Tensor whole = run.whole();
    for (int ranks = 1; ranks <= heads; ++ranks) {
      int64_t next = 0;
      for (int rank = 0; rank < ranks; ++rank) {  // every query head once, beside its own kv head
        const HeadPart part = partition_heads(heads, kv_heads, ranks, rank);
        EXPECT_EQ(part.q.begin, next);
        next = part.q.end;
        EXPECT_GT(part.q.size(), 0);
        EXPECT_EQ(part.kv.begin, part.q.begin * kv_heads / heads);
        EXPECT_EQ(part.kv.end, (part.q.end - 1) * kv_heads / heads + 1);
      }
      EXPECT_EQ(next, heads);
      const std::vector<Range> ranges = contiguous(c.tokens(), ranks);
      const Tensor out =
          run.run(ranks, ranges, ulysses(ranges), {.rendezvous = true}, [&](Communicator& world) {
            EXPECT_EQ(world.counters().total_sent().bytes,
                      ulysses_sent_bytes(ranges, world.rank(), c.shape()));
          });
      EXPECT_TRUE(same_bits(out, whole)) << ranks << " ranks of " << heads << "/" << kv_heads;
    }
  }
}

TEST(Ulysses, BytesAreTheFormulaOfTheMethod) {
  // e d [3 n_r (H - h_r) + h_r (S - n_r)], by hand: 7 tokens as 3, 2, 2; 5 heads as 2, 2, 1.
  const std::vector<Range> ranges = contiguous(7, 3);
  AttendShape shape{.heads = 5, .kv_heads = 5, .head_dim = 4, .dtype = DType::kBF16};
  EXPECT_EQ(ulysses_sent_bytes(ranges, 0, shape), 2 * 4 * (3 * 3 * 3 + 2 * 4));
  EXPECT_EQ(ulysses_sent_bytes(ranges, 2, shape), 2 * 4 * (3 * 2 * 4 + 1 * 5));
  // Even shards: 4 (P - 1) / P^2 of the hidden rows.
  EXPECT_EQ(ulysses_sent_bytes(contiguous(64, 4), 1, {.heads = 8, .kv_heads = 8, .head_dim = 16}),
            4 * 3 * 64 * 8 * 16 * 4 / 16);
  // Six replicated rows: the own two heads of them go to both other ranks.
  shape.replicated = 6;
  EXPECT_EQ(ulysses_sent_bytes(ranges, 0, shape), 2 * 4 * (3 * 3 * 3 + 2 * 4 + 2 * 6 * 2));
}

TEST(Ulysses, ReplicatedRowsToTheBit) {
  for (AttentionCase c : {AttentionCase{.heads = 8, .kv_heads = 8},
                          AttentionCase{.grid = {1, 3, 7}, .heads = 9, .kv_heads = 3},
                          AttentionCase{.heads = 8, .kv_heads = 2, .dtype = DType::kBF16}})
    for (int64_t replicated : {0, 1, 37}) {
      c.replicated = replicated;
      const SequenceRun run(c);
      const Tensor whole = run.whole();
      for (int ranks = 1; ranks <= 6; ++ranks) {
        const std::vector<Range> ranges = contiguous(c.tokens(), ranks);
        const Tensor out =
            run.run(ranks, ranges, ulysses(ranges), {.rendezvous = true}, [&](Communicator& world) {
              EXPECT_EQ(world.counters().total_sent().bytes,
                        ulysses_sent_bytes(ranges, world.rank(), c.shape()));
            });
        EXPECT_TRUE(same_bits(out, whole)) << ranks << " ranks, " << relative_l2(out, whole);
      }
    }
}

TEST(Ulysses, OddOwnersOfTokensAndTwoShapesInARow) {
  for (int64_t columns : {5, 2, 7}) {
    const AttentionCase c{.grid = {2, 3, columns}, .heads = 5, .kv_heads = 5};
    const SequenceRun run(c);
    const std::vector<Range> ranges{{0, 1}, {1, 8}, {8, c.tokens()}};
    EXPECT_TRUE(same_bits(run.run(3, ranges, ulysses(ranges)), run.whole()));
  }
}

// Keeps the keys as they come, as a cache of keys before rope would.
class RawKeys final : public TokenMixer {
 public:
  void attend(Context& context, const Attend& attend) override {
    EXPECT_NE(attend.rope, nullptr);
    keys = Tensor(attend.k.dtype, attend.k.shape());
    copy(context.stream, attend.k, keys);
    full_.attend(context, attend);
  }
  Tensor keys;

 private:
  FullMixer full_;
};

// The mixer inside rotates q and k, at the positions of all ranks' tokens. That gives the same bits
// as rotating every rank's rows before they travel.
TEST(Ulysses, TheMixerInsideGetsKeysBeforeRope) {
  constexpr int kRanks = 3;
  constexpr int64_t kTotal = 30, kHeads = 5, kSize = 12;
  const std::vector<Range> ranges{{0, 4}, {4, 21}, {21, kTotal}};
  const Rope rope = make_rope({2, 3, 5}, {}, kSize);
  for (const Ops* ops : {&reference_ops(), &cpu_ops()})
    for (DType dtype : {DType::kF32, DType::kBF16})
      run_ranks(kRanks, [&](Communicator& world) {
        const Range own = ranges[world.rank()];
        const Tensor k = random_values(dtype, {kTotal, kHeads, kSize}, 2, 1);
        Stream stream = Stream::cpu(1, Determinism::kFast, ops);
        Arena arena(size_t{1} << 20);
        SerialSeams seams;
        const auto attend = [&](TokenMixer& mixer, bool rotated) {
          Tensor q = random_values(dtype, {kTotal, kHeads, kSize}, 1, 1),
                 keys = random_values(dtype, {kTotal, kHeads, kSize}, 2, 1),
                 v = random_values(dtype, {kTotal, kHeads, kSize}, 3, 1),
                 out(dtype, {own.size(), kHeads, kSize});
          const auto rows = [&](const TensorView& x) { return x.slice(0, own.begin, own.size()); };
          Context context{stream, arena, mixer, seams.reducer, seams.halo, {}, {{own}, kTotal}};
          Attend all{.q = rows(q), .k = rows(keys), .v = rows(v), .out = out, .rope = &rope};
          if (rotated) apply_positions(context, all);
          if (rotated) all.rope = nullptr;
          mixer.begin({});
          mixer.attend(context, all);
          return out;
        };
        auto raw = std::make_unique<RawKeys>();
        const RawKeys& inside = *raw;
        UlyssesMixer late(world.group({0, 1, 2}, 1), ranges, std::move(raw));
        UlyssesMixer early(world.group({0, 1, 2}, 1), ranges, std::make_unique<FullMixer>());
        EXPECT_TRUE(same_bits(attend(late, false), attend(early, true)));
        const Range heads = partition_heads(kHeads, kHeads, kRanks, world.rank()).kv;
        Tensor expected(dtype, {kTotal, heads.size(), kSize});
        copy(stream, k.view().slice(1, heads.begin, heads.size()), expected);
        EXPECT_TRUE(same_bits(inside.keys, expected));
      });
}

TEST(Ulysses, DelaysChangeNoBit) {
  for (int64_t replicated : {0, 3}) {
    const AttentionCase c{.grid = {1, 3, 4}, .heads = 4, .kv_heads = 4, .replicated = replicated};
    const SequenceRun run(c);
    const std::vector<Range> ranges = contiguous(c.tokens(), 4);
    run.expect_delays_change_no_bit(ranges, ulysses(ranges));
  }
}

}  // namespace
}  // namespace weft::test
