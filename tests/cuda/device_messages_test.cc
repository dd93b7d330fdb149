// Messages of device memory between processes, where MPI or UCX takes it: the bits of direct copies
// without a staging buffer.
#include "tests/cuda/device_messages.h"

#include <atomic>
#include <chrono>

#include "engine/generation/generator.h"
#include "kernels/copy.h"
#include "kernels/transfer.h"
#include "tests/cuda/first_device.h"
#include "tests/support/error_of.h"

namespace weft {
namespace {

using test::MessageWorld, test::run_over;

constexpr int64_t kFloats = 1001;
constexpr Tag kFirst{.kind = Payload::kHidden}, kSecond{.kind = Payload::kHidden, .hop = 1};

// Values on the device, which the stream still has to write.
Tensor queued(Stream& stream, int64_t count, float first) {
  Tensor values(DType::kF32, {count});
  for (int64_t i = 0; i < count; ++i) values.as<float>()[i] = first + static_cast<float>(i);
  Tensor there(DType::kF32, {count}, stream.device());
  copy(stream, values, there);
  return there;
}

float first_of(Stream& stream, const TensorView& x) {
  return *HostCopy(stream, x).view().as<float>();
}

// Sums, exchanges and copies of every kind; each reads what the one before it has enqueued.
std::vector<float> collectives(Communicator& world) {
  Stream stream = stream_on(kCuda, 1);
  Arena arena(size_t{1} << 30, kCuda);
  std::vector<float> all;
  const auto keep = [&](const TensorView& x) {
    const HostCopy read(stream, x);
    all.insert(all.end(), read.view().as<float>(), read.view().as<float>() + x.count());
  };
  const int ranks = world.size(), rank = world.rank();
  const Tensor x = queued(stream, kFloats, static_cast<float>(rank));
  for (const AllReduce how : {AllReduce::kRing, AllReduce::kStar})
    world.all_reduce(stream, arena, {.kind = Payload::kPartial, .layer = static_cast<int>(how)}, x,
                     how);
  std::vector<TensorView> in, out, gathered;
  Tensor parts(DType::kF32, {ranks, kFloats}, kCuda), whole(DType::kF32, {ranks, kFloats}, kCuda);
  for (int peer = 0; peer < ranks; ++peer) {
    in.push_back(x.view().slice(0, 100 * peer, 10 * (peer + 1)));
    out.push_back(parts.view().select(0, peer).slice(0, 0, 10 * (rank + 1)));
    gathered.push_back(whole.view().select(0, peer).slice(0, 0, 50 * (peer + 1)));
  }
  world.all_to_all_v(stream, {.kind = Payload::kHeadsIn}, in, out);
  world.all_gather_v(stream, {.kind = Payload::kGathered}, x.view().slice(0, 0, 50 * (rank + 1)),
                     gathered);
  world.broadcast(stream, {.kind = Payload::kHidden}, parts, ranks - 1);
  for (const TensorView& made : {x.view(), parts.view(), whole.view()}) keep(made);
  EXPECT_EQ(world.held_bytes(), 0);
  return all;
}

TEST(DeviceMessages, CollectivesHaveTheBitsOfDirectCopies) {
  for (const int ranks : {2, 3}) {
    std::vector<std::vector<float>> direct(ranks);
    run_ranks(ranks, [&](Communicator& world) { direct[world.rank()] = collectives(world); });
    for (uint64_t seed = 1; seed <= 25; ++seed) {
      MessageWorld messages(ranks, seed);
      std::atomic<int64_t> counted = 0;
      run_over(messages,
               [&](Communicator& world) {
                 EXPECT_TRUE(world.transport().takes_device_memory());
                 EXPECT_EQ(collectives(world), direct[world.rank()]) << ranks << ", seed " << seed;
                 counted += world.counters().total_sent().bytes;
               },
               {.progress_thread = seed % 2 == 0, .largest_part = seed % 3 == 0 ? 1000 : 1 << 30});
      EXPECT_EQ(messages.sent().device, counted);
      EXPECT_EQ(messages.sent().host, 0);
    }
  }
}

struct JobOver {
  const char* method;
  std::vector<std::pair<Axis, int>> parts;
  int decode_rank = Layout{}.decode_rank;

