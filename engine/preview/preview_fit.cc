#include "engine/preview/preview_fit.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

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

// Solves a x = b for symmetric positive definite a [n, n] and b [n, 3] by Cholesky's method, in
// place. Returns false where a is not positive definite to the precision of doubles.
bool solve(std::vector<double>& a, std::vector<double>& b, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const double diagonal = a[i * n + i];
    for (size_t j = 0; j <= i; ++j) {
      double sum = a[i * n + j];
      for (size_t k = 0; k < j; ++k) sum -= a[i * n + k] * a[j * n + k];
      if (i != j) {
        a[i * n + j] = sum / a[j * n + j];
      } else {
        if (!(sum > 1e-10 * diagonal)) return false;
        a[i * n + i] = std::sqrt(sum);
      }
    }
  }
  for (size_t c = 0; c < 3; ++c) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t k = 0; k < i; ++k) b[3 * i + c] -= a[i * n + k] * b[3 * k + c];
      b[3 * i + c] /= a[i * n + i];
    }
    for (size_t i = n; i-- > 0;) {
      for (size_t k = i + 1; k < n; ++k) b[3 * i + c] -= a[k * n + i] * b[3 * k + c];
      b[3 * i + c] /= a[i * n + i];
    }
  }
  return true;
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

double rounded(double value) { return std::round(value * 1e5) / 1e5; }

void write_map(const ColourMap& map, nlohmann::ordered_json& object) {
  const auto colour = [](const std::array<float, 3>& values) {
    return nlohmann::ordered_json{rounded(values[0]), rounded(values[1]), rounded(values[2])};
  };
  for (const auto& row : map.rgb) object["rgb"].push_back(colour(row));
  object["constant"] = colour(map.constant);
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

std::string preview_fit_text(const PreviewFit& fit, const PreviewErrors& errors) {
  nlohmann::ordered_json file{{"schema", kSchema}};
  write_map(fit.map, file);
  if (fit.first) {
    write_map(*fit.first, file[kFirst]);
    file[kFirst]["relative_error"] = rounded(errors.first);
    file["later_relative_error"] = rounded(errors.later);
  }
  file["relative_error"] = rounded(errors.all);
  return file.dump(1) + "\n";
}

PreviewFitter::PreviewFitter(int64_t channels)
    : channels_(channels),
      first_(static_cast<size_t>(channels) + 1),
      later_(static_cast<size_t>(channels) + 1) {}

void PreviewFitter::add(const TensorView& latents, const TensorView& video) {
  CHECK(latents.rank == 4 && video.rank == 4 && latents[0] == channels_ && video[0] == 3,
        latents[0], video[0]);
  const int64_t scale = video[2] / latents[2];
  const int64_t per_latent = latents[1] > 1 ? (video[1] - 1) / (latents[1] - 1) : 1;
  std::vector<double> values(static_cast<size_t>(channels_) + 1);
  for (int64_t f = 0; f < latents[1]; ++f) {
    const int64_t first = f == 0 ? 0 : 1 + (f - 1) * per_latent, frames = f == 0 ? 1 : per_latent;
    for (int64_t y = 0; y < latents[2]; ++y)
      for (int64_t x = 0; x < latents[3]; ++x) {
        for (int64_t c = 0; c < channels_; ++c)
          values[static_cast<size_t>(c)] =
              latents.as<float>()[((c * latents[1] + f) * latents[2] + y) * latents[3] + x];
        values.back() = 1;
        std::array<double, 3> colour{};
        for (int64_t c = 0; c < 3; ++c)
          for (int64_t t = first; t < first + frames; ++t)
            for (int64_t row = y * scale; row < (y + 1) * scale; ++row)
              for (int64_t column = x * scale; column < (x + 1) * scale; ++column)
                colour[static_cast<size_t>(c)] +=
                    video.as<float>()[((c * video[1] + t) * video[2] + row) * video[3] + column];
        for (double& value : colour) value /= static_cast<double>(frames * scale * scale);
        (f == 0 ? first_ : later_).add(values, colour);
      }
  }
}

void PreviewFitter::Sums::add(const std::vector<double>& values,
                              const std::array<double, 3>& colour) {
  const size_t n = values.size();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) products[i * n + j] += values[i] * values[j];
    for (size_t c = 0; c < 3; ++c) colours[3 * i + c] += values[i] * colour[c];
  }
  for (size_t c = 0; c < 3; ++c) squares[c] += colour[c] * colour[c];
  ++count;
}

double PreviewFitter::Missed::relative() const {
  return spread > 0 ? std::sqrt(std::max(error, 0.0) / spread) : 0;
}

// The squared distances of the colours in several sums from their common mean.
double PreviewFitter::spread_of(const std::vector<const Sums*>& sums) {
  double spread = 0;
  for (size_t c = 0; c < 3; ++c) {
    double squares = 0, total = 0, count = 0;
    for (const Sums* each : sums) {
      squares += each->squares[c];
      total += each->colours[each->colours.size() - 3 + c];
      count += each->count;
    }
    spread += squares - total * total / count;
  }
  return spread;
}

ColourMap PreviewFitter::solved(const Sums& sums, Missed& missed) {
  const size_t n = sums.colours.size() / 3;
  std::vector<double> a = sums.products, x = sums.colours;
  if (sums.count == 0 || !solve(a, x, n))
    throw Error(ErrorKind::kUsage,
                "the clips do not determine a fit: a channel of their latents is constant, or "
                "depends on others");
  ColourMap map;
  for (size_t i = 0; i < n; ++i) {
    const std::array<float, 3> row{static_cast<float>(x[3 * i]), static_cast<float>(x[3 * i + 1]),
                                   static_cast<float>(x[3 * i + 2])};
    i + 1 < n ? map.rgb.push_back(row) : void(map.constant = row);
  }
  missed = {.spread = spread_of({&sums})};
  for (size_t c = 0; c < 3; ++c) {
    double explained = 0;
    for (size_t i = 0; i < n; ++i) explained += x[3 * i + c] * sums.colours[3 * i + c];
    missed.error += sums.squares[c] - explained;
  }
  return map;
}

PreviewFit PreviewFitter::fit() {
  Missed first, later;
  PreviewFit fit{.map = solved(first_, first)};
  if (later_.count == 0) {
    errors_ = {.all = first.relative()};
    return fit;
  }
  fit.first = std::exchange(fit.map, solved(later_, later));
  const Missed all{first.error + later.error, spread_of({&first_, &later_})};
  errors_ = {.all = all.relative(), .first = first.relative(), .later = later.relative()};
  return fit;
}

}  // namespace weft
