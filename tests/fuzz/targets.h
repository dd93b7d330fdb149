#pragma once
// The targets of the fuzzer and of the corpus test: every reader of untrusted bytes.
#include <cstdint>
#include <span>

namespace weft::fuzz {

struct Target {
  const char* name;  // its corpus is tests/fuzz/corpus/<name>
  int max_bytes;     // the longest input; longer ones test nothing more
  // Passes the bytes to the reader, which may succeed or throw Error. Anything else ends the
  // process: a signal, a sanitizer's report, another exception. It is not thread-safe. The working
  // directory must be the repository's root.
  void (*run)(std::span<const uint8_t> bytes);
};

std::span<const Target> targets();

}  // namespace weft::fuzz
