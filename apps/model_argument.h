#pragma once
// --model: the folder it names, or a message that says what it names instead.
#include <string>

#include "apps/flags.h"

namespace weft {

// The folder that --model names, by its path or as an installed model. Error(kUsage) where it is
// not given; Error(kModel) where there is no such folder, saying what it is (a single file of
// weights, a GGUF file, the name of a repository) and what to do.
std::string model_argument(const Flags& flags);

}  // namespace weft
