// Tensor parallelism's reducer: the same bits everywhere, bytes by the formula, parts joined.
#include "parallel/methods/tensor_parallel.h"

#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"

namespace weft::test {
namespace {

template <class Work>
void with_reducer(int ranks, AllReduce algorithm, Work&& work, const LocalOptions& options = {}) {
  run_ranks(
      ranks,
      [&](Communicator& world) {
        std::vector<int> all;
        for (int rank = 0; rank < ranks; ++rank) all.push_back(rank);
        TensorReducer reducer(world.group(all, 3), algorithm);
        Stream stream = Stream::cpu(1);
        Arena arena(size_t{1} << 24);
        FullMixer mixer;
        IdentityHalo halo;
        Context context{stream, arena, mixer, reducer, halo, Pass{.step = 1}, {}};
        work(context, reducer, world);
      },
      options);
}

TEST(TensorReducer, SumsWithTheSameBitsAndTheBytesOfItsFormula) {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (AllReduce algorithm : {AllReduce::kRing, AllReduce::kStar, AllReduce::kBySize}) {
      std::vector<Tensor> rows, statistics;
      for (int rank = 0; rank < ranks; ++rank) {
        rows.push_back(random_values(DType::kF32, {7, 5}, 10 + rank, 1));
        statistics.push_back(random_values(DType::kF32, {7}, 30 + rank, 1));
      }
      std::vector<double> exact(35);
      for (const Tensor& part : rows)
        for (int64_t i = 0; i < 35; ++i) exact[i] += part.as<float>()[i];
      with_reducer(ranks, algorithm,
                   [&](Context& context, TensorReducer& reducer, Communicator& world) {
                     EXPECT_EQ(reducer.parts(), ranks);
                     const int rank = world.rank();
                     reducer.sum(context, rows[rank]);
                     reducer.sum(context, statistics[rank]);
                     const auto& sent = world.counters().sent;
                     EXPECT_EQ(sent[static_cast<int>(Payload::kPartial)].bytes,
                               tensor_sent_bytes(35, ranks, rank, algorithm));
                     EXPECT_EQ(sent[static_cast<int>(Payload::kStatistic)].bytes,
                               tensor_sent_bytes(7, ranks, rank, algorithm));
                   });
      for (const Tensor& part : rows) EXPECT_TRUE(same_bits(part, rows[0]));
      for (int64_t i = 0; i < 35; ++i) EXPECT_NEAR(rows[0].as<float>()[i], exact[i], 1e-6 * ranks);
    }
}

// The star has fewer hops, the ring fewer bytes on the busiest link.
TEST(TensorReducer, TheSizeChoosesBetweenStarAndRing) {
  constexpr int64_t kToken = 1024, kPrefill = 512 * 1024;
  for (int ranks = 3; ranks <= 8; ++ranks) {
    EXPECT_EQ(chosen(AllReduce::kBySize, kToken, ranks), AllReduce::kStar) << ranks;
    EXPECT_EQ(chosen(AllReduce::kBySize, kPrefill, ranks), AllReduce::kRing) << ranks;
  }
  // Two ranks: the same hops, and the ring never has more bytes.
  EXPECT_EQ(chosen(AllReduce::kBySize, 1, 2), AllReduce::kRing);
  EXPECT_EQ(chosen(AllReduce::kStar, kPrefill, 4), AllReduce::kStar);
}

TEST(TensorReducer, GatherJoinsUnevenParts) {
  for (int dim : {0, 1}) {
    const Tensor whole = random_values(DType::kF32, {7, 5}, 5, 1);
    with_reducer(
        3, AllReduce::kRing, [&](Context& context, TensorReducer& reducer, Communicator& world) {
          const Range own = partition(whole.view()[dim], 3, world.rank());
          const Tensor out(DType::kF32, {7, 5});
          reducer.gather(context, whole.view().slice(dim, own.begin, own.size()), dim, out);
          EXPECT_TRUE(same_bits(out, whole));
        });
  }
}

TEST(TensorReducer, DelaysChangeNoBit) {
  std::vector<float> plain;
  for (uint64_t seed = 0; seed <= 100; ++seed) {
    std::vector<float> out;
    with_reducer(
        3, AllReduce::kRing,
        [&](Context& context, TensorReducer& reducer, Communicator& world) {
          for (int call = 0; call < 4; ++call) {
            const Tensor x = random_values(DType::kF32, {4, 3}, 7 * call + world.rank(), 1);
            reducer.sum(context, x);
            if (world.rank() == 0) out.insert(out.end(), x.as<float>(), x.as<float>() + 12);
          }
        },
        {.rendezvous = true, .delay_seed = seed, .max_delay_us = 50});
    if (seed == 0) plain = out;
    EXPECT_EQ(out, plain) << seed;
  }
}

}  // namespace
}  // namespace weft::test
