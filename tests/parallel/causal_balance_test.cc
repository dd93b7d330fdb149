// Tests balanced causal attention: the schedule, one rank's result, and bytes by the formula.
#include "parallel/methods/causal_balance.h"

#include <algorithm>

#include "parallel/methods/attention_state.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"

namespace weft::test {
namespace {

SequenceRun::Make light_seq(const SequenceMap& map) {
  return [map](Communicator& world) {
    std::vector<int> all;
    for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
    return std::make_unique<LightSeqMixer>(world.group(all, 1), map);
  };
}

// (query, key) pairs that the mask lets through: the work of a block.
int64_t visible_pairs(const TokenRanges& queries, const TokenRanges& keys, Mask mask) {
  if (mask == Mask::kFull) return queries.size() * keys.size();
  int64_t pairs = 0;
  for (const Range& q : queries.ranges)
    for (const Range& k : keys.ranges) {
      // Query i sees i - k.begin + 1 keys where that lies between 1 and all of them.
      const int64_t some = std::clamp(k.begin, q.begin, q.end),
                    all = std::clamp(k.end, some, q.end);
      const int64_t rows = all - some, first = some - k.begin + 1;
      pairs += rows * first + rows * (rows - 1) / 2 + (q.end - all) * k.size();
    }
  return pairs;
}

TEST(BalanceStep, EveryPairOfBlocksOnce) {
  for (int ranks = 1; ranks <= 9; ++ranks) {
    std::vector<std::vector<int>> met(ranks, std::vector<int>(ranks));
    int idle = 0;
    for (int time = 0; time <= ranks / 2; ++time)
      for (int rank = 0; rank < ranks; ++rank) {
        const BalanceStep step = balance_step(ranks, rank, time);
        if (step.idle())
          ++idle;
        else
          ++met[step.queries][step.keys];
      }
    for (int q = 0; q < ranks; ++q)
      for (int k = 0; k < ranks; ++k) EXPECT_EQ(met[q][k], k <= q) << ranks << q << k;
    EXPECT_EQ(idle, ranks % 2 ? 0 : ranks / 2);
  }
}

TEST(LightSeq, EqualsOneRankWithTheBytesOfTheFormula) {
  for (const AttentionCase& c :
       {AttentionCase{.heads = 4, .kv_heads = 4, .mask = Mask::kCausal},
        AttentionCase{.grid = {1, 1, 11}, .heads = 6, .kv_heads = 2, .mask = Mask::kCausal},
        AttentionCase{.heads = 2, .kv_heads = 2, .mask = Mask::kCausal, .ops = &cpu_ops()},
        AttentionCase{.heads = 2, .kv_heads = 2, .mask = Mask::kCausal, .spread = 150},
        AttentionCase{.heads = 4, .kv_heads = 2, .dtype = DType::kBF16, .mask = Mask::kCausal}}) {
    const SequenceRun run(c);
    const Tensor whole = run.whole(), exact = run.whole_f32();
    for (int ranks = 1; ranks <= 8; ++ranks) {
      const SequenceMap map = SequenceMap::contiguous(c.tokens(), ranks);
      const Tensor out =
          run.run(ranks, map, light_seq(map), {.rendezvous = true}, [&](Communicator& world) {
            EXPECT_EQ(world.counters().total_sent().bytes,
                      light_seq_sent_bytes(map, world.rank(), c.shape()));
          });
      expect_method_equal(out, whole, exact, ranks);
    }
  }
}

TEST(LightSeq, BytesByHand) {
  // 7 tokens as 3, 2, 2; one head of 4, f32: rank 0 sends its keys to rank 1 and
  // no queries; rank 2 takes rank 1's keys; rank 0 helps rank 2 and returns a state of 2 rows.
  const SequenceMap map = SequenceMap::contiguous(7, 3);
  const AttendShape shape{.heads = 1, .kv_heads = 1, .head_dim = 4};
  EXPECT_EQ(light_seq_sent_bytes(map, 0, shape), 2 * 3 * 4 * 4 + 2 * (4 + 1) * 4);
  EXPECT_EQ(light_seq_sent_bytes(map, 1, shape), 2 * 2 * 4 * 4);
  EXPECT_EQ(light_seq_sent_bytes(map, 2, shape), 2 * 4 * 4);
}

TEST(LightSeq, DelaysChangeNoBit) {
  const AttentionCase c{.grid = {1, 3, 4}, .heads = 2, .kv_heads = 2, .mask = Mask::kCausal};
  const SequenceRun run(c);
  const SequenceMap map = SequenceMap::contiguous(c.tokens(), 4);
  run.expect_delays_change_no_bit(map, light_seq(map));
}

TEST(SequenceMap, HoldsEveryTokenOnce) {
  for (int64_t total : {17, 60, 61})
    for (int rings = 1; rings <= 8; ++rings)
      for (int ulysses = 1; rings * ulysses <= 9; ++ulysses)
        for (const SequenceMap& map : {SequenceMap::zigzag(total, rings, ulysses),
                                       SequenceMap::contiguous(total, rings * ulysses)}) {
          std::vector<int> held(total);
          for (int index = 0; index < map.size(); ++index)
            for (const Range& range : map[index].ranges)
              for (int64_t token = range.begin; token < range.end; ++token) ++held[token];
          EXPECT_EQ(std::count(held.begin(), held.end(), 1), total);
          EXPECT_EQ(map.rows(), total);
          EXPECT_EQ(map.joined().size(), total);
          const SequenceMap blocks = map.blocks(ulysses);
          EXPECT_EQ(blocks.size(), rings);
          for (int ring = 0; ring < rings; ++ring)
            EXPECT_EQ(blocks.rows(ring), map.slice(ring * ulysses, ulysses).rows());
        }
}

TEST(SequenceMap, ZigzagGivesEveryRankTheSameWorkInEveryHop) {
  for (int ranks : {2, 3, 4, 7}) {
    const int64_t chunk = 6;
    const SequenceMap map = SequenceMap::zigzag(2 * ranks * chunk, ranks);
    for (int hop = 1; hop < ranks; ++hop)
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_EQ(visible_pairs(map[rank], map[(rank + ranks - hop) % ranks], Mask::kCausal),
                  2 * chunk * chunk);
  }
}

// Chunks differ by at most one token, so a block's work lies between that of the shorter and the
// longer chunk.
TEST(SequenceMap, ZigzagIsBalancedWithinTheRoundingOfChunks) {
  for (int64_t total : {17, 60, 61, 97})
    for (int ranks = 2; ranks <= 8; ++ranks) {
      const SequenceMap map = SequenceMap::zigzag(total, ranks);
      const int64_t low = total / (2 * ranks), high = (total + 2 * ranks - 1) / (2 * ranks);
      for (int hop = 1; hop < ranks; ++hop)
        for (int rank = 0; rank < ranks; ++rank) {
          const int64_t pairs =
              visible_pairs(map[rank], map[(rank + ranks - hop) % ranks], Mask::kCausal);
          EXPECT_GE(pairs, 2 * low * low) << total << " " << ranks;
          EXPECT_LE(pairs, 2 * high * high) << total << " " << ranks;
        }
    }
}

TEST(AttentionState, SeesWhatTheMaskLetsThrough) {
  const std::vector<TokenRanges> parts{{{{0, 3}, {9, 12}}, 20}, {{{3, 9}}, 20}, {{{12, 20}}, 20}};
  for (const TokenRanges& queries : parts)
    for (const TokenRanges& keys : parts) {
      int64_t pairs = 0, first = queries.size(), row = 0;
      for (const Range& q : queries.ranges)
        for (int64_t i = q.begin; i < q.end; ++i, ++row) {
          int64_t seen = 0;
          for (const Range& k : keys.ranges)
            for (int64_t j = k.begin; j < k.end; ++j) seen += j <= i;
          pairs += seen;
          if (seen > 0) first = std::min(first, row);
        }
      EXPECT_EQ(visible_pairs(queries, keys, Mask::kCausal), pairs);
      EXPECT_EQ(first_seeing(queries, keys, Mask::kCausal), first);
      EXPECT_EQ(visible_pairs(queries, keys, Mask::kFull), queries.size() * keys.size());
      EXPECT_EQ(first_seeing(queries, keys, Mask::kFull), 0);
    }
}

}  // namespace
}  // namespace weft::test
