// Communicator over the local transport: results, bytes and failures of messages and collectives.
#include "parallel/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <numeric>
#include <set>
#include <thread>

#include "parallel/bootstrap/flight_recorder.h"
#include "parallel/partition.h"
#include "parallel/transport/link.h"
#include "parallel/transport/local.h"
#include "tests/parallel/byte_formulas.h"
#include "tests/parallel/stray.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

int64_t sent(const Communicator& communicator, Payload kind) {
  return communicator.counters().sent[static_cast<size_t>(kind)].bytes;
}

std::string failure(int ranks, const std::function<void(Communicator&)>& work,
                    const LocalOptions& options = {}, ErrorKind kind = ErrorKind::kComm) {
  return error_of([&] { run_ranks(ranks, work, options); }, kind);
}

class Worlds : public testing::TestWithParam<bool> {
 protected:
  LocalOptions options() const { return {.rendezvous = GetParam()}; }
};

TEST_P(Worlds, AllToAllMovesEveryPartAndNothingElse) {
  for (int ranks = 1; ranks <= 6; ++ranks)
    run_ranks(
        ranks,
        [&](Communicator& c) {
          // Rank r sends r + 2 p values to p.
          std::vector<Tensor> in, out;
          std::vector<TensorView> ins, outs;
          int64_t bytes = 0;
          for (int p = 0; p < ranks; ++p) {
            in.push_back(ramp(c.rank() + 2 * p, static_cast<float>(100 * c.rank() + p), 0.5f));
            out.emplace_back(DType::kF32, std::initializer_list<int64_t>{p + 2 * c.rank()});
            if (p != c.rank()) bytes += 4 * (c.rank() + 2 * p);
          }
          for (int p = 0; p < ranks; ++p) {
            ins.push_back(in[p]);
            outs.push_back(out[p]);
          }
          c.all_to_all_v(cpu_stream(), {.kind = Payload::kHeadsIn}, ins, outs);
          for (int p = 0; p < ranks; ++p)
            for (int64_t i = 0; i < out[p].count(); ++i)
              EXPECT_EQ(out[p].as<float>()[i], 100 * p + c.rank() + 0.5f * static_cast<float>(i));
          EXPECT_EQ(sent(c, Payload::kHeadsIn), bytes);
        },
        options());
}

TEST_P(Worlds, AllReduceGivesTheSameBitsAndTheBytesOfItsFormula) {
  for (int ranks = 1; ranks <= 8; ++ranks)
    for (int64_t n : {1, 3, 7, 64, 101})
      for (AllReduce algorithm : {AllReduce::kRing, AllReduce::kStar}) {
        std::vector<Tensor> results;
        for (int r = 0; r < ranks; ++r) results.push_back(ramp(n, 0.1f * (r + 1), 0.37f * r));
        std::vector<double> exact(n);
        for (int64_t i = 0; i < n; ++i)
          for (const Tensor& x : results) exact[i] += x.as<float>()[i];
        run_ranks(
            ranks,
            [&](Communicator& c) {
              Arena arena(size_t{1} << 20);
              c.all_reduce(cpu_stream(), arena, {.kind = Payload::kPartial}, results[c.rank()],
                           algorithm);
              const auto chunk = [&](int i) { return partition(n, ranks, i % ranks).size(); };
              int64_t elements = 0;
              if (ranks > 1 && algorithm == AllReduce::kRing)
                elements = 2 * n - chunk(c.rank() + 1) - chunk(c.rank() + 2);
              else if (ranks > 1)
                elements = c.rank() == 0 ? (ranks - 1) * n : n;
              EXPECT_EQ(sent(c, Payload::kPartial), 4 * elements);
            },
            options());
        for (int r = 0; r < ranks; ++r)
          EXPECT_EQ(std::memcmp(results[r].view().data, results[0].view().data, 4 * n), 0);
        for (int64_t i = 0; i < n; ++i)
          EXPECT_NEAR(results[0].as<float>()[i], exact[i], 1e-6 * ranks * std::abs(exact[i]));
      }
}

