// A language model under every split of prefill and decoding gives the same logits, caches and
// tokens, whatever other requests are in the batch.
#include "engine/language/language.h"

#include <gtest/gtest.h>

#include <numeric>

#include "kernels/copy.h"
#include "kernels/ops.h"
#include "models/random_weights/random_weights.h"
#include "parallel/methods/ring.h"
#include "parallel/methods/tensor_parallel.h"
#include "parallel/methods/ulysses.h"
#include "parallel/transport/local.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/support/compare.h"
#include "tests/support/draw.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Part = LanguageRank::Part;

// The sizes are uneven on purpose: 6 heads in 3 groups, 37 columns, a vocabulary of 53.
DecoderConfig small_decoder(bool third = true) {
  return {.hidden = 24,
          .ffn = 37,
          .vocab = 53,
          .layers = 4,
          .heads = 6,
          .kv_heads = 3,
          .head_dim = 8,
          .head_norms = third,
          .projection_biases = !third,
          .tied = third,
          .max_positions = 96};
}

TensorFile weights(const DecoderConfig& config) {
  return random_tensors(decoder_tensors(config), 7);
}

LanguageOptions one_thread_of(LanguageOptions options = {}) {
  options.threads = 1;
  options.page_rows = 5;
  options.split_tokens = options.split_tokens ? options.split_tokens : 1;
  return options;
}

std::vector<int32_t> some_ids(int64_t count, int32_t vocab, int32_t first = 3) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i)
    ids.push_back(static_cast<int32_t>((first + 31 * i + i * i) % vocab));
  return ids;
}

// Feeds `ids` in passes of the given sizes through the stages of the rank's layout. Returns all
// logits on the last stage, and an empty tensor on the others.
Tensor logits_in_passes(LanguageRank& rank, const std::vector<int32_t>& ids,
                        const std::vector<int64_t>& sizes) {
  const RankPlacement& placement = rank.placement();
  const int64_t vocab = rank.config().vocab;
  Tensor all;
  if (rank.blocks().last()) all = Tensor(DType::kF32, {static_cast<int64_t>(ids.size()), vocab});
  rank.open(0);
  int64_t at = 0;
  int step = 0;
  for (int64_t size : sizes) {
    const Part part{0, {ids.begin() + at, ids.begin() + at + size}};
    const Pass pass{.step = step++};
    const auto share = rank.share({&part, 1});
    Tensor hidden(DType::kF32, {share.rows, rank.config().hidden});
    const Tag tag{.kind = Payload::kHidden, .pass = pass};
    if (!rank.blocks().first())
      placement.communicator().receive(rank.stream(), placement.stage_peer(-1), tag, hidden);
    rank.forward(pass, {&part, 1}, share, hidden);
    if (rank.blocks().last())
      copy(rank.stream(),
           rank.logits(
               pass, rank.wanted_rows(pass, {&part, 1}, share, hidden, LanguageRank::Tokens::kAll)),
           all.view().slice(0, at, size));
    else
      placement.communicator().send(rank.stream(), placement.stage_peer(1), tag, hidden);
    at += size;
  }
  CHECK(at == static_cast<int64_t>(ids.size()), at);
  return all;
}

Tensor whole_logits(const DecoderConfig& config, const std::vector<int32_t>& ids,
                    const LanguageOptions& options = one_thread_of()) {
  const TensorFile file = weights(config);
  LanguageRank rank(file, config, options);
  return logits_in_passes(rank, ids, {static_cast<int64_t>(ids.size())});
}

void expect_near(const Tensor& got, const Tensor& expected, const std::string& what) {
  const std::vector<double> a = to_f64(got), b = to_f64(expected);
  EXPECT_LE(relative_l2(a, b), kParallelL2) << what;
}

TEST(Language, ChunksOfAnySizeGiveTheLogitsOfOnePass) {
  for (const bool third : {true, false}) {
    const DecoderConfig config = small_decoder(third);
    const TensorFile file = weights(config);
    const std::vector<int32_t> ids = some_ids(23, 53);
    const Tensor whole = whole_logits(config, ids);
    for (const std::vector<int64_t>& sizes :
         {std::vector<int64_t>(23, 1), {1, 22}, {22, 1}, {5, 5, 5, 5, 3}, {7, 1, 1, 14}}) {
      LanguageRank rank(file, config, one_thread_of());
      expect_near(logits_in_passes(rank, ids, sizes), whole,
                  "first chunk " + std::to_string(sizes[0]));
    }
  }
}

