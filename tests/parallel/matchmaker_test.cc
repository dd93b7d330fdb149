// Tests which offers match, in which order, and what ends the job, in one process and over TCP.
#include "parallel/transport/matchmaker.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "parallel/bootstrap/share.h"
#include "parallel/communicator.h"
#include "parallel/transport/local.h"
#include "tests/parallel/share_through_file.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// Records every call; other ranks may cause one at any time.
class Recorder final : public MatchReceiver {
 public:
  void matched(std::span<const Match> matches) override {
    const std::lock_guard guard(lock_);
    calls_.emplace_back(matches.begin(), matches.end());
    changed_.notify_all();
  }
  void withdrawn(uint64_t number) override {
    const std::lock_guard guard(lock_);
    withdrawn_.push_back(number);
    changed_.notify_all();
  }
  void strayed() override {
    const std::lock_guard guard(lock_);
    ++strays_;
    changed_.notify_all();
  }
  void ended(const std::string& why) override {
    const std::lock_guard guard(lock_);
    if (why_.empty()) why_ = why;
    changed_.notify_all();
  }

  // Each waits until there are so many, and returns what there is after five seconds.
  std::vector<std::vector<Match>> calls(size_t count) {
    return wait(calls_, [=, this] { return calls_.size() >= count; });
  }
  std::vector<uint64_t> withdrawn_after(size_t count) {
    return wait(withdrawn_, [=, this] { return withdrawn_.size() >= count; });
  }
  int strays_after(int count) {
    return wait(strays_, [=, this] { return strays_ >= count; });
  }
  std::string why() {
    return wait(why_, [this] { return !why_.empty(); });
  }

 private:
  template <class Value, class Done>
  Value wait(const Value& value, Done done) {
    std::unique_lock guard(lock_);
    changed_.wait_for(guard, std::chrono::seconds(5), done);
    return value;
  }
  std::mutex lock_;
  std::condition_variable changed_;
  std::vector<std::vector<Match>> calls_;
  std::vector<uint64_t> withdrawn_;
  int strays_ = 0;
  std::string why_;
};

Offer offer(uint64_t number, bool receive, int peer, const Tag& tag, int64_t bytes = 8) {
  return {number, receive, peer, {.tag = tag.bits(0), .bytes = bytes, .due_ns = 0}};
}

std::string path(const std::string& name) {
  return (std::filesystem::temp_directory_path() /
          ("weft-" + name + "-" + std::to_string(getpid())))
      .string();
}

// One matchmaker shared by all ranks, or one client per rank over TCP.
class Matchmakers : public testing::TestWithParam<bool> {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    matchmakers_.resize(kRanks);
    if (!GetParam()) {
      matchmakers_.assign(kRanks, make_matchmaker(kRanks));
    } else {
      std::vector<Share> shares;  // the file stays until all have read it
      for (int rank = 0; rank < kRanks; ++rank)
        shares.push_back(share_through_file(path("matchmaker"), rank, 5));
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < kRanks; ++rank)
        ranks.emplace_back([&, rank] {
          std::string note = rank == 0 ? "of the first" : "";
          matchmakers_[rank] = connect_matchmaker(rank, kRanks, "lo", 5, note, shares[rank]);
          EXPECT_EQ(note, "of the first");
        });
      for (std::thread& one : ranks) one.join();
    }
    for (int rank = 0; rank < kRanks; ++rank) matchmakers_[rank]->join(rank, recorders_[rank]);
  }

  void TearDown() override {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([this, rank] {
        matchmakers_[rank]->leave(rank);
        matchmakers_[rank].reset();
      });
    for (std::thread& one : ranks) one.join();
  }

  std::vector<std::shared_ptr<Matchmaker>> matchmakers_;
  Recorder recorders_[kRanks];
};

TEST_P(Matchmakers, SendsOfEarlierJobsAreDiscarded) {
  const auto send = [&](uint64_t number, int job) {
    Offer one = offer(number, false, 1, {});
    one.header.tag = Tag{.kind = Payload::kHidden}.bits(3, job);
    matchmakers_[0]->offer(0, one);
  };
  send(1, 0);
  send(2, 1);
  matchmakers_[0]->offer(0, offer(3, true, 1, {}));  // the answer shows that these have come
  matchmakers_[1]->offer(1, offer(1, false, 0, {}));
  recorders_[1].calls(1);
  matchmakers_[1]->begin_job(1);
  EXPECT_EQ(recorders_[0].withdrawn_after(1), std::vector<uint64_t>{1});
  EXPECT_EQ(recorders_[1].strays_after(1), 1);
  send(4, 0);  // one that comes late
  EXPECT_EQ(recorders_[0].withdrawn_after(2), (std::vector<uint64_t>{1, 4}));
  EXPECT_EQ(recorders_[1].strays_after(2), 2);
  Offer receive = offer(2, true, 0, {});
  receive.header.tag = Tag{.kind = Payload::kHidden}.bits(3, 1);
  matchmakers_[1]->offer(1, receive);
  EXPECT_EQ(recorders_[0].calls(2).size(), 2u);
}