TEST_P(Worlds, GatherBringsUnevenRowsToTheRoot) {
  for (int ranks = 1; ranks <= 5; ++ranks)
    run_ranks(
        ranks,
        [&](Communicator& c) {
          // Rank r has r rows of three values, or none where r is 2.
          const auto rows_of = [](int rank) { return rank == 2 ? 0 : rank + 1; };
          const Tensor own = ramp(3 * rows_of(c.rank()), static_cast<float>(100 * c.rank()), 1);
          const Tensor whole = ramp(3 * 20, -1, 0);
          std::vector<int> order;
          const auto place = [&](int rank) {
            int first = 0;
            for (int r = 0; r < rank; ++r) first += rows_of(r);
            return rows_of(rank) ? whole.view().slice(0, 3 * first, 3 * rows_of(rank))
                                 : TensorView();
          };
          c.gather_v(cpu_stream(), {.kind = Payload::kLatent},
                     rows_of(c.rank()) ? own.view() : TensorView(), place,
                     [&](int rank, const TensorView& rows) {
                       EXPECT_EQ(rows.as<float>()[1], 100 * rank + 1) << "before it has come";
                       order.push_back(rank);
                     });
          EXPECT_EQ(sent(c, Payload::kLatent), c.rank() == 0 ? 0 : 12 * rows_of(c.rank()));
          if (c.rank() != 0) {
            EXPECT_TRUE(order.empty());
            EXPECT_EQ(whole.as<float>()[0], -1);
            return;
          }
          int at = 0;
          std::vector<int> expected;
          for (int rank = 0; rank < ranks; ++rank) {
            if (rows_of(rank)) expected.push_back(rank);
            for (int i = 0; i < 3 * rows_of(rank); ++i)
              EXPECT_EQ(whole.as<float>()[at++], 100 * rank + i);
          }
          EXPECT_EQ(order, expected);
          EXPECT_EQ(whole.as<float>()[at], -1) << "written beyond the rows";
        },
        options());
}

TEST_P(Worlds, BroadcastBarrierAndGroups) {
  run_ranks(
      6,
      [&](Communicator& world) {
        std::vector<int> members;
        for (int r = world.rank() % 2; r < 6; r += 2) members.push_back(r);
        Communicator c = world.group(members, 1);
        EXPECT_EQ(c.rank(), world.rank() / 2);
        EXPECT_EQ(c.world_rank(c.rank()), world.rank());
        const Tensor x = ramp(5, static_cast<float>(world.rank()), 1.0f);
        c.broadcast(cpu_stream(), {.kind = Payload::kText}, x, 1);
        EXPECT_EQ(x.as<float>()[0], world.rank() % 2 + 2);
        world.barrier(cpu_stream(), {});
        c.barrier(cpu_stream(), {});
        // A rank's groups share its counters.
        EXPECT_EQ(sent(world, Payload::kText), c.rank() == 1 ? 2 * 20 : 0);
      },
      options());
}

TEST(Communicator, ABroadcastTakesTheWayOfItsSize) {
  using enum BroadcastWay::Shape;
  const auto shape = [](int64_t bytes, int ranks) { return broadcast_way(bytes, ranks).shape; };
  EXPECT_EQ(shape(int64_t{1} << 40, 2), kStar);
  EXPECT_EQ(shape(8, 64), kStar);
  EXPECT_EQ(shape(8, 256), kTree);
  EXPECT_EQ(shape(300 << 10, 8), kTree);
  EXPECT_EQ(shape(8'000'000, 8), kChain);
  EXPECT_EQ(shape(8'000'000, 256), kTree) << "a chain of 255 hops is too long";
  for (int ranks = 3; ranks <= 1024; ranks = ranks * 3 / 2)
    for (int64_t bytes = 1; bytes < int64_t{1} << 34; bytes *= 3)
      if (const BroadcastWay way = broadcast_way(bytes, ranks); way.shape == kChain) {
        EXPECT_GE(bytes / way.pieces, 128 << 10);
        EXPECT_LT(way.pieces, 1 << 13) << "hops of a tag";
      } else {
        EXPECT_EQ(way.pieces, 1);
      }
}

