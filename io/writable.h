#pragma once
// check_writable: whether an output could be written, asked before any work is done for it.
#include <string>

#include "io/part_file.h"

namespace weft {

// Refuses what a PartFile (part_file.cc has the rule of both) would refuse, and a name whose folder
// takes no new file or cannot be made. Leaves nothing behind. Errors: kOutput.
void check_writable(const std::string& path, Overwrite overwrite);

}  // namespace weft
