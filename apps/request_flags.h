#pragma once
// What the flags of a job say: prompts, sizes, schedule, seed.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "apps/flags.h"
#include "engine/generator.h"

namespace weft {

// The text itself, the contents of the file behind '@', or standard input for "-".
std::string text_argument(const std::string& flag, const std::string& value);
// --seed, or a random one of 32 bits. Error(kUsage).
uint64_t seed_of(const Flags& flags);
// --prompt, or the lines of --prompt-file. Error(kUsage) where there is none.
std::vector<std::string> prompts_of(const Flags& flags);
// Refuses what is wrong in the flags by themselves, before a model is opened. Error(kUsage).
void check_request_flags(const Flags& flags);
// --size as width and height; none where it is not given.
std::optional<std::pair<int64_t, int64_t>> size_of_flag(const Flags& flags);
// Everything of the request but the prompt; open fields stay open.
Request request_of(const Flags& flags, const Generator& generator);
// The solver's name as --solver takes it, from the engine's as metadata have it.
std::string solver_flag(const std::string& name);
// "20G", "512M", "1000000": bytes, powers of 1024; 0 for "".
uint64_t bytes_of(const std::string& flag, const std::string& text);

}  // namespace weft
