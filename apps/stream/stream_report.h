#pragma once
// The figures of a stream: its pictures, their times, and whether they kept up with the sound.
#include <chrono>
#include <cstdio>
#include <string>

#include "apps/live/face/session.h"
#include "engine/session/stream_split.h"
#include "io/json.h"

namespace weft {

struct StreamReport {
  int64_t pictures = 0, samples = 0;
  double media_s = 0;        // how long they are shown
  double seconds = 0;        // how long they took, from a loaded model and an encoded caption
  double first_frame_s = 0;  // until the first picture was there
  int64_t misplaced = 0;     // pictures whose index was not the next one
  SessionCounts counts{};

  double fps() const { return pictures / seconds; }
  double realtime() const { return media_s / seconds; }
};

// Takes note of slots as they come.
class StreamWatch {
 public:
  explicit StreamWatch(MediaRate fps) : fps_(fps) {}
  void add(const SessionSlot& slot);
  StreamReport report(const Session& session) const;

 private:
  using Clock = std::chrono::steady_clock;
  double elapsed() const { return std::chrono::duration<double>(Clock::now() - begun_).count(); }

  const MediaRate fps_;
  const Clock::time_point begun_ = Clock::now();
  StreamReport report_;
  int64_t next_source_ = 0;
};

// "150 pictures, 6 s in 2.1 s (71 pictures/s, 2.9 times real time), the first after 0.22 s".
std::string to_string(const StreamReport& report);
Json to_json(const StreamReport& report);

// Prints a stream, its split, the memory it takes and its speed.
void print_stream(FILE* out, const PlannedStream& stream, const StreamSplit& split,
                  const std::string& device);
Json to_json(const StreamForecast& forecast);
Json to_json(const StreamSplit& split);

}  // namespace weft
