#pragma once
// PacketSender: the media of one stream on its way to one client, who may be slow, or gone for a
// while. It never waits for the client.
//
// The latest packets are kept, so that a client that comes back goes on after the last one it saw.
// A client that is more than two seconds or 8 MiB behind misses packets up to a key packet, from
// which a player can go on.
#include <deque>
#include <memory>
#include <mutex>
#include <string>

#include "apps/serve/http/http_server.h"
#include "apps/serve/stream_messages.h"
#include "io/json.h"

namespace weft {

struct MediaPacket {
  PacketType type = PacketType::kMedia;
  uint16_t flags = 0;
  int64_t time_us = 0, duration_us = 0;
  std::string payload{};
  Json* stats = nullptr;  // sent after the packet, with what the sender knows
};

// Any thread may call anything.
class PacketSender {
 public:
  static constexpr int64_t kKeptUs = 10'000'000, kMostBehindUs = 2'000'000;
  static constexpr size_t kKeptBytes = 16 << 20, kMostQueued = 8 << 20;

  // The stream begins: `announcement` is a text, `header` the payload of a kHeader packet or empty.
  // A client that joins later gets both.
  void begin(std::string announcement, std::string header);
  void push(const MediaPacket& packet);

  // Sends to this client from now on; `seen_us` is the time of the last packet that it got, -1 if
  // it got none. Returns the time of the first packet that it gets, -1 if that is yet to come.
  int64_t attach(std::shared_ptr<WebSocket> socket, int64_t seen_us);
  void detach();

  struct Counts {
    int64_t packets = 0, dropped = 0, dropped_bytes = 0;
    int64_t end_us = 0;  // of the last packet
  };
  Counts counts() const;

 private:
  struct Kept {
    bool key;
    int64_t time_us, end_us;
    std::string bytes, stats;
  };
  struct InFlight {
    int64_t time_us;
    size_t bytes;
  };
  // These need the lock.
  void announce();
  void send(const Kept& packet);
  int64_t behind_us(int64_t end_us);
  bool is_too_slow(const Kept& packet);

  mutable std::mutex mutex_;
  std::shared_ptr<WebSocket> socket_;
  std::string announcement_, header_;
  std::deque<Kept> kept_;
  size_t kept_bytes_ = 0;
  std::deque<InFlight> in_flight_;  // to this socket, perhaps not yet taken by the system
  size_t in_flight_bytes_ = 0;
  bool skips_ = false;
  int64_t skipped_ = 0, skipped_bytes_ = 0;
  uint32_t number_ = 0;
  Counts counts_;
};

}  // namespace weft
