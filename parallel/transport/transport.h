#pragma once
// Transport: moves single messages between the ranks of one job. Groups, collectives, counters and
// checks are implemented once, by the Communicator on top of it.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/stream.h"
#include "parallel/tag.h"

namespace weft {

class FlightRecorder;

// Sent before every payload and checked on arrival.
struct MessageHeader {
  TagBits tag{};       // Tag::bits()
  int64_t bytes = 0;   // size of the payload
  int64_t due_ns = 0;  // not to be delivered before this time of the job clock (LinkTransport)
};

// One message under way. Destroying one before its wait takes the message back where the peer has
// not read it yet; the memory behind it is free afterwards.
struct Transfer {
  explicit Transfer(bool receives) : receive(receives) {}
  virtual ~Transfer() = default;
  const bool receive;
};

// The order in which ranks post messages, which pairs their two ends where messages have no tags.
enum class PostOrder : uint8_t {
  kGroup,  // an exchange: all members of a group post their exchanges in one order
  kPair,   // a message: its two ranks post their messages in this direction in one order
};

// A message of device memory that a device is to move.
struct DeviceMessage {
  bool receive = false;
  int peer = 0;  // world rank
  int64_t bytes = 0;
  void* data = nullptr;
  TagBits tag{};  // for reports: it does not travel
};

struct Transport : std::enable_shared_from_this<Transport> {
  virtual ~Transport() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;

  // True where messages may lie in device memory: a message then waits for the work that its stream
  // was given before the post, and work given after the wait sees what arrived. Otherwise the
  // communicator copies such messages through host memory.
  virtual bool takes_device_memory() const { return false; }

  // Neither send nor receive blocks. A message is the header.bytes from view.data on, whatever the
  // shape; they must stay untouched until the wait returns. Messages between two ranks with the
  // same tag arrive in the order in which they were sent; a receive takes the oldest with its tag.
  virtual std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                         const TensorView& view) = 0;
  virtual std::unique_ptr<Transfer> receive(Stream& stream, int peer, const MessageHeader& expected,
                                            const TensorView& view) = 0;
  // Blocks until the transfer is done, asleep and not spinning. A receive returns the header that
  // arrived. Error(kComm) where the job was aborted, the peer is gone or nothing can ever arrive.
  virtual MessageHeader wait(Transfer& transfer) = 0;
  // Sleeps until a message with this tag has come from `peer` for which no receive was posted. That
  // may take hours: it costs next to nothing, and sees the message some hundredths of a second
  // late. Transports whose receives wait for nothing return at once. Error(kComm) as in wait().
  virtual void await_message(int /*peer*/, const TagBits&) {}

  // True where devices can move messages between them without the host (NCCL).
  virtual bool enqueues() const { return false; }
  // Every member of a group calls open_group() with the same world ranks and id, and both ranks of
  // a pair open_pairs() with the ranks that they send to and receive from. They meet there, so
  // nothing may be under way. Both return at once where it is open already, and where the transport
  // does nothing of the kind.
  virtual void open_group(int /*id*/, const std::vector<int>& /*ranks*/) {}
  virtual void open_pairs(std::vector<int> /*to*/, std::vector<int> /*from*/) {}
  // Closes all pairs, and takes back their messages that have not paired. Both ranks of every pair
  // call it, when the messages that they wait for have come.
  virtual void close_pairs() {}
  // Forgets all groups and pairs. Every rank calls it, where none uses them any more.
  virtual void close_all() {}
  // Enqueues the messages of one post, in the order that an open group or pair of ranks has. The
  // host never waits for them: they wait for the work that the stream was given before, and work
  // given after the wait for the transfer sees what arrived. Null where this order of theirs is not
  // open; then nothing is enqueued. Error(kComm) as in wait().
  virtual std::unique_ptr<Transfer> enqueue(Stream&, PostOrder, int /*id*/,
                                            const std::vector<int>& /*ranks*/,
                                            std::span<const DeviceMessage>) {
    return nullptr;
  }

