// The callbacks of a language model, and the prediction of a rank's memory.
#include <gtest/gtest.h>

#include "engine/language/language.h"
#include "models/random_weights.h"
#include "parallel/transport/local.h"

namespace weft {
namespace {

// A model with widths that need no padding when they are packed.
DecoderConfig even() {
  return {.hidden = 64,
          .ffn = 256,
          .vocab = 256,
          .layers = 4,
          .heads = 8,
          .kv_heads = 4,
          .head_dim = 64,
          .head_norms = true,
          .tied = true,
          .max_positions = 128};
}

std::vector<CompletionRequest> requests() {
  std::vector<CompletionRequest> out;
  for (int i = 0; i < 5; ++i)
    out.push_back({.prompt = {1, 2 + i, 9}, .max_tokens = 1 + 4 * i, .stop = {}});
  return out;
}

LanguageOptions one_thread() { return {.threads = 1}; }

TEST(LanguageCalls, EveryTokenInOrderAndEveryEndOnceOnEveryRank) {
  const DecoderConfig config = even();
  for (const auto& [ranks, text] : {std::pair{1, "auto"}, {2, "layers=2"}, {2, "tensor=2"}}) {
    const Layout layout = parse_layout(text, ranks, LanguageRank::limits(config, 64));
    run_ranks(ranks, [&](Communicator& world) {
      LanguageModel model(random_tensors(decoder_tensors(config), 7), config, one_thread(),
                          RankPlacement::of(world, layout));
      std::vector<std::vector<int32_t>> heard(5);
      std::vector<int> ends(5);
      CompletionOptions how{.batch = 2, .rounds = 3};
      how.on_token = [&](int request, int32_t id) {
        EXPECT_EQ(ends[request], 0);
        heard[request].push_back(id);
      };
      how.on_end = [&](int request, const Completion& completion) {
        ++ends[request];
        EXPECT_EQ(completion.ids, heard[request]);
        EXPECT_EQ(completion.end, Completion::End::kMaxTokens);
        EXPECT_GT(completion.seconds, 0);
      };
      const std::vector<Completion> done = model.complete(requests(), how);
      for (size_t i = 0; i < done.size(); ++i) EXPECT_EQ(done[i].ids, heard[i]) << text;
      EXPECT_EQ(ends, std::vector<int>(5, 1)) << text;
    });
  }
}

TEST(LanguageCalls, WhatIsStoppedEndsToo) {
  const DecoderConfig config = even();
  LanguageModel model(random_tensors(decoder_tensors(config), 7), config, one_thread());
  std::atomic<bool> stop{false};
  int cut = 0;
  CompletionOptions how{.stop = &stop, .batch = 1, .rounds = 1};
  how.on_token = [&](int request, int32_t) { stop = request == 2; };
  how.on_end = [&](int, const Completion& done) { cut += done.end == Completion::End::kCut; };
  const std::vector<Completion> done = model.complete(requests(), how);
  EXPECT_EQ(cut, 3);
  EXPECT_EQ(done[1].end, Completion::End::kMaxTokens);
  EXPECT_FALSE(done[2].ids.empty());
  EXPECT_TRUE(done[4].ids.empty());
}

TEST(LanguageCalls, BytesArePredicted) {
  const DecoderConfig config = even();
  const TensorFile file = random_tensors(decoder_tensors(config), 7);
  for (const auto& [ranks, text] : {std::pair{1, "auto"},
                                    {2, "layers=2"},
                                    {2, "tensor=2"},
                                    {2, "ulysses=2"},
                                    {4, "ring=2,ulysses=2"}}) {
    const Layout layout = parse_layout(text, ranks, LanguageRank::limits(config, 64));
    run_ranks(ranks, [&](Communicator& world) {
      LanguageOptions options = one_thread();
      options.positions = options.cache_tokens = 128;
      const LanguageBytes bytes =
          LanguageRank::predict(config, options, RankPlacement(layout, world.rank()), 64, 64, 1);
      LanguageRank rank(file, config, options, RankPlacement::of(world, layout));
      EXPECT_EQ(bytes.weights, rank.weights_bytes()) << text;
      // A ring has a second pool, with one more page, for caches that are split by tokens.
      const uint64_t pages = layout[Axis::kRing] > 1 ? 1 + 2 * 2 : 1;
      rank.open(0);
      EXPECT_EQ(bytes.cache, pages * rank.cache(0).shape().page_bytes()) << text;
    });
  }
}

}  // namespace
}  // namespace weft
