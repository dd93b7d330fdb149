#pragma once
// MessageTransport: a transport between processes over point-to-point messages. A header goes
// before every payload, so that the receiver finds the posted receive, or keeps the payload until
// there is one. It uses point-to-point messages alone, so that bytes are counted where they are
// sent, and its waits sleep between polls, so that they never take the core from a rank that
// computes. Memory of a device goes to a library that takes it, once the work is over that the
// stream had been given at the post. Heartbeats (parallel/bootstrap/control_plane.h) end every
// rank's waits soon after a peer's last sign.
#include <functional>
#include <memory>
#include <string>

#include "parallel/transport/processes/point_to_point.h"
#include "parallel/transport/transport.h"

namespace weft {

struct MessageOptions {
  // Callbacks for events that no Error can report. `warning` runs on the first rank where a peer is
  // silent. `stuck` runs where this process has not noticed a failure within seconds, because it
  // computes or still starts; it ends the process.
  std::function<void(const std::string&line)> warning{}, stuck{};
  double heartbeat_timeout_s =
      4.5;  // as in settings_for_timeout (parallel/bootstrap/control_plane.h)
  // The interfaces at which the first rank listens (open_listener); "": those of the library's
  // network, the loopback where all ranks are on one host, or all.
  std::string interfaces{};
  // A thread drives the library while messages are under way and no rank's wait does, so that large
  // messages move while this process computes.
  bool progress_thread = true;
  // The largest message of a payload in bytes; a larger payload is sent in parts, because MPI
  // counts with an int.
  int64_t largest_part = int64_t{1} << 30;
};

class MessageTransport final : public Transport {
 public:
  // Every rank makes one, at about the same time. Error(kComm) where the ranks do not come
  // together.
  MessageTransport(ProcessMessages process, const MessageOptions& options);
  ~MessageTransport() override;

  int rank() const override;
  int size() const override;
  bool takes_device_memory() const override;
  std::unique_ptr<Transfer> send(Stream& stream, int peer, const MessageHeader& header,
                                 const TensorView& view) override;
  std::unique_ptr<Transfer> receive(Stream& stream, int peer, const MessageHeader& expected,
                                    const TensorView& view) override;
  MessageHeader wait(Transfer& transfer) override;
  void await_message(int peer, const TagBits& tag) override;
  std::string failure() const override;
  int job() const override;
  void begin_job() override;
  int64_t strays() const override;
  int64_t held_bytes() const override;
  void watch(std::shared_ptr<const FlightRecorder> recorder) override;
  std::optional<int64_t> job_clock_ns() const override;
  std::optional<int64_t> take_number(int series) override;
  void abort(std::string_view why) noexcept override;

  // Ends the library in good order; all ranks call it. Error(kComm) where the job has failed.
  void finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace weft