TEST_P(Worlds, ABroadcastSendsTheMessagesOfItsFormula) {
  std::set<BroadcastWay::Shape> shapes;
  const auto check = [&](int ranks, int64_t bytes, int root) {
    shapes.insert(broadcast_way(bytes, ranks).shape);
    run_ranks(
        ranks,
        [&](Communicator& c) {
          const Tensor x(DType::kU8, {bytes});
          const auto value = [](int64_t i) { return static_cast<uint8_t>(i * 7 + i / 1000); };
          if (c.rank() == root)
            for (int64_t i = 0; i < bytes; ++i) x.as<uint8_t>()[i] = value(i);
          c.broadcast(cpu_stream(), {.kind = Payload::kText}, x, root);
          int64_t wrong = 0;
          for (int64_t i = 0; i < bytes; ++i) wrong += x.as<uint8_t>()[i] != value(i);
          EXPECT_EQ(wrong, 0) << "rank " << c.rank() << " of " << ranks << ", root " << root;
          EXPECT_EQ(c.counters().total_sent(), broadcast_sent(bytes, ranks, c.rank(), root));
        },
        options());
  };
  for (int ranks = 1; ranks <= 9; ++ranks)
    for (int root = 0; root < ranks; root += 3)
      for (const int64_t bytes : {0, 4, 300 << 10, (3 << 20) + 5}) check(ranks, bytes, root);
  check(17, 300 << 10, 5);
  EXPECT_EQ(shapes.size(), 3u);
}

TEST_P(Worlds, DelaysChangeNoBit) {
  ASSERT_GT(broadcast_way(3200000, 4).pieces, 1);
  const auto work = [](Communicator& c, std::vector<float>& out) {
    Arena arena(size_t{1} << 20);
    for (int step = 0; step < 3; ++step) {
      const Tensor x = ramp(37, 0.3f * static_cast<float>(c.rank() + step), 0.11f);
      c.all_reduce(cpu_stream(), arena, {.kind = Payload::kPartial, .pass = {.step = step}}, x,
                   AllReduce::kRing);
      const Tensor y = ramp(9, x.as<float>()[c.rank()], 0.01f);
      const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
      const Tensor a(DType::kF32, {9}), b(DType::kF32, {9});
      // Two messages on one wire; the second asked for first.
      const Message sends[] = {
          {next, {.kind = Payload::kQuery, .pass = {.step = step}}, y},
          {next, {.kind = Payload::kState, .pass = {.step = step}}, x.view().slice(0, 0, 9)}};
      const Message receives[] = {{previous, {.kind = Payload::kState, .pass = {.step = step}}, a},
                                  {previous, {.kind = Payload::kQuery, .pass = {.step = step}}, b}};
      c.exchange(cpu_stream(), sends, receives);
      // One from the root to all, and one in pieces along a chain.
      const Tensor few = ramp(11, x.as<float>()[3], 0.1f);
      const Tensor many = ramp(step == 0 ? 800000 : 0, x.as<float>()[5], 0.01f);
      const Tag text{.kind = Payload::kText, .pass = {.step = step}};
      c.broadcast(cpu_stream(), text, few, step);
      c.broadcast(cpu_stream(), text, many, step);
      for (const Tensor* t : {&x, &a, &b, &few, &many})
        out.insert(out.end(), t->as<float>(), t->as<float>() + t->count());
    }
  };
  std::vector<std::vector<float>> plain(4);
  run_ranks(
      4, [&](Communicator& c) { work(c, plain[c.rank()]); }, options());
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    std::vector<std::vector<float>> delayed(4);
    LocalOptions fuzz = options();
    fuzz.delay_seed = seed;
    fuzz.max_delay_us = 40;
    run_ranks(
        4, [&](Communicator& c) { work(c, delayed[c.rank()]); }, fuzz);
    EXPECT_EQ(delayed, plain) << "seed " << seed;
  }
}

TEST_P(Worlds, AThrownErrorEndsEveryRankAndKeepsItsKind) {
  const std::string what = failure(
      3,
      [](Communicator& c) {
        if (c.rank() == 1) throw Error(ErrorKind::kNonFinite, "NaN in step 2");
        Tensor x(DType::kF32, {4});
        c.receive(cpu_stream(), 1, {.kind = Payload::kHidden}, x);
        FAIL() << "nothing was sent";
      },
      options(), ErrorKind::kNonFinite);
  EXPECT_EQ(what, "rank 1: NaN in step 2");
}

TEST_P(Worlds, ADeadlockNamesWhoWaitsForWhat) {
  const std::string what = failure(
      3,
      [](Communicator& c) {
        Tensor x(DType::kF32, {4});
        if (c.rank() < 2)
          c.receive(cpu_stream(), 1 - c.rank(), {.kind = Payload::kKeyValue, .pass = {.step = 2}},
                    x);
      },
      options());
  EXPECT_EQ(what,
            "deadlock: rank 0 receives from rank 1 key-value step 2 layer 0 hop 0 "
            "group 0; rank 1 receives from rank 0 key-value step 2 layer 0 hop 0 "
            "group 0; rank 2 has ended");
}

