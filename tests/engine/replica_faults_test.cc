// One of several ranks (threads) throws, is slow or finds a NaN: at the first and a middle send of
// every kind, before it begins, and while the clip is written. The others end with one line that
// names this rank. If it was only slow, the video is unchanged.
#include <gtest/gtest.h>

#include <chrono>
#include <set>
#include <thread>

#include "tests/engine/poisoned_model.h"
#include "tests/engine/replica_job.h"
#include "tests/support/error_of.h"
#include "tests/support/faulty_transport.h"

namespace weft::test {
namespace {

constexpr int kVictim = 2;  // one of four ranks
const char* const kLayouts[] = {"cfg=2,ulysses=2", "layers=2,token_ring=2", "tensor=2,ring=2"};

std::string kind_of(const std::string& tag) { return tag.substr(0, tag.find(' ')); }

// The result of a job with a fault before send `at` of the victim: the root's video and the
// victim's sends.
struct FaultyRun {
  std::vector<float> video;
  std::vector<std::string> sent;
};
FaultyRun run_faulty(const Layout& layout, int at, const std::function<void()>& fault) {
  auto transports = make_local_transports(layout.ranks());
  const auto faulty = std::make_shared<FaultyTransport>(transports[kVictim], at, fault);
  transports[kVictim] = faulty;
  FaultyRun outcome;
  run_ranks(transports, [&](Communicator& world) {
    std::vector<float> video = run_rank(RankPlacement::of(world, layout), DType::kF32);
    if (world.rank() == 0) outcome.video = std::move(video);
  });
  outcome.sent = faulty->sent();
  return outcome;
}

// Returns the first and the middle send of every kind, among them those of the text encoder, of a
// block in the first and in a later step, of the latents and of the decoder.
std::vector<int> places(const std::vector<std::string>& sent) {
  std::map<std::string, std::vector<int>> kinds;
  for (int i = 0; i < static_cast<int>(sent.size()); ++i) kinds[kind_of(sent[i])].push_back(i);
  std::set<int> chosen;
  for (const auto& [kind, all] : kinds) chosen.insert({all.front(), all[all.size() / 2]});
  return {chosen.begin(), chosen.end()};
}

TEST(ReplicaFaults, ARankThatThrowsEndsAllWithOneLineThatNamesItInEveryPhase) {
  for (const char* text : kLayouts) {
    const Layout layout = parse_layout(text, 4, {});
    const std::vector<std::string> sent = run_faulty(layout, -1, {}).sent;
    EXPECT_GE(places(sent).size(), 8u) << text;
    for (int at : places(sent))
      EXPECT_EQ(
          thrown_error(
              [&] { run_faulty(layout, at, [] { throw Error(ErrorKind::kMemory, "no page"); }); },
              ErrorKind::kMemory),
          "rank 2: no page")
          << text << ", send " << at << ": " << sent[at];
  }
}

TEST(ReplicaFaults, ARankThatIsSlowChangesNoBitInAnyPhase) {
  for (const char* text : kLayouts) {
    const Layout layout = parse_layout(text, 4, {});
    const FaultyRun plain = run_faulty(layout, -1, {});
    ASSERT_FALSE(plain.video.empty());
    for (int at : places(plain.sent)) {
      bool slow = false;
      const FaultyRun late = run_faulty(layout, at, [&] {
        slow = true;
        std::this_thread::sleep_for(std::chrono::milliseconds(30));
      });
      EXPECT_TRUE(slow);
      EXPECT_EQ(late.video, plain.video) << text << ", send " << at << ": " << plain.sent[at];
    }
  }
}

TEST(ReplicaFaults, ARankThatNeverBeginsAndARootThatCannotWriteEndAll) {
  struct FullDisk final : FrameSink {
    int frames = 0;
    void push(const Frame&) override {
      if (++frames == 4) throw Error(ErrorKind::kOutput, "the disk is full");
    }
    std::string finish() override { return "nowhere"; }
  };
  for (const char* text : kLayouts) {
    const Layout layout = parse_layout(text, 4, {});
    const auto job_of = [&](Communicator& world, FrameSink* sink) {
      Generator generator(kModel, options_of(DType::kF32), RankPlacement::of(world, layout));
      generator.run(job(), sink);
    };
    const auto ends_all = [](const std::function<void(Communicator&)>& work, ErrorKind kind) {
      return thrown_error([&] { run_ranks(4, work); }, kind);
    };
    const auto never_begins = [&](Communicator& world) {
      if (world.rank() == kVictim) throw Error(ErrorKind::kModel, "no such folder");
      job_of(world, nullptr);
    };
    const auto cannot_write = [&](Communicator& world) {
      FullDisk disk;
      job_of(world, world.rank() == 0 ? &disk : nullptr);
    };
    EXPECT_EQ(ends_all(never_begins, ErrorKind::kModel), "rank 2: no such folder");
    EXPECT_EQ(ends_all(cannot_write, ErrorKind::kOutput), "rank 0: the disk is full");
  }
}

// One rank has a NaN in its copy of block 0. The error names that block, before the other ranks see
// the NaN in block 1.
TEST(ReplicaFaults, ANaNIsNamedByTheBlockWhereItBegan) {
  const std::string sick =
      poisoned(kModel, "transformer", "blocks.0.ffn.net.2.bias", testing::TempDir());
  for (const char* text : {"cfg=2,ulysses=2", "cfg=2,token_ring=2", "tensor=2,ring=2"}) {
    const Layout layout = parse_layout(text, 4, {});
    for (uint64_t seed = 0; seed < 5; ++seed) {
      const std::string line = thrown_error(
          [&] {
            run_ranks(4,
                      [&](Communicator& world) {
                        Generator generator(world.rank() == kVictim ? sick : kModel,
                                            options_of(DType::kF32),
                                            RankPlacement::of(world, layout));
                        generator.run(job(), nullptr);
                      },
                      {.delay_seed = seed, .max_delay_us = 200});
          },
          ErrorKind::kNonFinite);
      EXPECT_TRUE(line.starts_with("rank 2: NaN or infinity in denoise, step 1 of 2")) << line;
      EXPECT_TRUE(contains(line, "first in block 0")) << text << ": " << line;
    }
  }
}

}  // namespace
}  // namespace weft::test
