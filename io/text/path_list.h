#pragma once
// Lists of paths in one text, separated by commas.
#include <functional>
#include <string>
#include <vector>

namespace weft {

// Splits a list at its commas. Where `is_there` denies an entry, the commas that follow belong to
// it up to the nearest place where `is_there` affirms it, if there is one.
std::vector<std::string> split_entries(const std::string& list,
                                       const std::function<bool(const std::string&)>& is_there);
// The entries are paths, of which a file or a folder is there or not.
std::vector<std::string> split_paths(const std::string& list);

}  // namespace weft
