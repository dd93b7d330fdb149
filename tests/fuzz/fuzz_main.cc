// The entry point for libFuzzer: weft_fuzz --target=NAME [libFuzzer's flags] CORPUS...; --list
// prints the targets.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "tests/fuzz/targets.h"

namespace {
const weft::fuzz::Target* g_target = nullptr;
}  // namespace

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
  for (int i = 1; i < *argc; ++i) {
    const std::string argument = (*argv)[i];
    for (const weft::fuzz::Target& target : weft::fuzz::targets()) {
      if (argument == "--list") std::printf("%s %d\n", target.name, target.max_bytes);
      if (argument == std::string("--target=") + target.name) g_target = &target;
    }
    if (argument == "--list") std::exit(0);
  }
  if (!g_target) {
    std::fputs("weft_fuzz: give --target=NAME; --list names them\n", stderr);
    std::exit(2);
  }
  return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  g_target->run({data, size});
  return 0;
}
