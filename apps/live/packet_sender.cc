#include "apps/live/packet_sender.h"

#include <algorithm>
#include <utility>

namespace weft {
namespace {

std::string packet_bytes(const PacketHeader& header, const std::string& payload) {
  const auto head = to_bytes(header);
  std::string bytes(head.begin(), head.end());
  return bytes += payload;
}

}  // namespace

void PacketSender::begin(std::string announcement, std::string header) {
  const std::lock_guard lock(mutex_);
  announcement_ = std::move(announcement);
  header_ = header.empty() ? "" : packet_bytes({.type = PacketType::kHeader}, header);
  if (socket_) announce();
}

void PacketSender::announce() {
  socket_->send_text(announcement_);
  if (!header_.empty()) socket_->send_binary(header_);
}

void PacketSender::push(const MediaPacket& packet) {
  const std::lock_guard lock(mutex_);
  Kept kept{.key = (packet.flags & kKeyFlag) != 0,
            .time_us = packet.time_us,
            .end_us = packet.time_us + packet.duration_us,
            .bytes = packet_bytes({.type = packet.type,
                                   .flags = packet.flags,
                                   .number = number_,
                                   .length = static_cast<uint32_t>(packet.duration_us),
                                   .time_us = packet.time_us},
                                  packet.payload),
            .stats = ""};
  if (packet.stats) {
    Json& stats = *packet.stats;
    stats["number"] = number_;
    stats["queue_ms"] = socket_ ? behind_us(kept.time_us) / 1000 : 0;
    stats["dropped_packets"] = counts_.dropped;
    kept.stats = server_message("stats", stats);
  }
  ++number_;
  ++counts_.packets;
  counts_.end_us = kept.end_us;
  if (socket_) send(kept);
  kept_bytes_ += kept.bytes.size();
  kept_.push_back(std::move(kept));
  while (kept_bytes_ > kKeptBytes || kept_.front().time_us < counts_.end_us - kKeptUs) {
    kept_bytes_ -= kept_.front().bytes.size();
    kept_.pop_front();
  }
}

// The media that waits for the socket, up to this time.
int64_t PacketSender::behind_us(int64_t end_us) {
  const size_t queued = socket_->queued_bytes();
  while (!in_flight_.empty() && in_flight_bytes_ - in_flight_.front().bytes >= queued) {
    in_flight_bytes_ -= in_flight_.front().bytes;
    in_flight_.pop_front();
  }
  return in_flight_.empty() ? 0 : end_us - in_flight_.front().time_us;
}

bool PacketSender::is_too_slow(const Kept& packet) {
  const int64_t behind = behind_us(packet.end_us);
  const size_t queued = socket_->queued_bytes() + packet.bytes.size();
  // Whoever was too slow goes on when most of what waits has left.
  if (skips_) return !packet.key || behind > kMostBehindUs / 4 || queued > kMostQueued / 4;
  return behind > kMostBehindUs || queued > kMostQueued;
}

void PacketSender::send(const Kept& packet) {
  const bool was_skipping = skips_;
  skips_ = is_too_slow(packet);
  if (was_skipping && !skips_) {
    socket_->send_text(
        server_message("skipped", {{"packets", skipped_}, {"bytes", skipped_bytes_}}));
    skipped_ = skipped_bytes_ = 0;
  }
  if (!skips_ && socket_->send_binary(packet.bytes)) {
    in_flight_.push_back({packet.time_us, packet.bytes.size()});
    in_flight_bytes_ += packet.bytes.size();
    if (!packet.stats.empty()) socket_->send_text(packet.stats);
    return;
  }
  skips_ = true;
  ++skipped_;
  skipped_bytes_ += static_cast<int64_t>(packet.bytes.size());
  ++counts_.dropped;
  counts_.dropped_bytes += static_cast<int64_t>(packet.bytes.size());
}

int64_t PacketSender::attach(std::shared_ptr<WebSocket> socket, int64_t seen_us) {
  const std::lock_guard lock(mutex_);
  socket_ = std::move(socket);
  in_flight_.clear();
  in_flight_bytes_ = 0;
  skips_ = false;
  skipped_ = skipped_bytes_ = 0;
  auto first = std::ranges::find(kept_, seen_us, &Kept::time_us);
  if (seen_us >= 0 && first != kept_.end()) {
    while (first != kept_.end() && first->time_us == seen_us) ++first;  // and its sound
  } else {  // it begins, or what it saw is not kept any more
    if (!announcement_.empty()) announce();
    const auto last_key = std::ranges::find_if(kept_.rbegin(), kept_.rend(), &Kept::key);
    first = last_key == kept_.rend() ? kept_.end() : std::prev(last_key.base());
  }
  const int64_t begins = first == kept_.end() ? -1 : first->time_us;
  for (; first != kept_.end() && !skips_; ++first) send(*first);
  return begins;
}

void PacketSender::detach() {
  const std::lock_guard lock(mutex_);
  socket_ = nullptr;
}

PacketSender::Counts PacketSender::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace weft
