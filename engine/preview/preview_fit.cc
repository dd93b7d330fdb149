#include "engine/preview/preview_fit.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "io/json.h"
#include "kernels/check.h"

namespace weft {
namespace {

using nlohmann::json;

constexpr const char* kSchema = "weft.preview/v1";
constexpr double kLargest = 1e4;  // of a coefficient

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

}  // namespace

std::string preview_fit_path(const std::string& vae_folder) { return vae_folder + "/preview.json"; }

PreviewFit read_preview_fit(const std::string& path, int64_t channels) {
  const json file = read_json_file(path, JsonDialect::kStrict);
  const std::string schema = json_string(file, "schema", path);
  if (schema != kSchema) refuse(path, "schema", "\"" + schema + "\"", kSchema);
  const json& rows = json_field(file, "rgb", path);
  if (!rows.is_array()) refuse(path, "rgb", "no list", "a list of 3 numbers per channel");
  if (static_cast<int64_t>(rows.size()) != channels)
    refuse(path, "rgb", std::to_string(rows.size()) + " channels",
           std::to_string(channels) + ", those of the VAE");
  PreviewFit fit;
  for (const json& row : rows) fit.rgb.push_back(read_colour(json{{"rgb", row}}, "rgb", path));
  fit.constant = read_colour(file, "constant", path);
  return fit;
}

std::string preview_fit_text(const PreviewFit& fit, double error) {
  nlohmann::ordered_json file{{"schema", kSchema}};
  const auto rounded = [](float value) {
    return std::round(static_cast<double>(value) * 1e5) / 1e5;
  };
  const auto colour = [&](const std::array<float, 3>& values) {
    return nlohmann::ordered_json{rounded(values[0]), rounded(values[1]), rounded(values[2])};
  };
  for (const auto& row : fit.rgb) file["rgb"].push_back(colour(row));
  file["constant"] = colour(fit.constant);
  file["relative_error"] = rounded(static_cast<float>(error));
  return file.dump(1) + "\n";
}

PreviewFitter::PreviewFitter(int64_t channels)
    : channels_(channels), products_(terms() * terms()), colours_(3 * terms()) {}

void PreviewFitter::add(const TensorView& latents, const TensorView& video) {
  CHECK(latents.rank == 4 && video.rank == 4 && latents[0] == channels_ && video[0] == 3,
        latents[0], video[0]);
  const int64_t scale = video[2] / latents[2];
  const int64_t per_latent = latents[1] > 1 ? (video[1] - 1) / (latents[1] - 1) : 1;
  std::vector<double> values(terms());
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
        add_pixel(values, colour);
      }
  }
}

void PreviewFitter::add_pixel(const std::vector<double>& values,
                              const std::array<double, 3>& colour) {
  const size_t n = terms();
  for (size_t i = 0; i < n; ++i) {
    for (size_t j = 0; j < n; ++j) products_[i * n + j] += values[i] * values[j];
    for (size_t c = 0; c < 3; ++c) colours_[3 * i + c] += values[i] * colour[c];
  }
  for (size_t c = 0; c < 3; ++c) squares_[c] += colour[c] * colour[c];
  ++count_;
}

PreviewFit PreviewFitter::fit() {
  const size_t n = terms();
  std::vector<double> a = products_, x = colours_;
  if (count_ == 0 || !solve(a, x, n))
    throw Error(ErrorKind::kUsage,
                "the clips do not determine a fit: a channel of their latents is constant, or "
                "depends on others");
  PreviewFit fit;
  for (size_t i = 0; i < n; ++i) {
    const std::array<float, 3> row{static_cast<float>(x[3 * i]), static_cast<float>(x[3 * i + 1]),
                                   static_cast<float>(x[3 * i + 2])};
    i + 1 < n ? fit.rgb.push_back(row) : void(fit.constant = row);
  }
  double missed = 0, spread = 0;
  for (size_t c = 0; c < 3; ++c) {
    double explained = 0;
    for (size_t i = 0; i < n; ++i) explained += x[3 * i + c] * colours_[3 * i + c];
    const double mean = colours_[3 * (n - 1) + c];
    missed += squares_[c] - explained;
    spread += squares_[c] - mean * mean / count_;
  }
  error_ = spread > 0 ? std::sqrt(std::max(missed, 0.0) / spread) : 0;
  return fit;
}

}  // namespace weft
