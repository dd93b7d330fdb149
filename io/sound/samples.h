#pragma once
// Shared by the sources of sound.
#include <cstdint>
#include <span>
#include <string>

namespace weft {

// Clips the samples to ±1. NaN or infinity is an Error(kMedia) that names the source and the index,
// where samples[0] has the index `first`.
void limit_samples(std::span<float> samples, int64_t first, const std::string& source);

}  // namespace weft
