#pragma once
// The parts of a model in the repository of its authors (RootLayout): a folder without an index,
// whose root has the transformer's config.json and weights.
#include <string>

namespace weft {

struct ModelDirectory;
struct ModelFamily;

// Finds the parts in the folder `path`. Those that are not there stay empty.
ModelDirectory root_parts(const std::string& path, const ModelFamily& family);

// Error(kModel) that names a part that the folder lacks, with the flag or the file that gives it.
void check_root_parts(const ModelDirectory& model);

}  // namespace weft
