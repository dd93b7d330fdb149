#pragma once
// Transport: what a communicator stands on. It moves single messages between the ranks of one job;
// everything else (groups, collectives, counters, checks) is the Communicator's, once for all.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/stream.h"

namespace weft {

class FlightRecorder;

// Travels before every payload and is checked on arrival.
struct MessageHeader {
  uint64_t tag = 0;    // Tag::bits()
  int64_t bytes = 0;   // of the payload
  int64_t due_ns = 0;  // steady clock: not to be handed over earlier (LinkTransport); 0 = at once
};

// One message under way. Destroying one before its wait takes the message back where the peer has
// not read it yet; the memory behind it is free afterwards.
struct Transfer {
  explicit Transfer(bool receives) : receive(receives) {}
  virtual ~Transfer() = default;
  const bool receive;
};

struct Transport {
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // Whether messages may lie in memory of a device: the work that its stream was given before a
  // post is done before they are read or written, and the work given after the wait sees what came.
  // Else the communicator carries them through memory of the host.
  virtual bool takes_device_memory() const { return false; }

  // None of these blocks. `view`, header.bytes from its data on, must stay untouched until the wait
  // returns; its shape says nothing. Messages
  // between two ranks with the same tag arrive in the order in which they were sent; a receive
  // takes the oldest with its tag.
  virtual std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                         const TensorView& view) = 0;
  virtual std::unique_ptr<Transfer> receive(Stream& stream, int peer, const MessageHeader& expected,
                                            const TensorView& view) = 0;
  // Blocks until the transfer is done; for a receive gives the header that came. Sleeps, never
  // spins. Error(kComm) where the job was aborted, the peer is gone or nothing can ever arrive.
  virtual MessageHeader wait(Transfer& transfer) = 0;

  // The rank's last operations, for the peers' reports.
  virtual void watch(std::shared_ptr<const FlightRecorder>) {}

  // Ends every rank's present and future waits with Error(kComm) carrying `why`. The first call of
  // the job wins. Safe from any thread.
  virtual void abort(std::string_view why) noexcept = 0;
};

}  // namespace weft
