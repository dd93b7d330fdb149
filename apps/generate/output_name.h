#pragma once
// The path of a result: the rule by which --output and --frames name it, the fields of a name
// template, and the rule by which it is refused before anything is computed.
#include <cstdint>
#include <functional>
#include <string>

#include "apps/command_line/flags.h"

namespace weft {

// The inputs of the rule.
struct OutputChoice {
  std::string output;  // a file, a folder of frames, or a folder of results, which ends in /
  std::string label = "--output";   // for messages
  bool frames_as_pictures = false;  // --frames png
  bool in_segments = false;         // --segment
  bool several = false;             // more than one prompt
  int64_t frames = 0;               // frames of each result
};

// The pattern of the results' paths, for output_path(). A result of its own has the name that
// `output` says; in a folder of results each gets a name by number, or by date, model and seed
// where there is one. A pattern that ends in / is a folder of PNG frames. Error(kUsage) where
// `output` is not legal.
std::string output_pattern(const OutputChoice& choice);

struct NameFields {
  uint64_t seed = 0;
  std::string model, prompt;
  int64_t width = 0, height = 0, frames = 0;
  std::string id;    // of the job; "": its index
  int index = 0;     // the number of the prompt, from 0
  std::string date;  // 20260131
  std::string time;  // 142359
};

// Expands {seed} {model} {width} {height} {frames} {prompt:40} {idx:05} {date} {time} {id}; a
// number after the colon is a length in characters (prompt) or a zero-padded width (numbers).
// Error(kUsage) for an unknown field. Text is reduced to letters and digits of any script and
// [._-], and to 40 characters (an id 64); it never begins with a dot, leads out of its folder, or
// is a name that Windows reserves. A name that no file system takes, with its sidecar and part
// files, is cut at the end of a character, first in its texts; its ending stays.
std::string expand_name(const std::string& pattern, const NameFields& fields);

// expand_name() for a file to be written. Error(kOutput) where a link inside the pattern's folder
// (the part before the first field) would lead out of it.
std::string output_path(const std::string& pattern, const NameFields& fields);

// Error(kOutput) where a job of the command must not write its result to `path`, or cannot. An
// output is kept unless --overwrite is given, with two exceptions: one of `several` jobs that is
// drawn already is not drawn again, and what an interrupted run has left goes on. Only the opened
// model can tell whether these apply: without `is_drawn`, which asks it, such an output passes.
void check_output(const Flags& flags, const std::string& path, bool several,
                  const std::function<bool()>& is_drawn = nullptr);

// The present moment in `date` and `time`, local.
void stamp_now(NameFields& fields);

}  // namespace weft
