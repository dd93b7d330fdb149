#pragma once
// A folder's entries, listed and removed. (The standard library's directory iterators end the
// process where memory runs out.)
#include <string>
#include <vector>

namespace weft {

// The names in `folder`, in no order, without "." and "..". Returns 0 or the errno.
int list_folder(const std::string& folder, std::vector<std::string>& names);

// Removes a file, or a folder that holds files and nothing else; 0 or the errno of the first entry
// that stays. What is not there is removed already. Allocates nothing.
int remove_flat(const char* path) noexcept;

}  // namespace weft
