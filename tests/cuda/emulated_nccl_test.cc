// Tests the emulated NCCL: what a device does with messages, and the faults it must report.
#include <gtest/gtest.h>
#include <nccl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/cuda/emulator.h"

namespace weft {
namespace {

namespace fs = std::filesystem;
using Values = std::vector<float>;

// Device memory of the current device.
struct DeviceValues {
  explicit DeviceValues(const Values& values) : count(values.size()) {
    cudaMalloc(&data, count * sizeof(float));
    cudaMemcpy(data, values.data(), count * sizeof(float), cudaMemcpyHostToDevice);
    cudaStreamSynchronize(nullptr);
  }
  ~DeviceValues() { cudaFree(data); }
  DeviceValues(const DeviceValues&) = delete;
  DeviceValues& operator=(const DeviceValues&) = delete;
  // Waits for the default stream alone.
  Values get() const {
    Values values(count);
    cudaMemcpy(values.data(), data, count * sizeof(float), cudaMemcpyDeviceToHost);
    return values;
  }
  size_t count;
  float* data = nullptr;
};

// One rank's communicator and its stream on the device of that number.
struct Rank {
  explicit Rank(int device) : device(device) {
    cudaSetDevice(device);
    cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  }
  ncclResult_t open(const ncclUniqueId& id, int rank, int ranks) {
    cudaSetDevice(device);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 1;
    return ncclCommInitRankConfig(&comm, ranks, id, rank, &config);
  }
  ncclResult_t send(const DeviceValues& memory, int peer) const {
    return ncclSend(memory.data, memory.count, ncclFloat32, peer, comm, stream);
  }
  ncclResult_t receive(const DeviceValues& memory, int peer) const {
    return ncclRecv(memory.data, memory.count, ncclFloat32, peer, comm, stream);
  }
  int device;
  cudaStream_t stream = nullptr;
  ncclComm_t comm = nullptr;
};

class EmulatedNccl : public ::testing::Test {
 protected:
  void SetUp() override {
    emulated::set_device_count(4);
    const char* folder = std::getenv("TEST_TMPDIR");
    tmp_ = fs::path(folder ? folder : "/tmp") / ("nccl." + std::to_string(getpid()));
    fs::create_directories(tmp_);
    setenv("TMPDIR", tmp_.c_str(), 1);
    setenv("WEFT_EMULATED_NCCL_SECONDS", "30", 1);
  }
  void TearDown() override {
    cudaDeviceReset();
    EXPECT_EQ(emulated::live_nccl_communicators(), 0);
    EXPECT_TRUE(fs::is_empty(tmp_)) << "a communicator leaves its folder";
    fs::remove_all(tmp_);
    unsetenv("TMPDIR");
    unsetenv("WEFT_EMULATED_NCCL_SECONDS");
    cudaSetDevice(0);
    emulated::set_device_count(1);
  }

  // Returns the ranks of a new communicator, one on each device.
  static std::vector<Rank> communicator(int ranks) {
    std::vector<Rank> made;
    for (int rank = 0; rank < ranks; ++rank) made.emplace_back(rank);
    ncclUniqueId id;
    EXPECT_EQ(ncclGetUniqueId(&id), ncclSuccess);
    std::vector<std::thread> threads;
    for (int rank = 0; rank < ranks; ++rank)
      threads.emplace_back([&, rank] {
        EXPECT_EQ(made[rank].open(id, rank, ranks), ncclSuccess) << ncclGetLastError(nullptr);
      });
    for (std::thread& thread : threads) thread.join();
    cudaSetDevice(0);
    return made;
  }
  static void close(std::vector<Rank>& ranks) {
    for (Rank& rank : ranks) {
      EXPECT_EQ(ncclCommFinalize(rank.comm), ncclSuccess);
      EXPECT_EQ(ncclCommDestroy(rank.comm), ncclSuccess);
      EXPECT_EQ(cudaStreamDestroy(rank.stream), cudaSuccess);
    }
  }
  static void abort(std::vector<Rank>& ranks) {
    for (Rank& rank : ranks) EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
  }

