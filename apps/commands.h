#pragma once
// The subcommands: each takes parsed flags and returns the process's exit code. They alone print:
// results on standard output, everything else on standard error.
#include <atomic>

#include "apps/flags.h"

namespace weft {

int run_generate(const Flags& flags);
int run_plan(const Flags& flags);
int run_verify(const Flags& flags);
int run_inspect(const Flags& flags);
int run_bench(const Flags& flags);
int run_compare(const Flags& flags);
int run_replay(const Flags& flags);
int run_completion(const Flags& flags);

// True since the first SIGINT or SIGTERM; long jobs look at it between steps.
const std::atomic<bool>& stop_requested();

// "weft 0.1.0, numerics epoch 1, commit abc1234".
std::string version_text();
// Raised whenever default results change (product contract on seeds).
inline constexpr int kNumericsEpoch = 1;

}  // namespace weft
