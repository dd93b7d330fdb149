#include "parallel/bootstrap/flight_recorder.h"

#include "parallel/bootstrap/clock_offset.h"

namespace weft {

namespace {

constexpr const char* kStates[] = {"queued", "waiting", "done", "failed"};

}  // namespace

uint64_t FlightRecorder::begin(bool receive, int peer, const TagBits& tag, int64_t bytes) {
  const uint64_t number = next_.load(std::memory_order_relaxed);
  Record& record = records_[number % kRecords];
  record.tag_high = tag.high;
  record.tag_low = tag.low;
  record.bytes = bytes;
  record.peer = peer;
  record.receive = receive;
  record.state = static_cast<uint8_t>(State::kQueued);
  record.begun_ns = steady_clock_ns();
  record.ended_ns = 0;
  record.number = number;
  next_ = number + 1;
  return number;
}

void FlightRecorder::mark(uint64_t number, State state) {
  Record& record = records_[number % kRecords];
  if (record.number != number) return;  // overwritten since
  record.state = static_cast<uint8_t>(state);
  if (state == State::kDone || state == State::kFailed) record.ended_ns = steady_clock_ns();
}

std::string FlightRecorder::text(const Record& record) const {
  return std::string(record.receive ? "receive from" : "send to") + " rank " +
         std::to_string(record.peer) + " of " + tag_text({record.tag_high, record.tag_low}) + ", " +
         std::to_string(record.bytes) + " bytes: " + kStates[record.state & 3];
}

std::string FlightRecorder::last() const {
  const uint64_t next = next_;
  return next == 1 ? "nothing yet" : text(records_[(next - 1) % kRecords]);
}

std::string FlightRecorder::dump() const {
  const uint64_t next = next_;
  std::string out;
  for (uint64_t number = next > kRecords ? next - kRecords : 1; number < next; ++number) {
    const Record& record = records_[number % kRecords];
    out += "{\"seq\":" + std::to_string(record.number) + ",\"op\":\"" +
           (record.receive ? "receive" : "send") + "\",\"peer\":" + std::to_string(record.peer) +
           ",\"tag\":\"" + tag_text({record.tag_high, record.tag_low}) +
           "\",\"bytes\":" + std::to_string(record.bytes) +
           ",\"begun_ns\":" + std::to_string(record.begun_ns) +
           ",\"ended_ns\":" + std::to_string(record.ended_ns) + ",\"state\":\"" +
           kStates[record.state & 3] + "\"}\n";
  }
  return out;
}

}  // namespace weft
