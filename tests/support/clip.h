#pragma once
// Exact drawings of the clips that the pocket model is trained to draw. The geometry is that of
// models/pocket/.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "io/media/frame.h"
#include "tests/bench/pocket/words.h"

namespace weft::pocket {

// Parses any wording of the grammar. Returns nullopt if a part is named twice with different
// values, or if no part is named.
std::optional<ClipWords> parse_prompt(std::string_view prompt);

struct ClipCanvas {
  int width = 128, height = 128;
  int frames = 25;
  int first = 0;  // frames already gone by when the clip begins
  int total = 0;  // frames over which growth is threefold; 0: first + frames
};

// Draws a clip. Free choices (place, speed, phase) depend on the seed.
std::vector<Frame> draw_clip(const ClipSpec& spec, const ClipCanvas& canvas, uint64_t seed);

// Clip i of those whose readings by models/pocket/recipe/read.py stand in python_reader.jsonl.
// Every third one has lost half of frame 9.
struct SampleClip {
  ClipSpec spec;
  std::vector<Frame> frames;
};
SampleClip sample_clip(int i);

}  // namespace weft::pocket
