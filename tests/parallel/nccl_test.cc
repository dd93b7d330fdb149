// The NCCL transport over a stub of NCCL in host memory, and alone on a real GPU where there is
// one.
#include <gtest/gtest.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <mutex>
#include <thread>

#include "kernels/cuda/device.h"
#include "parallel/communicator.h"
#include "parallel/transport/local.h"
#include "parallel/transport/staged_bytes.h"
#include "tests/parallel/nccl_stub.h"
#include "tests/parallel/share_through_file.h"
#include "tests/parallel/stray.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

using Transports = std::vector<std::shared_ptr<Transport>>;

std::vector<float> values(const Tensor& x) { return {x.as<float>(), x.as<float>() + x.count()}; }

class Nccl : public testing::Test {
 protected:
  Nccl() : api_(NcclStub::reset()) {}
  // After every test nothing is leaked and NCCL was never misused.
  ~Nccl() override {
    EXPECT_EQ(NcclStub::faults(), "");
    EXPECT_EQ(NcclStub::live_communicators(), 0);
    EXPECT_EQ(NcclStub::live_buffers(), 0);
    EXPECT_EQ(NcclStub::live_handles(), 0);
  }

  NcclOptions with_stub(NcclOptions options = {}) {
    options.api = &api_;
    return options;
  }

  Transports make(int ranks, const NcclOptions& options = {}) {
    std::vector<int> devices(ranks);
    for (int r = 0; r < ranks; ++r) devices[r] = r;
    return make_nccl_transports(devices, with_stub(options));
  }

  std::string failure(int ranks, const std::function<void(Communicator&)>& work) {
    const Transports transports = make(ranks);
    return error_of([&] { run_ranks(transports, work); }, ErrorKind::kComm);
  }

  NcclApi api_;
};

// The results of the collectives, rank by rank; those of the local transport are the reference.
void collectives(Communicator& c, std::vector<float>& out) {
  Arena arena(size_t{1} << 20);
  const auto keep = [&](const Tensor& x) {
    const std::vector<float> all = values(x);
    out.insert(out.end(), all.begin(), all.end());
  };
  for (AllReduce algorithm : {AllReduce::kRing, AllReduce::kStar}) {
    const Tensor x = ramp(101, 0.3f * static_cast<float>(c.rank() + 1), 0.11f);
    c.all_reduce(cpu_stream(), arena, {.kind = Payload::kPartial}, x, algorithm);
    keep(x);
  }
  std::vector<Tensor> in, to;
  std::vector<TensorView> ins, outs;
  for (int p = 0; p < c.size(); ++p) {
    in.push_back(ramp(c.rank() + 2 * p, static_cast<float>(100 * c.rank() + p), 0.5f));
    to.emplace_back(DType::kF32, std::initializer_list<int64_t>{p + 2 * c.rank()});
  }
  for (int p = 0; p < c.size(); ++p) {
    ins.push_back(in[p]);
    outs.push_back(to[p]);
  }
  c.all_to_all_v(cpu_stream(), {.kind = Payload::kHeadsIn}, ins, outs);
  for (const Tensor& x : to) keep(x);
  const Tensor y = ramp(7, static_cast<float>(c.rank()), 1.0f);
  c.broadcast(cpu_stream(), {.kind = Payload::kText}, y, c.size() - 1);
  keep(y);
  const Tensor pieces = ramp(800000, static_cast<float>(c.rank()), 1.0f);
  c.broadcast(cpu_stream(), {.kind = Payload::kText}, pieces, 0);
  keep(pieces);
  c.barrier(cpu_stream(), {});
  // Two messages on one wire, the second asked for first.
  const int next = (c.rank() + 1) % c.size(), previous = (c.rank() + c.size() - 1) % c.size();
  if (next == c.rank()) return;
  const Tensor a(DType::kF32, {7}), b(DType::kF32, {3});
  const Message sends[] = {{next, {.kind = Payload::kQuery}, y.view().slice(0, 2, 3)},
                           {next, {.kind = Payload::kState}, y}};
  const Message receives[] = {{previous, {.kind = Payload::kState}, a},
                              {previous, {.kind = Payload::kQuery}, b}};
  for (int turn = 0; turn < 20; ++turn) c.exchange(cpu_stream(), sends, receives);
  keep(a);
  keep(b);
}

