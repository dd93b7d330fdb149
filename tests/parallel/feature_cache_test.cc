// Tests the laws of the feature cache, and that it is enough for methods whose peers' keys are
// exactly one step old.
#include "parallel/feature_cache.h"

#include <chrono>
#include <thread>

#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/methods.h"

namespace weft::test {
namespace {

Stream& reference_stream() {
  thread_local Stream one = Stream::cpu(1, Determinism::kFixed, &reference_ops());
  return one;
}

Communicator all_of(Communicator& world) {
  std::vector<int> all;
  for (int rank = 0; rank < world.size(); ++rank) all.push_back(rank);
  return world.group(all, 9);
}

// Every rank has 2 + rank rows of 3 values and sends all of them to all others.
FeatureDescription full(int ranks, int rank, int versions) {
  FeatureDescription description{.keys = {{.layer = 0}, {.branch = 1, .layer = 4}},
                                 .rows = 2 + rank,
                                 .row = {3},
                                 .versions = versions};
  for (int peer = 0; peer < ranks; ++peer)
    if (peer != rank) description.links.push_back({peer, {0, 2 + rank}, {0, 2 + peer}});
  return description;
}

float feature_value(int rank, int layer, int version) {
  return static_cast<float>(100 * rank + 10 * layer + version);
}

void fill(const TensorView& x, float with) { std::fill_n(x.as<float>(), x.count(), with); }

void expect_filled(const TensorView& x, float with) {
  for (int64_t i = 0; i < x.count(); ++i) ASSERT_EQ(x.as<float>()[i], with) << i;
}

TEST(FeatureCache, BytesAreTheFormula) {
  for (int versions : {1, 2, 3})
    run_ranks(3, [&](Communicator& world) {
      const FeatureDescription description = full(3, world.rank(), versions);
      Communicator group = all_of(world);
      FeatureCache cache(&group, description);
      // 2, 3 and 4 rows of 3 values, for 2 keys.
      EXPECT_EQ(cache.bytes(), 4u * 2 * versions * 9 * 3);
      EXPECT_EQ(cache.bytes(), feature_cache_bytes(description));
      for (int version = 0; version < 4; ++version)
        for (const FeatureKey& key : description.keys) {
          cache.write(key, version);
          cache.exchange(reference_stream(), key, version);
        }
      cache.finish();
      EXPECT_EQ(world.counters().total_sent().bytes, 4 * 2 * feature_sent_bytes(description));
      EXPECT_EQ(feature_sent_bytes(description), 4 * 2 * (2 + world.rank()) * 3);
      EXPECT_EQ(cache.bytes(), feature_cache_bytes(description));
    });
}

// Rank 0 runs ahead as far as it can; rank 1 sleeps before it reads. A buffer that were written too
// early would show a later version.
TEST(FeatureCache, ABufferIsNotWrittenWhileAMessageUsesIt) {
  for (const bool rendezvous : {true, false})
    for (int versions : {1, 2, 3})
      for (uint64_t seed : {0, 1, 2, 3})
        run_ranks(2,
                  [&](Communicator& world) {
                    const int rank = world.rank(), stale = versions - 1;
                    Communicator group = all_of(world);
                    FeatureCache cache(&group, full(2, rank, versions));
                    const FeatureKey key = cache.description().keys[1];
                    for (int version = 0; version < 9; ++version) {
                      fill(cache.write(key, version), feature_value(rank, key.layer, version));
                      cache.exchange(reference_stream(), key, version);
                      if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1));
                      const int wanted = std::max(0, version - stale);
                      expect_filled(cache.read(key, 0, wanted),
                                    feature_value(1 - rank, key.layer, wanted));
                      expect_filled(cache.own(key, wanted), feature_value(rank, key.layer, wanted));
                    }
                    cache.finish();
                  },
                  {.rendezvous = rendezvous, .delay_seed = seed, .max_delay_us = 500});
}

