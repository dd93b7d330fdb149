// Tests the KV cache: rows are read back as they were appended, and moves between splits send the
// bytes of the formula.
#include "parallel/methods/kv_cache.h"

#include <gtest/gtest.h>

#include "kernels/copy.h"
#include "parallel/context.h"
#include "parallel/sequence_map.h"
#include "parallel/transport/local.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/support/compare.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

constexpr int64_t kKeptHeads = 5, kKeptSize = 3;
constexpr int kKeptLayers = 2;

// A value that is unique to its place.
float cached_value(int layer, int part, int64_t token, int64_t head, int64_t i) {
  return static_cast<float>((((layer * 2 + part) * 100 + token) * kKeptHeads + head) * kKeptSize +
                            i);
}

void fill_cache(KVCache& cache, const TokenRanges& tokens, const Range& heads) {
  cache.reserve(tokens);
  Stream stream = Stream::cpu(1);
  for (int layer = 0; layer < kKeptLayers; ++layer) {
    Tensor kv(DType::kF32, {2, tokens.size(), heads.size(), kKeptSize});
    float* at = kv.as<float>();
    for (int part = 0; part < 2; ++part)
      for (const Range& range : tokens.ranges)
        for (int64_t token = range.begin; token < range.end; ++token)
          for (int64_t head = heads.begin; head < heads.end; ++head)
            for (int64_t i = 0; i < kKeptSize; ++i)
              *at++ = cached_value(layer, part, token, head, i);
    append_to_cache(stream, &cache.layers()[layer], kv.view().select(0, 0), kv.view().select(0, 1));
  }
  cache.commit();
}

void expect_cached(const KVCache& cache, const TokenRanges& tokens, const Range& heads) {
  ASSERT_EQ(cache.tokens().ranges, tokens.ranges);
  for (int layer = 0; layer < kKeptLayers; ++layer) {
    int64_t rows = 0;
    for (const KVSegment& segment : cache.layers()[layer].segments) {
      EXPECT_LE(segment.k[0], cache.shape().rows);
      for (int64_t row = 0; row < segment.k[0]; ++row, ++rows)
        for (int64_t head = heads.begin; head < heads.end; ++head)
          for (int64_t i = 0; i < kKeptSize; ++i)
            for (int part = 0; part < 2; ++part) {
              const TensorView& view = part ? segment.v : segment.k;
              ASSERT_EQ(view.as<float>()[row * view.stride[0] +
                                         (head - heads.begin) * view.stride[1] + i],
                        cached_value(layer, part, segment.position + row, head, i));
            }
    }
    EXPECT_EQ(rows, tokens.size());
  }
}

KVShape shape(int64_t heads) {
  return {.layers = kKeptLayers, .kv_heads = heads, .head_dim = kKeptSize, .rows = 4};
}

TEST(KVCache, KeepsRowsOverPagesRangesAndPasses) {
  KVPool pool(shape(kKeptHeads), 6);
  {
    KVCache cache(pool);
    fill_cache(cache, {{{0, 3}, {8, 9}}, 9}, {0, kKeptHeads});
    fill_cache(cache, {{{9, 16}}, 16}, {0, kKeptHeads});
    expect_cached(cache, {{{0, 3}, {8, 16}}, 16}, {0, kKeptHeads});
    EXPECT_EQ(pool.free_pages(), 3);
    cache.reserve({{{16, 22}}, 22});
    EXPECT_EQ(pool.free_pages(), 1);
    cache.drop();
    EXPECT_EQ(pool.free_pages(), 3);
    expect_cached(cache, {{{0, 3}, {8, 16}}, 16}, {0, kKeptHeads});
    expect_error(ErrorKind::kMemory, "6 more pages of 4 tokens", [&] {
      cache.reserve({{{16, 40}}, 40});
    });
    fill_cache(cache, {{{16, 28}}, 28}, {0, kKeptHeads});
  }
  EXPECT_EQ(pool.free_pages(), 6);
}

// Moves from a split by tokens (zigzag over Ulysses groups) to one by heads; key/value heads are
// replicated where there are more ranks than heads.
TEST(KVCache, MovesFromTokensToHeadsWithTheBytesOfTheFormula) {
  for (const auto& [rings, ulysses] : {std::pair{2, 1}, {3, 1}, {2, 2}, {2, 3}, {7, 1}, {1, 4}}) {
    const int ranks = rings * ulysses;
    constexpr int64_t kTokens = 23;
    const SequenceMap blocks = SequenceMap::zigzag(kTokens, rings, ulysses).blocks(ulysses);
    KVMove move;
    auto& [held, wanted] = move;
    for (int rank = 0; rank < ranks; ++rank) {
      held.push_back({blocks[rank / ulysses],
                      partition_heads(2 * kKeptHeads, kKeptHeads, ulysses, rank % ulysses).kv});
      wanted.push_back(
          {TokenRanges::all(kTokens), partition_heads(2 * kKeptHeads, kKeptHeads, ranks, rank).kv});
    }
    run_ranks(ranks, [&](Communicator& world) {
      const int rank = world.rank();
      Stream stream = Stream::cpu(1);
      Arena arena;
      KVPool from_pool(shape(held[rank].heads.size()), 10);
      KVPool to_pool(shape(wanted[rank].heads.size()), 10);
      KVCache from(from_pool), to(to_pool);
      fill_cache(from, held[rank].tokens, held[rank].heads);
      world.reset_counters();
      move_cache(world, stream, arena, move, from, to);
      EXPECT_EQ(world.counters().total_sent().bytes, move_sent_bytes(move, rank, from.shape()));
      expect_cached(to, TokenRanges::all(kTokens), wanted[rank].heads);
      if (rings == 1) {
        EXPECT_EQ(world.counters().total_sent().bytes, 0);
      }
    });
  }
}

}  // namespace
}  // namespace weft::test
