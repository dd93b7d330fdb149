#pragma once
// ClockOffset: the difference between this process's clock and the first rank's, learned from
// messages that go there and back (NTP's estimate: Mills 1991). The answer's fastest round trips
// count, because half a round trip bounds the error.
#include <chrono>
#include <cstdint>

namespace weft {

inline int64_t steady_clock_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

class ClockOffset {
 public:
  // A question left at `sent` and its answer arrived at `received` by this clock; the other end
  // answered at `answered` by its own clock.
  void add(int64_t sent, int64_t answered, int64_t received) {
    ++samples_;
    const int64_t round_trip = received - sent;
    // Clocks drift apart, so an old estimate is worth less: 100 us per second.
    if (samples_ > 1 && round_trip > round_trip_ + (received - received_) / 10000) return;
    round_trip_ = round_trip;
    received_ = received;
    offset_ = answered - (sent + round_trip / 2);
  }
  int64_t ns() const { return offset_; }  // add to this clock to get the other one
  int samples() const { return samples_; }

 private:
  int samples_ = 0;
  int64_t offset_ = 0, round_trip_ = 0, received_ = 0;
};

}  // namespace weft
