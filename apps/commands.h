#pragma once
// The subcommands: each takes parsed flags and returns the process's exit code. They alone print:
// results on standard output, everything else on standard error.

#include "apps/command_line/flags.h"
#include "apps/command_line/printable.h"
#include "engine/job/request.h"

namespace weft {

int run_generate(const Flags& flags);
int run_batch(const Flags& flags);
int run_serve(const Flags& flags);
int run_worker(const Flags& flags);
int run_stream(const Flags& flags);
int run_complete(const Flags& flags);
int run_plan(const Flags& flags);
int run_verify(const Flags& flags);
int run_inspect(const Flags& flags);
int run_bench(const Flags& flags);
int run_compare(const Flags& flags);
int run_replay(const Flags& flags);
int run_doctor(const Flags& flags);
int run_completion(const Flags& flags);

// The program's name as the user typed it, for commands that are printed.
const std::string& program_name();
void set_program_name(const std::string& name);

// "weft 0.1.0, numerics epoch 1, commit abc1234"
std::string version_text();

}  // namespace weft
