#include "models/files/model_index.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "kernels/check.h"

namespace weft {

std::string component_folder(const nlohmann::json& index, const char* name,
                             const std::string& folder, const std::string& what) {
  if (!json_has(index, name)) return "";
  const nlohmann::json& entry = index.at(name);
  if (!entry.is_array() || entry.size() != 2)
    throw Error(ErrorKind::kModel, what + ": " + name + " = " + entry.dump() +
                                       " (legal: [library, class] or [null, null])");
  return entry[1].is_null() ? "" : folder + "/" + name;
}

std::string advice_without_index(const std::string& path) {
  for (const std::filesystem::directory_entry& entry : std::filesystem::directory_iterator(path))
    if (entry.path().extension() == ".pth")
      return "the folder holds " + entry.path().filename().string() +
             ", and .pth files are not read (loading a pickle runs code): try the repository whose "
             "name ends in -Diffusers, or the safetensors of Comfy-Org/Wan_2.1_ComfyUI_repackaged";
  return "a model directory in the diffusers layout has one: try the folder that holds "
         "transformer/ "
         "and vae/, or the repository whose name ends in -Diffusers";
}

}  // namespace weft
