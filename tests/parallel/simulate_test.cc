// Simulated time by hand: computing, a message on a link, what overlaps and what queues.
#include "parallel/schedule/simulate.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "parallel/schedule/timeline_svg.h"
#include "parallel/transport/local.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

constexpr double kMove = 1e6;  // bytes per second of copies

DeviceModel device() {
  DeviceModel model;
  model.bytes_per_s[static_cast<size_t>(OpFamily::kCopy)] = kMove;
  return model;
}

Stream metered_stream() { return Stream::cpu(1, Determinism::kFast, &metered_ops()); }

// Takes `seconds` of a rank.
void work(double seconds) {
  const auto values = static_cast<int64_t>(seconds * kMove / 8);
  const Tensor x(DType::kF32, {values}), out(DType::kF32, {values});
  Stream on = metered_stream();
  copy(on, x, out);
}

TEST(Simulate, AMessageTakesItsLink) {
  // 100,000 bytes at 1 MB/s and 0.25 s: sent at 1 s, there at 1.35 s.
  const auto ranks =
      simulate(2, device(), {.latency_s = 0.25, .bytes_per_s = 1e6}, [](Communicator& world) {
        Stream on = metered_stream();
        Tensor x(DType::kF32, {25000});
        if (world.rank() == 0) {
          work(1);
          world.send(on, 1, {}, x);
        } else {
          world.receive(on, 0, {}, x);
          EXPECT_NEAR(simulated_seconds(), 1.35, 1e-6);
          work(0.5);
        }
      });
  EXPECT_NEAR(ranks[0].seconds, 1, 1e-6);
  EXPECT_NEAR(ranks[1].seconds, 1.85, 1e-6);
  EXPECT_EQ(ranks[0].counters.total_sent().bytes, 100000);
  ASSERT_EQ(ranks[1].spans.size(), 2u);
  EXPECT_TRUE(ranks[1].spans[0].waits);
  EXPECT_NEAR(ranks[1].spans[0].end_s, 1.35, 1e-6);
  EXPECT_FALSE(ranks[1].spans[1].waits);
}

TEST(Simulate, WorkHidesAMessageAndMessagesQueue) {
  const auto ranks =
      simulate(2, device(), {.latency_s = 0, .bytes_per_s = 1e6}, [](Communicator& world) {
        Stream on = metered_stream();
        Tensor x(DType::kF32, {50000});  // 0.2 s on the wire
        if (world.rank() == 0) {
          world.send(on, 1, {.hop = 0}, x);
          world.send(on, 1, {.hop = 1}, x);
        } else {
          work(0.3);
          world.receive(on, 0, {.hop = 0}, x);
          EXPECT_NEAR(simulated_seconds(), 0.3, 1e-6);
          world.receive(on, 0, {.hop = 1}, x);
        }
      });
  EXPECT_NEAR(ranks[1].seconds, 0.4, 1e-6);
}

// 100,000 bytes: 0.1 s on a link of 1 MB/s.
constexpr Link kLink{.latency_s = 0, .bytes_per_s = 1e6};
constexpr int64_t kValues = 25000;

TEST(Simulate, MessagesOutOfARankShareItsPort) {
  const auto ranks = simulate(3, device(), kLink, [](Communicator& world) {
    Stream on = metered_stream();
    Tensor x(DType::kF32, {kValues});
    if (world.rank() == 0)
      for (int to : {1, 2}) world.send(on, to, {}, x);
    else
      world.receive(on, 0, {}, x);
  });
  EXPECT_NEAR(ranks[1].seconds, 0.1, 1e-6);
  EXPECT_NEAR(ranks[2].seconds, 0.2, 1e-6);
}

TEST(Simulate, MessagesIntoARankShareItsPort) {
  // The second message starts 0.05 s later than the first. Both are there after 0.2 s, in whatever
  // order they are awaited.
  for (const bool first : {true, false}) {
    const auto ranks = simulate(3, device(), kLink, [&](Communicator& world) {
      Stream on = metered_stream();
      Tensor x(DType::kF32, {kValues});
      if (world.rank() == 0) {
        world.receive(on, first ? 1 : 2, {}, x);
        EXPECT_NEAR(simulated_seconds(), first ? 0.1 : 0.15, 1e-6);
        world.receive(on, first ? 2 : 1, {}, x);
      } else {
        work(world.rank() == 2 ? 0.05 : 0);
        world.send(on, 0, {}, x);
      }
    });
    EXPECT_NEAR(ranks[0].seconds, 0.2, 1e-6);
  }
}