// Nobody reads most of the versions.
TEST(FeatureCache, VersionsMayBeLeftOutAndUnread) {
  for (const bool rendezvous : {true, false})
    run_ranks(3,
              [&](Communicator& world) {
                Communicator group = all_of(world);
                FeatureCache cache(&group, full(3, world.rank(), 2));
                const FeatureKey key = cache.description().keys[0];
                EXPECT_EQ(cache.staleness(key, 0), std::nullopt);
                for (int version : {0, 3, 4, 9, 12}) {
                  fill(cache.write(key, version), feature_value(world.rank(), key.layer, version));
                  cache.exchange(reference_stream(), key, version);
                  EXPECT_EQ(cache.staleness(key, version), 0);
                  EXPECT_EQ(cache.staleness(key, version + 2), 2);
                }
                cache.finish();
                for (size_t link = 0; link < 2; ++link)
                  for (int version : {9, 12})
                    expect_filled(
                        cache.read(key, static_cast<int>(link), version),
                        feature_value(cache.description().links[link].peer, key.layer, version));
              },
              {.rendezvous = rendezvous, .delay_seed = 7, .max_delay_us = 200});
}

TEST(FeatureCache, FinishWaitsAndAbortForgets) {
  for (const bool rendezvous : {true, false})
    run_ranks(2,
              [&](Communicator& world) {
                Communicator group = all_of(world);
                FeatureCache cache(&group, full(2, world.rank(), 2));
                const auto round = [&](int version) {
                  for (const FeatureKey& key : cache.description().keys) {
                    fill(cache.write(key, version),
                         feature_value(world.rank(), key.layer, version));
                    cache.exchange(reference_stream(), key, version);
                  }
                };
                const auto check = [&](int version) {
                  for (const FeatureKey& key : cache.description().keys)
                    expect_filled(cache.read(key, 0, version),
                                  feature_value(1 - world.rank(), key.layer, version));
                };
                round(5);
                EXPECT_EQ(cache.pending(), 4);
                cache.finish();
                EXPECT_EQ(cache.pending(), 0);
                const int64_t waits = world.counters().waits;
                check(5);
                EXPECT_EQ(world.counters().waits, waits);  // it has arrived
                round(6);
                world.barrier(reference_stream(), {.layer = 1});
                cache.abort();
                EXPECT_EQ(cache.pending(), 0);
                for (const FeatureKey& key : cache.description().keys)
                  EXPECT_EQ(cache.staleness(key, 7), std::nullopt);
                world.barrier(reference_stream(), {.layer = 2});
                round(2);  // the next job begins anew
                check(2);
                cache.finish();
              },
              {.rendezvous = rendezvous});
}

TEST(FeatureCacheDeathTest, AnotherVersionThanTheDeclaredOneIsRefusedByName) {
  run_ranks(1, [](Communicator& world) {
    Communicator group = all_of(world);
    FeatureCache cache(&group, full(1, 0, 2));
    const FeatureKey key = cache.description().keys[1];
    EXPECT_DEATH(cache.own(key, 0),
                 "key-value of segment 0 branch 1 layer 4 is asked for version 0 and holds none");
    for (int version : {3, 4, 5}) cache.write(key, version);
    cache.exchange(reference_stream(), key, 5);
    EXPECT_DEATH(cache.own(key, 3), "layer 4 is asked for version 3 and holds (5, 4|4, 5)");
    EXPECT_DEATH(cache.read(key, 0, 4), "layer 4 is read in version 4 before its exchange");
    EXPECT_DEATH(cache.write(key, 5), "layer 4 is written in version 5 after 5");
    EXPECT_DEATH(cache.exchange(reference_stream(), key, 5),
                 "layer 4 is exchanged twice in version 5");
    EXPECT_DEATH(cache.own({.segment = 2}, 0), "no slot for key-value of segment 2");
  });
}

// A toy of a stale method: the own keys are fresh, the peers' belong to the step before. During the
// first `warmup` steps theirs are fresh, too.
class StaleMixer final : public TokenMixer {
 public:
  StaleMixer(Communicator group, FeatureDescription description, int warmup)
      : group_(std::move(group)), warmup_(warmup), cache_(&group_, std::move(description)) {}

  void finish() override {
    TokenMixer::finish();
    cache_.finish();
    EXPECT_EQ(cache_.pending(), 0);
  }

