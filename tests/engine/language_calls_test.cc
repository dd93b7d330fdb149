// The callbacks of a language model, and the prediction of a rank's memory.
#include <gtest/gtest.h>

#include <ctime>

#include "engine/language/language.h"
#include "models/random_weights/random_weights.h"
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

// mpi_plan_test compares all memory of a rank, which needs ranks that are processes.
TEST(LanguageCalls, BytesOfWeightsAndCacheArePredicted) {
  const DecoderConfig config = even();
  const CompletionRequest request{.prompt = std::vector<int32_t>(70, 5), .max_tokens = 20};
  const std::vector<CompletionRequest> asked(3, request);
  const CompletionOptions how{.batch = 2, .chunk = 16};
  LanguageOptions options = sized_for(asked, how.batch, one_thread());
  EXPECT_EQ(options.positions, 89);
  EXPECT_EQ(options.cache_tokens, 2 * 128);
  options.page_rows = 16;
  for (const int ranks : {1, 2, 4})
    for (const Layout& layout : legal_layouts(ranks, LanguageRank::limits(config, 70))) {
      if (layout[Axis::kData] > 1) continue;
      run_ranks(ranks, [&](Communicator& world) {
        const LanguageBytes bytes =
            LanguageModel::predict(config, options, layout, world.rank(), asked, how);
        LanguageModel model(random_tensors(decoder_tensors(config), 7), config, options,
                            RankPlacement::of(world, layout));
        model.complete(asked, how);
        EXPECT_EQ(bytes.weights, model.rank().weights_bytes()) << to_string(layout);
        EXPECT_EQ(bytes.cache, model.rank().cache_bytes()) << to_string(layout);
        EXPECT_GE(bytes.workspace, model.rank().arena_high_water()) << to_string(layout);
      });
    }
}

// A plan with fewer resident blocks leaves out exactly the blocks that are not in memory.
TEST(LanguageCalls, BytesOfResidentBlocksArePredicted) {
  const DecoderConfig config = even();
  const CompletionRequest request{.prompt = {1, 2, 3}, .max_tokens = 9};
  LanguageOptions options = sized_for({&request, 1}, 1, one_thread());
  const auto weights = [&](int resident) {
    options.resident = resident;
    return LanguageModel::predict(config, options, Layout{}, 0, {&request, 1}).weights;
  };
  const uint64_t block = weights(0) - weights(3);
  EXPECT_GT(block, 0u);
  EXPECT_EQ(weights(3) - weights(2), block);
  EXPECT_EQ(weights(4), weights(0));
}

// A plan of long completions is a dry run of few passes.
TEST(LanguageCalls, PlansOfLargeModelsAreFast) {
  const DecoderConfig config{.hidden = 4096,
                             .ffn = 12288,
                             .vocab = 151936,
                             .layers = 36,
                             .heads = 32,
                             .kv_heads = 8,
                             .head_dim = 128,
                             .head_norms = true,
                             .max_positions = 40960};
  const CompletionRequest request{.prompt = std::vector<int32_t>(8192), .max_tokens = 8192};
  const std::vector<CompletionRequest> asked(16, request);
  const LanguageOptions options = sized_for(asked, 16, {.dtype = DType::kBF16});
  const Layout layout = parse_layout("tensor=8", 8, LanguageRank::limits(config, 16384));
  const std::clock_t start = std::clock();
  const LanguageBytes bytes = LanguageModel::predict(config, options, layout, 0, asked);
  const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
  EXPECT_GT(bytes.cache, uint64_t{4} << 30);
  EXPECT_LT(seconds, 2);
}

}  // namespace
}  // namespace weft