  Layout layout() const {
    Layout all;
    all.decode_rank = decode_rank;
    for (const auto& [axis, count] : parts) all[axis] = count;
    return all;
  }
};
void PrintTo(const JobOver& job, std::ostream* out) {
  *out << job.method << " " << to_string(job.layout());
}

struct Seen final : PipelineTap, FrameSink, ProgressListener {
  explicit Seen(const Communicator& of) : world(of) {}
  const Communicator& world;
  std::map<std::string, std::vector<float>> tensors;
  std::vector<uint8_t> pictures;
  int64_t held = 0;  // by messages, after the last picture
  uint64_t copies = 0;
  void tap(const char* name, const TensorView& value) override {
    tensors[name].assign(value.as<float>(), value.as<float>() + value.count());
  }
  void push(const Frame& frame) override {
    pictures.insert(pictures.end(), frame.rgb.begin(), frame.rgb.end());
  }
  std::string finish() override { return ""; }
  void progress(const Progress& at) override {
    if (at.stage == "decode" && at.step == at.total) held = world.held_bytes();
  }
};

class JobsOver : public testing::TestWithParam<JobOver> {};

// No job stages a message, and none plans to.
TEST_P(JobsOver, DeviceMessagesHaveTheBitsOfDirectCopies) {
  const JobOver& job = GetParam();
  const int ranks = job.layout().ranks();
  std::vector<std::unique_ptr<Seen>> direct(ranks), sent(ranks);
  const auto run = [&](Communicator& world, std::unique_ptr<Seen>& seen) {
    seen = std::make_unique<Seen>(world);
    GeneratorOptions options;
    options.device = kCuda;
    options.dtype = DType::kBF16;
    options.threads = 1;
    const RankPlacement placement = RankPlacement::of(world, job.layout());
    Generator generator("tests/golden/pipeline_t2v/model", options, placement);
    Request request;
    request.prompt = "a red ball";
    request.width = 32;
    request.height = 48;
    request.frames = 5;
    request.steps = std::string(job.method) == "full" ? 3 : 9;  // the least of stale methods
    request.guidance_scale = 3;
    request.seed = 7;
    request.method = parse_method(job.method, "method");
    request = generator.resolve(request);
    seen->copies = generator.plan(request).parts.host.copies;
    RunOptions how;
    how.tap = seen.get();
    how.listener = seen.get();
    generator.run(request, placement.root() ? seen.get() : nullptr, how);
  };
  run_ranks(ranks, [&](Communicator& world) { run(world, direct[world.rank()]); });
  MessageWorld messages(ranks);
  run_over(messages, [&](Communicator& world) { run(world, sent[world.rank()]); });
  EXPECT_FALSE(sent[0]->pictures.empty());
  for (int rank = 0; rank < ranks; ++rank) {
    EXPECT_EQ(sent[rank]->tensors, direct[rank]->tensors) << rank;
    EXPECT_EQ(sent[rank]->pictures, direct[rank]->pictures) << rank;
    EXPECT_EQ(sent[rank]->copies, direct[rank]->copies) << rank;
    EXPECT_EQ(sent[rank]->held, 0) << rank;
  }
  EXPECT_GT(messages.sent().device, messages.sent().host);
}

INSTANTIATE_TEST_SUITE_P(
    , JobsOver,
    testing::Values(JobOver{"full", {{Axis::kUlysses, 2}}}, JobOver{"full", {{Axis::kRing, 3}}},
                    JobOver{"full", {{Axis::kTokenRing, 2}}}, JobOver{"full", {{Axis::kTensor, 2}}},
                    JobOver{"full", {{Axis::kCfg, 2}, {Axis::kLayers, 2}}},
                    JobOver{"distrifusion:patches=2,warmup=1", {{Axis::kPatch, 2}}},
                    JobOver{"pipefusion:patches=2,warmup=1", {{Axis::kLayers, 2}}},
                    JobOver{"clips:window=1,global=1", {{Axis::kClip, 2}}},
                    JobOver{"queue:block=1,context=1", {{Axis::kLayers, 2}}, 1}));

// The receiver's stream still reads the memory when the message has come, and was given the work
// after the wait before it had: before and after see what they should, wherever the payload lay.
TEST(DeviceMessages, TheStreamReadsWhatItsOrderSays) {
  for (const bool early : {false, true})
    for (const bool thread : {false, true}) {
      MessageWorld messages(2);
      run_over(messages,
               [&](Communicator& world) {
                 Stream stream = stream_on(kCuda, 1);
                 float token = 0;
                 const TensorView small(&token, DType::kF32, {1});
                 if (world.rank() == 0) {
                   if (!early) world.receive(stream, 1, kSecond, small);
                   const Tensor x = queued(stream, kFloats, 500);
                   world.send(stream, 1, kFirst, x);
                   if (early) world.send(stream, 1, kSecond, small);
                   world.barrier(stream, {});
                   return;
                 }
                 if (early) world.receive(stream, 0, kSecond, small);
                 EXPECT_EQ(world.held_bytes() >= kFloats * 4, early);
                 const Tensor x = queued(stream, kFloats, 7), before = queued(stream, kFloats, 0),
                              after = queued(stream, kFloats, 0);
                 copy(stream, x, before);
                 const Message message{0, kFirst, x};
                 Communicator::Pending pending = world.post(stream, {}, {&message, 1});
                 if (!early) world.send(stream, 0, kSecond, small);
                 if (thread) std::this_thread::sleep_for(std::chrono::milliseconds(20));
                 world.wait(pending);
                 copy(stream, x, after);
                 EXPECT_EQ(first_of(stream, before), 7) << early;
                 EXPECT_EQ(first_of(stream, after), 500) << early;
                 EXPECT_LT(world.held_bytes(), kFloats * 4);  // the barrier's may have come
                 world.barrier(stream, {});
               },
               {.progress_thread = thread});
    }
}

// Host and device memory take turns, with one tag: the order of the posts is that of the receives,
// although the device has written none of its messages when the host's are there.
TEST(DeviceMessages, KeepTheirOrderAmongTheHosts) {
  MessageWorld messages(2, 3);
  run_over(messages, [](Communicator& world) {
    Stream stream = stream_on(kCuda, 1);
    std::vector<Tensor> values;
    std::vector<Message> all;
    for (int i = 0; i < 8; ++i) {
      values.push_back(queued(stream, kFloats, static_cast<float>(10 * (1 - world.rank()) * i)));
      if (i % 2) {
        Tensor host(DType::kF32, {kFloats});
        *host.as<float>() = static_cast<float>(10 * (1 - world.rank()) * i);
        values.back() = std::move(host);
      }
      all.push_back({1 - world.rank(), kFirst, values.back()});
    }
    if (world.rank() == 0)
      world.exchange(stream, all, {});
    else
      world.exchange(stream, {}, all);
    for (int i = 0; i < 8; ++i)
      EXPECT_EQ(first_of(stream, values[i]), 10 * i) << i << " on rank " << world.rank();
    world.barrier(stream, {});
  });
}

// Ranks that are threads: a send ends when its receive is posted, although nobody waits for that
// yet. Both ranks send before they wait for what they receive, as plans may. The receive is posted
// before the send or after it, and its memory is a device's or the host's.
TEST(DeviceMessages, DirectCopiesEndWhereTheReceiveIsPosted) {
  for (const bool early : {false, true})
    for (const bool to_host : {false, true})
      run_ranks(2, [&](Communicator& world) {
        Stream stream = stream_on(kCuda, 1);
        const int peer = 1 - world.rank();
        const Tensor sent = queued(stream, kFloats, static_cast<float>(100 + world.rank()));
        Tensor received = queued(stream, kFloats, 0);
        if (to_host) received = Tensor(DType::kF32, {kFloats});
        const Message out{peer, kFirst, sent}, in{peer, kFirst, received};
        Communicator::Pending receives, sends;
        if (early) receives = world.post(stream, {}, {&in, 1});
        if (early) world.barrier(stream, {.topic = Topic::kCheck});
        sends = world.post(stream, {&out, 1}, {});
        if (!early) receives = world.post(stream, {}, {&in, 1});
        world.wait(sends);
        world.wait(receives);
        EXPECT_EQ(first_of(stream, received), 100 + peer) << early << to_host;
        world.barrier(stream, {});
      });
}

TEST(DeviceMessages, AnotherSizeIsRefusedWithBothTags) {
  for (const bool early : {false, true}) {
    MessageWorld messages(2);
    const std::string error = test::thrown_error(
        [&] {
          run_over(messages, [&](Communicator& world) {
            Stream stream = stream_on(kCuda, 1);
            uint8_t token = 0;
            const TensorView small(&token, DType::kU8, {1});
            const Tensor x = queued(stream, world.rank() == 0 ? 100 : 60, 1);
            if (world.rank() == 0) world.send(stream, 1, kFirst, x);
            if (world.rank() == 0) world.send(stream, 1, kSecond, small);
            if (world.rank() == 1 && early) world.receive(stream, 0, kSecond, small);
            if (world.rank() == 1) world.receive(stream, 0, kFirst, x);
            world.barrier(stream, {});
          });
        },
        ErrorKind::kComm);
    EXPECT_TRUE(test::contains(error, "rank 1 expected "));
    EXPECT_TRUE(test::contains(error, ", 240 bytes, from rank 0 and got "));
    EXPECT_TRUE(test::contains(error, ", 400 bytes"));
  }
}

// A send is taken back while its device has not written it, and a receive is written no more.
TEST(DeviceMessages, DestroyedOnesMoveNoMore) {
  MessageWorld messages(2);
  run_over(messages,
           [](Communicator& world) {
             Stream stream = stream_on(kCuda, 1);
             const Tensor x = queued(stream, kFloats, 1), y = queued(stream, kFloats, 2);
             const Message first{1 - world.rank(), kFirst, x}, second{1 - world.rank(), kFirst, y};
             if (world.rank() == 0) {
               { const Communicator::Pending dropped = world.post(stream, {&first, 1}, {}); }
               world.exchange(stream, {&second, 1}, {});
               world.send(stream, 1, kSecond, y);
             } else {
               const Tensor z = queued(stream, kFloats, 3);
               const Message third{0, kSecond, z};
               { const Communicator::Pending dropped = world.post(stream, {}, {&third, 1}); }
               world.exchange(stream, {}, {&first, 1});
               EXPECT_EQ(first_of(stream, x), 2);
               EXPECT_EQ(first_of(stream, z), 3);
             }
             world.barrier(stream, {});
             // It came for no receive.
             EXPECT_EQ(world.held_bytes(), world.rank() == 1 ? kFloats * 4 : 0);
             world.begin_job();
           },
           {.progress_thread = false});
}

// A rank that fails, and one whose library does, end the other's wait for device memory; what is
// under way then is let go of.
TEST(DeviceMessages, AFailedRankEndsTheOthersWaits) {
  for (const bool library : {false, true}) {
    MessageWorld messages(2);
    const std::string error = test::thrown_error(
        [&] {
          run_over(messages, [&](Communicator& world) {
            Stream stream = stream_on(kCuda, 1);
            world.barrier(stream, {});
            const Tensor x = queued(stream, kFloats, 1), y = queued(stream, kFloats, 2);
            const Message send{1 - world.rank(), kFirst, x}, receive{1 - world.rank(), kSecond, y};
            if (world.rank() == 1 && library) messages.break_rank(1);
            if (world.rank() == 1 && !library) throw Error(ErrorKind::kInternal, "out of luck");
            Communicator::Pending pending = world.post(stream, {&send, 1}, {&receive, 1});
            world.wait(pending);
          });
        },
        library ? ErrorKind::kComm : ErrorKind::kInternal);
    EXPECT_TRUE(test::contains(error, library ? "the connection broke" : "out of luck"));
  }
}

}  // namespace
}  // namespace weft
