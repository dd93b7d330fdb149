#include "io/text/path_list.h"

#include <algorithm>
#include <filesystem>

namespace weft {

std::vector<std::string> split_entries(const std::string& list,
                                       const std::function<bool(const std::string&)>& is_there) {
  std::vector<std::string> entries;
  for (size_t at = 0; at < list.size();) {
    const size_t first = std::min(list.find(',', at), list.size());
    size_t end = first;
    while (end < list.size() && !is_there(list.substr(at, end - at)))
      end = std::min(list.find(',', end + 1), list.size());
    if (!is_there(list.substr(at, end - at))) end = first;
    entries.push_back(list.substr(at, end - at));
    at = end + 1;
  }
  return entries;
}

std::vector<std::string> split_paths(const std::string& list) {
  return split_entries(list, [](const std::string& path) {
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
  });
}

}  // namespace weft