  // Enqueues the sum over an open group's ranks of f32 values in device memory, in place, where the
  // transport was made to add by its library: in an order of its own, so that bits differ from
  // those of other layouts. Null where it was not.
  virtual std::unique_ptr<Transfer> enqueue_sum(Stream&, int /*id*/,
                                                const std::vector<int>& /*ranks*/,
                                                const TensorView&) {
    return nullptr;
  }

  // Why the job has ended on this rank; "" while it goes on.
  virtual std::string failure() const { return {}; }

  // The job that this rank's messages belong to: 0 before the first begin_job(). Ranks that send
  // each other messages of groups must have begun equally many jobs. What an ended job has left
  // after (sent by a rank that went further than its peer) cannot be taken for a message of a
  // later one: begin_job() and later arrivals discard it, and the discarded messages are counted.
  virtual int job() const = 0;
  virtual void begin_job() = 0;
  virtual int64_t strays() const = 0;  // messages that this rank has discarded
  // Bytes of memory that this rank's messages hold beside their views: payloads that came before
  // their receive was posted, and the transport's own staging buffers. Those are freed soon after
  // end_job().
  virtual int64_t held_bytes() const = 0;
  virtual void end_job() noexcept {}

  // The same rank's transport for a second thread of it, whose messages have tags of their own, and
  // which may wait while the first one does. It ends before the first one's work does. Transports
  // that any thread may call are their own.
  virtual std::shared_ptr<Transport> beside() { return shared_from_this(); }

  // Gives the transport the rank's last operations, for other ranks' error reports.
  virtual void watch(std::shared_ptr<const FlightRecorder>) {}

  // A clock that all ranks of the job share, in nanoseconds; nullopt where the transport has none.
  // (Steady clocks of different hosts have nothing in common.)
  virtual std::optional<int64_t> job_clock_ns() const { return std::nullopt; }

  // The next number of a series of the job, from 0, which no other call on any rank gets: the first
  // rank counts, whatever it computes meanwhile. nullopt where the transport has no such counter.
  virtual std::optional<int64_t> take_number(int) { return std::nullopt; }

  // Ends every rank's present and future waits with Error(kComm) carrying `why`. The first call of
  // the job wins. Safe from any thread.
  virtual void abort(std::string_view why) noexcept = 0;
};

// TransportDecorator: forwards everything to another transport.
class TransportDecorator : public Transport {
 public:
  explicit TransportDecorator(std::shared_ptr<Transport> inner) : inner_(std::move(inner)) {}
  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  bool takes_device_memory() const override { return inner_->takes_device_memory(); }
  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override {
    return inner_->send(stream, peer, header, view);
  }
  std::unique_ptr<Transfer> receive(Stream& stream, int peer, const MessageHeader& expected,
                                    const TensorView& view) override {
    return inner_->receive(stream, peer, expected, view);
  }
  MessageHeader wait(Transfer& transfer) override { return inner_->wait(transfer); }
  void await_message(int peer, const TagBits& tag) override { inner_->await_message(peer, tag); }
  std::string failure() const override { return inner_->failure(); }
  int job() const override { return inner_->job(); }
  void begin_job() override { inner_->begin_job(); }
  int64_t strays() const override { return inner_->strays(); }
  int64_t held_bytes() const override { return inner_->held_bytes(); }
  void end_job() noexcept override { inner_->end_job(); }
  void watch(std::shared_ptr<const FlightRecorder> recorder) override {
    inner_->watch(std::move(recorder));
  }
  std::optional<int64_t> job_clock_ns() const override { return inner_->job_clock_ns(); }
  std::optional<int64_t> take_number(int series) override { return inner_->take_number(series); }
  void abort(std::string_view why) noexcept override { inner_->abort(why); }

 protected:
  const std::shared_ptr<Transport> inner_;
};

// Runs `work` and drops what it throws: abort() must not fail while it reports a failure.
template <class Work>
void without_throwing(Work&& work) noexcept {
  try {
    work();
  } catch (...) {
  }
}

}  // namespace weft
