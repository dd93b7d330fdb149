// Ring, token ring and Ulysses over either: one rank's result for any ranks and tokens; bytes by
// the formulas.
#include "parallel/methods/ring.h"

#include "parallel/methods/kv_cache.h"
#include "parallel/methods/token_ring.h"
#include "parallel/methods/ulysses.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"

namespace weft::test {
namespace {

enum class RingKind { kRing, kTokenRing };

std::unique_ptr<TokenMixer> make_ring(RingKind kind, Communicator group, SequenceMap tokens) {
  if (kind == RingKind::kRing)
    return std::make_unique<RingMixer>(std::move(group), std::move(tokens));
  return std::make_unique<TokenRingMixer>(std::move(group), std::move(tokens));
}

int64_t formula(RingKind kind, const SequenceMap& tokens, int rank, const AttentionCase& c) {
  return kind == RingKind::kRing ? ring_sent_bytes(tokens, rank, c.shape())
                                 : token_ring_sent_bytes(tokens, rank, c.shape(), c.mask);
}

// Sequence index = ring * ulysses + place in the Ulysses group.
std::unique_ptr<TokenMixer> under_ulysses(RingKind kind, Communicator& world,
                                          const SequenceMap& tokens, int ulysses) {
  const int ring = world.rank() / ulysses, place = world.rank() % ulysses;
  std::vector<int> row, column;
  for (int u = 0; u < ulysses; ++u) row.push_back(ring * ulysses + u);
  for (int r = 0; r < tokens.size() / ulysses; ++r) column.push_back(r * ulysses + place);
  return std::make_unique<UlyssesMixer>(
      world.group(row, 1), tokens.slice(ring * ulysses, ulysses),
      make_ring(kind, world.group(column, 2), tokens.blocks(ulysses)));
}

class Rings : public testing::TestWithParam<RingKind> {
 protected:
  SequenceRun::Make ring(const SequenceMap& ranges) const {
    return [ranges, kind = GetParam()](Communicator& world) {
      std::vector<int> all;
      for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
      return make_ring(kind, world.group(all, 2), ranges);
    };
  }
};

TEST_P(Rings, EqualOneRankWithTheBytesOfTheFormula) {
  for (const AttentionCase& c :
       {AttentionCase{.heads = 3, .kv_heads = 3},
        AttentionCase{.grid = {1, 1, 9}, .heads = 1, .kv_heads = 1},
        AttentionCase{.heads = 6, .kv_heads = 2},
        AttentionCase{.heads = 2, .kv_heads = 2, .ops = &cpu_ops()},
        AttentionCase{.heads = 2, .kv_heads = 2, .spread = 150},  // logits of about 1e4
        AttentionCase{.heads = 2, .kv_heads = 2, .mask = Mask::kCausal}}) {
    const SequenceRun run(c);
    const Tensor whole = run.whole();
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const std::vector<Range> ranges = contiguous(c.tokens(), ranks);
      const Tensor out =
          run.run(ranks, ranges, ring(ranges), {.rendezvous = true}, [&](Communicator& world) {
            EXPECT_EQ(world.counters().total_sent().bytes,
                      formula(GetParam(), ranges, world.rank(), c));
          });
      expect_method_equal(out, whole, whole, ranks);
    }
  }
}

TEST_P(Rings, Bf16RoundsOnce) {
  AttentionCase c{.heads = 4, .kv_heads = 4, .dtype = DType::kBF16};
  const SequenceRun run(c);
  const Tensor whole = run.whole(), exact = run.whole_f32();
  for (int ranks = 2; ranks <= 8; ++ranks) {
    const std::vector<Range> ranges = contiguous(c.tokens(), ranks);
    expect_method_equal(run.run(ranks, ranges, ring(ranges)), whole, exact, ranks);
  }
}

// The 8-bit format errs by 5e-2 here, but its scales are powers of two, so splitting the keys
// changes results only below 2^-14 of the largest value.
TEST_P(Rings, EightBitsAreTheSameForAnyRanks) {
  const SequenceRun run({.heads = 3, .kv_heads = 3, .format = AttentionFormat::kFp8});
  const SequenceRun plain({.heads = 3, .kv_heads = 3});
  const Tensor whole = run.whole();
  EXPECT_GT(relative_l2(whole, plain.whole()), 1e-2);
  for (int ranks = 2; ranks <= 6; ++ranks) {
    const std::vector<Range> ranges = contiguous(60, ranks);
    expect_method_equal(run.run(ranks, ranges, ring(ranges)), whole, whole, ranks);
  }
}

TEST_P(Rings, VeryUnevenTokens) {
  const AttentionCase c{.heads = 2, .kv_heads = 2};
  const SequenceRun run(c);
  const std::vector<Range> ranges{{0, 1}, {1, 41}, {41, 43}, {43, c.tokens()}};
  const Tensor whole = run.whole();
  expect_method_equal(run.run(4, ranges, ring(ranges)), whole, whole, 4);
}

TEST_P(Rings, DelaysChangeNoBit) {
  const AttentionCase c{.grid = {1, 3, 4}, .heads = 2, .kv_heads = 2};
  const SequenceRun run(c);
  const std::vector<Range> ranges = contiguous(c.tokens(), 4);
  run.expect_delays_change_no_bit(ranges, ring(ranges));
}

TEST_P(Rings, UnderUlyssesInEveryFactorisation) {
  const AttentionCase c{.heads = 8, .kv_heads = 8};
  const SequenceRun run(c);
  const Tensor whole = run.whole();
  for (int ulysses = 1; ulysses <= 8; ++ulysses)
    for (int rings = 1; ulysses * rings <= 8; ++rings) {
      const int ranks = ulysses * rings;
      const std::vector<Range> ranges = contiguous(c.tokens(), ranks);
      const auto make = [&](Communicator& world) -> std::unique_ptr<TokenMixer> {
        return under_ulysses(GetParam(), world, ranges, ulysses);
      };
      expect_method_equal(run.run(ranks, ranges, make, {.rendezvous = true}), whole, whole, ranks);
    }
}

TEST_P(Rings, ZigzagBalancesCausalAttention) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (int64_t columns : {5, 7}) {
      const AttentionCase c{.grid = {3, 4, columns},
                            .heads = 4,
                            .kv_heads = 2,
                            .dtype = dtype,
                            .mask = Mask::kCausal};
      const SequenceRun run(c);
      const Tensor whole = run.whole(), exact = run.whole_f32();
      for (int ranks = 1; ranks <= 8; ++ranks) {
        const SequenceMap map = SequenceMap::zigzag(c.tokens(), ranks);
        const Tensor out =
            run.run(ranks, map, ring(map), {.rendezvous = true}, [&](Communicator& world) {
              EXPECT_EQ(world.counters().total_sent().bytes,
                        formula(GetParam(), map, world.rank(), c));
            });
        expect_method_equal(out, whole, exact, ranks);
      }
    }
}