  void attend(Context& context, const Attend& attend) override {
    apply_positions(context, attend);
    const FeatureKey key{.branch = context.pass.branch, .layer = attend.layer};
    const int step = context.pass.step, version = step < warmup_ ? step : step - 1;
    const int64_t heads = attend.k[1];
    const TensorView own = cache_.write(key, step);
    copy(context.stream, attend.k, own.slice(1, 0, heads));
    copy(context.stream, attend.v, own.slice(1, heads, heads));
    cache_.exchange(context.stream, key, step);
    std::vector<KVSegment> segments;
    const auto see = [&](const TensorView& rows) {
      if (rows[0] > 0)
        segments.push_back({.k = rows.slice(1, 0, heads), .v = rows.slice(1, heads, heads)});
    };
    const std::vector<FeatureLink>& links = cache_.description().links;
    size_t link = 0;
    for (; link < links.size() && links[link].peer < group_.rank(); ++link)
      see(cache_.read(key, static_cast<int>(link), version));
    see(own);
    for (; link < links.size(); ++link) see(cache_.read(key, static_cast<int>(link), version));
    attention(context.stream,
              {.q = attend.q, .segments = segments, .scale = attend.scale, .out = attend.out});
  }

 private:
  Communicator group_;
  int warmup_;
  FeatureCache cache_;
};

struct StaleRun {
  int warmup = 1;
  bool neighbours = false;  // each sends 2 rows to either side (PCPP); false: all to all
  bool finishes = true;     // at the end of every step
};

constexpr int kFeatureLayers = 2, kBranches = 2, kSteps = 4;
constexpr int64_t kFeatureHeads = 2, kFeatureSize = 12;

class StaleFeatures : public testing::Test {
 protected:
  static constexpr int kRanks = 4;
  const std::vector<Range> ranges_{{0, 3}, {3, 10}, {10, 12}, {12, 20}};
  const int64_t total_ = 20;
  const Rope rope_ = make_rope({1, 4, 5}, {}, kFeatureSize);

  // q, k or v of all tokens; unlike the real features they do not depend on earlier layers.
  Tensor features(int which, const Pass& pass, int layer) const {
    return random_values(
        DType::kF32, {total_, kFeatureHeads, kFeatureSize},
        static_cast<uint64_t>(((which * 10 + layer) * 10 + pass.branch) * 10 + pass.step), 1);
  }
  // The rows that `rank` sends to `peer`, counted in its part.
  Range shared(int rank, int peer, bool neighbours) const {
    const int64_t n = ranges_[rank].size();
    if (!neighbours) return {0, n};
    if (peer == rank + 1) return {std::max<int64_t>(0, n - 2), n};
    return peer == rank - 1 ? Range{0, std::min<int64_t>(2, n)} : Range{};
  }
  FeatureDescription description(int rank, bool neighbours) const {
    FeatureDescription out{.rows = ranges_[rank].size(), .row = {2 * kFeatureHeads, kFeatureSize}};
    for (int branch = 0; branch < kBranches; ++branch)
      for (int layer = 0; layer < kFeatureLayers; ++layer)
        out.keys.push_back({.branch = branch, .layer = layer});
    for (int peer = 0; peer < kRanks; ++peer) {
      const Range sent = shared(rank, peer, neighbours);
      if (peer != rank && sent.size() > 0)
        out.links.push_back({peer, sent, shared(peer, rank, neighbours)});
    }
    return out;
  }
  template <class Visit>
  static void for_every_attend(Visit&& visit) {
    int at = 0;
    for (int step = 0; step < kSteps; ++step)
      for (int branch = 0; branch < kBranches; ++branch)
        for (int layer = 0; layer < kFeatureLayers; ++layer)
          visit(Pass{.branch = branch, .step = step}, layer, at++);
  }
  static int attends() { return kSteps * kBranches * kFeatureLayers; }

