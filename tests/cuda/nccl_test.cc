// The transport that lets devices exchange by NCCL, with ranks that are threads and have an
// emulated device each. Direct copies between the same devices are the reference.
#include "parallel/transport/nccl.h"

#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <tuple>

#include "kernels/transfer.h"
#include "parallel/transport/local.h"
#include "tests/cuda/emulator.h"
#include "tests/engine/replica_job.h"
#include "tests/support/error_of.h"
#include "tests/support/random_delays.h"

namespace weft {
namespace {

using test::error_of;

Device device_of_rank(int rank) { return {Device::Kind::kCuda, static_cast<int8_t>(rank)}; }

// Keeps the order in which the ends of every message are enqueued. NCCL's messages have no tags: an
// end pairs with the end of the same number.
class Pairing {
 public:
  void note(int rank, PostOrder order, int id, std::span<const DeviceMessage> messages) {
    const std::lock_guard guard(lock_);
    for (const DeviceMessage& one : messages) {
      const int from = one.receive ? one.peer : rank, to = one.receive ? rank : one.peer;
      ends_[{order == PostOrder::kGroup ? id : -1, from, to}][one.receive].emplace_back(one.tag,
                                                                                        one.bytes);
    }
  }
  // Describes the first message whose ends differ, or "".
  std::string fault() const {
    for (const auto& [way, ends] : ends_)
      for (size_t k = 0; k < std::max(ends[0].size(), ends[1].size()); ++k)
        if (k >= ends[0].size() || k >= ends[1].size() || ends[0][k] != ends[1][k])
          return "message " + std::to_string(k) + " from rank " + std::to_string(std::get<1>(way)) +
                 " to " + std::to_string(std::get<2>(way)) + " is " + text(ends[0], k) + " and " +
                 text(ends[1], k);
    return {};
  }
  size_t messages() const {
    size_t count = 0;
    for (const auto& [way, ends] : ends_) count += ends[0].size();
    return count;
  }

 private:
  using Ends = std::vector<std::pair<TagBits, int64_t>>;
  static std::string text(const Ends& ends, size_t k) {
    return k < ends.size() ? tag_text(ends[k].first) + ", " + std::to_string(ends[k].second)
                           : "nothing";
  }
  mutable std::mutex lock_;
  std::map<std::tuple<int, int, int>, std::array<Ends, 2>> ends_;  // (group or -1, from, to)
};

// Counts what the transport below NCCL's carries once the groups are open.
struct BelowCounts {
  std::atomic<int64_t> device_messages{0};
};
class Below final : public TransportDecorator {
 public:
  Below(std::shared_ptr<Transport> inner, BelowCounts& counts)
      : TransportDecorator(std::move(inner)), counts_(counts) {}
  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    if (view.device != Device{}) ++counts_.device_messages;
    return inner_->send(stream, peer, header, view);
  }

 private:
  BelowCounts& counts_;
};

// Notes every end, and enqueues it after a random time where there is a seed.
class Noted final : public test::RandomDelays {
 public:
  Noted(std::shared_ptr<Transport> inner, Pairing& pairing, uint64_t seed)
      : RandomDelays(std::move(inner), seed, seed > 0 ? 300 : 0), pairing_(pairing) {}
  std::unique_ptr<Transfer> enqueue(Stream& stream, PostOrder order, int id,
                                    const std::vector<int>& ranks,
                                    std::span<const DeviceMessage> messages) override {
    auto transfer = RandomDelays::enqueue(stream, order, id, ranks, messages);
    if (transfer) pairing_.note(rank(), order, id, messages);
    return transfer;
  }

