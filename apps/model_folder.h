#pragma once
// --model: the folder it names, or a message that says what it names instead.
#include <string>

#include "apps/command_line/flags.h"
#include "apps/model_search.h"

namespace weft {

// --model. Error(kUsage) where it is not given; Error(kModel) where it is not a folder, saying what
// it is (a single file of weights, a GGUF file, the name of a repository) and what to do.
std::string model_folder(const Flags& flags);

// "download it with ..." where `path` looks like the name of a Hugging Face repository, else "".
std::string download_advice(const std::string& path);

}  // namespace weft
