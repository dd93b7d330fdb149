#pragma once
// An MPI or UCX that takes device memory, between threads of one process: every rank has a
// MessageTransport over a PointToPoint whose messages cudaMemcpy moves. As such a library does, it
// knows nothing of streams, and touches the memory of a message at any time after its post.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "kernels/cuda/device.h"
#include "parallel/communicator.h"
#include "parallel/transport/local.h"
#include "parallel/transport/processes/message_transport.h"
#include "tests/cuda/emulator.h"

namespace weft::test {

// The messages of all ranks. A message moves in a call of progress() of either rank, after as many
// such calls as the seed says.
class MessageWorld {
 public:
  using Lane = PointToPoint::Lane;
  struct Post {
    void* data;
    int64_t bytes;
    Device device;
    int left;  // calls of progress() before it moves
    bool done = false;
  };
  struct Count {
    int64_t device = 0, host = 0;
  };

  explicit MessageWorld(int ranks, uint64_t seed = 1) : ranks_(ranks), random_(seed) {}

  int ranks() const { return ranks_; }
  // Bytes of payloads that were sent from memory of each kind.
  Count sent() {
    const std::lock_guard guard(lock_);
    return sent_;
  }
  // Every later call of a rank fails, as where the connection to a peer breaks.
  void break_rank(int rank) {
    const std::lock_guard guard(lock_);
    broken_ = rank;
  }

  Post* post(int from, int to, bool receives, Lane lane, void* data, int64_t bytes, Device device) {
    const std::lock_guard guard(lock_);
    expect_lies_on(data, bytes, device);
    if (!receives && lane == Lane::kPayloads)
      (device == Device{} ? sent_.host : sent_.device) += bytes;
    Pair& pair = pairs_[{from, to, lane}];
    auto made = std::make_unique<Post>(Post{data, bytes, device, static_cast<int>(random_() % 4)});
    Post* const post = made.get();
    (receives ? pair.receives : pair.sends).push_back(post);
    posts_[post] = std::move(made);
    return post;
  }

  void progress(int rank) {
    const std::lock_guard guard(lock_);
    if (rank == broken_) throw Error(ErrorKind::kComm, "the connection broke");
    for (auto& [key, pair] : pairs_)
      if (std::get<0>(key) == rank || std::get<1>(key) == rank) move(pair);
  }

  bool finished(PointToPoint::Request& request) {
    const std::lock_guard guard(lock_);
    auto* post = static_cast<Post*>(request);
    if (!post) return true;
    if (!post->done) return false;
    posts_.erase(post);
    request = nullptr;
    return true;
  }

  void cancel(PointToPoint::Request& request) {
    const std::lock_guard guard(lock_);
    auto* post = static_cast<Post*>(request);
    for (auto& [key, pair] : pairs_) std::erase(pair.receives, post);
    posts_.erase(post);
    request = nullptr;
  }

  // Every rank gets the first one's text.
  std::string shared(int rank, const std::string& text) {
    if (rank == 0) text_.set_value(text);
    return heard_.get();
  }

 private:
  struct Pair {
    std::deque<Post*> sends, receives;
  };

  // The memory is of the kind that the transport says, and a network card could be given it.
  static void expect_lies_on(const void* data, int64_t bytes, Device device) {
    for (const void* end :
         {data, static_cast<const void*>(static_cast<const char*>(data) + bytes - 1)}) {
      cudaPointerAttributes attributes{};
      cudaPointerGetAttributes(&attributes, end);
      const bool on_device = attributes.type == cudaMemoryTypeDevice;
      EXPECT_EQ(on_device, device != Device{});
      if (!on_device) continue;
      EXPECT_EQ(attributes.device, device.index);
      EXPECT_TRUE(emulated::reached_by_network(end));
    }
  }

  void move(Pair& pair) {
    while (!pair.sends.empty() && !pair.receives.empty() && pair.sends.front()->left-- <= 0) {
      Post &from = *pair.sends.front(), &to = *pair.receives.front();
      EXPECT_EQ(from.bytes, to.bytes);
      const Device on = from.device == Device{} ? to.device : from.device;
      if (on == Device{}) {
        std::memcpy(to.data, from.data, static_cast<size_t>(from.bytes));
      } else {
        auto at = copiers_.find(on.index);
        if (at == copiers_.end()) at = copiers_.emplace(on.index, cuda_stream(on.index)).first;
        cuda_copy_bytes(at->second, from.data, to.data, static_cast<size_t>(from.bytes));
        at->second.sync();
      }
      from.done = to.done = true;
      pair.sends.pop_front();
      pair.receives.pop_front();
    }
  }

  const int ranks_;
  std::mutex lock_;
  std::mt19937_64 random_;
  std::map<std::tuple<int, int, Lane>, Pair> pairs_;  // sender, receiver
  std::map<Post*, std::unique_ptr<Post>> posts_;
  std::map<int, Stream> copiers_;
  Count sent_;
  int broken_ = -1;
  std::promise<std::string> text_;
  std::shared_future<std::string> heard_{text_.get_future()};
};

class DeviceMessages final : public PointToPoint {
 public:
  DeviceMessages(MessageWorld& world, int rank) : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.ranks(); }
  bool takes_device_memory() const override { return true; }
  Request send(int peer, Lane lane, const void* data, int64_t bytes, Device device) override {
    return world_.post(rank_, peer, false, lane, const_cast<void*>(data), bytes, device);
  }
  Request receive(int peer, Lane lane, void* data, int64_t bytes, Device device) override {
    return world_.post(peer, rank_, true, lane, data, bytes, device);
  }
  void progress() override { world_.progress(rank_); }
  bool finished(Request& request) override { return world_.finished(request); }
  void cancel(Request& request) override { world_.cancel(request); }
  void finish() override {}

 private:
  MessageWorld& world_;
  const int rank_;
};

// Calls `work` on every rank, as a thread of its own.
inline void on_every_rank(int ranks, const std::function<void(int rank)>& work) {
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) threads.emplace_back(work, rank);
  for (std::thread& thread : threads) thread.join();
}

// Runs a job of as many ranks as the world has over its messages. Where the job fails, the library
// is left as it is.
inline void run_over(MessageWorld& world, const std::function<void(Communicator&)>& work,
                     const MessageOptions& options = {}) {
  std::vector<std::shared_ptr<MessageTransport>> made(world.ranks());
  on_every_rank(world.ranks(), [&](int rank) {
    made[rank] = std::make_shared<MessageTransport>(
        ProcessMessages{
            .messages = std::make_unique<DeviceMessages>(world, rank),
            .share = [&world, rank](const std::string& text) { return world.shared(rank, text); },
            .interfaces = "lo"},
        options);
  });
  const std::vector<std::shared_ptr<Transport>> transports(made.begin(), made.end());
  run_ranks(transports, work);
  on_every_rank(world.ranks(), [&](int rank) { made[rank]->finish(); });
}

}  // namespace weft::test