 private:
  fs::path tmp_;
};

Values ramp(size_t count, float first) {
  Values values(count);
  for (size_t i = 0; i < count; ++i) values[i] = first + static_cast<float>(i);
  return values;
}

bool all_nan(const Values& values) {
  for (const float value : values)
    if (!std::isnan(value)) return false;
  return true;
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// Every rank, a thread of its own, sends every rank as many values as their numbers say.
TEST_F(EmulatedNccl, ThreadsExchangeInAGroup) {
  for (const int size : {2, 4}) {
    std::vector<Rank> ranks = communicator(size);
    const uint64_t messages = emulated::nccl_messages(), groups = emulated::nccl_groups();
    const auto count = [](int from, int to) { return 1 + 10 * from + to; };
    const auto first = [](int from, int to) { return static_cast<float>(1000 * from + 100 * to); };
    const auto work = [&](int me) {
      cudaSetDevice(me);
      std::vector<std::unique_ptr<DeviceValues>> out, in;
      EXPECT_EQ(ncclGroupStart(), ncclSuccess);
      for (int peer = 0; peer < size; ++peer) {
        out.push_back(std::make_unique<DeviceValues>(ramp(count(me, peer), first(me, peer))));
        in.push_back(std::make_unique<DeviceValues>(Values(count(peer, me))));
        EXPECT_EQ(ranks[me].receive(*in.back(), peer), ncclSuccess);
        EXPECT_EQ(ranks[me].send(*out.back(), peer), ncclSuccess);
      }
      EXPECT_EQ(ncclGroupEnd(), ncclSuccess);
      EXPECT_EQ(cudaStreamSynchronize(ranks[me].stream), cudaSuccess);
      for (int peer = 0; peer < size; ++peer)
        EXPECT_EQ(in[peer]->get(), ramp(count(peer, me), first(peer, me)));
    };
    std::vector<std::thread> threads;
    for (int rank = 0; rank < size; ++rank) threads.emplace_back(work, rank);
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(emulated::nccl_messages() - messages, size * size);
    EXPECT_EQ(emulated::nccl_groups() - groups, size);
    close(ranks);
  }
}

// A receive that is enqueued before its send holds up its own stream and what waits for that, but
// neither the host nor another stream.
TEST_F(EmulatedNccl, AnEarlyReceiveOccupiesItsStreamAlone) {
  std::vector<Rank> ranks = communicator(2);
  const DeviceValues out({5, 6, 7});
  cudaSetDevice(1);
  cudaStream_t waits = nullptr, free = nullptr;
  cudaStreamCreateWithFlags(&waits, cudaStreamNonBlocking);
  cudaStreamCreateWithFlags(&free, cudaStreamNonBlocking);
  cudaEvent_t received = nullptr;
  cudaEventCreateWithFlags(&received, cudaEventDisableTiming);
  const DeviceValues target({1, 2, 3}), copy({0, 0, 0}), other({0, 0, 0});
  const auto copy_to = [&](const DeviceValues& to, cudaStream_t stream) {
    EXPECT_EQ(cudaMemcpyAsync(to.data, target.data, 12, cudaMemcpyDeviceToDevice, stream),
              cudaSuccess);
  };
  EXPECT_EQ(ranks[1].receive(target, 0), ncclSuccess);
  copy_to(copy, ranks[1].stream);
  EXPECT_EQ(cudaEventRecord(received, ranks[1].stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(waits, received), cudaSuccess);
  copy_to(other, waits);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(cudaEventQuery(received), cudaErrorNotReady);
    EXPECT_EQ(cudaStreamQuery(waits), cudaErrorNotReady);
  }
  EXPECT_EQ(cudaMemsetAsync(copy.data, 0, 12, free), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(free), cudaSuccess);
  EXPECT_EQ(copy.get(), Values({0, 0, 0}));
  EXPECT_EQ(other.get(), Values({0, 0, 0}));
  EXPECT_TRUE(all_nan(target.get())) << "nothing may use the memory of a receive under way";

  EXPECT_EQ(ranks[0].send(out, 1), ncclSuccess);  // nothing waits for rank 0's stream
  EXPECT_EQ(cudaStreamSynchronize(waits), cudaSuccess);
  EXPECT_EQ(other.get(), Values({5, 6, 7}));
  EXPECT_EQ(copy.get(), Values({5, 6, 7}));
  cudaEventDestroy(received);
  cudaStreamDestroy(waits);
  cudaStreamDestroy(free);
  close(ranks);
}

// A send waits for what its stream waits for, also where no host call waits for that.
TEST_F(EmulatedNccl, AMessageFollowsTheWorkBeforeIt) {
  std::vector<Rank> ranks = communicator(2);
  cudaStream_t computes = nullptr;
  cudaStreamCreateWithFlags(&computes, cudaStreamNonBlocking);
  cudaEvent_t computed = nullptr;
  cudaEventCreateWithFlags(&computed, cudaEventDisableTiming);
  const DeviceValues source({5, 6}), out({0, 0});
  EXPECT_EQ(cudaMemcpyAsync(out.data, source.data, 8, cudaMemcpyDeviceToDevice, computes),
            cudaSuccess);
  EXPECT_EQ(cudaEventRecord(computed, computes), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(ranks[0].stream, computed), cudaSuccess);
  EXPECT_EQ(ranks[0].send(out, 1), ncclSuccess);
  cudaSetDevice(1);
  const DeviceValues in({0, 0});
  EXPECT_EQ(ranks[1].receive(in, 0), ncclSuccess);
  EXPECT_EQ(cudaStreamSynchronize(ranks[1].stream), cudaSuccess);
  EXPECT_EQ(in.get(), Values({5, 6}));
  cudaEventDestroy(computed);
  cudaStreamDestroy(computes);
  close(ranks);
}

// Both ranks receive before they send: on one communicator that never ends, and on one for each
// direction it does.
TEST_F(EmulatedNccl, OneCommunicatorKeepsItsOrderAndTwoHaveNone) {
  std::vector<Rank> there = communicator(2), back = communicator(2);
  const DeviceValues out({1, 2}), in({0, 0});
  EXPECT_EQ(back[0].receive(in, 1), ncclSuccess);
  EXPECT_EQ(there[0].send(out, 1), ncclSuccess);
  cudaSetDevice(1);
  const DeviceValues other_out({3, 4}), other_in({0, 0});
  EXPECT_EQ(there[1].receive(other_in, 0), ncclSuccess);
  EXPECT_EQ(back[1].send(other_out, 0), ncclSuccess);
  EXPECT_EQ(cudaStreamSynchronize(there[1].stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(back[0].stream), cudaSuccess);
  EXPECT_EQ(in.get(), Values({3, 4}));
  EXPECT_EQ(other_in.get(), Values({1, 2}));
  close(back);

  EXPECT_EQ(there[0].receive(in, 1), ncclSuccess);
  EXPECT_EQ(there[0].send(out, 1), ncclSuccess);
  EXPECT_EQ(there[1].receive(other_in, 0), ncclSuccess);
  EXPECT_EQ(there[1].send(other_out, 0), ncclSuccess);
  setenv("WEFT_EMULATED_NCCL_SECONDS", "0.2", 1);
  EXPECT_EQ(cudaStreamSynchronize(there[0].stream), cudaErrorLaunchFailure);
  const std::string error = emulated::device_error();
  for (const char* part : {"communicator of 2, rank 0 receives 8 bytes from rank 1, message 0",
                           "communicator of 2, rank 1 receives 8 bytes from rank 0, message 1"})
    EXPECT_TRUE(contains(error, part)) << error;
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(ncclCommGetAsyncError(there[0].comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclUnhandledCudaError);
  abort(there);
  cudaDeviceReset();
}

TEST_F(EmulatedNccl, DifferentSizesAreAFault) {
  std::vector<Rank> ranks = communicator(2);
  const DeviceValues out({1, 2, 3}), in({0, 0});
  EXPECT_EQ(ranks[0].send(out, 1), ncclSuccess);
  cudaSetDevice(1);
  const DeviceValues short_in({0, 0});
  EXPECT_EQ(ranks[1].receive(short_in, 0), ncclSuccess);
  EXPECT_NE(cudaStreamSynchronize(ranks[1].stream), cudaSuccess);
  EXPECT_TRUE(contains(emulated::device_error(),
                       "receives 8 bytes from rank 0, message 0, which "
                       "has 12 bytes"))
      << emulated::device_error();
  abort(ranks);
  cudaDeviceReset();
}

TEST_F(EmulatedNccl, AnAbortFreesABlockedHost) {
  std::vector<Rank> ranks = communicator(2);
  cudaSetDevice(1);
  const DeviceValues in({1, 2}), copy({0, 0});
  EXPECT_EQ(ranks[1].receive(in, 0), ncclSuccess);
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    EXPECT_EQ(ncclCommAbort(ranks[1].comm), ncclSuccess);
  });
  EXPECT_EQ(cudaStreamSynchronize(ranks[1].stream), cudaSuccess);
  other.join();
  EXPECT_TRUE(all_nan(in.get()));
  EXPECT_EQ(ranks[1].receive(in, 0), ncclInvalidArgument) << "the communicator is gone";
  EXPECT_EQ(ncclCommAbort(ranks[0].comm), ncclSuccess);
}

// A failed communicator reports it, and its messages do not move until it is aborted.
TEST_F(EmulatedNccl, AFailureIsReportedUntilTheAbort) {
  std::vector<Rank> ranks = communicator(2);
  const DeviceValues out({1, 2});
  EXPECT_EQ(ranks[0].send(out, 1), ncclSuccess);
  cudaSetDevice(1);
  const DeviceValues in({0, 0});
  EXPECT_EQ(ranks[1].receive(in, 0), ncclSuccess);
  emulated::fail_nccl(1, ncclRemoteError);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaStreamQuery(ranks[1].stream), cudaErrorNotReady);
  ncclResult_t first = ncclInProgress, second = ncclInProgress;
  EXPECT_EQ(ncclCommGetAsyncError(ranks[0].comm, &first), ncclSuccess);
  EXPECT_EQ(ncclCommGetAsyncError(ranks[1].comm, &second), ncclSuccess);
  EXPECT_EQ(first, ncclSuccess);
  EXPECT_EQ(second, ncclRemoteError);
  EXPECT_EQ(ranks[1].receive(in, 0), ncclRemoteError);
  abort(ranks);
  EXPECT_EQ(cudaStreamSynchronize(ranks[0].stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(ranks[1].stream), cudaSuccess);
}

// Both ranks record a receive before a send, on branches of a graph and two communicators, and
// launch it three times.
TEST_F(EmulatedNccl, GraphsMoveWhatIsThereAtEachLaunch) {
  std::vector<Rank> there = communicator(2), back = communicator(2);
  std::vector<std::unique_ptr<DeviceValues>> out, in;
  std::vector<cudaGraphExec_t> graphs(2);
  for (int me = 0; me < 2; ++me) {
    cudaSetDevice(me);
    out.push_back(std::make_unique<DeviceValues>(Values{0, 0}));
    in.push_back(std::make_unique<DeviceValues>(Values{0, 0}));
    const Rank &sends = (me == 0 ? there : back)[me], &receives = (me == 0 ? back : there)[me];
    cudaEvent_t fork = nullptr, join = nullptr;
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
    ASSERT_EQ(cudaStreamBeginCapture(sends.stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
    EXPECT_EQ(cudaEventRecord(fork, sends.stream), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(receives.stream, fork), cudaSuccess);
    EXPECT_EQ(sends.send(*out[me], 1 - me), ncclSuccess);
    EXPECT_EQ(receives.receive(*in[me], 1 - me), ncclSuccess);
    EXPECT_EQ(cudaEventRecord(join, receives.stream), cudaSuccess);
    EXPECT_EQ(cudaStreamWaitEvent(sends.stream, join), cudaSuccess);
    cudaGraph_t graph = nullptr;
    ASSERT_EQ(cudaStreamEndCapture(sends.stream, &graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graphs[me], graph), cudaSuccess);
    cudaGraphDestroy(graph);
    cudaEventDestroy(fork);
    cudaEventDestroy(join);
  }
  for (int launch = 1; launch <= 3; ++launch) {
    const auto value = [&](int of) { return static_cast<float>(10 * launch + of); };
    for (int me = 0; me < 2; ++me) {
      const Values values{value(me), -value(me)};
      cudaMemcpy(out[me]->data, values.data(), 8, cudaMemcpyHostToDevice);
    }
    cudaStreamSynchronize(nullptr);
    for (int me = 0; me < 2; ++me) {
      cudaSetDevice(me);
      EXPECT_EQ(cudaGraphLaunch(graphs[me], (me == 0 ? there : back)[me].stream), cudaSuccess);
    }
    EXPECT_EQ(cudaStreamSynchronize(there[0].stream), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(back[1].stream), cudaSuccess);
    for (int me = 0; me < 2; ++me)
      EXPECT_EQ(in[me]->get(), Values({value(1 - me), -value(1 - me)})) << launch;
  }
  for (const cudaGraphExec_t graph : graphs) cudaGraphExecDestroy(graph);
  close(there);
  close(back);
}

TEST_F(EmulatedNccl, RanksAddUp) {
  std::vector<Rank> ranks = communicator(4);
  const uint64_t messages = emulated::nccl_messages();
  std::vector<std::unique_ptr<DeviceValues>> values;
  for (int me = 0; me < 4; ++me) {
    cudaSetDevice(me);
    values.push_back(std::make_unique<DeviceValues>(ramp(5, static_cast<float>(me))));
    EXPECT_EQ(ncclAllReduce(values[me]->data, values[me]->data, 5, ncclFloat32, ncclSum,
                            ranks[me].comm, ranks[me].stream),
              ncclSuccess);
  }
  for (int me = 0; me < 4; ++me) {
    EXPECT_EQ(cudaStreamSynchronize(ranks[me].stream), cudaSuccess);
    EXPECT_EQ(values[me]->get(), Values({6, 10, 14, 18, 22}));
  }
  EXPECT_EQ(emulated::nccl_messages(), messages) << "a sum is no message";
  close(ranks);
}

TEST_F(EmulatedNccl, RefusesWhatNcclRefuses) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  Rank first(2), second(2);
  std::thread other([&] { EXPECT_EQ(second.open(id, 1, 2), ncclInvalidUsage); });
  EXPECT_EQ(first.open(id, 0, 2), ncclInvalidUsage);
  other.join();
  EXPECT_TRUE(contains(ncclGetLastError(nullptr), "Duplicate GPU detected"));

  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  setenv("WEFT_EMULATED_NCCL_SECONDS", "0.05", 1);
  EXPECT_EQ(first.open(id, 0, 2), ncclSystemError) << "rank 1 does not come";
  setenv("WEFT_EMULATED_NCCL_SECONDS", "30", 1);

  std::vector<Rank> ranks = communicator(2);
  const DeviceValues memory({1, 2});
  Values host(2);
  EXPECT_EQ(ranks[0].send(memory, 2), ncclInvalidArgument);
  EXPECT_EQ(ncclSend(host.data(), 2, ncclFloat32, 1, ranks[0].comm, ranks[0].stream),
            ncclInvalidArgument);
  EXPECT_EQ(ncclSend(memory.data, 2, ncclFloat32, 1, ranks[0].comm, ranks[1].stream),
            ncclInvalidArgument);
  EXPECT_EQ(ncclGroupEnd(), ncclInvalidUsage);
  close(ranks);
}

// A communicator's kernels run in the order of issue.
TEST_F(EmulatedNccl, TwoStreamsWithoutOrderAreAFault) {
  std::vector<Rank> ranks = communicator(2);
  Rank another(1);
  another.comm = ranks[1].comm;
  const DeviceValues first({1}), second({2});
  EXPECT_EQ(ranks[1].receive(first, 0), ncclSuccess);
  EXPECT_EQ(another.receive(second, 0), ncclSuccess);
  EXPECT_NE(cudaStreamSynchronize(another.stream), cudaSuccess);
  EXPECT_TRUE(contains(emulated::device_error(), "used on two streams"));
  abort(ranks);
  cudaDeviceReset();
}

// The other process of ProcessesExchange. Alone, it has nothing to do.
TEST(EmulatedNcclProcess, Peer) {
  const char* folder = std::getenv("WEFT_TEST_NCCL_ID");
  if (!folder) return;
  ncclUniqueId id{};
  std::string(folder).copy(id.internal, NCCL_UNIQUE_ID_BYTES - 1);
  Rank rank(1);
  ASSERT_EQ(rank.open(id, 1, 2), ncclSuccess);
  {
    const DeviceValues in({0, 0, 0}), out({4, 5});
    EXPECT_EQ(rank.receive(in, 0), ncclSuccess);
    EXPECT_EQ(rank.send(out, 0), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_EQ(in.get(), Values({1, 2, 3}));
    // The environment makes this device fail after three messages.
    EXPECT_EQ(rank.receive(in, 0), ncclSuccess);
    EXPECT_EQ(cudaStreamSynchronize(rank.stream), cudaSuccess);
    EXPECT_EQ(rank.receive(in, 0), ncclSuccess);
    for (int i = 0; i < 3; ++i) EXPECT_EQ(cudaStreamQuery(rank.stream), cudaErrorNotReady);
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(ncclCommGetAsyncError(rank.comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclRemoteError);
    EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
  }
}

// The first process enqueues its messages and waits for the other one to end: its device moves
// them by itself.
TEST_F(EmulatedNccl, ProcessesExchange) {
  ncclUniqueId id;
  ASSERT_EQ(ncclGetUniqueId(&id), ncclSuccess);
  const pid_t peer = fork();
  if (peer == 0) {
    setenv("WEFT_TEST_NCCL_ID", id.internal, 1);
    setenv("WEFT_EMULATED_DEVICES", "2", 1);
    setenv("WEFT_EMULATED_NCCL_FAIL", "1:3", 1);
    unsetenv("GTEST_TOTAL_SHARDS");
    unsetenv("GTEST_SHARD_INDEX");
    execl("/proc/self/exe", "cuda_test", "--gtest_filter=EmulatedNcclProcess.Peer", nullptr);
    _exit(127);
  }
  Rank rank(0);
  ASSERT_EQ(rank.open(id, 0, 2), ncclSuccess);
  const DeviceValues out({1, 2, 3}), in({0, 0});
  EXPECT_EQ(rank.send(out, 1), ncclSuccess);
  EXPECT_EQ(rank.receive(in, 1), ncclSuccess);
  EXPECT_EQ(rank.send(out, 1), ncclSuccess);
  int status = 0;
  ASSERT_EQ(waitpid(peer, &status, 0), peer);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(in.get(), Values({4, 5})) << "the default stream waits for no other";
  EXPECT_EQ(ncclCommAbort(rank.comm), ncclSuccess);
}

}  // namespace
}  // namespace weft
