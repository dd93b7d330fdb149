#pragma once
// Measures a stream on this machine, in silence, with no regard to when its pictures are due.
#include <string>

#include "engine/planning/stream_forecast.h"
#include "engine/session/stream_engine.h"

namespace weft {

struct StreamMeasurement {
  StreamForecast stream;  // as it ran under the engine's split
  // Its forward_s is known where one rank does everything, else it is 0.
  StreamTimes times;
};

// Loads the weights, draws segments until the window is full and the split is busy, and `segments`
// more, which are timed. Where that takes longer than 5 s it ends with the segment that has begun:
// such a stream is slow, and it would be slower with a full window. `fps` is that of the pictures.
StreamMeasurement measure_stream(StreamEngine& engine, const std::string& caption, double fps,
                                 int segments = 4);

// The same by simulation of so many segments more; loads nothing.
StreamMeasurement simulate_stream(StreamEngine& engine, const std::string& caption, double fps,
                                  const Machine& machine, int segments = 4);

// StreamTimes::exchange_s from a measurement of a split over tokens and heads: the seconds that it
// adds to its share of a forward. `times` are those of one rank.
double exchange_of(const StreamMeasurement& split, const StreamSettings& settings,
                   const StreamTimes& times);

}  // namespace weft