TEST(Matchmaker, TheWorkOfAMessageDoesNotGrowWithTheRanks) {
  const auto work_per_message = [](int ranks) {
    const auto matchmaker = make_matchmaker(ranks);
    std::vector<Recorder> recorders(ranks);
    for (int rank = 0; rank < ranks; ++rank) matchmaker->join(rank, recorders[rank]);
    // Every rank sends to every other one and waits; receives are offered in the opposite order.
    std::vector<uint64_t> next(ranks, 1);
    int64_t messages = 0;
    for (int from = 0; from < ranks; ++from)
      for (int to = 0; to < ranks; ++to, ++messages)
        matchmaker->offer(from, offer(next[from]++, false, to, {.hop = 1}));
    for (int rank = 1; rank < ranks; ++rank) matchmaker->waiting(rank, 1);
    for (int to = ranks - 1; to >= 0; --to)
      for (int from = ranks - 1; from >= 0; --from)
        matchmaker->offer(to, offer(next[to]++, true, from, {.hop = 1}));
    for (int rank = 0; rank < ranks; ++rank) matchmaker->leave(rank);
    for (Recorder& one : recorders)
      EXPECT_EQ(one.calls(2 * static_cast<size_t>(ranks) - 1).size(), 2u * ranks - 1);
    return static_cast<double>(matchmaker->work()) / static_cast<double>(messages);
  };
  const double few = work_per_message(64), many = work_per_message(256);
  EXPECT_GE(few, 2);
  EXPECT_LE(few, 3);
  EXPECT_LE(many, few);
}

TEST_P(Matchmakers, MatchesByTagAndTheOldestFirst) {
  const Tag a{.kind = Payload::kHidden}, b{.kind = Payload::kLatent};
  matchmakers_[0]->offer(0, offer(1, false, 1, a, 100));
  matchmakers_[0]->offer(0, offer(2, false, 1, b, 200));
  matchmakers_[0]->offer(0, offer(3, false, 1, a, 300));
  matchmakers_[0]->offer(0, offer(4, false, 2, a, 400));
  matchmakers_[1]->offer(1, offer(1, true, 0, b, 200));
  recorders_[1].calls(1);
  matchmakers_[1]->offer(1, offer(2, true, 0, a, 100));
  matchmakers_[1]->offer(1, offer(3, true, 0, a, 8));
  const auto to = recorders_[1].calls(3), from = recorders_[0].calls(3);
  ASSERT_EQ(to.size(), 3u);
  ASSERT_EQ(from.size(), 3u);
  const uint64_t sends[] = {2, 1, 3};
  const int64_t bytes[] = {200, 100, 300};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(to[i][0].number, i + 1);
    EXPECT_EQ(from[i][0].number, sends[i]);
    EXPECT_EQ(to[i][0].header.bytes, bytes[i]);  // the sender's
    EXPECT_EQ(to[i][0].moves, i < 2);            // the third's sizes differ
    EXPECT_EQ(from[i][0].moves, to[i][0].moves);
  }
}

TEST_P(Matchmakers, AMessageToItselfIsOneCall) {
  matchmakers_[1]->offer(1, offer(1, false, 1, {}));
  matchmakers_[1]->offer(1, offer(2, true, 1, {}));
  const auto calls = recorders_[1].calls(1);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].size(), 2u);
}

TEST_P(Matchmakers, AWithdrawnOfferMatchesNothing) {
  matchmakers_[0]->offer(0, offer(1, true, 1, {}));
  matchmakers_[0]->withdraw(0, 1);
  EXPECT_EQ(recorders_[0].withdrawn_after(1), std::vector<uint64_t>{1});
  matchmakers_[0]->offer(0, offer(2, true, 1, {}));
  matchmakers_[1]->offer(1, offer(1, false, 0, {}));
  const auto calls = recorders_[0].calls(1);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0][0].number, 2u);
}

TEST_P(Matchmakers, ACircleOfWaitsEndsTheJobWithItsList) {
  for (int rank = 0; rank < 2; ++rank) {
    matchmakers_[rank]->offer(rank, offer(1, rank == 0, 1 - rank, {.pass = {.step = rank + 4}}));
    matchmakers_[rank]->waiting(rank, 1);
  }
  matchmakers_[2]->offer(2, offer(1, true, 0, {}));
  matchmakers_[2]->waiting(2, 1);
  for (Recorder& recorder : recorders_)
    EXPECT_EQ(recorder.why(),
              "deadlock: rank 0 receives from rank 1 control step 4 layer 0 hop 0 "
              "group 0; rank 1 sends to rank 0 control step 5 layer 0 hop 0 group 0; "
              "rank 2 receives from rank 0 control step 0 layer 0 hop 0 group 0");
}

TEST_P(Matchmakers, TheFirstAbortReachesAll) {
  matchmakers_[2]->abort("enough");
  EXPECT_EQ(recorders_[0].why(), "enough");
  matchmakers_[1]->abort("late");
  for (Recorder& recorder : recorders_) EXPECT_EQ(recorder.why(), "enough");
}

