#include "io/media/metadata.h"

#include <cstdio>

#include "io/atomic_file.h"

namespace weft {
namespace {

// Quotes values with a comma, a colon or a line break, as A1111 does, so that the pairs can be
// separated again.
std::string quoted(const std::string& value) {
  if (value.find_first_of(",:\n") == std::string::npos) return value;
  std::string out = "\"";
  for (const char c : value) {
    if (c == '"' || c == '\\') out += '\\';
    out += c == '\n' ? ' ' : c;
  }
  return out + '"';
}

std::string number(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

}  // namespace

std::string parameters_text(const GenerationFacts& facts) {
  std::string text = facts.prompt + "\n";
  if (!facts.negative_prompt.empty()) text += "Negative prompt: " + facts.negative_prompt + "\n";
  text += "Steps: " + std::to_string(facts.steps);
  text += ", Sampler: " + quoted(facts.sampler);
  text += ", CFG scale: " + number(facts.guidance_scale);
  text += ", Seed: " + std::to_string(facts.seed);
  text += ", Size: " + std::to_string(facts.width) + "x" + std::to_string(facts.height);
  text += ", Model: " + quoted(facts.model);
  text += ", RNG: " + quoted(facts.rng);
  text += ", Version: " + quoted(facts.version);
  return text;
}

void write_text_file(const std::string& path, const std::string& text, Overwrite overwrite) {
  write_file(path, text, overwrite);
}

}  // namespace weft
