#pragma once
// Sound made to resemble speech, as models/pocket_avatar/recipe/sound.py makes it: syllables of
// known vowels in one voice, with pauses between groups of them.
#include <cstdint>
#include <vector>

namespace weft::pocket {

// Samples at 16 kHz, full scale 1; the voice and what it says depend on the seed.
std::vector<float> made_up_voice(int samples, uint32_t seed);

}  // namespace weft::pocket
