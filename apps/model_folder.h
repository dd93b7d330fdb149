#pragma once
// --model: the folder it names, or a message that says what it names instead.
#include <memory>
#include <string>

#include "apps/command_line/flags.h"
#include "apps/model_search.h"
#include "engine/parts/open_model.h"

namespace weft {

// --model. Error(kUsage) where it is not given; Error(kModel) where it is not a folder, saying what
// it is (a single file of weights, a GGUF file, the name of a repository) and what to do.
std::string model_folder(const Flags& flags);

// The files of --transformer, --vae and so on, as full paths. Error(kUsage) for one that does not
// exist.
PartFiles part_files(const Flags& flags);
// Opens the model of --model, the files of parts and --lora, as far as the command has these flags.
// Without --model the files are the model.
std::shared_ptr<const OpenModel> open_model(const Flags& flags);

// "download it with ..." where `path` looks like the name of a Hugging Face repository, else "".
std::string download_advice(const std::string& path);

}  // namespace weft