 private:
  Pairing& pairing_;
};

// Ranks that are threads, rank r on emulated device r, whose devices exchange by NCCL.
class OverNccl {
 public:
  explicit OverNccl(int ranks, uint64_t delay_seed = 0) {
    emulated::set_device_count(ranks);
    for (const auto& local : make_local_transports(ranks, {.delay_seed = delay_seed}))
      transports_.push_back(std::make_shared<Noted>(
          make_nccl(std::make_shared<Below>(local, below_), device_of_rank(local->rank())),
          pairing_, delay_seed));
  }
  ~OverNccl() {
    transports_.clear();
    EXPECT_EQ(emulated::live_nccl_communicators(), 0);
    emulated::set_device_count(1);
  }
  void run(const std::function<void(Communicator&)>& work) {
    run_ranks(transports_, work);
    EXPECT_EQ(pairing_.fault(), "");
    EXPECT_EQ(below_.device_messages, 0);
  }
  std::string failure(const std::function<void(Communicator&)>& work) {
    return error_of([&] { run_ranks(transports_, work); }, ErrorKind::kComm);
  }
  const Pairing& pairing() const { return pairing_; }

 private:
  Pairing pairing_;
  BelowCounts below_;
  std::vector<std::shared_ptr<Transport>> transports_;
};

Tensor ramp_on(Stream& stream, int64_t count, float first) {
  Tensor x(DType::kF32, {count});
  for (int64_t i = 0; i < count; ++i) x.as<float>()[i] = first + static_cast<float>(i);
  return on_device(stream, std::move(x));
}

// The results of every collective, rank by rank.
void run_collectives(Communicator& c, std::vector<float>& out) {
  Stream stream = stream_on(device_of_rank(c.rank()), 1);
  Arena arena(size_t{1} << 30, stream.device());
  const auto keep = [&](const TensorView& x) {
    const HostCopy host(stream, x);
    const auto* values = host.view().as<float>();
    out.insert(out.end(), values, values + host.view().count());
  };
  c.open_exchanges();
  for (const AllReduce how : {AllReduce::kRing, AllReduce::kStar}) {
    const Tensor x = ramp_on(stream, 101, static_cast<float>(c.rank() + 1));
    c.all_reduce(stream, arena,
                 {.kind = Payload::kPartial, .hop = how == AllReduce::kStar ? 64 : 0}, x, how);
    keep(x);
  }
  std::vector<Tensor> in, to;
  std::vector<TensorView> ins, outs;
  for (int p = 0; p < c.size(); ++p) {
    in.push_back(ramp_on(stream, c.rank() + 2 * p, static_cast<float>(100 * c.rank() + p)));
    to.emplace_back(DType::kF32, std::vector<int64_t>{p + 2 * c.rank()}, stream.device());
  }
  for (int p = 0; p < c.size(); ++p) {
    ins.push_back(in[p]);
    outs.push_back(to[p]);
  }
  c.all_to_all_v(stream, {.kind = Payload::kHeadsIn}, ins, outs);
  for (const Tensor& each : to) keep(each);
  Tensor landed;
  const Tensor own = ramp_on(stream, 5 + c.rank(), static_cast<float>(10 * c.rank()));
  c.gather_v(
      stream, {.kind = Payload::kLatent}, own,
      [&](int rank) {
        landed = Tensor(DType::kF32, {5 + rank}, stream.device());
        return landed.view();
      },
      [&](int, const TensorView& rows) { keep(rows); });
  for (const int64_t count : {7, 300000}) {  // to all, along a tree or a chain
    const Tensor x = ramp_on(stream, count, static_cast<float>(c.rank()));
    c.broadcast(stream, {.kind = Payload::kText, .pass = {.step = count > 7}}, x, c.size() - 1);
    keep(x.view().slice(0, 0, 7));
  }
}

TEST(NcclTransport, CollectivesGiveTheBitsOfDirectCopies) {
  for (const int ranks : {2, 3, 4}) {
    std::vector<std::vector<float>> direct(ranks), got(ranks);
    std::vector<CommCounters> counters(ranks), expected(ranks);
    emulated::set_device_count(ranks);
    run_ranks(ranks, [&](Communicator& c) {
      run_collectives(c, direct[c.rank()]);
      expected[c.rank()] = c.counters();
    });
    OverNccl nccl(ranks);
    nccl.run([&](Communicator& c) {
      run_collectives(c, got[c.rank()]);
      counters[c.rank()] = c.counters();
    });
    EXPECT_EQ(got, direct);
    for (int rank = 0; rank < ranks; ++rank) {
      const CommCounters& own = counters[rank];
      EXPECT_EQ(own.sent, expected[rank].sent);
      EXPECT_EQ(own.received, expected[rank].received);
      // No message is paired by the hosts, and none is waited for by one.
      EXPECT_EQ(own.enqueued, own.total_sent().messages + own.total_received().messages);
      EXPECT_EQ(own.blocked, 0);
    }
  }
}

// The library adds in an order of its own, and the flag that lets it is off by default.
TEST(NcclTransport, SumsAreTheLibrarysWhereItIsTold) {
  constexpr int kRanks = 3;
  emulated::set_device_count(kRanks);
  std::vector<std::shared_ptr<Transport>> transports;
  for (const auto& local : make_local_transports(kRanks))
    transports.push_back(make_nccl(local, device_of_rank(local->rank()), NcclSums::kLibrary));
  run_ranks(transports, [](Communicator& c) {
    Stream stream = stream_on(device_of_rank(c.rank()), 1);
    Arena arena(size_t{1} << 20, stream.device());
    c.open_exchanges();
    const Tensor x = ramp_on(stream, 5, static_cast<float>(c.rank()));
    c.all_reduce(stream, arena, {.kind = Payload::kPartial}, x, AllReduce::kRing);
    const HostCopy sum(stream, x);
    for (int64_t i = 0; i < 5; ++i)
      EXPECT_EQ(sum.view().as<float>()[i], static_cast<float>(3 + 3 * i));
    EXPECT_EQ(c.counters().total_sent(), (CommCounters::Count{1, 20}));
    EXPECT_EQ(c.counters().blocked, 0);
  });
}

// A message of each direction of each pair, posted in whatever order, waits for none of another.
TEST(NcclTransport, NoOrderOfPairsDeadlocks) {
  constexpr int kRanks = 4;
  OverNccl nccl(kRanks);
  nccl.run([&](Communicator& c) {
    Stream stream = stream_on(device_of_rank(c.rank()), 1);
    std::vector<int> others;
    for (int p = 0; p < kRanks; ++p)
      if (p != c.rank()) others.push_back(p);
    c.open_messages(others, others);
    std::mt19937_64 random(static_cast<uint64_t>(c.rank()));
    for (int turn = 0; turn < 10; ++turn) {
      std::vector<Tensor> out(kRanks), in(kRanks);
      for (const int p : others) {
        out[p] = ramp_on(stream, p + 1, static_cast<float>(100 * c.rank() + turn));
        in[p] = Tensor(DType::kF32, {c.rank() + 1}, stream.device());
      }
      std::vector<int> ends;
      for (const int p : others) ends.insert(ends.end(), {p, p + kRanks});
      std::shuffle(ends.begin(), ends.end(), random);
      std::vector<Communicator::Pending> pending;
      for (const int end : ends) {
        const int p = end % kRanks;
        const Message one{p, {.pass = {.step = turn}}, end < kRanks ? out[p].view() : in[p].view()};
        const std::span<const Message> message(&one, 1), none;
        pending.push_back(end < kRanks ? c.post(stream, message, none, PostOrder::kPair)
                                       : c.post(stream, none, message, PostOrder::kPair));
      }
      for (auto& one : pending) c.wait(one);
      for (const int p : others)
        EXPECT_EQ(HostCopy(stream, in[p]).view().as<float>()[0],
                  static_cast<float>(100 * p + turn));
    }
    EXPECT_EQ(c.counters().blocked, 0);
  });
  EXPECT_EQ(nccl.pairing().messages(), 10u * kRanks * (kRanks - 1));
}

// Rank 0 sends what a receive waits for that rank 1 has posted ahead only when rank 1 has sent. A
// wait of rank 1 for its whole device, as cudaFree is one, would never end.
TEST(NcclTransport, FreeingMemoryWaitsForNoMessage) {
  OverNccl nccl(2);
  nccl.run([&](Communicator& c) {
    Stream stream = stream_on(device_of_rank(c.rank()), 1);
    const std::vector<int> other{1 - c.rank()};
    c.open_messages(other, other);
    const Tensor in(DType::kF32, {4}, stream.device());
    if (c.rank() == 0) {
      c.receive(stream, 1, {}, in);
      c.send(stream, 1, {}, in);
      stream.sync();
      return;
    }
    const Message ahead{0, {}, in};
    Communicator::Pending pending = c.post(stream, {}, {&ahead, 1}, PostOrder::kPair);
    const void* freed = ramp_on(stream, 4, 1).view().data;
    stream.sync();
    const Tensor out = ramp_on(stream, 4, 2);
    EXPECT_EQ(out.view().data, freed) << "the next of its size takes it";
    c.send(stream, 0, {}, out);
    c.wait(pending);
    EXPECT_EQ(HostCopy(stream, in).view().as<float>()[3], 5);
  });
}

// Messages of the host, and those of groups that are not open, go through the transport below.
TEST(NcclTransport, OtherMessagesGoBelow) {
  OverNccl nccl(2);
  std::array<CommCounters, 2> counters;
  nccl.run([&](Communicator& c) {
    Stream host = Stream::cpu(1);
    const Tensor x(DType::kF32, {4});
    c.rank() ? c.receive(host, 0, {}, x) : c.send(host, 1, {}, x);
    c.open_exchanges();
    c.broadcast(host, {.hop = 1}, x, 1);
    counters[c.rank()] = c.counters();
  });
  EXPECT_EQ(counters[0].enqueued, 0);
  EXPECT_EQ(counters[0].total_sent().messages, 1);
}

struct Drawn {
  std::vector<float> video;
  std::vector<CommCounters> counters;
  uint64_t graphs = 0;
};

// The small job with rank r on device r.
Drawn draw(const Layout& layout, DType dtype, Graphs graphs, OverNccl* nccl) {
  Drawn drawn;
  drawn.counters.resize(layout.ranks());
  const uint64_t launched = emulated::graph_launches();
  const auto work = [&](Communicator& world) {
    GeneratorOptions options = test::options_of(dtype);
    options.device = device_of_rank(world.rank());
    options.graphs = graphs;
    Generator generator(test::kModel, options, RankPlacement::of(world, layout));
    test::VideoTap tap;
    RunOptions run;
    run.tap = &tap;
    Request request = test::job();
    request.steps = 4;
    generator.run(request, nullptr, run);
    if (world.rank() == 0) drawn.video = std::move(tap.video);
    drawn.counters[world.rank()] = world.counters();
  };
  if (nccl)
    nccl->run(work);
  else
    run_ranks(layout.ranks(), work);
  drawn.graphs = emulated::graph_launches() - launched;
  return drawn;
}

struct JobWay {
  const char* layout;
  int ranks;
  bool recorded;  // whole forwards of a rank whose exchanges are NCCL's
};
void PrintTo(const JobWay& way, std::ostream* out) { *out << way.layout; }
class NcclJobs : public testing::TestWithParam<JobWay> {};

// Frames, bytes and messages are those of direct copies, with graphs and without.
TEST_P(NcclJobs, DrawWhatDirectCopiesDraw) {
  const JobWay& way = GetParam();
  emulated::set_device_count(way.ranks);
  const Generator limits(test::kModel, test::options_of(DType::kF32));
  const Layout layout =
      parse_layout(way.layout, way.ranks, limits.layout_limits(limits.resolve(test::job())));
  const Drawn direct = draw(layout, DType::kF32, Graphs::kRecord, nullptr);
  ASSERT_FALSE(direct.video.empty());
  for (const Graphs graphs : {Graphs::kRecord, Graphs::kNone}) {
    OverNccl nccl(way.ranks);
    const Drawn drawn = draw(layout, DType::kF32, graphs, &nccl);
    EXPECT_TRUE(drawn.video == direct.video);
    EXPECT_EQ(drawn.graphs > 0, way.recorded && graphs == Graphs::kRecord);
    for (int rank = 0; rank < way.ranks; ++rank) {
      EXPECT_EQ(drawn.counters[rank].sent, direct.counters[rank].sent) << rank;
      EXPECT_EQ(drawn.counters[rank].received, direct.counters[rank].received) << rank;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(, NcclJobs,
                         testing::Values(JobWay{"ulysses=2", 2, true}, JobWay{"ring=3", 3, true},
                                         JobWay{"token_ring=2", 2, true},
                                         JobWay{"tensor=2", 2, true}, JobWay{"cfg=2", 2, true},
                                         JobWay{"layers=2", 2, false},
                                         JobWay{"layers=2,ulysses=2", 4, false},
                                         JobWay{"cfg=2,tensor=2", 4, true}));

TEST(NcclTransport, DelaysChangeNoBit) {
  const Generator limits(test::kModel, test::options_of(DType::kF32));
  for (const auto& [name, ranks] : {std::pair{"layers=2,ulysses=2", 4}, {"ring=2,cfg=2", 4}}) {
    const Layout layout =
        parse_layout(name, ranks, limits.layout_limits(limits.resolve(test::job())));
    emulated::set_device_count(ranks);
    const std::vector<float> video = draw(layout, DType::kF32, Graphs::kRecord, nullptr).video;
    for (uint64_t seed = 1; seed <= 3; ++seed) {
      OverNccl nccl(ranks, seed);
      EXPECT_TRUE(draw(layout, DType::kF32, Graphs::kRecord, &nccl).video == video) << seed;
    }
  }
}

// A rank that fails ends the others, whose devices wait for its message.
TEST(NcclTransport, AFailedRankEndsTheMessagesUnderWay) {
  OverNccl nccl(3);
  const std::string what = nccl.failure([&](Communicator& c) {
    Stream stream = stream_on(device_of_rank(c.rank()), 1);
    c.open_exchanges();
    const Tensor x = ramp_on(stream, 4, 0);
    if (c.rank() == 2) {
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
      c.abort("rank 2 failed: NaN");
      return;
    }
    c.broadcast(stream, {}, x, 2);
    stream.sync();
    c.require_job();
    ADD_FAILURE() << "nothing was sent";
  });
  EXPECT_EQ(what, "rank 2 failed: NaN");
}

TEST(NcclTransport, AnErrorOfNcclEndsEveryRank) {
  OverNccl nccl(2);
  const std::string what = nccl.failure([&](Communicator& c) {
    Stream stream = stream_on(device_of_rank(c.rank()), 1);
    c.open_exchanges();
    const Tensor x = ramp_on(stream, 4, 0);
    if (c.rank() == 0) {
      c.broadcast(stream, {}, x, 1);
      stream.sync();  // until the message is aborted
    } else {
      emulated::fail_nccl(1, ncclRemoteError);
    }
    for (;; std::this_thread::sleep_for(std::chrono::milliseconds(5))) c.require_job();
  });
  EXPECT_NE(what.find("rank 1: NCCL, moving messages: "), std::string::npos) << what;
}

// Receives that were posted ahead are taken back, and the next run begins anew.
TEST(NcclTransport, PairsThatAreClosedOpenAgain) {
  OverNccl nccl(2);
  nccl.run([&](Communicator& c) {
    Stream stream = stream_on(device_of_rank(c.rank()), 1);
    for (int run = 0; run < 3; ++run) {
      const std::vector<int> other{1 - c.rank()}, none;
      c.open_messages(c.rank() ? none : other, c.rank() ? other : none);
      const Tensor x = ramp_on(stream, 4, static_cast<float>(c.rank() ? -1 : run));
      const Tag tag{.pass = {.step = run}};
      c.rank() ? c.receive(stream, 0, tag, x) : c.send(stream, 1, tag, x);
      EXPECT_EQ(HostCopy(stream, x).view().as<float>()[3], static_cast<float>(run + 3));
      c.barrier(stream, {.pass = {.step = run}, .topic = Topic::kCheck});
      c.close_messages(stream);
    }
  });
}

}  // namespace
}  // namespace weft
