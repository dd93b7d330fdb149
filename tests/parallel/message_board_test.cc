// MessageBoard: what matches, in which order, and what ends the job; in one process and over TCP.
#include "parallel/message_board.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/local.h"
#include "parallel/share.h"

namespace weft::test {
namespace {

// Notes what it hears; the others of the job may tell it at any time.
class Ear final : public BoardListener {
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
  void ended(const std::string& why) override {
    const std::lock_guard guard(lock_);
    if (why_.empty()) why_ = why;
    changed_.notify_all();
  }

  // Each gives up after some seconds, and then with what there is.
  std::vector<std::vector<Match>> calls(size_t count) {
    return wait(calls_, [=, this] { return calls_.size() >= count; });
  }
  std::vector<uint64_t> withdrawn_after(size_t count) {
    return wait(withdrawn_, [=, this] { return withdrawn_.size() >= count; });
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

// One board of a job, or one per rank over TCP.
class Boards : public testing::TestWithParam<bool> {
 protected:
  static constexpr int kRanks = 3;

  void SetUp() override {
    boards_.resize(kRanks);
    if (!GetParam()) {
      boards_.assign(kRanks, make_message_board(kRanks));
    } else {
      std::vector<Share> shares;  // the file stays until all have read it
      for (int rank = 0; rank < kRanks; ++rank)
        shares.push_back(share_through_file(path("board"), rank, 5));
      std::vector<std::thread> ranks;
      for (int rank = 0; rank < kRanks; ++rank)
        ranks.emplace_back([&, rank] {
          std::string note = rank == 0 ? "of the first" : "";
          boards_[rank] = connect_message_board(rank, kRanks, "lo", 5, note, shares[rank]);
          EXPECT_EQ(note, "of the first");
        });
      for (std::thread& one : ranks) one.join();
    }
    for (int rank = 0; rank < kRanks; ++rank) boards_[rank]->join(rank, ears_[rank]);
  }

  void TearDown() override {
    std::vector<std::thread> ranks;
    for (int rank = 0; rank < kRanks; ++rank)
      ranks.emplace_back([this, rank] {
        boards_[rank]->leave(rank);
        boards_[rank].reset();
      });
    for (std::thread& one : ranks) one.join();
  }

  std::vector<std::shared_ptr<MessageBoard>> boards_;
  Ear ears_[kRanks];
};

TEST_P(Boards, MatchesByTagAndTheOldestFirst) {
  const Tag a{.kind = Traffic::kHidden}, b{.kind = Traffic::kLatent};
  boards_[0]->offer(0, offer(1, false, 1, a, 100));
  boards_[0]->offer(0, offer(2, false, 1, b, 200));
  boards_[0]->offer(0, offer(3, false, 1, a, 300));
  boards_[0]->offer(0, offer(4, false, 2, a, 400));
  boards_[1]->offer(1, offer(1, true, 0, b, 200));
  ears_[1].calls(1);
  boards_[1]->offer(1, offer(2, true, 0, a, 100));
  boards_[1]->offer(1, offer(3, true, 0, a, 8));
  const auto to = ears_[1].calls(3), from = ears_[0].calls(3);
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

TEST_P(Boards, AMessageToOneselfIsToldInOneCall) {
  boards_[1]->offer(1, offer(1, false, 1, {}));
  boards_[1]->offer(1, offer(2, true, 1, {}));
  const auto calls = ears_[1].calls(1);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0].size(), 2u);
}

TEST_P(Boards, AWithdrawnOfferMatchesNothing) {
  boards_[0]->offer(0, offer(1, true, 1, {}));
  boards_[0]->withdraw(0, 1);
  EXPECT_EQ(ears_[0].withdrawn_after(1), std::vector<uint64_t>{1});
  boards_[0]->offer(0, offer(2, true, 1, {}));
  boards_[1]->offer(1, offer(1, false, 0, {}));
  const auto calls = ears_[0].calls(1);
  ASSERT_EQ(calls.size(), 1u);
  EXPECT_EQ(calls[0][0].number, 2u);
}

TEST_P(Boards, ACircleOfWaitsEndsTheJobWithItsList) {
  for (int rank = 0; rank < 2; ++rank) {
    boards_[rank]->offer(rank, offer(1, rank == 0, 1 - rank, {.step = rank + 4}));
    boards_[rank]->waiting(rank, 1);
  }
  boards_[2]->offer(2, offer(1, true, 0, {}));
  boards_[2]->waiting(2, 1);
  for (Ear& ear : ears_)
    EXPECT_EQ(ear.why(),
              "deadlock: rank 0 receives from rank 1 control step 4 branch 0 layer 0 segment 0 "
              "group 0; rank 1 sends to rank 0 control step 5 branch 0 layer 0 segment 0 group 0; "
              "rank 2 receives from rank 0 control step 0 branch 0 layer 0 segment 0 group 0");
}

TEST_P(Boards, TheFirstAbortReachesAll) {
  boards_[2]->abort("enough");
  EXPECT_EQ(ears_[0].why(), "enough");
  boards_[1]->abort("late");
  for (Ear& ear : ears_) EXPECT_EQ(ear.why(), "enough");
}

TEST_P(Boards, StartUpTellsWhoIsNotReady) {
  boards_[1]->ready(1);
  for (int rank = 1; rank < kRanks; ++rank) {  // an answer tells that all before it was heard
    boards_[rank]->offer(rank, offer(1, true, rank, {}));
    boards_[rank]->offer(rank, offer(2, false, rank, {}));
    ears_[rank].calls(1);
  }
  boards_[0]->late(0, 1.5);
  EXPECT_EQ(ears_[0].why(), "start-up: rank 0, 2 is not ready within 1.5 s");
}

INSTANTIATE_TEST_SUITE_P(Over, Boards, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Tcp" : "Memory");
});

TEST(MessageBoard, ARankThatNeverComesIsNamedAndOneThatGoesEndsTheJob) {
  std::string address;
  const auto share = [&](const std::string& text) {
    if (!text.empty()) address = text;
    return address;
  };
  std::string note;
  auto first = connect_message_board(0, 3, "lo", 5, note, share);
  auto second = connect_message_board(1, 3, "lo", 5, note, share);
  Ear ear, other;
  first->join(0, ear);
  second->join(1, other);
  second->ready(1);
  second->offer(1, offer(1, true, 1, {}));  // its answer tells that all was heard
  second->offer(1, offer(2, false, 1, {}));
  other.calls(1);
  first->late(0, 0.5);
  EXPECT_EQ(ear.why(), "start-up: rank 2 has not begun, rank 0 is not ready within 0.5 s");

  Ear third, fourth;
  auto left = connect_message_board(0, 2, "lo", 5, note, share);
  auto right = connect_message_board(1, 2, "lo", 5, note, share);
  left->join(0, third);
  right->join(1, fourth);
  right->offer(1, offer(1, true, 1, {}));
  right->offer(1, offer(2, false, 1, {}));
  fourth.calls(1);
  right.reset();  // without leaving
  EXPECT_EQ(third.why(), "rank 1 is gone");
  second->leave(1);
  first->leave(0);
  left->leave(0);
}

// A rank that is stopped does not hold the first one for ever.
TEST(MessageBoard, TheFirstRankGoesSecondsAfterTheEnd) {
  std::string address, note;
  const auto share = [&](const std::string& text) {
    if (!text.empty()) address = text;
    return address;
  };
  auto first = connect_message_board(0, 2, "lo", 5, note, share);
  auto stopped = connect_message_board(1, 2, "lo", 5, note, share);
  Ear ear, other;
  first->join(0, ear);
  stopped->join(1, other);
  first->abort("enough");
  EXPECT_EQ(other.why(), "enough");
  first->leave(0);
  first.reset();
  stopped->leave(1);
}

TEST(MessageBoard, AStrangerIsDropped) {
  std::string address;
  const auto share = [&](const std::string& text) {
    if (!text.empty()) address = text;
    return address;
  };
  std::string note;
  auto board = connect_message_board(0, 1, "lo", 5, note, share);
  Ear ear, stranger;
  board->join(0, ear);
  const auto wrong = [&](const std::string&) {
    return address.substr(0, address.find(' ', address.find(' ') + 1)) + " 12345 ";
  };
  auto from_outside = connect_message_board(0, 1, "lo", 5, note, wrong);
  from_outside->join(0, stranger);
  EXPECT_EQ(stranger.why(), "rank 0, which keeps the message board, is gone");
  board->offer(0, offer(1, true, 0, {}));
  board->offer(0, offer(2, false, 0, {}));
  EXPECT_EQ(ear.calls(1).size(), 1u);
  board->leave(0);
}

TEST(Share, AFileThatIsThereOrNeverComesIsNamed) {
  const std::string file = path("share");
  const auto failure = [](const Share& share) {
    try {
      share("text");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_EQ(failure(share_through_file(file, 1, 0.05)),
            "start-up file " + file + ": rank 0 has not written it within 0.05 s");
  {
    const Share share = share_through_file(file, 0);
    EXPECT_EQ(share("one\ntwo"), "one\ntwo");
    EXPECT_EQ(share_through_file(file, 1, 5)(""), "one\ntwo");
    EXPECT_NE(failure(share_through_file(file, 0)).find(file + ": it is there already"),
              std::string::npos);
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
