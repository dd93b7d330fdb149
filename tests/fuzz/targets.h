#pragma once
// What the fuzzer and the corpus test call: every reader of bytes that others wrote.
#include <cstdint>
#include <span>

namespace weft::fuzz {

struct Target {
  const char* name;  // its corpus is tests/fuzz/corpus/<name>
  int max_bytes;     // of an input; longer ones bring nothing new
  // Gives the bytes to the reader. Refusing them with Error is right; anything else than that or
  // success ends the process: a signal, a sanitizer's report, another exception. Not thread-safe;
  // the working directory is the repository's root.
  void (*run)(std::span<const uint8_t> bytes);
};

std::span<const Target> targets();

}  // namespace weft::fuzz
