// The transport between two processes, over MPI and over UCX: one program for each, run by mpirun
// and by tests/processes.py (tests/parallel/CMakeLists.txt).
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>

#include "kernels/check.h"
#include "parallel/bootstrap/clock_offset.h"
#include "parallel/communicator.h"
#include "parallel/transport/link.h"
#include "parallel/transport/processes/mpi.h"
#include "parallel/transport/processes/process_transport.h"
#include "parallel/transport/processes/ucx.h"
#include "tests/parallel/library_calls.h"
#include "tests/parallel/stray.h"
#include "tests/support/error_of.h"

namespace weft::test {
namespace {

constexpr int64_t kPart = 1000;

// WEFT_LARGE_MESSAGE keeps the parts that jobs have, for the test of more than 2 GiB.
std::shared_ptr<Transport> transport() {
  return process_transport(
      {.largest_part = std::getenv("WEFT_LARGE_MESSAGE") ? MessageOptions{}.largest_part : kPart});
}

uint8_t message_value(int64_t index) { return static_cast<uint8_t>(index * 7 + index / 251 + 1); }

// Sends from rank 0 to rank 1, whose receive is posted after `early` other messages have come.
void send_one(Communicator& world, int64_t bytes, bool early) {
  Stream stream = Stream::cpu(1);
  const Tag first{.hop = 1}, second{.hop = 2};
  std::vector<uint8_t> data(bytes);
  uint8_t token = 9;
  const TensorView small(&token, DType::kU8, {1}), large(data.data(), DType::kU8, {bytes});
  if (world.rank() == 0) {
    for (int64_t i = 0; i < bytes; ++i) data[i] = message_value(i);
    world.send(stream, 1, first, large);
    world.send(stream, 1, second, small);
  } else {
    if (early) world.receive(stream, 0, second, small);
    world.receive(stream, 0, first, large);
    if (!early) world.receive(stream, 0, second, small);
    int64_t wrong = 0;
    for (int64_t i = 0; i < bytes; ++i) wrong += data[i] != message_value(i);
    EXPECT_EQ(wrong, 0) << bytes << " bytes";
  }
  world.barrier(stream, {.hop = 100});
}

TEST(Processes, LargePayloadsGoInParts) {
  Communicator world(transport());
  ASSERT_EQ(world.size(), 2);
  if (std::getenv("WEFT_LARGE_MESSAGE")) GTEST_SKIP();
  for (const bool early : {false, true})
    for (const int64_t bytes :
         {int64_t{1}, kPart - 1, kPart, kPart + 1, 5 * kPart / 2, 40 * kPart}) {
      const auto before = world.counters().sent;
      library_calls().sends = library_calls().largest = 0;
      send_one(world, bytes, early);
      if (world.rank() != 0) continue;
      // A header and the parts of each of three messages: the payload, the token, the barrier's.
      EXPECT_EQ(library_calls().sends, 3 + (bytes + kPart - 1) / kPart + 2) << bytes;
      EXPECT_LE(library_calls().largest, kPart);
      const auto after = world.counters().sent;
      const size_t kind = static_cast<size_t>(Payload::kControl);
      EXPECT_EQ(after[kind].messages - before[kind].messages, 3);
      EXPECT_EQ(after[kind].bytes - before[kind].bytes, bytes + 2);
    }
}

// Takes 5 GiB of memory, so it runs only where WEFT_LARGE_MESSAGE is set.
TEST(Processes, MoreThanTwoGibibytes) {
  if (!std::getenv("WEFT_LARGE_MESSAGE")) GTEST_SKIP() << "WEFT_LARGE_MESSAGE is not set";
  Communicator world(transport());
  send_one(world, (int64_t{1} << 31) + 12345, false);
  if (world.rank() == 0) {
    EXPECT_EQ(library_calls().largest, 1 << 30);
  }
}

TEST(Processes, DeviceMemoryIsNotForALibraryOfHostMemory) {
  EXPECT_FALSE(transport()->takes_device_memory());
}

// The library's word is what counts, and it is told which memory lies on a device.
TEST(ProcessesDevice, TheLibrarySaysThatItTakesDeviceMemory) {
  const ProcessPlace place = detect_place();
  const bool mpi = place.network == Network::kMpi;
  library_calls().takes_device_memory = true;
  const ProcessMessages process =
      mpi ? make_mpi_messages(place.launch, {}) : make_ucx_messages(place.launch, place.point);
  PointToPoint& messages = *process.messages;
  EXPECT_TRUE(messages.takes_device_memory());
  for (const bool takes : {false, true}) {
    library_calls().takes_device_memory = takes;
    EXPECT_EQ(mpi ? mpi_takes_device_memory().value() : ucx_takes_device_memory(), takes);
  }
  std::vector<uint8_t> data(kPart, 0);
  for (const Device device : {Device{}, Device{Device::Kind::kCuda, 0}}) {
    const auto value = static_cast<uint8_t>(3 + (device != Device{}));
    if (messages.rank() == 0) std::fill(data.begin(), data.end(), value);
    PointToPoint::Request request =
        messages.rank() == 0
            ? messages.send(1, PointToPoint::Lane::kPayloads, data.data(), kPart, device)
            : messages.receive(0, PointToPoint::Lane::kPayloads, data.data(), kPart, device);
    while (!messages.finished(request)) messages.progress();
    EXPECT_EQ(std::count(data.begin(), data.end(), value), kPart);
  }
  EXPECT_EQ(library_calls().of_devices, mpi ? 0 : 1);  // MPI finds out by itself
  process.share("");                                   // both have come here
  messages.finish();
}

TEST(Processes, RanksShareAClock) {
  Communicator world(transport());
  Stream stream = Stream::cpu(1);
  // The own time lies between the other rank's before it sent and after it was answered.
  for (int turn = 0; turn < 20; ++turn) {
    int64_t before = *world.transport().job_clock_ns(), other = 0;
    const Tag tag{.pass = {.step = turn}};
    if (world.rank() == 0) {
      world.receive(stream, 1, tag, {&other, DType::kI64, {1}});
      other = *world.transport().job_clock_ns();
      world.send(stream, 1, tag, {&other, DType::kI64, {1}});
      continue;
    }
    world.send(stream, 0, tag, {&before, DType::kI64, {1}});
    world.receive(stream, 0, tag, {&other, DType::kI64, {1}});
    const int64_t after = *world.transport().job_clock_ns();
    EXPECT_LT(before - 20'000'000, other);
    EXPECT_LT(other, after + 20'000'000);
  }
}

// A message and its answer over a slow link, begun by either rank. tests/netns.sh runs it between
// two network namespaces whose steady clocks are far apart.
TEST(Processes, SlowLinksDelayMessagesBothWays) {
  Communicator world(make_link(transport(), {.latency_s = 0.2, .bytes_per_s = 1e6}));
  Stream stream = Stream::cpu(1);
  std::vector<uint8_t> data(100'000);
  const TensorView large(data.data(), DType::kU8, {100'000}), small(data.data(), DType::kU8, {1});
  for (int first = 0; first < 2; ++first) {
    const Tag tag{.pass = {.step = first}};
    if (world.rank() != first) {
      world.receive(stream, first, tag, large);
      world.send(stream, first, tag, small);
      continue;
    }
    const int64_t begun = steady_clock_ns();
    world.send(stream, 1 - first, tag, large);
    world.receive(stream, 1 - first, tag, small);
    const double seconds = static_cast<double>(steady_clock_ns() - begun) * 1e-9;
    EXPECT_GT(seconds, 0.1 + 2 * 0.2 - 0.05) << "begun by rank " << first;
    EXPECT_LT(seconds, 0.1 + 2 * 0.2 + 5) << "begun by rank " << first;
  }
}

TEST(Processes, StraysOfEndedJobsAreDiscardedAndCounted) {
  Communicator world(transport());
  expect_strays_are_discarded(world);
}

// --- messages of one part, above the library's eager limit; WEFT_NO_PROGRESS leaves the thread out
// ---

std::shared_ptr<Transport> whole_transport() {
  return process_transport({.progress_thread = !std::getenv("WEFT_NO_PROGRESS")});
}

constexpr int64_t kWhole = int64_t{32} << 20;
constexpr Tag kLarge{.kind = Payload::kHidden};

// The receiver looks at its buffer and makes no call of the library until the last byte has come.
TEST(ProcessesWhole, MessagesMoveWhileBothRanksCompute) {
  if (std::getenv("WEFT_NO_PROGRESS")) GTEST_SKIP();
  Communicator world(whole_transport());
  Stream stream = Stream::cpu(1);
  std::vector<uint8_t> data(kWhole, world.rank() == 0 ? 3 : 0);
  const TensorView view(data.data(), DType::kU8, {kWhole});
  const Message message{1 - world.rank(), kLarge, view};
  // The receive is posted first: the payload of an earlier message would wait elsewhere.
  Communicator::Pending pending;
  if (world.rank() == 1) pending = world.post(stream, {}, {&message, 1});
  world.barrier(stream, {});
  if (world.rank() == 0) pending = world.post(stream, {&message, 1}, {});
  const volatile uint8_t* last = &data.back();
  const int64_t limit = steady_clock_ns() + 60'000'000'000;
  while (*last != 3 && steady_clock_ns() < limit)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  if (world.rank() == 0) std::this_thread::sleep_for(std::chrono::seconds(2));
  EXPECT_EQ(*last, 3);
  world.wait(pending);
  world.barrier(stream, {});
}

TEST(ProcessesWhole, ADestroyedReceiveIsNotWrittenLater) {
  Communicator world(whole_transport());
  Stream stream = Stream::cpu(1);
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<uint8_t> data(kWhole, world.rank() == 0 ? 3 : 0);
    const Message large{1 - world.rank(), kLarge, {data.data(), DType::kU8, {kWhole}}};
    uint8_t token = 5;
    const TensorView small(&token, DType::kU8, {1});
    world.barrier(stream, {});
    if (world.rank() == 0) {
      Communicator::Pending pending = world.post(stream, {&large, 1}, {});
      world.send(stream, 1, {.hop = 1}, small);
      world.wait(pending);
    } else {
      {
        Communicator::Pending pending = world.post(stream, {}, {&large, 1});
        world.receive(stream, 0, {.hop = 1}, small);  // the large one is under way
      }
      std::fill(data.begin(), data.end(), 7);  // the memory has another use
    }
    world.barrier(stream, {.hop = 9});
    if (world.rank() == 1) {
      EXPECT_EQ(std::count(data.begin(), data.end(), 7), kWhole);
    }
  }
}

// Prints how much of an exchange hides behind computing, where WEFT_MEASURE_OVERLAP is set.
TEST(ProcessesWhole, OverlapIsMeasured) {
  if (!std::getenv("WEFT_MEASURE_OVERLAP")) GTEST_SKIP() << "WEFT_MEASURE_OVERLAP is not set";
  Communicator world(whole_transport());
  Stream stream = Stream::cpu(1);
  std::vector<uint8_t> out(kWhole, 1), in(kWhole);
  const Message send{1 - world.rank(), kLarge, {out.data(), DType::kU8, {kWhole}}},
      receive{1 - world.rank(), kLarge, {in.data(), DType::kU8, {kWhole}}};
  volatile double sum = 0;
  const auto compute = [&](int64_t amount) {
    double x = 1;
    for (int64_t i = 0; i < amount; ++i) x = x * 0.999999 + 1e-7;
    sum = sum + x;
  };
  double computed = 0;
  // Returns the seconds in the wait.
  const auto waited = [&](int64_t amount) {
    world.barrier(stream, {});
    const int64_t begun = steady_clock_ns();
    Communicator::Pending pending = world.post(stream, {&send, 1}, {&receive, 1});
    compute(amount);
    const int64_t ready = steady_clock_ns();
    world.wait(pending);
    computed = static_cast<double>(ready - begun) * 1e-9;
    return static_cast<double>(steady_clock_ns() - ready) * 1e-9;
  };
  constexpr int kTurns = 21;
  constexpr int64_t kAmount = 30'000'000;
  std::vector<double> idle, busy, compute_s;
  for (int turn = 0; turn < kTurns; ++turn) {
    idle.push_back(waited(0));
    busy.push_back(waited(kAmount));
    compute_s.push_back(computed);
  }
  const auto median = [](std::vector<double>& x) {
    std::nth_element(x.begin(), x.begin() + kTurns / 2, x.end());
    return x[kTurns / 2];
  };
  const double alone = median(idle), left = median(busy), c = median(compute_s);
  if (world.rank() == 0)
    std::printf(
        "{\"bench\": \"mpi_overlap\", \"bytes\": %lld, \"progress_thread\": %s, "
        "\"compute_s\": %.4f, \"waited_without_computing_s\": %.4f, "
        "\"waited_after_computing_s\": %.5f, \"note\": \"medians of %d\"}\n",
        static_cast<long long>(kWhole), std::getenv("WEFT_NO_PROGRESS") ? "false" : "true", c,
        alone, left, kTurns);
}

// Each of the next two ends the job, so it runs alone.
TEST(ProcessesFailure, AnErrorOfTheLibraryIsTheRanksOwn) {
  Communicator world(transport());
  Stream stream = Stream::cpu(1);
  world.barrier(stream, {});
  uint8_t token = 0;
  const auto receive = [&] {
    return thrown_error(
        [&] {
          world.receive(stream, 1 - world.rank(), {.hop = 1}, {&token, DType::kU8, {1}});
        },
        ErrorKind::kComm);
  };
  if (world.rank() == 0) {
    library_calls().fails = true;
    const std::string what = receive();
    EXPECT_FALSE(contains(what, "rank 1")) << "nobody else has failed";
    world.abort("rank 0 failed: " + what);
    library_calls().fails = false;
  } else {
    EXPECT_TRUE(contains(receive(), "rank 0 failed: "));
  }
}

TEST(ProcessesAbort, ReachesAllRanksWhereTheLibraryFails) {
  const std::shared_ptr<Transport> mine = transport();
  Communicator world(mine);
  Stream stream = Stream::cpu(1);
  world.barrier(stream, {});
  if (world.rank() == 0) {
    library_calls().fails = true;
    world.abort("rank 0 has had enough");  // noexcept
  }
  uint8_t token = 0;
  const std::string what = error_of(
      [&] {
        world.receive(stream, 1 - world.rank(), {.hop = 1}, {&token, DType::kU8, {1}});
      },
      ErrorKind::kComm);
  EXPECT_EQ(what, "rank 0 has had enough");
  library_calls().fails = false;
}

}  // namespace
}  // namespace weft::test

int main(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  const int failed = RUN_ALL_TESTS();
  try {
    weft::finish_process_transport();
  } catch (const weft::Error&) {  // the job has failed, as its test wants
    weft::test::end_library();
  }
  return failed;
}