TEST_P(Worlds, StraysOfEndedJobsAreDiscardedAndCounted) {
  run_ranks(3, expect_strays_are_discarded, options());
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    LocalOptions delayed = options();
    delayed.delay_seed = seed;
    run_ranks(3, expect_strays_are_discarded, delayed);
  }
}

Tensor four_values(float value) {
  Tensor out(DType::kF32, {4});
  std::fill_n(out.as<float>(), 4, value);
  return out;
}

// A second thread of rank 0 exchanges messages with rank 1 while the first one does.
TEST_P(Worlds, ASecondThreadOfARankWaitsBesideTheFirst) {
  constexpr Tag kFirst{.kind = Payload::kHidden}, kSecond{.kind = Payload::kFrames};
  run_ranks(
      2,
      [&](Communicator& c) {
        constexpr int kRounds = 40;
        const auto echo = [&](Communicator& own, const Tag& tag, int round) {
          Stream stream = Stream::cpu(1);
          Tensor x = four_values(static_cast<float>(round));
          if (c.rank() == 0) own.send(stream, 1, tag, x);
          Tensor y = four_values(-1);
          own.receive(stream, 1 - c.rank(), tag, y);
          EXPECT_EQ(y.as<float>()[3], static_cast<float>(round));
          if (c.rank() == 1) own.send(stream, 0, tag, y);
        };
        if (c.rank() == 1) {
          for (int round = 0; round < kRounds; ++round) {
            echo(c, kSecond, round);
            echo(c, kFirst, round);
          }
          return;
        }
        Communicator second = c.beside();
        std::thread thread([&] {
          for (int round = 0; round < kRounds; ++round) echo(second, kSecond, round);
        });
        for (int round = 0; round < kRounds; ++round) echo(c, kFirst, round);
        thread.join();
        EXPECT_EQ(sent(c, Payload::kFrames), 0);
        EXPECT_EQ(sent(second, Payload::kFrames), kRounds * 16);
      },
      options());
}

// The ranks are not stuck while the second thread of one works, and are when it waits, too.
TEST_P(Worlds, ADeadlockIsOneOfAllThreads) {
  const auto work = [](Communicator& c, bool sends) {
    Tensor x = four_values(1);
    if (c.rank() == 1) return c.receive(cpu_stream(), 0, {.kind = Payload::kFrames}, x);
    Communicator second = c.beside();
    std::thread thread([&] {
      Stream stream = Stream::cpu(1);
      Tensor y = four_values(2);
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      try {
        if (sends) second.send(stream, 1, {.kind = Payload::kFrames}, y);
        second.receive(stream, 1, {.kind = Payload::kText}, y);
      } catch (const Error&) {  // of the deadlock
      }
    });
    try {
      c.receive(cpu_stream(), 1, {.kind = Payload::kHidden}, x);
    } catch (...) {
      thread.join();
      throw;
    }
  };
  const std::string one = failure(
      2, [&](Communicator& c) { work(c, false); }, options());
  EXPECT_TRUE(contains(one, "receives from rank 1 hidden"));
  EXPECT_TRUE(contains(one, " and receives from rank 1 text"));
  EXPECT_TRUE(contains(one, "rank 1 receives from rank 0 frames"));
  const std::string other = failure(
      2, [&](Communicator& c) { work(c, true); }, options());
  EXPECT_TRUE(contains(other, "rank 1 has ended"));
}

INSTANTIATE_TEST_SUITE_P(Sends, Worlds, testing::Bool(), [](const auto& info) {
  return std::string(info.param ? "Rendezvous" : "Buffered");
});

TEST(Local, RendezvousSendsFindTheDeadlockThatBufferedOnesHide) {
  const auto work = [](Communicator& c) {
    Tensor x(DType::kF32, {4});
    c.send(cpu_stream(), 1 - c.rank(), {.kind = Payload::kHidden}, x);
    c.receive(cpu_stream(), 1 - c.rank(), {.kind = Payload::kHidden}, x);
  };
  EXPECT_EQ(failure(2, work), "");
  EXPECT_TRUE(contains(failure(2, work, {.rendezvous = true}), "rank 0 sends to rank 1 hidden"));
}

