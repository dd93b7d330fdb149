#pragma once
// Describes how a result was made: the text that picture tools read, and text files beside the
// result.
#include <cstdint>
#include <string>

#include "io/part_file.h"

namespace weft {

struct GenerationFacts {
  std::string prompt, negative_prompt;
  int steps = 0;
  std::string sampler;
  double guidance_scale = 0;
  uint64_t seed = 0;
  int width = 0, height = 0;
  std::string model, rng, version;
};

// Returns the text that A1111's web UI writes under the PNG key "parameters" and that other tools
// read: the prompt, "Negative prompt: ..." if there is one, and a last line of "Name: value" pairs.
std::string parameters_text(const GenerationFacts& facts);

// Writes a text file that appears complete or not at all. Errors: kOutput.
void write_text_file(const std::string& path, const std::string& text, Overwrite overwrite);

}  // namespace weft