TEST(Language, EveryLayoutPrefillsInChunksAndDecodes) {
  int layouts = 0;
  for (const bool third : {true, false}) {
    const DecoderConfig config = small_decoder(third);
    const std::vector<int32_t> ids = some_ids(29, 53);
    const Tensor whole = whole_logits(config, ids);
    for (int ranks = 2; ranks <= 4; ++ranks)
      for (const Layout& layout : legal_layouts(ranks, LanguageRank::limits(config, 11))) {
        if (layout[Axis::kData] > 1) continue;
        for (const RingBalance balance :
             {RingBalance::kZigzag, RingBalance::kContiguous, RingBalance::kLightSeq}) {
          if (balance != RingBalance::kZigzag && layout[Axis::kRing] == 1) continue;
          ++layouts;
          const TensorFile file = weights(config);
          run_ranks(ranks, [&](Communicator& world) {
            LanguageRank rank(file, config, one_thread_of({.balance = balance}),
                              RankPlacement::of(world, layout));
            const Tensor got = logits_in_passes(rank, ids, {11, 13, 1, 1, 1, 2});
            if (got)
              expect_near(
                  got, whole,
                  to_string(layout) + " balance " + std::to_string(static_cast<int>(balance)));
          });
        }
      }
  }
  EXPECT_GE(layouts, 40);
}

// Returns the rows that a sequence's cache holds in one layer, as a dense tensor.
Tensor cached(Stream& stream, const KVCache& cache, int layer, TensorView KVSegment::*part) {
  const ContextKV& context = cache.layers()[layer];
  int64_t rows = 0;
  for (const KVSegment& segment : context.segments) rows += segment.k[0];
  Tensor out(cache.shape().dtype, {rows, cache.shape().kv_heads, cache.shape().head_dim});
  rows = 0;
  for (const KVSegment& segment : context.segments) {
    copy(stream, segment.*part, out.view().slice(0, rows, segment.k[0]));
    rows += segment.k[0];
  }
  return out;
}

// The law of Shift Parallelism: a pass split by tokens and one split by heads leave the same rows
// on the same rank. So the split may change between any two passes without moving data.
TEST(Language, TokensAndHeadsLeaveTheSameCache) {
  const DecoderConfig config = small_decoder();
  const std::vector<int32_t> ids = some_ids(13, 53);
  for (const auto& [ranks, text] :
       {std::pair{2, "ulysses=2"}, {3, "ulysses=3"}, {4, "ulysses=4"}, {4, "ulysses=2,tensor=2"}}) {
    const Layout layout = parse_layout(text, ranks, LanguageRank::limits(config, 13));
    const TensorFile file = weights(config);
    run_ranks(ranks, [&](Communicator& world) {
      // Returns keys and values, layer by layer.
      const auto caches = [&](const std::vector<int64_t>& sizes, int64_t split_tokens) {
        LanguageRank rank(file, config,
                          one_thread_of({.ops = &reference_ops(), .split_tokens = split_tokens}),
                          RankPlacement::of(world, layout));
        logits_in_passes(rank, ids, sizes);
        std::vector<Tensor> kept;
        for (int layer = 0; layer < config.layers; ++layer)
          for (const auto part : {&KVSegment::k, &KVSegment::v})
            kept.push_back(cached(rank.stream(), rank.cache(0), layer, part));
        return kept;
      };
      const std::vector<Tensor> tokens = caches({13}, 1), heads = caches({13}, 1000);
      const std::vector<Tensor> both = caches({4, 1, 1, 6, 1}, 1);  // alternates between the splits
      for (size_t i = 0; i < tokens.size(); ++i) {
        ASSERT_EQ(tokens[i].view()[0], 13);
        if (i < 2) {  // the first layer's: no sum over ranks precedes them
          EXPECT_TRUE(bitwise_equal(tokens[i], heads[i])) << text;
          EXPECT_TRUE(bitwise_equal(tokens[i], both[i])) << text;
        }
        expect_near(tokens[i], heads[i], text);
        expect_near(tokens[i], both[i], text);
      }
    });
  }
}

std::vector<CompletionRequest> some_requests() {
  std::vector<CompletionRequest> requests;
  for (int i = 0; i < 7; ++i)
    requests.push_back({.prompt = some_ids(1 + 5 * i % 13, 53, i),
                        .max_tokens = 1 + 7 * i % 12,
                        .sampling = {.temperature = i % 2 ? 0.8 : 0, .top_p = 0.9, .seed = 5}});
  return requests;
}