TEST_F(Nccl, CollectivesGiveTheBitsOfTheLocalTransport) {
  for (int ranks = 1; ranks <= 5; ++ranks) {
    std::vector<std::vector<float>> expected(ranks), got(ranks);
    int64_t bytes = 0;
    run_ranks(ranks, [&](Communicator& c) { collectives(c, expected[c.rank()]); });
    std::mutex lock;
    const int64_t moved = NcclStub::moved_bytes();
    run_ranks(make(ranks), [&](Communicator& c) {
      collectives(c, got[c.rank()]);
      const std::lock_guard guard(lock);
      bytes += c.counters().total_sent().bytes;
    });
    EXPECT_EQ(got, expected) << ranks << " ranks";
    EXPECT_EQ(NcclStub::moved_bytes() - moved, bytes);
  }
  EXPECT_EQ(NcclStub::aborted(), 0);
}

TEST_F(Nccl, MemoryOfADeviceIsUsedAsItIsAfterTheDefaultStream) {
  float* memory[2];
  for (float*& one : memory) one = static_cast<float*>(NcclStub::allocate(4 * sizeof(float)));
  memory[0][3] = 5;
  const int buffers = NcclStub::live_buffers();
  run_ranks(make(2), [&](Communicator& c) {
    const TensorView view(memory[c.rank()], DType::kF32, {4});
    c.rank() ? c.receive(cpu_stream(), 0, {}, view) : c.send(cpu_stream(), 1, {}, view);
    EXPECT_EQ(NcclStub::live_buffers(), buffers);
  });
  EXPECT_EQ(memory[1][3], 5);
  EXPECT_EQ(NcclStub::event_waits(), 2);
  for (float* one : memory) NcclStub::release(one);
}

// Every rank posts messages to and from all others at once, in a random order, for many rounds.
TEST_F(Nccl, NoOrderOfPostingDeadlocks) {
  constexpr int kRanks = 4;
  run_ranks(make(kRanks), [&](Communicator& c) {
    uint32_t random = 17 * (c.rank() + 1);
    for (int turn = 0; turn < 30; ++turn) {
      std::vector<Tensor> out, in(kRanks);
      for (int p = 0; p < kRanks; ++p) {
        out.push_back(ramp(p + 1, static_cast<float>(100 * c.rank() + turn), 1));
        in[p] = Tensor(DType::kF32, {c.rank() + 1});
      }
      std::vector<int> order;
      for (int p = 0; p < 2 * kRanks; ++p)
        if (p % kRanks != c.rank()) order.push_back(p);
      for (size_t i = order.size(); i > 1; --i) {
        random = random * 1664525 + 1013904223;
        std::swap(order[i - 1], order[(random >> 8) % i]);
      }
      std::vector<Communicator::Pending> pending;
      for (int which : order) {
        const int p = which % kRanks;
        const Message one{
            p, {.pass = {.step = turn}}, which < kRanks ? out[p].view() : in[p].view()};
        const std::span<const Message> ends(&one, 1), none;
        pending.push_back(which < kRanks ? c.post(cpu_stream(), ends, none)
                                         : c.post(cpu_stream(), none, ends));
      }
      for (auto& one : pending) c.wait(one);
      for (int p = 0; p < kRanks; ++p)
        if (p != c.rank()) {
          EXPECT_EQ(in[p].as<float>()[0], 100 * p + turn);
        }
    }
  });
}

TEST_F(Nccl, StraysOfEndedJobsAreDiscardedAndCounted) {
  run_ranks(make(3), expect_strays_are_discarded);
}

// Memory of the host passes through buffers on the device, one for each power of two of bytes.
TEST_F(Nccl, StagingIsCountedAndFreedWhenTheJobEnds) {
  run_ranks(make(2), [](Communicator& c) {
    const auto pass = [&](int64_t values) {
      const Tensor x(DType::kF32, {values});
      c.rank() ? c.receive(cpu_stream(), 0, {}, x) : c.send(cpu_stream(), 1, {}, x);
      return c.held_bytes();
    };
    EXPECT_EQ(c.held_bytes(), 0);
    for (int job = 0; job < 2; ++job) {
      EXPECT_EQ(pass(1030), 8192);  // 4120 bytes, in units of 256: 4352
      EXPECT_EQ(pass(2000), 8192);  // shares the buffer
      EXPECT_EQ(pass(3000), 8192 + 16384);
      EXPECT_EQ(pass(10), 8192 + 16384);
      EXPECT_LE(c.held_bytes(), 2 * staged_bytes(12000));
      c.end_job();
      for (int i = 0; i < 500 && c.held_bytes() > 0; ++i)
        std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_EQ(c.held_bytes(), 0);
    }
  });
}

