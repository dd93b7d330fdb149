#pragma once
// Lists and removes a folder's entries. (The standard library's directory iterators end the process
// if memory runs out.)
#include <string>
#include <vector>

namespace weft {

// Gets the names in `folder`, unordered and without "." and "..". Returns 0 or the errno.
int list_folder(const std::string& folder, std::vector<std::string>& names);

// Removes a file, or a folder that contains only files. Returns 0, also if it does not exist, or
// the errno of the first entry that could not be removed. Allocates nothing.
int remove_flat(const char* path) noexcept;

}  // namespace weft