std::vector<std::vector<int32_t>> tokens_of(std::span<const Completion> completions) {
  std::vector<std::vector<int32_t>> out;
  for (const Completion& completion : completions) out.push_back(completion.ids);
  return out;
}

TEST(Language, ARequestsTokensDoNotDependOnTheBatch) {
  const DecoderConfig config = small_decoder();
  const std::vector<CompletionRequest> requests = some_requests();
  LanguageModel alone(weights(config), config, one_thread_of());
  std::vector<std::vector<int32_t>> expected;
  for (size_t i = 0; i < requests.size(); ++i) {
    // The random draws depend on the number of a request.
    std::vector<CompletionRequest> padded(i + 1, {.prompt = {1}, .max_tokens = 1});
    padded[i] = requests[i];
    expected.push_back(alone.complete(padded)[i].ids);
    EXPECT_EQ(static_cast<int64_t>(expected.back().size()), requests[i].max_tokens);
  }
  for (const int batch : {1, 3, 16})
    for (const int64_t chunk : {2, 100})
      for (const int rounds : {1, 4}) {
        // The pages suffice for at most four requests; the others wait.
        LanguageModel model(weights(config), config, one_thread_of({.cache_tokens = 96}));
        EXPECT_EQ(
            tokens_of(model.complete(requests, {.batch = batch, .chunk = chunk, .rounds = rounds})),
            expected)
            << "batch " << batch << " chunk " << chunk << " rounds " << rounds;
      }
  for (const auto& [ranks, text] : {std::pair{2, "layers=2"},
                                    {4, "layers=4"},
                                    {3, "tensor=3"},
                                    {2, "ulysses=2"},
                                    {2, "ring=2"},
                                    {4, "layers=2,ulysses=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    run_ranks(ranks, [&](Communicator& world) {
      LanguageModel model(weights(config), config, one_thread_of(),
                          RankPlacement::of(world, layout));
      EXPECT_EQ(tokens_of(model.complete(requests, {.batch = 3, .chunk = 7, .rounds = 3})),
                expected)
          << text;
    });
  }
}

