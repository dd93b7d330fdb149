#pragma once
// The model_index.json of a model directory.
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace weft {

// Returns the folder of a component that the index of `folder` lists, or "" if it has [null, null],
// null or no entry for it. Error(kModel) for another entry; `what` is the index's path.
std::string component_folder(const nlohmann::json& index, const char* name,
                             const std::string& folder, const std::string& what);

// Suggests what to do about a folder without an index.
std::string advice_without_index(const std::string& path);

}  // namespace weft