TEST_F(Nccl, TagsThatNeverMeetAreBothNamed) {
  const std::string what = failure(2, [](Communicator& c) {
    Tensor x(DType::kF32, {4});
    if (c.rank() == 0)
      c.send(cpu_stream(), 1, {.kind = Payload::kLatent, .pass = {.step = 2}}, x);
    else
      c.receive(cpu_stream(), 0, {.kind = Payload::kLatent, .pass = {.step = 3}}, x);
  });
  EXPECT_EQ(what,
            "deadlock: rank 0 sends to rank 1 latent step 2 layer 0 hop 0 group 0; "
            "rank 1 receives from rank 0 latent step 3 layer 0 hop 0 group 0");
  EXPECT_EQ(NcclStub::moved_bytes(), 0);
}

TEST_F(Nccl, SizesThatDifferAreRefusedBeforeAByteMoves) {
  const std::string what = failure(2, [](Communicator& c) {
    Tensor x(DType::kF32, {4});
    if (c.rank() == 0)
      c.send(cpu_stream(), 1, {.kind = Payload::kLatent}, x);
    else
      c.receive(cpu_stream(), 0, {.kind = Payload::kLatent}, x.view().slice(0, 0, 3));
  });
  EXPECT_TRUE(contains(what, "12 bytes, from rank 0 and got latent"));
  EXPECT_EQ(NcclStub::moved_bytes(), 0);
}

TEST_F(Nccl, AnAsyncErrorEndsEveryRank) {
  for (bool under_way : {false, true}) {
    api_ = NcclStub::reset();
    NcclStub::hold(under_way);
    std::atomic<int> ended = 0;
    const std::string what = failure(3, [&](Communicator& c) {
      Tensor x(DType::kF32, {4});
      if (c.rank() == 1) {
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        NcclStub::fail(1, ncclRemoteError);
      }
      try {
        // Rank 0 and 1 are in the middle of a message, or nobody is.
        const int peer = c.rank() == 2 ? 0 : 1 - c.rank();
        if (under_way && c.rank() == 0)
          c.send(cpu_stream(), peer, {.kind = Payload::kHidden}, x);
        else if (c.rank() == 1 && !under_way)
          std::this_thread::sleep_for(std::chrono::milliseconds(300));
        else
          c.receive(cpu_stream(), peer, {.kind = Payload::kHidden}, x);
      } catch (const Error&) {
        ++ended;
        throw;
      }
    });
    EXPECT_TRUE(contains(what, "rank 1: NCCL, "));
    EXPECT_TRUE(contains(what, "stub remote error (the stub's last error)"));
    EXPECT_EQ(ended, under_way ? 3 : 2);
    EXPECT_EQ(NcclStub::aborted(), 3);
  }
}

TEST_F(Nccl, AbortEndsWaitingRanksAndTheMessageUnderWay) {
  NcclStub::hold(true);
  const std::string what = failure(3, [](Communicator& c) {
    Tensor x(DType::kF32, {4});
    if (c.rank() == 0) c.send(cpu_stream(), 1, {}, x);
    if (c.rank() == 1) c.receive(cpu_stream(), 0, {}, x);
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    c.abort("the user has had enough");
    c.receive(cpu_stream(), 0, {}, x);
  });
  EXPECT_EQ(what, "the user has had enough");
  EXPECT_EQ(NcclStub::aborted(), 3);
}

TEST_F(Nccl, AReceiveThatIsDroppedIsTakenBack) {
  run_ranks(make(2), [](Communicator& c) {
    Tensor dropped(DType::kF32, {4}), x = ramp(4, 3, 1);
    if (c.rank() == 1) {
      const Message message{0, {}, dropped};
      (void)c.post(cpu_stream(), {}, {&message, 1});
      dropped = Tensor();
      Tensor y(DType::kF32, {4});
      c.barrier(cpu_stream(), {.kind = Payload::kHalo});
      c.receive(cpu_stream(), 0, {}, y);
      EXPECT_EQ(values(y), values(x));
    } else {
      c.barrier(cpu_stream(), {.kind = Payload::kHalo});
      c.send(cpu_stream(), 1, {}, x);
    }
  });
}

