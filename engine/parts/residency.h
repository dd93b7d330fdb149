#pragma once
// Residency: how long the parts of a model stay in memory, and the modes that choose it.
#include <cstdint>
#include <string_view>

namespace weft {

// The values are ordered from fastest to smallest.
enum class Residency : uint8_t {
  kAll,         // everything is loaded once and kept
  kStaged,      // the text encoder is resident alone; the rest loads after it is released
  kOneExpert,   // staged, and one expert at a time
  kSequential,  // one component at a time: the VAE loads after the transformer is released
  kCount,
};

std::string_view to_string(Residency residency);

// No mode changes a result by itself. A caller may also choose 8-bit weights for kMemory, which
// does change it (GeneratorOptions::weights).
enum class MemoryMode : uint8_t {
  kSpeed,   // all weights are resident, or the job is refused
  kLayers,  // the fastest residency that fits; all layers of a transformer are in memory at once
  kAuto,  // the same; where none fits, as many layers as fit, and the others are read ahead of use
  kMemory,  // the smallest high-water mark, and the fastest way to have it
};

std::string_view to_string(MemoryMode mode);  // "speed", "layers", "auto", "memory"

}  // namespace weft
