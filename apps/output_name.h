#pragma once
// Where a result goes: the kind of output from the path's form, and the fields of a name template.
#include <cstdint>
#include <string>

namespace weft {

enum class OutputKind : uint8_t { kMp4, kWebm, kGif, kPng, kPngFolder };

// By extension; a path ending in '/' is a folder of PNG frames. Error(kUsage) listing the legal
// extensions otherwise.
OutputKind output_kind(const std::string& path);

struct NameFields {
  uint64_t seed = 0;
  std::string model, prompt;
  int64_t width = 0, height = 0, frames = 0;
  int index = 0;     // of the prompt, from 0
  std::string date;  // 20260131
  std::string time;  // 142359
};

// Expands {seed} {model} {width} {height} {frames} {prompt:40} {idx:05} {date} {time} {id}; a
// number after the colon is a length (prompt) or a zero-padded width (numbers). Error(kUsage) for
// an unknown field. Text is reduced to [A-Za-z0-9._-], at most 40 bytes, and never hidden, a way
// up, or a name that Windows keeps for itself.
std::string expand_name(const std::string& pattern, const NameFields& fields);

// expand_name(), for a file to be written: Error(kOutput) where a link inside the pattern's folder
// (what stands before the first field) would lead out of it.
std::string output_path(const std::string& pattern, const NameFields& fields);

// The present moment in `date` and `time`, local.
void stamp_now(NameFields& fields);

}  // namespace weft