TEST(Link, StraysOfEndedJobsAreDiscardedAndCounted) {
  std::vector<std::shared_ptr<Transport>> slow;
  for (const auto& transport : make_local_transports(2))
    slow.push_back(make_link(transport, {.latency_s = 0.002, .bytes_per_s = 1e6}));
  run_ranks(slow, expect_strays_are_discarded);
}

// Two ranks exchange `rounds` messages. Each either follows the contract of Communicator::post or
// breaks it on purpose; returns the rounds whose message was not what its sender meant.
enum class MessageProgram : uint8_t { kRight, kReadsEarly, kOverwritesEarly };
int wrong_rounds(MessageProgram program, const LocalOptions& options, int rounds) {
  std::atomic<int> wrong = 0;
  run_ranks(
      2,
      [&](Communicator& c) {
        Tensor out(DType::kF32, {1000}), in(DType::kF32, {1000});
        for (int round = 0; round < rounds; ++round) {
          const float mine = static_cast<float>(10 * round + c.rank()),
                      theirs = static_cast<float>(10 * round + 1 - c.rank());
          const auto matches = [&] {
            return std::all_of(in.as<float>(), in.as<float>() + in.count(),
                               [&](float x) { return x == theirs; });
          };
          std::fill_n(out.as<float>(), out.count(), mine);
          const Tag tag{.kind = Payload::kHidden, .pass = {.step = round}};
          const Message send{1 - c.rank(), tag, out}, receive{1 - c.rank(), tag, in};
          Communicator::Pending pending = c.post(cpu_stream(), {&send, 1}, {&receive, 1});
          bool right = program != MessageProgram::kReadsEarly || matches();
          if (program == MessageProgram::kOverwritesEarly)
            std::fill_n(out.as<float>(), out.count(), -1.f);
          c.wait(pending);
          if (program != MessageProgram::kReadsEarly) right = matches();
          wrong += !right;
        }
      },
      options);
  return wrong;
}

// Without delays a wrong program may go unnoticed, as it may over a network on a good day.
TEST_P(Worlds, DelaysCatchProgramsThatTouchABufferBeforeTheWait) {
  LocalOptions delayed = options();
  delayed.max_delay_us = 2000;
  for (uint64_t seed = 1; seed <= 3; ++seed) {
    delayed.delay_seed = seed;
    EXPECT_EQ(wrong_rounds(MessageProgram::kRight, delayed, 20), 0);
    EXPECT_GT(wrong_rounds(MessageProgram::kReadsEarly, delayed, 20), 10);
    EXPECT_GT(wrong_rounds(MessageProgram::kOverwritesEarly, delayed, 20), 10);
  }
  EXPECT_EQ(wrong_rounds(MessageProgram::kRight, options(), 200), 0);
}

TEST(Local, AMessageIsWrittenWhereItsReceiveIsPostedBeforeAnyWait) {
  run_ranks(2, [](Communicator& c) {
    Tensor x = ramp(4, static_cast<float>(c.rank()), 1), y(DType::kF32, {4});
    const Message receive{0, {.kind = Payload::kHidden}, y};
    if (c.rank() == 1) {
      Communicator::Pending pending = c.post(cpu_stream(), {}, {&receive, 1});
      c.barrier(cpu_stream(), {});
      c.barrier(cpu_stream(), {.hop = 50});
      EXPECT_EQ(y.as<float>()[3], 3);
      EXPECT_EQ(c.held_bytes(), 0);
      c.wait(pending);
    } else {
      c.barrier(cpu_stream(), {});
      c.send(cpu_stream(), 1, {.kind = Payload::kHidden}, x);
      c.barrier(cpu_stream(), {.hop = 50});
    }
  });
}

TEST(Local, EarlyPayloadsAreCountedUntilTheirReceiveIsPosted) {
  run_ranks(2, [](Communicator& c) {
    Tensor x = ramp(100, 0, 1);
    if (c.rank() == 0) {
      for (int i = 0; i < 3; ++i) c.send(cpu_stream(), 1, {.kind = Payload::kHidden, .hop = i}, x);
      c.barrier(cpu_stream(), {});
      EXPECT_EQ(c.held_bytes(), 0);
      return;
    }
    c.barrier(cpu_stream(), {});
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(c.held_bytes(), (3 - i) * 400);
      c.receive(cpu_stream(), 0, {.kind = Payload::kHidden, .hop = i}, x);
    }
    EXPECT_EQ(c.held_bytes(), 0);
  });
}

