#pragma once
// The rows of the table of flags that stand in files of their own.
#include <span>

#include "apps/command_line/flags.h"

namespace weft {

std::span<const FlagSpec> input_flags();
std::span<const FlagSpec> stream_flags();  // of inputs, too
std::span<const FlagSpec> listen_flags();
std::span<const FlagSpec> rank_flags();

// Gives the table the rows of a program beside weft (tests/bench), before anything else reads it.
void add_flags(std::span<const FlagSpec> rows);

}  // namespace weft
