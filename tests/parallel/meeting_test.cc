// The meeting of processes that no launcher connects, whose ranks are threads here: texts reach
// all, and whoever does not come, comes twice or belongs elsewhere is named.
#include "parallel/bootstrap/meeting.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <thread>

#include "kernels/check.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

// A port of the loopback that is free, and stays so while nobody else asks for one.
int free_port() {
  const int probe = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof at;
  EXPECT_EQ(bind(probe, reinterpret_cast<sockaddr*>(&at), sizeof at), 0);
  EXPECT_EQ(getsockname(probe, reinterpret_cast<sockaddr*>(&at), &length), 0);
  close(probe);
  return ntohs(at.sin_port);
}

MeetingPoint free_point() { return {.host = "127.0.0.1", .port = free_port(), .job = "job 7"}; }

// A connection of somebody who knows the port alone.
int stranger_at(const MeetingPoint& point) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(point.port));
  to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  for (;;) {
    const int made = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (connect(made, reinterpret_cast<sockaddr*>(&to), sizeof to) == 0) return made;
    close(made);
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
}

std::string text_of(int rank) { return std::string(rank * 100'000, static_cast<char>('a' + rank)); }

void expect_texts_of_all(Meeting& meeting, int rank, int ranks) {
  const std::vector<std::string> texts = meeting.exchange(text_of(rank));
  ASSERT_EQ(texts.size(), static_cast<size_t>(ranks));
  for (int other = 0; other < ranks; ++other) EXPECT_EQ(texts[other], text_of(other));
}

void meet(int rank, int ranks, const MeetingPoint& point) {
  Meeting meeting(rank, ranks, point);
  expect_texts_of_all(meeting, rank, ranks);
  EXPECT_EQ(meeting.exchange(rank == 0 ? "address" : "").front(), "address");
  const std::vector<IpAddress> own = meeting.own_addresses();
  EXPECT_EQ(std::ssize(own), rank == 0 ? ranks - 1 : 1);
  for (const IpAddress& address : own) EXPECT_EQ(to_string(address), point.host);
}

std::string failure_of(int rank, int ranks, const MeetingPoint& point, double limit_s) {
  return error_of(
      [&] {
        Meeting meeting(rank, ranks, point, limit_s);
        meeting.exchange("");
      },
      ErrorKind::kComm);
}

TEST(Meeting, TextsReachAllRanksInWhateverOrderTheyCome) {
  for (const int ranks : {1, 2, 5})
    for (const int first_ms : {0, 250}) {
      const MeetingPoint point = free_point();
      std::vector<std::thread> others;
      for (int rank = 1; rank < ranks; ++rank)
        others.emplace_back([=] { meet(rank, ranks, point); });
      std::this_thread::sleep_for(std::chrono::milliseconds(first_ms));
      meet(0, ranks, point);
      for (std::thread& other : others) other.join();
    }
}

TEST(Meeting, TakesPlaceOverIpv6) {
  MeetingPoint point = free_point();
  point.host = "::1";
  const int six = socket(AF_INET6, SOCK_STREAM, 0);
  sockaddr_in6 at{};
  at.sin6_family = AF_INET6;
  at.sin6_addr = in6addr_loopback;
  const bool none = six < 0 || bind(six, reinterpret_cast<sockaddr*>(&at), sizeof at) != 0;
  if (six >= 0) close(six);
  if (none) GTEST_SKIP() << "no IPv6 here";
  std::thread other([&] { meet(1, 2, point); });
  meet(0, 2, point);
  other.join();
}

TEST(Meeting, WhoNeverComesIsNamedToAll) {
  const MeetingPoint point = free_point();
  const std::string line = "start-up: not all of the 4 ranks came to 127.0.0.1 port " +
                           std::to_string(point.port) + " within 0.5 s; missing: rank 1, rank 3";
  std::thread other([&] { EXPECT_EQ(failure_of(2, 4, point, 20), line); });
  EXPECT_EQ(failure_of(0, 4, point, 0.5), line);
  other.join();
}

TEST(Meeting, AFirstRankThatNeverComesIsNamed) {
  const MeetingPoint point = free_point();
  EXPECT_EQ(failure_of(1, 2, point, 0.3), "start-up: rank 0 does not answer at 127.0.0.1 port " +
                                              std::to_string(point.port) +
                                              " within 0.3 s: Connection refused");
}

TEST(Meeting, ATakenPortIsAnErrorOfTheFirstRank) {
  const MeetingPoint point = free_point();
  std::thread first([&] { meet(0, 2, point); });
  close(stranger_at(point));  // returns once it listens
  EXPECT_EQ(failure_of(0, 2, point, 20),
            "start-up: rank 0 cannot listen at " + point.text() +
                ": Address already in use; --port or MASTER_PORT gives the job another port");
  meet(1, 2, point);
  first.join();
}

TEST(Meeting, WhoIsSilentAfterwardsIsNamedToAll) {
  const MeetingPoint point = free_point();
  const std::string line = "start-up: no word within 1 s from rank 1";
  std::thread silent([&] {
    Meeting meeting(1, 3, point);
    std::this_thread::sleep_for(std::chrono::milliseconds(1300));
  });
  std::thread other([&] { EXPECT_EQ(failure_of(2, 3, point, 20), line); });
  EXPECT_EQ(failure_of(0, 3, point, 1), line);
  silent.join();
  other.join();
}

TEST(Meeting, ALostFirstRankEndsTheOthers) {
  const MeetingPoint point = free_point();
  std::thread other([&] {
    EXPECT_EQ(failure_of(1, 2, point, 20), "start-up: rank 0 at 127.0.0.1 port " +
                                               std::to_string(point.port) + " is gone or silent");
  });
  { Meeting first(0, 2, point); }
  other.join();
}

TEST(Meeting, TwoProcessesOfOneRankEndTheJob) {
  const MeetingPoint point = free_point();
  std::vector<std::thread> others;
  for (int i = 0; i < 2; ++i)
    others.emplace_back([&] {
      EXPECT_TRUE(contains(failure_of(1, 3, point, 20), "two processes say that they are rank 1"));
    });
  EXPECT_EQ(failure_of(0, 3, point, 20), "start-up: two processes say that they are rank 1");
  for (std::thread& other : others) other.join();
}

TEST(Meeting, ProcessesOfOtherJobsAreSentAway) {
  const MeetingPoint point = free_point();
  MeetingPoint foreign = point;
  foreign.job = "job 8";
  std::thread first([&] { meet(0, 2, point); });
  EXPECT_EQ(failure_of(1, 2, foreign, 20), "start-up: at " + point.text() +
                                               ": the rank 0 there leads another job, of 2 ranks "
                                               "(job 7)");
  EXPECT_TRUE(contains(failure_of(1, 3, point, 20), "another job, of 2 ranks"));
  meet(1, 2, point);
  first.join();
}

TEST(Meeting, StrangersDoNotDisturb) {
  const MeetingPoint point = free_point();
  std::thread first([&] { meet(0, 2, point); });
  const int mute = stranger_at(point), loud = stranger_at(point), brief = stranger_at(point);
  const std::string words(5000, 'x');
  EXPECT_EQ(send(loud, words.data(), words.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(words.size()));
  close(brief);
  meet(1, 2, point);
  first.join();
  close(mute);
  close(loud);
}

// Runs work(rank) on a thread for each rank.
void on_threads(int ranks, const std::function<void(int rank)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back([&, rank] { work(rank); });
  for (std::thread& thread : threads) thread.join();
}

TEST(Meeting, RanksThatAllFailHearItFromTheFirst) {
  const MeetingPoint point = free_point();
  const auto begun = std::chrono::steady_clock::now();
  on_threads(4, [&](int rank) { EXPECT_TRUE(Meeting::share_failure(rank, 4, point, 20)); });
  EXPECT_LT(std::chrono::steady_clock::now() - begun, std::chrono::seconds(10));
}

TEST(Meeting, ARankThatFailsAloneEndsTheMeeting) {
  const MeetingPoint point = free_point();
  on_threads(2, [&](int rank) {
    if (rank == 1)
      EXPECT_FALSE(Meeting::share_failure(rank, 2, point, 20));
    else
      expect_error(ErrorKind::kComm, "rank 1 has ended with an error of its own",
                   [&] { Meeting(rank, 2, point, 20); });
  });
}

TEST(Meeting, TheOthersHearThatTheFirstRankHasFailed) {
  const MeetingPoint point = free_point();
  on_threads(3, [&](int rank) {
    if (rank == 1) {
      expect_error(ErrorKind::kUsage, "rank 0 has ended with an error of its own",
                   [&] { Meeting(rank, 3, point, 20); });
    }
    EXPECT_TRUE(Meeting::share_failure(rank, 3, point, 20));
  });
}

TEST(Meeting, ARankThatFailsWhereNobodyAnswersIsAlone) {
  MeetingPoint point = free_point();
  EXPECT_FALSE(Meeting::share_failure(1, 2, point, 0.3));
  EXPECT_TRUE(Meeting::share_failure(0, 2, point, 0.3));  // nobody came
  point.host = "no.such.host.invalid";
  EXPECT_FALSE(Meeting::share_failure(1, 2, point, 0.3));
}

}  // namespace
}  // namespace weft::test
