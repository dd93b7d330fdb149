#include "engine/preview/preview_fit.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "io/weights/safetensors_header.h"
#include "kernels/check.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "weft.preview/v1";
constexpr double kLargest = 1e4;  // of a coefficient
constexpr const char* kFirst = "first_frame";

[[noreturn]] void refuse(const std::string& path, const std::string& field,
                         const std::string& value, const std::string& legal) {
  throw Error(ErrorKind::kModel,
              path + ": \"" + field + "\" is " + value + " (legal: " + legal + ")");
}

std::array<float, 3> read_colour(const json& object, const std::string& field,
                                 const std::string& path) {
  const std::vector<double> values = json_numbers(object, field, path);
  if (values.size() != 3)
    refuse(path, field, std::to_string(values.size()) + " numbers", "3 numbers");
  std::array<float, 3> colour;
  for (size_t c = 0; c < 3; ++c) {
    if (!(std::abs(values[c]) <= kLargest))
      refuse(path, field, std::to_string(values[c]), "-1e4 ... 1e4");
    colour[c] = static_cast<float>(values[c]);
  }
  return colour;
}

// Reads the fields "rgb" and "constant" of an object; `within` precedes their names in messages.
ColourMap read_map(const json& object, const std::string& within, int64_t channels,
                   const std::string& path) {
  const json& rows = json_field(object, "rgb", path + within);
  if (!rows.is_array()) refuse(path + within, "rgb", "no list", "a list of 3 numbers per channel");
  if (static_cast<int64_t>(rows.size()) != channels)
    refuse(path + within, "rgb", std::to_string(rows.size()) + " channels",
           std::to_string(channels) + ", those of the VAE");
  ColourMap map;
  for (const json& row : rows)
    map.rgb.push_back(read_colour(json{{"rgb", row}}, "rgb", path + within));
  map.constant = read_colour(object, "constant", path + within);
  return map;
}

}  // namespace

std::string preview_fit_path(const std::string& vae_folder) { return vae_folder + "/preview.json"; }

PreviewFit read_preview_fit(const std::string& path, int64_t channels) {
  const json file = read_json_file(path, JsonDialect::kStrict);
  const std::string schema = json_string(file, "schema", path);
  if (schema != kSchema) refuse(path, "schema", quoted_name(schema), kSchema);
  PreviewFit fit{.map = read_map(file, "", channels, path)};
  if (!json_has(file, kFirst)) return fit;
  const json& first = json_field(file, kFirst, path);
  if (!first.is_object())
    refuse(path, kFirst, "no object", "an object with rgb and constant, or none");
  fit.first = read_map(first, std::string(": \"") + kFirst + "\"", channels, path);
  return fit;
}

}  // namespace weft
