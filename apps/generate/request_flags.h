#pragma once
// The flags that say what to draw: prompts, sizes, schedule, seed.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/command_line/flags.h"
#include "engine/generation/generator.h"

namespace weft {

// The flag's text: as it stands, the contents of the file behind '@', or standard input for "-".
std::string text_argument(const Flags& flags, const std::string& name);
// Standard input, without the line ends at its end.
std::string standard_input();
// --seed, or a random one of 32 bits. Error(kUsage).
uint64_t seed_of(const Flags& flags);
// --prompt, or the lines of --prompt-file. Error(kUsage) where there is none.
std::vector<std::string> prompts_of(const Flags& flags);
// Error(kUsage) where the flags alone are wrong; no model is opened.
void check_request_flags(const Flags& flags);
// --size as width and height; none where it is not given.
std::optional<std::pair<int64_t, int64_t>> size_of_flag(const Flags& flags);
// The request without its prompt; fields that the user leaves open stay open. Error(kUsage) naming
// the flag where a size or a frame count is not legal for the model.
Request request_of(const Flags& flags, const Generator& generator);
// Error(kUsage) where `value` is not on the grid; `where` begins the message: "--width is 40".
void check_on_grid(const std::string& where, int64_t value, const Grid& grid);
// The options of a model that flags alone decide: number formats, resident layers, memory limits.
GeneratorOptions model_options(const Flags& flags);
// The engine's name of a solver, from its name for --solver or in older metadata; and back.
std::string engine_solver(const std::string& name);
std::string solver_flag(const std::string& name);
}  // namespace weft