TEST(Local, AbortEndsABlockedWait) {
  const std::string what = failure(2, [](Communicator& c) {
    Tensor x(DType::kF32, {4});
    if (c.rank() == 0) c.receive(cpu_stream(), 1, {}, x);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    c.abort("the user has had enough");
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  });
  EXPECT_EQ(what, "the user has had enough");
}

TEST(Local, ARankThatNeverBeginsIsNamed) {
  const auto transports = make_local_transports(3, {.startup_seconds = 0.05});
  const std::string what = error_of([&] {
    run_ranks(std::span(transports).first(2), [](Communicator& c) {
      Tensor x(DType::kF32, {1});
      c.receive(cpu_stream(), 2, {}, x);
    });
  });
  EXPECT_TRUE(contains(what, "start-up: rank 2 has not begun"));
}

TEST(Communicator, RefusesAMessageOfAnotherSize) {
  const std::string what = failure(2, [](Communicator& c) {
    Tensor x(DType::kF32, {4});
    if (c.rank() == 0)
      c.send(cpu_stream(), 1, {.kind = Payload::kLatent}, x);
    else
      c.receive(cpu_stream(), 0, {.kind = Payload::kLatent}, x.view().slice(0, 0, 3));
  });
  EXPECT_TRUE(contains(what, "12 bytes, from rank 0 and got latent"));
}

TEST(Communicator, EmptyMessagesAreNone) {
  run_ranks(2, [](Communicator& c) {
    Tensor x(DType::kF32, {0});
    c.receive(cpu_stream(), 1 - c.rank(), {}, x);
    EXPECT_EQ(c.counters().total_received(), CommCounters::Count{});
  });
}

TEST(FlightRecorder, TellsTheLastOperation) {
  run_ranks(2, [](Communicator& c) {
    EXPECT_EQ(c.recorder().last(), "nothing yet");
    Tensor x(DType::kF32, {4});
    for (int i = 0; i < 2100; ++i)
      c.rank() ? c.send(cpu_stream(), 0, {.kind = Payload::kHidden, .pass = {.step = i}}, x)
               : c.receive(cpu_stream(), 1, {.kind = Payload::kHidden, .pass = {.step = i}}, x);
    EXPECT_EQ(c.recorder().last(),
              std::string(c.rank() ? "send to rank 0" : "receive from rank 1") +
                  " of hidden step 2099 layer 0 hop 0 group 0, 16 bytes: done");
    const std::string dump = c.recorder().dump();
    EXPECT_EQ(std::count(dump.begin(), dump.end(), '\n'), FlightRecorder::kRecords);
  });
}

// Ranks of groups that began unequally many jobs share a group afterwards, also where the numbers
// go round their circle.
TEST(Communicator, RanksGoOnWithTheJobsOfTheOneThatBeganMost) {
  for (const int before : {0, 65530})
    run_ranks(3, [&](Communicator& world) {
      for (int job = 0; job < before + 4 * world.rank(); ++job) world.begin_job();
      world.align_jobs(cpu_stream());
      int last = 0;
      for (int job = 0; job < before + 8; ++job) last = next_job(last);
      EXPECT_EQ(world.transport().job(), last);
      Communicator group = world.group({0, 1, 2}, 1);
      group.barrier(cpu_stream(), {});
    });
}

TEST(Link, HoldsMessagesForLatencyAndBytes) {
  using namespace std::chrono;
  auto transports = make_local_transports(2);
  const Link link{.latency_s = 0.02, .bytes_per_s = 1e6};
  for (auto& transport : transports) transport = make_link(transport, link);
  const auto begun = steady_clock::now();
  run_ranks(transports, [&](Communicator& c) {
    Tensor x(DType::kF32, {5000});  // 20 ms on the wire
    if (c.rank() == 0) {
      for (int i = 0; i < 2; ++i) c.send(cpu_stream(), 1, {.pass = {.step = i}}, x);
    } else {
      for (int i = 0; i < 2; ++i) c.receive(cpu_stream(), 0, {.pass = {.step = i}}, x);
      // Two messages share the wire, the latency is paid once.
      EXPECT_GE(steady_clock::now() - begun, milliseconds(60));
    }
  });
}

}  // namespace
}  // namespace weft::test
