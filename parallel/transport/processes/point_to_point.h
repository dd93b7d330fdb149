#pragma once
// PointToPoint: messages between the processes of a job, as a library such as MPI or UCX moves
// them. MessageTransport makes a Transport of it, and calls it under one lock.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "kernels/tensor.h"

namespace weft {

class PointToPoint {
 public:
  // Names a message under way; null once it is finished.
  using Request = void*;
  // Messages of one lane to one peer fill its receives of that lane in the order of their posts.
  enum class Lane : uint8_t { kHeaders, kPayloads };

  virtual ~PointToPoint() = default;  // may leave messages under way
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // True where the library says that it takes pointers to the memory of CUDA devices.
  virtual bool takes_device_memory() const = 0;

  // Neither blocks; the memory, which lies on `device`, must stay until the request is finished.
  // The library reads and writes it at any time from now on: it knows nothing of streams. Both ends
  // give the same number of bytes. Error(kComm) where the library fails, here and below.
  virtual Request send(int peer, Lane lane, const void* data, int64_t bytes, Device device) = 0;
  virtual Request receive(int peer, Lane lane, void* data, int64_t bytes, Device device) = 0;
  // Moves what can move, where finished() alone does not.
  virtual void progress() {}
  // True where the message has been moved; its request is null then, and finished.
  virtual bool finished(Request& request) = 0;
  // Takes back a receive that no message has come for.
  virtual void cancel(Request& request) = 0;

  // Ends the library in good order. Every rank calls it once none waits for a message any more.
  virtual void finish() = 0;
};

// Gives every process of a job the first one's text (an address) before they can send each other
// messages. Every rank calls it, in the same order.
using Share = std::function<std::string(const std::string&)>;

// Messages, and what else the library gives a job that starts.
struct ProcessMessages {
  std::unique_ptr<PointToPoint> messages;
  Share share;             // usable until the transport is made
  std::string interfaces;  // for open_listener (parallel/bootstrap/listener.h)
};

}  // namespace weft
