#pragma once
// A client of a live server without a server: a socket that keeps what it is sent.
#include <condition_variable>
#include <cstring>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "apps/serve/http/http_server.h"
#include "apps/serve/stream_messages.h"

namespace weft::test {

inline constexpr int64_t kPacketUs = 160'000;

class KeptSocket final : public WebSocket {
 public:
  struct Media {
    PacketHeader header;
    std::string payload;
  };

  bool send_text(std::string message) override {
    const std::lock_guard lock(mutex_);
    if (code_) return false;
    texts_.push_back(nlohmann::json::parse(message));
    changed_.notify_all();
    return true;
  }
  bool send_binary(std::string message) override {
    const std::lock_guard lock(mutex_);
    if (code_) return false;
    Media media;
    std::memcpy(&media.header.type, message.data() + 4, 2);
    std::memcpy(&media.header.flags, message.data() + 6, 2);
    std::memcpy(&media.header.number, message.data() + 8, 4);
    std::memcpy(&media.header.length, message.data() + 12, 4);
    std::memcpy(&media.header.time_us, message.data() + 16, 8);
    media.payload = message.substr(PacketHeader::kBytes);
    (media.header.type == PacketType::kHeader ? headers_ : media_).push_back(std::move(media));
    if (is_stuck_) queued_ += message.size();
    changed_.notify_all();
    return true;
  }
  size_t queued_bytes() const override {
    const std::lock_guard lock(mutex_);
    return queued_;
  }
  void close(uint16_t code, std::string) override {
    const std::lock_guard lock(mutex_);
    if (!code_) code_ = code;
    changed_.notify_all();
  }

  // The client stops reading, or reads all that waits.
  void stick(bool on) {
    const std::lock_guard lock(mutex_);
    is_stuck_ = on;
    if (!on) queued_ = 0;
  }

  // These wait for at most a minute.
  std::optional<nlohmann::json> wait_text(const std::string& type) {
    std::optional<nlohmann::json> found;
    wait([&] {
      for (const nlohmann::json& text : texts_)
        if (!found && text.at("type") == type) found = text;
      return found.has_value();
    });
    return found;
  }
  // The first stats of this state after `after` others.
  bool wait_state(const std::string& state, size_t after = 0) {
    return wait([&] {
      size_t seen = 0;
      for (const nlohmann::json& text : texts_)
        if (text.at("type") == "stats" && seen++ >= after && text.at("state") == state) return true;
      return false;
    });
  }
  bool wait_media(size_t count) {
    return wait([&] { return media_.size() >= count; });
  }
  int wait_close() {
    wait([&] { return code_.has_value(); });
    const std::lock_guard lock(mutex_);
    return code_.value_or(0);
  }

  std::vector<nlohmann::json> texts() const {
    const std::lock_guard lock(mutex_);
    return texts_;
  }
  std::vector<nlohmann::json> texts(const std::string& type) const {
    std::vector<nlohmann::json> out;
    for (nlohmann::json& text : texts())
      if (text.at("type") == type) out.push_back(std::move(text));
    return out;
  }
  std::vector<Media> media() const {
    const std::lock_guard lock(mutex_);
    return media_;
  }
  std::vector<Media> headers() const {
    const std::lock_guard lock(mutex_);
    return headers_;
  }

 private:
  template <class Ready>
  bool wait(Ready ready) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::minutes(1), ready);
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<nlohmann::json> texts_;
  std::vector<Media> media_, headers_;
  size_t queued_ = 0;
  bool is_stuck_ = false;
  std::optional<int> code_;
};

// A packet of sound as clients send it.
inline std::string sound_packet(const std::vector<float>& samples, uint32_t number, int64_t time_us,
                                uint16_t flags = 0) {
  const auto head = to_bytes({.type = PacketType::kSound,
                              .flags = flags,
                              .number = number,
                              .length = static_cast<uint32_t>(samples.size()),
                              .time_us = time_us});
  std::string bytes(head.begin(), head.end());
  for (const float sample : samples) {
    const auto value = static_cast<int16_t>(sample * 32767);
    bytes.append(reinterpret_cast<const char*>(&value), 2);
  }
  return bytes;
}

}  // namespace weft::test