TEST_F(Nccl, StartUpNamesTheRanksThatAreNotReady) {
  NcclStub::never_ready(1);
  EXPECT_EQ(error_of([&] { make(2, {.startup_seconds = 0.05}); }, ErrorKind::kComm),
            "start-up: rank 0, 1 is not ready within 0.05 s");
  EXPECT_EQ(NcclStub::aborted(), 2);
}

TEST_F(Nccl, ADeviceThatIsNotThereIsNamed) {
  EXPECT_EQ(error_of([&] {
              make_nccl_transports(std::vector<int>{0, 99}, with_stub());
            }),
            "rank 1: cudaSetDevice on device 99: stub CUDA error");
}

// Threads stand in for processes: each has a transport of its own, found through a file and TCP.
TEST_F(Nccl, RanksFindEachOtherThroughAFile) {
  constexpr int kRanks = 3;
  const std::string file = testing::TempDir() + "weft-nccl-" + std::to_string(getpid());
  std::vector<std::vector<float>> expected(kRanks), got(kRanks);
  run_ranks(kRanks, [&](Communicator& c) { collectives(c, expected[c.rank()]); });
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < kRanks; ++rank)
    ranks.emplace_back([&, rank] {
      Communicator c(make_nccl_transport(rank, kRanks, rank, share_through_file(file, rank),
                                         with_stub({.startup_seconds = 20, .interfaces = "lo"})));
      collectives(c, got[rank]);
    });
  for (std::thread& one : ranks) one.join();
  EXPECT_EQ(got, expected);
  EXPECT_EQ(NcclStub::aborted(), 0);
}

TEST_F(Nccl, ARankThatNeverBeginsIsNamed) {
  const std::string file = testing::TempDir() + "weft-nccl-" + std::to_string(getpid());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 2; ++rank)
    ranks.emplace_back([&, rank] {
      const std::string what = error_of([&] {
        make_nccl_transport(rank, 3, rank, share_through_file(file, rank),
                            with_stub({.startup_seconds = 0.3, .interfaces = "lo"}));
      });
      EXPECT_EQ(what, "start-up: rank 2 has not begun, rank 0, 1 is not ready within 0.3 s");
    });
  for (std::thread& one : ranks) one.join();
}

TEST_F(Nccl, AnAbortedRankEndsTheOthersOverTcp) {
  const std::string file = testing::TempDir() + "weft-nccl-" + std::to_string(getpid());
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.emplace_back([&, rank] {
      try {
        Communicator c(make_nccl_transport(rank, 3, rank, share_through_file(file, rank),
                                           with_stub({.startup_seconds = 20, .interfaces = "lo"})));
        if (rank == 2) return c.abort("rank 2 failed: NaN");
        Tensor x(DType::kF32, {4});
        c.receive(cpu_stream(), 2, {}, x);
        ADD_FAILURE() << "nothing was sent";
      } catch (const Error& error) {
        EXPECT_STREQ(error.what(), "rank 2 failed: NaN");
      }
    });
  for (std::thread& one : ranks) one.join();
}

// A real NCCL and a real GPU, but one rank: it sends to itself.
TEST(NcclDevice, OneRankSendsToItself) {
  int devices = 0;
  try {
    devices = cuda_device_count();
  } catch (const Error& error) {
    GTEST_SKIP() << error.what();
  }
  if (devices == 0) GTEST_SKIP() << "no CUDA device";
  const Transports transports = make_nccl_transports(std::vector<int>{0});
  const Tensor x = ramp(1000, 1, 0.5f), y(DType::kF32, {1000});
  const MessageHeader header{.tag = {.low = 7}, .bytes = 4000};
  const NcclApi cuda;
  void* memory = nullptr;
  ASSERT_EQ(cuda.device_malloc(&memory, 4000), cudaSuccess);
  const TensorView there(memory, DType::kF32, {1000}, {Device::Kind::kCuda, 0});
  for (const auto& [from, to] : {std::pair{x.view(), there}, {there, y.view()}}) {
    const auto in = transports[0]->receive(cpu_stream(), 0, header, to);
    const auto out = transports[0]->send(cpu_stream(), 0, header, from);
    EXPECT_EQ(transports[0]->wait(*in).bytes, 4000);
    transports[0]->wait(*out);
  }
  EXPECT_EQ(values(y), values(x));
  EXPECT_EQ(cuda.device_free(memory), cudaSuccess);
}

}  // namespace
}  // namespace weft::test
