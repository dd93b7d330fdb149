#pragma once
// Help texts, made from the table of flags.
#include <span>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"

namespace weft {

// A row of apps/guide/cli.md and --help: 0, "ok".
struct ExitCode {
  int code;
  const char* meaning;
};
std::span<const ExitCode> exit_code_table();

std::string help_text();  // weft --help
// weft generate --help: the basic flags. With `most` kAdvanced, as --help-all, all of them.
std::string help_text(Command command, FlagLevel most);

// "what to draw", "device and memory": how a command's help calls a group of flags.
std::string group_title(Command command, FlagGroup group);
// The flags of a command in one group, up to this level.
std::vector<const FlagSpec*> flags_of(Command command, FlagGroup group, FlagLevel most);
// The flag's help with its legal values, default and range.
std::string full_description(const FlagSpec& spec);
// The word for the flag's value, as "N", "FOLDER", "f32|bf16"; "" of a switch.
std::string value_name(const FlagSpec& spec);
// The default and, for numbers, the range: "[60]", "[model's; 1 ... 1000]"; "" where there is none.
std::string default_and_range(const FlagSpec& spec);

}  // namespace weft
