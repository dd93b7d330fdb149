#pragma once
// FlightRecorder: keeps a rank's last messages for the report of a failure. It is written without
// locks and may be read from any thread.
#include <array>
#include <atomic>
#include <cstdint>
#include <string>

#include "parallel/tag.h"

namespace weft {

class FlightRecorder {
 public:
  enum class State : uint8_t { kQueued, kWaiting, kDone, kFailed };
  static constexpr int kRecords = 2000;

  // Returns the operation's number. `peer` is a world rank.
  uint64_t begin(bool receive, int peer, const TagBits& tag, int64_t bytes);
  void mark(uint64_t number, State state);

  // "send to rank 3 of hidden step 2 layer 4, 4096 bytes: waiting", or "nothing yet".
  std::string last() const;
  // One JSON object a line, oldest first.
  std::string dump() const;

 private:
  struct Record {  // atomics, so that a reader sees at worst a record half of the next one
    std::atomic<uint64_t> number{0}, tag_high{0}, tag_low{0};
    std::atomic<int64_t> bytes{0}, begun_ns{0}, ended_ns{0};
    std::atomic<int32_t> peer{0};
    std::atomic<uint8_t> receive{0}, state{0};
  };
  std::string text(const Record& record) const;

  std::array<Record, kRecords> records_;
  std::atomic<uint64_t> next_{1};
};

}  // namespace weft
