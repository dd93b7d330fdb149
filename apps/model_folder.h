#pragma once
// Models by name: `--model pocket` means the folder pocket of the installed models.
#include <string>
#include <vector>

namespace weft {

// The path itself where it exists, is absolute or begins with a dot. Any other is searched for as a
// name, such as pocket or pocket/language, in model_roots(). Error(kModel) tells where it was not
// found and which models are there, and how to download what looks like a Hugging Face repository.
std::string model_folder(const std::string& path);

// "hf download OWNER/NAME --local-dir models/NAME, then give --model models/NAME"
std::string download_command(const std::string& repository);
// "it looks like ..." with that command where `path` looks like the name of a Hugging Face
// repository, else "".
std::string download_advice(const std::string& path);

// The folders in which models have names, in the order of the search: those of WEFT_MODEL_DIRS
// (separated by colons), then share/weft beside or above the program's folder, which holds the
// models of a build tree or of an installed program.
std::vector<std::string> model_roots();

}  // namespace weft