TEST_P(Rings, ZigzagWithLargeLogitsAndInEveryTable) {
  for (const Ops* ops : {&reference_ops(), &cpu_ops()})
    for (float spread : {1.0f, 150.0f}) {  // logits of about 1e4
      const AttentionCase c{.grid = {1, 7, 9},
                            .heads = 2,
                            .kv_heads = 2,
                            .mask = Mask::kCausal,
                            .spread = spread,
                            .ops = ops};
      const SequenceRun run(c);
      const Tensor whole = run.whole();
      for (int ranks : {2, 3, 5, 8}) {
        const SequenceMap map = SequenceMap::zigzag(c.tokens(), ranks);
        expect_method_equal(run.run(ranks, map, ring(map), {.rendezvous = true}), whole, whole,
                            ranks);
      }
    }
}

TEST_P(Rings, ZigzagDelaysChangeNoBit) {
  const AttentionCase c{.grid = {1, 3, 5}, .heads = 2, .kv_heads = 2, .mask = Mask::kCausal};
  const SequenceRun run(c);
  const SequenceMap map = SequenceMap::zigzag(c.tokens(), 4);
  run.expect_delays_change_no_bit(map, ring(map));
}

TEST_P(Rings, ZigzagUnderUlysses) {
  const AttentionCase c{.heads = 8, .kv_heads = 4, .mask = Mask::kCausal};
  const SequenceRun run(c);
  const Tensor whole = run.whole();
  for (int ulysses = 1; ulysses <= 4; ++ulysses)
    for (int rings = 1; ulysses * rings <= 8; ++rings) {
      const SequenceMap map = SequenceMap::zigzag(c.tokens(), rings, ulysses);
      const auto make = [&](Communicator& world) {
        return under_ulysses(GetParam(), world, map, ulysses);
      };
      const auto bytes = [&](Communicator& world) {
        const int ring = world.rank() / ulysses, place = world.rank() % ulysses;
        const HeadPart part = partition_heads(c.heads, c.kv_heads, ulysses, place);
        AttentionCase inner = c;
        inner.heads = part.q.size();
        inner.kv_heads = part.kv.size();
        EXPECT_EQ(world.counters().total_sent().bytes,
                  ulysses_sent_bytes(map.slice(ring * ulysses, ulysses), place, c.shape()) +
                      formula(GetParam(), map.blocks(ulysses), ring, inner));
      };
      expect_method_equal(run.run(ulysses * rings, map, make, {.rendezvous = true}, bytes), whole,
                          whole, ulysses * rings);
    }
}