TEST(Simulate, APortCarriesBothWaysAtOnce) {
  for (int ranks : {2, 3})  // to the next rank of a ring
    for (const SimulatedRank& rank : simulate(ranks, device(), kLink, [&](Communicator& world) {
           Stream on = metered_stream();
           Tensor in(DType::kF32, {kValues}), out(DType::kF32, {kValues});
           const Message send{(world.rank() + 1) % ranks, {}, out},
               receive{(world.rank() + ranks - 1) % ranks, {}, in};
           world.exchange(on, {&send, 1}, {&receive, 1});
         }))
      EXPECT_NEAR(rank.seconds, 0.1, 1e-6);
}

// The seconds that every rank takes over transports with real clocks.
std::vector<double> linked_seconds(int ranks, const Link& link,
                                   const std::function<void(Communicator&)>& work) {
  using Clock = std::chrono::steady_clock;
  std::vector<std::shared_ptr<Transport>> transports = make_local_transports(ranks);
  for (auto& transport : transports) transport = make_link(transport, link);
  std::vector<double> seconds(ranks);
  const auto begun = Clock::now();
  run_ranks(transports, [&](Communicator& world) {
    work(world);
    seconds[world.rank()] = std::chrono::duration<double>(Clock::now() - begun).count();
  });
  return seconds;
}

// A LinkTransport delays real messages at least as long as the simulation predicts. It would be
// faster if messages did not share their ranks' ports.
TEST(Simulate, ALinkTransportIsNeverFasterThanPredicted) {
  constexpr Link link{.latency_s = 0.005, .bytes_per_s = 1e6};
  constexpr int64_t kBytes = 20000;  // 20 ms
  enum class Way : uint8_t { kAllToAll, kToTheFirst, kFromTheFirst, kAround };
  for (const int ranks : {3, 4})
    for (const Way way : {Way::kAllToAll, Way::kToTheFirst, Way::kFromTheFirst, Way::kAround}) {
      const auto work = [&](Communicator& world) {
        Stream on = metered_stream();
        std::vector<Tensor> tensors;
        std::vector<Message> sends, receives;
        const auto buffer = [&] {
          tensors.push_back(Tensor(DType::kU8, {kBytes}));
          return tensors.back().view();
        };
        const int own = world.rank();
        for (int hop = 1; hop < ranks; ++hop) {
          const int to = (own + hop) % ranks, from = (own + ranks - hop) % ranks;
          const auto sent = [&](int sender, int receiver) {
            if (way == Way::kAllToAll) return true;
            if (way == Way::kAround) return (sender + 1) % ranks == receiver;
            return (way == Way::kToTheFirst ? receiver : sender) == 0;
          };
          if (sent(own, to)) sends.push_back({to, {}, buffer()});
          if (sent(from, own)) receives.push_back({from, {}, buffer()});
        }
        world.exchange(on, sends, receives);
      };
      const std::vector<SimulatedRank> simulated = simulate(ranks, {}, link, work);
      double predicted = 0;
      for (const SimulatedRank& rank : simulated) predicted = std::max(predicted, rank.seconds);
      EXPECT_NEAR(predicted, way == Way::kAround ? 0.025 : 0.005 + 0.02 * (ranks - 1), 1e-6);
      const std::vector<double> seconds = linked_seconds(ranks, link, work);
      for (int rank = 0; rank < ranks; ++rank)
        EXPECT_GE(seconds[rank], simulated[rank].seconds - 1e-6) << "rank " << rank;
    }
}

TEST(Simulate, CopiesOfMessagesOverlapWithComputing) {
  DeviceModel model = device();
  model.copy_bytes_per_s = 1e6;  // 0.1 s at either end
  const auto ranks = simulate(2, model, {}, [](Communicator& world) {
    Stream on = metered_stream();
    Tensor x(DType::kF32, {kValues}), y(DType::kF32, {kValues});
    const Message first{1 - world.rank(), {.hop = 0}, x}, second{1 - world.rank(), {.hop = 1}, y};
    const std::array<Message, 2> messages{first, second};
    if (world.rank() == 0) {
      Communicator::Pending sends = world.post(on, messages, {});
      work(0.15);
      world.wait(sends);  // both are copied out at 0.2 s
    } else {
      Communicator::Pending receives = world.post(on, {}, messages);
      work(0.35);
      world.wait(receives);  // they came at 0.1 and 0.2 s and were copied in by 0.3 s
    }
  });
  EXPECT_NEAR(ranks[0].seconds, 0.2, 1e-6);
  EXPECT_NEAR(ranks[1].seconds, 0.35, 1e-6);
}

