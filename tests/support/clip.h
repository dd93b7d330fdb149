#pragma once
// The clips that the pocket model is trained to draw: the hash that keeps a tenth of them out of
// the training, and an exact drawing of each. The geometry is that of models/pocket/.
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "apps/bench/pocket/words.h"
#include "io/media/frame.h"

namespace weft::pocket {

// All colour x shape x motion x ground combinations, in the order of the enumerators.
std::vector<ClipSpec> all_combinations();

// Returns true if the FNV-1a hash (32 bit) of "colour shape motion ground" is a multiple of 10.
// Such a combination is never trained on.
bool held_out(const ClipSpec& spec);

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
