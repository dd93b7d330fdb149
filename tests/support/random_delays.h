#pragma once
// RandomDelays: a transport whose messages between processes come later than the one below brings
// them, by random times, as on a network. Courier (parallel/transport/courier.h) does it to
// threads. Messages that devices move are enqueued later.
#include <chrono>
#include <cstdint>
#include <random>
#include <thread>

#include "parallel/transport/transport.h"

namespace weft::test {

class RandomDelays : public TransportDecorator {
 public:
  RandomDelays(std::shared_ptr<Transport> inner, uint64_t seed, int max_delay_us)
      : TransportDecorator(std::move(inner)),
        random_(seed * 1000 + static_cast<uint64_t>(rank())),
        delay_us_(0, max_delay_us) {}

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    MessageHeader delayed = header;
    delayed.due_ns = *job_clock_ns() + int64_t{1000} * delay_us_(random_);
    return inner_->send(stream, peer, delayed, view);
  }
  MessageHeader wait(Transfer& transfer) override {
    const MessageHeader header = inner_->wait(transfer);
    if (transfer.receive)
      std::this_thread::sleep_for(std::chrono::nanoseconds(header.due_ns - *job_clock_ns()));
    return header;
  }

  bool enqueues() const override { return inner_->enqueues(); }
  void open_group(int id, const std::vector<int>& ranks) override { inner_->open_group(id, ranks); }
  void open_pairs(std::vector<int> to, std::vector<int> from) override {
    inner_->open_pairs(std::move(to), std::move(from));
  }
  void close_pairs() override { inner_->close_pairs(); }
  std::unique_ptr<Transfer> enqueue(Stream& stream, PostOrder order, int id,
                                    const std::vector<int>& ranks,
                                    std::span<const DeviceMessage> messages) override {
    std::this_thread::sleep_for(std::chrono::microseconds(delay_us_(random_)));
    return inner_->enqueue(stream, order, id, ranks, messages);
  }

 private:
  std::mt19937_64 random_;
  std::uniform_int_distribution<int> delay_us_;
};

}  // namespace weft::test