TEST(Simulate, SmallPayloadsTravel) {
  simulate(2, device(), {}, [](Communicator& world) {
    Stream on = metered_stream();
    Tensor x(DType::kF32, {4});
    if (world.rank() == 0) x.as<float>()[2] = 7;
    world.broadcast(on, {}, x, 0);
    EXPECT_EQ(x.as<float>()[2], 7);
  });
}

// 8 MB over 8 ranks at 1 Gbit/s. A root that sends to all takes 7 transfers, a tree 3.
TEST(Simulate, ALongBroadcastTakesAtMostTwoAndAHalfTransfers) {
  constexpr Link link{.latency_s = 100e-6, .bytes_per_s = 125e6};
  constexpr int kRanks = 8;
  constexpr int64_t kBytes = 8'000'000;
  const auto seconds_of = [&](int64_t bytes) {
    double last = 0;
    for (const SimulatedRank& rank : simulate(kRanks, device(), link, [&](Communicator& world) {
           Stream on = metered_stream();
           const Tensor x(DType::kU8, {bytes});
           world.broadcast(on, {}, x, 3);
         }))
      last = std::max(last, rank.seconds);
    return last;
  };
  const double transfer = link.latency_s + kBytes / link.bytes_per_s;
  EXPECT_LE(seconds_of(kBytes), 2.5 * transfer);
  const int pieces = broadcast_way(kBytes, kRanks).pieces;
  ASSERT_GT(pieces, 1);
  const double piece = kBytes / pieces / link.bytes_per_s;
  EXPECT_NEAR(seconds_of(kBytes), (kRanks - 2 + pieces) * piece + (kRanks - 1) * link.latency_s,
              1e-6);
  // A medium one goes down a tree, three hops deep; a short one comes from the root in one hop.
  EXPECT_NEAR(seconds_of(300000), 3 * (link.latency_s + 300000 / link.bytes_per_s), 1e-6);
  EXPECT_NEAR(seconds_of(1000), link.latency_s + 7 * 1000 / link.bytes_per_s, 1e-6);
}

TEST(Simulate, AnOpTakesTheLongerOfProductsAndBytes) {
  DeviceModel model = device();
  model.flop_per_s[static_cast<size_t>(OpFamily::kLinear)] = 2 * 64 * 64;  // a row a second
  model.bytes_per_s[static_cast<size_t>(OpFamily::kLinear)] = 4 * 64 * 64;
  const auto ranks = simulate(1, model, {}, [](Communicator&) {
    Stream on = metered_stream();
    const Tensor weight(DType::kF32, {64, 64}), x(DType::kF32, {3, 64}), out(DType::kF32, {3, 64});
    linear(on, x, pack_linear(on, weight, {}, DType::kF32), LinearActivation::kNone, out);
  });
  EXPECT_NEAR(ranks[0].seconds, 3, 1e-6);
}

TEST(Simulate, TheTimelineNamesEveryRank) {
  const auto ranks = simulate(3, device(), {}, [](Communicator&) { work(0.1); });
  const std::string svg = timeline_svg(ranks, "a < b");
  for (const char* text : {"rank 0", "rank 2", "0.1 s", "a &lt; b", "</svg>"})
    EXPECT_TRUE(contains(svg, text)) << text;
}

TEST(MeasuredDevice, GivesTheMeasuredTimeBack) {
  TimingMeter meter;
  {
    const MeterScope scope(meter);
    work(2);
  }
  const double seconds = meter.total(OpFamily::kCopy).seconds;
  const auto ranks = simulate(1, measured_device(meter), {}, [](Communicator&) { work(2); });
  EXPECT_NEAR(ranks[0].seconds, seconds, 1e-9 + 1e-6 * seconds);
}

}  // namespace
}  // namespace weft::test