TEST_P(Rings, ReplicatedRowsCountOnceAndAreTheSameOnEveryRank) {
  for (AttentionCase c : {AttentionCase{.heads = 3, .kv_heads = 3},
                          AttentionCase{.heads = 6, .kv_heads = 2, .ops = &cpu_ops()},
                          AttentionCase{.heads = 2, .kv_heads = 2, .spread = 150},
                          AttentionCase{.heads = 4, .kv_heads = 2, .dtype = DType::kBF16}})
    for (int64_t replicated : {0, 1, 37}) {
      c.replicated = replicated;
      const SequenceRun run(c);
      const Tensor whole = run.whole(), exact = run.whole_f32();
      for (int ranks = 1; ranks <= 6; ++ranks) {
        const std::vector<Range> ranges = contiguous(c.tokens(), ranks);
        const Tensor out =
            run.run(ranks, ranges, ring(ranges), {.rendezvous = true}, [&](Communicator& world) {
              EXPECT_EQ(world.counters().total_sent().bytes,
                        formula(GetParam(), ranges, world.rank(), c));
            });
        expect_method_equal(out, whole, exact, ranks);
      }
    }
}

TEST_P(Rings, ReplicatedRowsWithVeryUnevenTokensAndDelays) {
  const AttentionCase c{.grid = {1, 3, 7}, .heads = 2, .kv_heads = 2, .replicated = 5};
  const SequenceRun run(c);
  const std::vector<Range> ranges{{0, 1}, {1, 15}, {15, 17}, {17, c.tokens()}};
  const Tensor whole = run.whole();
  expect_method_equal(run.run(4, ranges, ring(ranges)), whole, whole, 4);
  run.expect_delays_change_no_bit(ranges, ring(ranges));
}

TEST_P(Rings, ReplicatedRowsUnderUlysses) {
  for (DType dtype : {DType::kF32, DType::kBF16})
    for (int64_t replicated : {1, 37}) {
      const AttentionCase c{.heads = 8, .kv_heads = 4, .dtype = dtype, .replicated = replicated};
      const SequenceRun run(c);
      const Tensor whole = run.whole(), exact = run.whole_f32();
      for (const auto& [ulysses, rings] :
           {std::pair{1, 3}, {2, 1}, {2, 2}, {2, 3}, {3, 2}, {5, 1}}) {
        const int ranks = ulysses * rings;
        const SequenceMap map = SequenceMap::contiguous(c.tokens(), ranks);
        const auto make = [&](Communicator& world) {
          return under_ulysses(GetParam(), world, map, ulysses);
        };
        const auto inner = [&](int rank) {
          AttentionCase part = c;
          const HeadPart heads = partition_heads(c.heads, c.kv_heads, ulysses, rank % ulysses);
          part.heads = heads.q.size();
          part.kv_heads = heads.kv.size();
          return part;
        };
        const auto group = [&](int rank) { return map.slice(rank / ulysses * ulysses, ulysses); };
        const Tensor out =
            run.run(ranks, map, make, {.rendezvous = true}, [&](Communicator& world) {
              const int rank = world.rank();
              EXPECT_EQ(world.counters().total_sent().bytes,
                        ulysses_sent_bytes(group(rank), rank % ulysses, c.shape()) +
                            formula(GetParam(), map.blocks(ulysses), rank / ulysses, inner(rank)));
            });
        expect_method_equal(out, whole, exact, ranks);
      }
    }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Rings, testing::Values(RingKind::kRing, RingKind::kTokenRing),
                         [](const auto& info) {
                           return std::string(info.param == RingKind::kRing ? "Ring" : "TokenRing");
                         });

