#pragma once
// FaultyTransport: a transport that calls `fault` before one of its rank's own sends, to throw or
// to delay it. It records every send, so that a run without faults gives the list of places.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "parallel/communicator.h"
#include "parallel/transport/transport.h"

namespace weft::test {

class FaultyTransport final : public TransportDecorator {
 public:
  // The fault is called before send number `at`, counted from 0. A negative `at` means no fault.
  FaultyTransport(std::shared_ptr<Transport> inner, int at, std::function<void()> fault)
      : TransportDecorator(std::move(inner)), at_(at), fault_(std::move(fault)) {}

  const std::vector<std::string>& sent() const { return sent_; }  // tag_text of each send

  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    if (static_cast<int>(sent_.size()) == at_) fault_();
    sent_.push_back(tag_text(header.tag));
    return inner_->send(stream, peer, header, view);
  }

  bool takes_device_memory() const override { return false; }

 private:
  int at_;
  std::function<void()> fault_;
  std::vector<std::string> sent_;
};

}  // namespace weft::test