TEST_P(Matchmakers, StartUpTellsWhoIsNotReady) {
  matchmakers_[1]->ready(1);
  for (int rank = 1; rank < kRanks;
       ++rank) {  // an answer proves that all earlier calls were processed
    matchmakers_[rank]->offer(rank, offer(1, true, rank, {}));
    matchmakers_[rank]->offer(rank, offer(2, false, rank, {}));
    recorders_[rank].calls(1);
  }
  matchmakers_[0]->late(0, 1.5);
  EXPECT_EQ(recorders_[0].why(), "start-up: rank 0, 2 is not ready within 1.5 s");
}

INSTANTIATE_TEST_SUITE_P(Over, Matchmakers, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Tcp" : "Memory");
});

TEST(Matchmaker, ARankThatNeverComesIsNamedAndOneThatGoesEndsTheJob) {
  std::string address;
  const auto share = [&](const std::string& text) {
    if (!text.empty()) address = text;
    return address;
  };
  std::string note;
  auto first = connect_matchmaker(0, 3, "lo", 5, note, share);
  auto second = connect_matchmaker(1, 3, "lo", 5, note, share);
  Recorder recorder, other;
  first->join(0, recorder);
  second->join(1, other);
  second->ready(1);
  second->offer(1,
                offer(1, true, 1, {}));  // its answer proves that all earlier calls were processed
  second->offer(1, offer(2, false, 1, {}));
  other.calls(1);
  first->late(0, 0.5);
  EXPECT_EQ(recorder.why(), "start-up: rank 2 has not begun, rank 0 is not ready within 0.5 s");

  Recorder third, fourth;
  auto left = connect_matchmaker(0, 2, "lo", 5, note, share);
  auto right = connect_matchmaker(1, 2, "lo", 5, note, share);
  left->join(0, third);
  right->join(1, fourth);
  right->offer(1, offer(1, true, 1, {}));
  right->offer(1, offer(2, false, 1, {}));
  fourth.calls(1);
  right.reset();  // disappears without leave()
  EXPECT_EQ(third.why(), "rank 1 is gone");
  second->leave(1);
  first->leave(0);
  left->leave(0);
}

// A rank that never leaves delays the first one by seconds only.
TEST(Matchmaker, TheFirstRankGoesSecondsAfterTheEnd) {
  std::string address, note;
  const auto share = [&](const std::string& text) {
    if (!text.empty()) address = text;
    return address;
  };
  auto first = connect_matchmaker(0, 2, "lo", 5, note, share);
  auto stopped = connect_matchmaker(1, 2, "lo", 5, note, share);
  Recorder recorder, other;
  first->join(0, recorder);
  stopped->join(1, other);
  first->abort("enough");
  EXPECT_EQ(other.why(), "enough");
  first->leave(0);
  first.reset();
  stopped->leave(1);
}

TEST(Matchmaker, AStrangerIsDropped) {
  std::string address;
  const auto share = [&](const std::string& text) {
    if (!text.empty()) address = text;
    return address;
  };
  std::string note;
  auto matchmaker = connect_matchmaker(0, 1, "lo", 5, note, share);
  Recorder recorder, stranger;
  matchmaker->join(0, recorder);
  const auto wrong = [&](const std::string&) {
    const size_t token = address.find(' ');  // of "addresses token greeting"
    return address.substr(0, token) + " 12345" + address.substr(address.find(' ', token + 1));
  };
  auto from_outside = connect_matchmaker(0, 1, "lo", 5, note, wrong);
  from_outside->join(0, stranger);
  EXPECT_EQ(stranger.why(), "rank 0, which runs the matchmaker, is gone");
  matchmaker->offer(0, offer(1, true, 0, {}));
  matchmaker->offer(0, offer(2, false, 0, {}));
  EXPECT_EQ(recorder.calls(1).size(), 1u);
  matchmaker->leave(0);
}

TEST(Share, AFileThatIsThereOrNeverComesIsNamed) {
  const std::string file = path("share");
  const auto failure = [](const Share& share) { return error_of([&] { share("text"); }); };
  EXPECT_EQ(failure(share_through_file(file, 1, 0.05)),
            "start-up file " + file + ": rank 0 has not written it within 0.05 s");
  {
    const Share share = share_through_file(file, 0);
    EXPECT_EQ(share("one\ntwo"), "one\ntwo");
    EXPECT_EQ(share_through_file(file, 1, 5)(""), "one\ntwo");
    EXPECT_TRUE(contains(failure(share_through_file(file, 0)), file + ": it is there already"));
    EXPECT_TRUE(std::filesystem::exists(file));
  }
  EXPECT_FALSE(std::filesystem::exists(file));
}

TEST(Share, OverMessagesOfTheSameRanks) {
  run_ranks(3, [](Communicator& c) {
    EXPECT_EQ(share_over(c)(c.rank() == 0 ? "said" : "unheard"), "said");
  });
}

}  // namespace
}  // namespace weft::test