// A prompt in two passes: the keys of the first go around the ring again in the second.
TEST(Ring, KeysOfEarlierPassesGoAroundWithTheBytesOfTheFormula) {
  constexpr int64_t kFirst = 9, kTotal = 24, kHeads = 4, kKvHeads = 2, kSize = 6;
  const Tensor q = random_values(DType::kF32, {kTotal, kHeads, kSize}, 1, 1);
  const Tensor k = random_values(DType::kF32, {kTotal, kKvHeads, kSize}, 2, 1);
  const Tensor v = random_values(DType::kF32, {kTotal, kKvHeads, kSize}, 3, 1);
  const Rope rope = make_line_rope(kTotal, 0, kSize, 1e4, RopePairs::kHalves);
  // Runs one pass of a mixer over `tokens`; q, k and v have one row per token.
  const auto attend = [&](Communicator* world, TokenMixer& mixer, const TokenRanges& tokens,
                          KVCache& cache, const Tensor& out) {
    Stream stream = Stream::cpu(1);
    Arena arena(size_t{1} << 24);
    IdentityReducer reducer;
    IdentityHalo halo;
    Context context{stream, arena, mixer, reducer, halo, Pass{}, tokens};
    const auto rows = [&](const Tensor& whole) {
      Tensor part(DType::kF32, {tokens.size(), whole.view()[1], kSize});
      int64_t row = 0;
      for (const Range& range : tokens.ranges) {
        copy(stream, whole.view().slice(0, range.begin, range.size()),
             part.view().slice(0, row, range.size()));
        row += range.size();
      }
      return part;
    };
    const Tensor own_q = rows(q), own_k = rows(k), own_v = rows(v);
    const Tensor own_out(DType::kF32, own_q.view().shape());
    cache.reserve(tokens);
    if (world) world->reset_counters();
    mixer.begin({});
    mixer.attend(context, {.q = own_q,
                           .k = own_k,
                           .v = own_v,
                           .out = own_out,
                           .rope = &rope,
                           .mask = Mask::kCausal,
                           .scale = 0.4f,
                           .past = &cache.layers()[0]});
    cache.commit();
    int64_t row = 0;
    for (const Range& range : tokens.ranges) {
      copy(stream, own_out.view().slice(0, row, range.size()),
           out.view().slice(0, range.begin, range.size()));
      row += range.size();
    }
  };
  const KVShape shape{.layers = 1, .kv_heads = kKvHeads, .head_dim = kSize, .rows = 4};
  Tensor whole(DType::kF32, q.view().shape());
  KVPool pool(shape, 10);
  KVCache cache(pool);
  FullMixer full;
  attend(nullptr, full, TokenRanges::all(kTotal), cache, whole);
  for (int ranks = 2; ranks <= 4; ++ranks) {
    const SequenceMap first = SequenceMap::zigzag(kFirst, ranks);
    const SequenceMap second = SequenceMap::zigzag(kTotal - kFirst, ranks).shifted(kFirst);
    std::vector<TokenRanges> held;
    for (int rank = 0; rank < ranks; ++rank) {
      held.push_back({first[rank].ranges, kTotal});
      for (const Range& range : second[rank].ranges) held.back().append(range);
    }
    const SequenceMap keys(held);
    Tensor out(DType::kF32, q.view().shape());
    run_ranks(ranks, [&](Communicator& world) {
      std::vector<int> all;
      for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
      KVPool own_pool(shape, 10);
      KVCache own(own_pool);
      RingMixer one(world.group(all, 1), first), two(world.group(all, 1), second, keys);
      attend(&world, one, first[world.rank()], own, out);
      attend(&world, two, second[world.rank()], own, out);
      EXPECT_EQ(world.counters().total_sent().bytes,
                ring_sent_bytes(keys, world.rank(), {.kv_heads = kKvHeads, .head_dim = kSize}));
      EXPECT_EQ(own.tokens().ranges, keys[world.rank()].ranges);
    });
    expect_method_equal(out, whole, whole, ranks);
  }
}

// Worked out by hand: 7 tokens as 3, 2, 2; 2 heads of 4, bf16.
TEST(RingBytes, AreTheFormulasOfTheMethods) {
  const std::vector<Range> ranges = contiguous(7, 3);
  const AttendShape half{.heads = 2, .kv_heads = 2, .head_dim = 4, .dtype = DType::kBF16};
  EXPECT_EQ(ring_sent_bytes(ranges, 0, half), 2 * 2 * 8 * (3 + 2));
  EXPECT_EQ(ring_sent_bytes(ranges, 2, half), 2 * 2 * 8 * (2 + 2));
  EXPECT_EQ(token_ring_sent_bytes(ranges, 0, half), 2 * 8 * (3 + 2) + 4 * 10 * (2 + 2));
  // Causal queries go to lower ranks and end there. Rank 0 sends two states of 2 rows home; rank 1
  // its own and rank 2's queries on, and a state of rank 2 home; rank 2 its queries.
  const auto causal = [&](int rank) {
    return token_ring_sent_bytes(ranges, rank, half, Mask::kCausal);
  };
  EXPECT_EQ(causal(0), 4 * 10 * (2 + 2));
  EXPECT_EQ(causal(1), 2 * 8 * (2 + 2) + 4 * 10 * 2);
  EXPECT_EQ(causal(2), 2 * 8 * 2);
  // Even shards: 2 (P - 1) X / P.
  EXPECT_EQ(ring_sent_bytes(contiguous(64, 4), 1, {.kv_heads = 8, .head_dim = 16}),
            2 * 3 * 64 * 8 * 16 * 4 / 4);
  // Five replicated rows: a ring sends none of them, a token ring their states to two ranks.
  AttendShape joint = half;
  joint.replicated = 5;
  EXPECT_EQ(ring_sent_bytes(ranges, 0, joint), ring_sent_bytes(ranges, 0, half));
  EXPECT_EQ(token_ring_sent_bytes(ranges, 0, joint),
            token_ring_sent_bytes(ranges, 0, half) + 2 * 5 * 4 * 10);
}

}  // namespace
}  // namespace weft::test
