#pragma once
// SilentTransport: the transport of one rank in a dry run. Its messages go nowhere, and every
// receive is done at once. It counts the staging buffers that messages of a device's memory take,
// and the connections of what moves them on devices.
#include <algorithm>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "parallel/transport/nccl.h"
#include "parallel/transport/staged_bytes.h"
#include "parallel/transport/transport.h"

namespace weft {

class SilentTransport final : public Transport {
 public:
  SilentTransport(int rank, int size, bool enqueues = false)
      : rank_(rank), size_(size), enqueues_(enqueues) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  bool takes_device_memory() const override { return true; }
  std::unique_ptr<Transfer> send(Stream&, int, const MessageHeader& header,
                                 const TensorView& view) override {
    return std::make_unique<Done>(false, header, *this, take(view));
  }
  std::unique_ptr<Transfer> receive(Stream&, int, const MessageHeader& expected,
                                    const TensorView& view) override {
    return std::make_unique<Done>(true, expected, *this, take(view));
  }
  MessageHeader wait(Transfer& transfer) override { return static_cast<Done&>(transfer).header; }
  bool enqueues() const override { return enqueues_; }
  void open_group(int id, const std::vector<int>& ranks) override {
    if (enqueues_) groups_.insert({id, ranks});
  }
  void open_pairs(std::vector<int> to, std::vector<int> from) override {
    if (!enqueues_) return;
    for (const int peer : to) pairs_.insert({rank_, peer});
    for (const int peer : from) pairs_.insert({peer, rank_});
  }
  std::unique_ptr<Transfer> enqueue(Stream&, PostOrder order, int id, const std::vector<int>& ranks,
                                    std::span<const DeviceMessage> messages) override {
    const DeviceMessage& first = messages[0];
    const auto pair = first.receive ? std::pair(first.peer, rank_) : std::pair(rank_, first.peer);
    const bool open =
        order == PostOrder::kGroup ? groups_.contains({id, ranks}) : pairs_.contains(pair);
    return open ? std::make_unique<Done>(false, MessageHeader{}, *this, 0) : nullptr;
  }
  // The device memory of the connections.
  int64_t connected() const {
    int64_t bytes = kMessagePeerBytes * std::ssize(pairs_);
    for (const auto& [id, ranks] : groups_) bytes += kExchangePeerBytes * (std::ssize(ranks) - 1);
    return bytes;
  }

  int job() const override { return 0; }
  void begin_job() override {}
  int64_t strays() const override { return 0; }
  int64_t held_bytes() const override { return 0; }
  void abort(std::string_view) noexcept override {}

  // Bytes of the buffers so far, where a transport takes host memory alone (Staging).
  int64_t staged() const { return staged_; }

 private:
  struct Done final : Transfer {
    Done(bool receives, const MessageHeader& of, SilentTransport& by, int64_t buffer)
        : Transfer(receives), header(of), transport(by), staged(buffer) {}
    ~Done() override {
      if (staged > 0) transport.idle_.insert(staged);
    }
    MessageHeader header;
    SilentTransport& transport;
    int64_t staged;
  };

  // Takes the smallest idle buffer that is large enough, else a new one, as Staging does.
  int64_t take(const TensorView& view) {
    if (view.device.kind != Device::Kind::kMeasuredDevice) return 0;
    const auto bytes = static_cast<int64_t>(view.bytes());
    const auto found = idle_.lower_bound(bytes);
    if (found != idle_.end()) return idle_.extract(found).value();
    staged_ += staged_bytes(bytes);
    return staged_bytes(bytes);
  }

  int rank_, size_;
  bool enqueues_;
  std::set<std::pair<int, std::vector<int>>> groups_;
  std::set<std::pair<int, int>> pairs_;
  int64_t staged_ = 0;
  std::multiset<int64_t> idle_;
};

}  // namespace weft
