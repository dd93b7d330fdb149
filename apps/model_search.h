#pragma once
// Models by name: `--model pocket` means the folder pocket of the installed models.
#include <string>
#include <vector>

namespace weft {

// The folders in which models have names, in the order of the search: WEFT_MODEL_DIRS
// (separated by colons), then share/weft beside or above the program's folder, which holds the
// models of a build tree or of an installed program.
std::vector<std::string> model_roots();

// The path itself where it exists, is absolute or begins with a dot. Any other is searched for as a
// name, such as pocket or pocket/language, in model_roots(); "" where none has it.
std::string search_model(const std::string& path);

// Says where names were searched for and which models are there.
std::string places_searched();

// search_model(), but Error(kModel) with places_searched() where nothing has the name.
std::string find_model(const std::string& path);

}  // namespace weft