TEST(Language, DelaysChangeNoBit) {
  const DecoderConfig config = small_decoder();
  const TensorFile file = weights(config);
  const std::vector<int32_t> ids = some_ids(17, 53);
  for (const auto& [ranks, text] : {std::pair{4, "layers=2,tensor=2"}, {4, "ulysses=2,ring=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    std::vector<Tensor> plain(ranks);
    const auto run = [&](const LocalOptions& local, bool first) {
      run_ranks(
          ranks,
          [&](Communicator& world) {
            LanguageRank rank(file, config, one_thread_of(), RankPlacement::of(world, layout));
            Tensor got = logits_in_passes(rank, ids, {12, 1, 1, 3});
            if (first) {
              plain[world.rank()] = std::move(got);
            } else if (got) {
              EXPECT_TRUE(bitwise_equal(got, plain[world.rank()]))
                  << text << " delay seed " << local.delay_seed;
            }
          },
          local);
    };
    run({}, true);
    for (uint64_t seed = 1; seed <= 20; ++seed)
      run({.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 50}, false);
  }
}

// Returns the bytes that one rank sends for a prompt of n tokens and m new ones, as the sum of the
// methods' formulas.
int64_t sent_for(const DecoderConfig& config, const Layout& layout, int rank, int64_t n,
                 int64_t m) {
  const Mesh mesh(layout);
  const int stages = layout[Axis::kLayers], stage = mesh.at(Axis::kLayers, rank);
  const int shares = layout.sequence(), index = mesh.sequence_index(rank);
  const int width = layout[Axis::kTensor], part = mesh.at(Axis::kTensor, rank);
  const int peers = shares * width, place = index * width + part;
  const BlockRange blocks = stage_blocks(config.layers, stages, stage);
  const int64_t layers = blocks.end - blocks.begin, d = config.hidden, e = config.head_dim;
  const int64_t element = 4;
  const AttendShape shape{.heads = config.heads, .kv_heads = config.kv_heads, .head_dim = e};
  const auto sum = [&](int64_t rows, int ranks, int at) {
    return 2 * layers * tensor_sent_bytes(rows * d, ranks, at, AllReduce::kBySize);
  };
  int64_t bytes = 0;
  SequenceMap map = SequenceMap::contiguous(n, shares);
  if (layout[Axis::kRing] > 1)
    map = SequenceMap::zigzag(n, layout[Axis::kRing], layout[Axis::kUlysses]);
  const int64_t rows = map.rows(index);
  if (layout[Axis::kUlysses] > 1 && layout[Axis::kRing] == 1)
    bytes += layers * ulysses_sent_bytes(map, index, shape);
  if (layout[Axis::kRing] > 1 && layout[Axis::kUlysses] == 1) {
    bytes += layers * ring_sent_bytes(map, index, shape);
    KVMove move;
    for (int other = 0; other < shares; ++other) {
      move.held.push_back({map[other], {0, config.kv_heads}});
      move.wanted.push_back(
          {TokenRanges::all(n), partition_heads(config.heads, config.kv_heads, shares, other).kv});
    }
    bytes += move_sent_bytes(
        move, index,
        {.layers = static_cast<int>(layers), .kv_heads = config.kv_heads, .head_dim = e});
  }
  bytes += sum(rows, width, part) + (m - 1) * sum(1, peers, place);
  if (stage < stages - 1) return bytes + (rows + m - 1) * d * element;  // hidden rows
  bytes += (stages - 1) * m * 4;                                        // tokens
  if (shares > 1 && map[index].ranges.back().end == n) bytes += (shares - 1) * d * 4;
  return bytes + m * (peers - 1) * partition(config.vocab, peers, place).size() * 4;
}

TEST(Language, EveryByteIsInAFormula) {
  const DecoderConfig config = small_decoder();
  for (const auto& [ranks, text] : {std::pair{2, "ulysses=2"},
                                    {3, "ulysses=3"},
                                    {2, "ring=2"},
                                    {3, "ring=3"},
                                    {3, "tensor=3"},
                                    {4, "layers=4"},
                                    {4, "layers=2,tensor=2"},
                                    {4, "layers=2,ulysses=2"},
                                    {4, "layers=2,ring=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    run_ranks(ranks, [&](Communicator& world) {
      LanguageModel model(weights(config), config, one_thread_of(),
                          RankPlacement::of(world, layout));
      const CompletionRequest request{.prompt = some_ids(19, 53), .max_tokens = 6};
      world.reset_counters();
      model.complete({&request, 1}, {.rounds = 4});
      EXPECT_EQ(world.counters().total_sent().bytes, sent_for(config, layout, world.rank(), 19, 6))
          << text << " rank " << world.rank();
    });
  }
}

// Compares random models, requests, layouts and batches with one rank that runs one request at a
// time.
TEST(Language, AnyMixOfRequestsUnderAnyLayoutIsOneRanks) {
  for_cases(12, [](Draw& draw) {
    const auto pick = [&](int64_t low, int64_t high) { return low + draw.below(high - low + 1); };
    DecoderConfig config = small_decoder(pick(0, 1) == 1);
    config.kv_heads = static_cast<int>(pick(1, 4));
    config.heads = config.kv_heads * static_cast<int>(pick(1, 3));
    config.head_dim = static_cast<int>(2 * pick(1, 6));
    config.ffn = pick(5, 40);
    config.vocab = pick(7, 60);
    config.layers = static_cast<int>(pick(1, 5));
    std::vector<CompletionRequest> requests;
    for (int64_t i = pick(1, 6); i > 0; --i) {
      CompletionRequest request{.prompt = some_ids(pick(1, 30), static_cast<int32_t>(config.vocab),
                                                   static_cast<int32_t>(pick(0, 99))),
                                .max_tokens = pick(1, 20)};
      if (pick(0, 2) == 0) request.stop = {static_cast<int32_t>(pick(0, config.vocab - 1))};
      requests.push_back(std::move(request));
    }
    LanguageModel alone(weights(config), config, one_thread_of());
    const auto expected = tokens_of(alone.complete(requests, {.batch = 1, .chunk = 1000}));
    const std::vector<Layout> layouts = [&] {
      std::vector<Layout> all =
          legal_layouts(static_cast<int>(pick(2, 6)), LanguageRank::limits(config, 6));
      std::erase_if(all, [](const Layout& layout) { return layout[Axis::kData] > 1; });
      return all;
    }();
    if (layouts.empty()) return;
    const Layout& layout = layouts[pick(0, static_cast<int64_t>(layouts.size()) - 1)];
    LanguageOptions options = one_thread_of({.split_tokens = pick(1, 20)});
    options.balance = static_cast<RingBalance>(pick(0, 2));
    options.page_rows = pick(1, 9);
    options.cache_tokens = pick(60, 200);
    if (config.layers / layout[Axis::kLayers] > 2 && pick(0, 1)) options.resident = 2;
    const CompletionOptions how{.batch = static_cast<int>(pick(1, 7)),
                                .chunk = pick(1, 12),
                                .rounds = static_cast<int>(pick(1, 9))};
    const uint64_t seed = 1 + static_cast<uint64_t>(pick(0, 1000));
    const bool rendezvous = pick(0, 1) == 1;
    run_ranks(layout.ranks(),
              [&](Communicator& world) {
                LanguageModel model(weights(config), config, options,
                                    RankPlacement::of(world, layout));
                EXPECT_EQ(tokens_of(model.complete(requests, how)), expected)
                    << to_string(layout) << ", " << requests.size() << " requests, batch "
                    << how.batch << " chunk " << how.chunk;
              },
              {.rendezvous = rendezvous, .delay_seed = seed, .max_delay_us = 20});
  });
}

TEST(Language, AStopIdEndsARequestAndIsNotPartOfIt) {
  const DecoderConfig config = small_decoder();
  LanguageModel model(weights(config), config, one_thread_of());
  CompletionRequest request{.prompt = some_ids(4, 53), .max_tokens = 20};
  const std::vector<int32_t> free = model.complete({&request, 1})[0].ids;
  request.stop = {free[5]};
  const Completion stopped = model.complete({&request, 1})[0];
  const auto first = std::find(free.begin(), free.end(), free[5]);
  EXPECT_EQ(stopped.ids, std::vector<int32_t>(free.begin(), first));
  EXPECT_EQ(stopped.end, Completion::End::kStopId);
}

TEST(Language, WhatCannotRunIsRefusedByName) {
  const DecoderConfig config = small_decoder();
  LanguageModel model(weights(config), config, one_thread_of());
  const auto message = [&](const CompletionRequest& request) -> std::string {
    return error_of([&] { model.complete({&request, 1}); });
  };
  EXPECT_TRUE(contains(message({.prompt = {}}), "the prompt has no tokens"));
  EXPECT_TRUE(contains(message({.prompt = {1}, .max_tokens = 97}), "the context of 96 tokens"));
  EXPECT_TRUE(contains(message({.prompt = {1}, .max_tokens = 0}), "max tokens is 0"));
  EXPECT_TRUE(contains(message({.prompt = {1}, .sampling = {.temperature = -1}}), "temperature"));
  EXPECT_TRUE(contains(message({.prompt = {53}, .max_tokens = 1}), "token id 53"));
  EXPECT_TRUE(contains(message({.prompt = {1, -1}, .max_tokens = 1}), "token id -1"));
  EXPECT_TRUE(
      contains(message({.prompt = {1}, .max_tokens = INT64_MAX}), "the context of 96 tokens"));
  EXPECT_EQ(message({.prompt = {1}, .max_tokens = 3}), "");  // the model is still usable
}

// A model gives the same bits if only a part of its blocks is in memory and the others are read.
TEST(Language, StreamedBlocksGiveTheSameBits) {
  const DecoderConfig config = small_decoder();
  const std::vector<int32_t> ids = some_ids(9, 53);
  const std::vector<int64_t> sizes{4, 1, 1, 1, 1, 1};
  const TensorFile file = weights(config);
  LanguageRank whole(file, config, one_thread_of());
  const Tensor expected = logits_in_passes(whole, ids, sizes);
  const size_t all = whole.weights_bytes();
  for (const int resident : {2, 3}) {
    LanguageRank rank(file, config, one_thread_of({.resident = resident}));
    EXPECT_TRUE(bitwise_equal(logits_in_passes(rank, ids, sizes), expected));
    EXPECT_LT(rank.weights_bytes(), all);
    // The streamed blocks were read once per pass. Two were there at the beginning, and two are
    // read in advance.
    const int64_t streamed = config.layers - (resident - 2), passes = 6;
    EXPECT_GE(rank.window().reads, streamed * passes - 2);
    EXPECT_LE(rank.window().reads, streamed * passes);
  }
  EXPECT_THROW(LanguageRank(file, config, one_thread_of({.resident = 1})), Error);

  // The same from a file, on ranks with two packings, each of which streams its own blocks.
  const std::string path = testing::TempDir() + "streamed.safetensors";
  write_random(path, weights(config));
  const TensorFile on_disk = TensorFile::open(path);
  for (const auto& [ranks, text] : {std::pair{1, ""}, {2, "ulysses=2"}, {2, "tensor=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    run_ranks(ranks, [&](Communicator& world) {
      const auto logits = [&](const TensorFile& from, int resident) {
        LanguageRank rank(from, config, one_thread_of({.resident = resident}),
                          RankPlacement::of(world, layout));
        return logits_in_passes(rank, ids, sizes);
      };
      EXPECT_TRUE(bitwise_equal(logits(on_disk, 2), logits(file, 0))) << text;
    });
  }
}

// A failed pass leaves all sequences unchanged.
TEST(Language, AFailedPassChangesNoSequence) {
  const DecoderConfig config = small_decoder();
  const TensorFile file = weights(config);
  const std::vector<int32_t> ids = some_ids(12, 53);
  for (const auto& [ranks, text] : {std::pair{1, ""}, {2, "ring=2"}, {2, "ulysses=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    run_ranks(ranks, [&](Communicator& world) {
      LanguageRank rank(file, config, one_thread_of({.cache_tokens = 40}),
                        RankPlacement::of(world, layout));
      const auto pass = [&](std::vector<Part> parts) {
        const auto share = rank.share(parts);
        Tensor hidden(DType::kF32, {share.rows, config.hidden});
        rank.forward({}, parts, share, hidden);
      };
      rank.open(0);
      rank.open(1);
      // Both are too long: one for a sequence, one for the pool.
      EXPECT_THROW(pass({{0, ids}, {1, some_ids(97, 53)}}), Error) << text;
      EXPECT_THROW(pass({{0, ids}, {1, some_ids(90, 53)}}), Error) << text;
      EXPECT_EQ(rank.length(0), 0);
      pass({{0, ids}});
      pass({{0, {7}}});  // split by heads: a cache that was split by tokens is moved
      EXPECT_EQ(rank.length(0), 13);
      EXPECT_EQ(rank.cache(0).tokens().size(), 13);
    });
  }
}

TEST(Language, ListenersLearnEveryTokenAndAStopEndsAll) {
  const DecoderConfig config = small_decoder();
  const std::vector<CompletionRequest> requests = some_requests();
  for (const auto& [ranks, text] : {std::pair{1, ""}, {2, "layers=2"}}) {
    const Layout layout = parse_layout(text, ranks, {});
    run_ranks(ranks, [&](Communicator& world) {
      LanguageModel model(weights(config), config, one_thread_of(),
                          RankPlacement::of(world, layout));
      std::vector<std::vector<int32_t>> heard(requests.size());
      CompletionOptions options{.batch = 3, .rounds = 2};
      options.on_token = [&](int request, int32_t id) { heard[request].push_back(id); };
      const std::vector<Completion> all = model.complete(requests, options);
      EXPECT_EQ(tokens_of(all), heard);
      for (const Completion& completion : all) {
        EXPECT_GT(completion.first_token_s, 0);
        EXPECT_GE(completion.seconds, completion.first_token_s);
      }
      int64_t tokens = 0, prompts = 0;
      for (size_t i = 0; i < requests.size(); ++i) {
        tokens += static_cast<int64_t>(heard[i].size()) - 1;  // the first is the prefill's
        prompts += static_cast<int64_t>(requests[i].prompt.size());
      }
      EXPECT_EQ(model.stats().prefill_tokens, prompts);
      EXPECT_EQ(model.stats().decode_tokens, tokens);

      std::atomic<bool> stop{false};
      int count = 0;
      options.stop = &stop;
      options.on_token = [&](int, int32_t) { stop = ++count > 5 && world.rank() == 0; };
      const std::vector<Completion> cut = model.complete(requests, options);
      int unfinished = 0;
      for (size_t i = 0; i < cut.size(); ++i) {
        unfinished += cut[i].end == Completion::End::kCut;
        EXPECT_LE(cut[i].ids.size(), all[i].ids.size());
        EXPECT_TRUE(std::equal(cut[i].ids.begin(), cut[i].ids.end(), all[i].ids.begin()));
      }
      EXPECT_GT(unfinished, 0);
    });
  }
}

TEST(Language, EightBitsAreRefusedWhereTheWidthIsSplit) {
  const DecoderConfig config = small_decoder();
  const TensorFile file = weights(config);
  for (const char* text : {"tensor=2", "ulysses=2", "ring=2"})
    EXPECT_THROW(run_ranks(2,
                           [&](Communicator& world) {
                             LanguageRank rank(file, config,
                                               one_thread_of({.weights = WeightFormat::kInt8}),
                                               RankPlacement::of(world, parse_layout(text, 2, {})));
                           }),
                 Error)
        << text;
}

}  // namespace
}  // namespace weft::test
