#pragma once
// A made-up voice, for benches and tests of talking faces: syllables of changing loudness and
// vowels, with pauses. It is not the one that the pocket avatar was trained on.
#include <cstdint>

#include "io/sound/audio.h"

namespace weft::pocket {

// The voice of a seed, so many seconds of it at 16 kHz. Phrases of 2 to 8 syllables of 120 to
// 280 ms follow each other after pauses of 300 to 900 ms. A syllable is a glottal pulse of 1/k
// harmonics, weighed by two formants of one of five vowels, under half a sine as its loudness.
Sound made_voice(double seconds, uint64_t seed);

}  // namespace weft::pocket