  // The results of all attends, [attends, tokens, A, E].
  Tensor run(const StaleRun& given, const LocalOptions& options = {}) const {
    Tensor out(DType::kF32, {attends(), total_, kFeatureHeads, kFeatureSize});
    run_ranks(
        kRanks,
        [&](Communicator& world) {
          const int rank = world.rank();
          const Range own = ranges_[rank];
          StaleMixer mixer(all_of(world), description(rank, given.neighbours), given.warmup);
          Arena arena(size_t{1} << 20);
          SerialSeams seams;
          for_every_attend([&](const Pass& pass, int layer, int at) {
            Tensor q = features(0, pass, layer), k = features(1, pass, layer),
                   v = features(2, pass, layer);
            const auto rows = [&](const TensorView& x) {
              return x.slice(0, own.begin, own.size());
            };
            Context context{reference_stream(), arena, mixer,          seams.reducer,
                            seams.halo,         pass,  {{own}, total_}};
            if (layer == 0) mixer.begin(pass);
            mixer.attend(context, {.layer = layer,
                                   .q = rows(q),
                                   .k = rows(k),
                                   .v = rows(v),
                                   .out = rows(out.view().select(0, at)),
                                   .rope = &rope_,
                                   .scale = 0.3f});
            const bool last = layer + 1 == kFeatureLayers && pass.branch + 1 == kBranches;
            if (given.finishes && last) mixer.finish();
          });
          mixer.finish();
        },
        options);
    return out;
  }

  // The same on one rank, from the definition.
  Tensor expected(const StaleRun& given) const {
    Tensor out(DType::kF32, {attends(), total_, kFeatureHeads, kFeatureSize});
    for_every_attend([&](const Pass& pass, int layer, int at) {
      Pass before = pass;
      if (pass.step >= given.warmup) --before.step;
      Tensor q = features(0, pass, layer), k = features(1, pass, layer),
             v = features(2, pass, layer), old_k = features(1, before, layer),
             old_v = features(2, before, layer);
      for (const Tensor* x : {&q, &k, &old_k}) apply_rope(reference_stream(), *x, rope_, 0, *x);
      for (int rank = 0; rank < kRanks; ++rank) {
        std::vector<KVSegment> segments;
        for (int peer = 0; peer < kRanks; ++peer) {
          const Range rows =
              peer == rank ? Range{0, ranges_[rank].size()} : shared(peer, rank, given.neighbours);
          if (rows.size() == 0) continue;
          const auto cut = [&](const Tensor& x) {
            return x.view().slice(0, ranges_[peer].begin + rows.begin, rows.size());
          };
          segments.push_back(
              {.k = cut(peer == rank ? k : old_k), .v = cut(peer == rank ? v : old_v)});
        }
        const Range own = ranges_[rank];
        attention(reference_stream(),
                  {.q = q.view().slice(0, own.begin, own.size()),
                   .segments = segments,
                   .scale = 0.3f,
                   .out = out.view().select(0, at).slice(0, own.begin, own.size())});
      }
    });
    return out;
  }
};

TEST_F(StaleFeatures, AreExactlyOneStepOldUnderAnyDelays) {
  for (const bool neighbours : {false, true})
    for (const bool finishes : {true, false})
      for (int warmup : {1, 2}) {
        const StaleRun given{warmup, neighbours, finishes};
        const Tensor want = expected(given);
        EXPECT_TRUE(same_bits(run(given), want)) << neighbours << finishes << warmup;
        for (uint64_t seed = 1; seed <= 20; ++seed)
          EXPECT_TRUE(same_bits(
              run(given, {.rendezvous = seed % 2 == 0, .delay_seed = seed, .max_delay_us = 100}),
              want))
              << seed;
      }
}

TEST_F(StaleFeatures, WarmUpOverAllStepsIsExact) {
  const Tensor out = run({.warmup = kSteps}), stale = run({.warmup = 1});
  for_every_attend([&](const Pass& pass, int layer, int at) {
    Tensor q = features(0, pass, layer), k = features(1, pass, layer), v = features(2, pass, layer),
           whole(DType::kF32, {total_, kFeatureHeads, kFeatureSize});
    Arena arena(size_t{1} << 20);
    SerialSeams seams;
    Context context = seams.context(reference_stream(), arena, pass, TokenRanges::all(total_));
    context.mixer.attend(
        context,
        {.layer = layer, .q = q, .k = k, .v = v, .out = whole, .rope = &rope_, .scale = 0.3f});
    EXPECT_LE(relative_l2(out.view().select(0, at), whole), 1e-5);
    if (pass.step > 0) {
      EXPECT_GT(relative_l2(stale.view().select(0, at), whole), 1e-2);
    }
  });
}

}  // namespace
}  // namespace weft::test
