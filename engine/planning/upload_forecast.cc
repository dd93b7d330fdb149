#include "engine/planning/upload_forecast.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "engine/memory/memory_plan.h"
#include "engine/planning/calibrate.h"

namespace weft {
namespace {

template <class... Values>
std::string format(const char* how, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, how, values...);
  return text;
}

// Bytes per second of a part of the file, from the disk; 0 where it cannot be read. The part is
// read in pieces, because a forward reads tensors one after the other.
double disk_rate(const std::string& path) {
  constexpr int64_t kMost = int64_t{32} << 20, kPiece = int64_t{1} << 20;
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return 0;
  const int64_t size = ::lseek(file, 0, SEEK_END);
  const int64_t first = std::max<int64_t>(0, (size - kMost) / 2),
                end = std::min(size, first + kMost);
  posix_fadvise(file, first, end - first, POSIX_FADV_DONTNEED);
  std::vector<char> piece(kPiece);
  int64_t done = first;
  const auto begun = std::chrono::steady_clock::now();
  while (done < end) {
    const ssize_t got = ::pread(file, piece.data(), piece.size(), done);
    if (got <= 0) break;
    done += got;
  }
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
  ::close(file);
  return took.count() > 0 ? static_cast<double>(done - first) / took.count() : 0;
}

// Bytes of a block's matrices in memory per value.
double bytes_per_value(const TransformerLoad& how) {
  return how.weights == WeightFormat::kCompute ? static_cast<double>(size_of(how.dtype)) : 1;
}

const char* source_of(const UploadForecast& forecast) {
  return forecast.from_file ? "file" : "host";
}

}  // namespace

UploadForecast upload_forecast(std::optional<double> given_gbs, int64_t bytes_per_forward,
                               Stream* device) {
  if (given_gbs) return {bytes_per_forward, *given_gbs * 1e9, "given"};
  if (bytes_per_forward > 0 && device) return {bytes_per_forward, upload_rate(*device), "measured"};
  return {bytes_per_forward, kAssumedLinkGbs * 1e9, "assumed"};
}

UploadForecast read_forecast(std::optional<double> given_gbs, int64_t bytes_per_forward,
                             const TransformerModel& model, const TensorFile& file,
                             const TransformerLoad& how) {
  if (given_gbs) return {bytes_per_forward, *given_gbs * 1e9, "given", true};
  const double stored = static_cast<double>(file.bytes());
  const auto values = static_cast<double>(parameter_count(model.tensors()));
  const double held = how.weights == WeightFormat::kFile ? stored : values * bytes_per_value(how);
  const double rate = file.files().empty() ? 0 : disk_rate(file.files().front());
  if (rate > 0 && stored > 0) return {bytes_per_forward, rate * held / stored, "measured", true};
  return {bytes_per_forward, kAssumedDiskGbs * 1e9, "assumed", true};
}

const char* line_name(const UploadForecast& forecast) {
  return forecast.from_file ? "reads " : "upload";
}

Json to_json(const UploadForecast& forecast, const OffloadTotals& measured) {
  Json object{{"source", source_of(forecast)},
              {"bytes_per_forward", forecast.bytes_per_forward},
              {"predicted_gbs", forecast.bytes_per_s * 1e-9},
              {"predicted_from", forecast.source},
              {"predicted_seconds", forecast.seconds()}};
  if (measured.forwards == 0) return object;
  const auto forwards = static_cast<double>(measured.forwards);
  object["forwards"] = measured.forwards;
  object["forward_seconds"] = measured.forward_s / forwards;
  object["upload_gbs"] = measured.weights.bytes_per_s() * 1e-9;
  object["upload_seconds"] = measured.weights.copying_s / forwards;
  object["hidden_share"] = measured.weights.hidden_share();
  return object;
}

std::string to_string(const UploadForecast& forecast) {
  return format("%s a forward from the %s at %.1f GB/s (%s): %.3g s where nothing overlaps",
                format_bytes(static_cast<uint64_t>(forecast.bytes_per_forward)).c_str(),
                source_of(forecast), forecast.bytes_per_s * 1e-9, forecast.source.c_str(),
                forecast.seconds());
}

std::string to_string(const UploadForecast& forecast, const OffloadTotals& measured) {
  const auto forwards = static_cast<double>(std::max<int64_t>(measured.forwards, 1));
  return format(
      "%s a forward from the %s at %.1f GB/s in %.3g s, %.0f %% of it during %.3g s of "
      "forward; predicted %.1f GB/s (%s), %.3g s",
      format_bytes(static_cast<uint64_t>(measured.bytes_per_forward)).c_str(), source_of(forecast),
      measured.weights.bytes_per_s() * 1e-9, measured.weights.copying_s / forwards,
      100 * measured.weights.hidden_share(), measured.forward_s / forwards,
      forecast.bytes_per_s * 1e-9, forecast.source.c_str(), forecast.seconds());
}

}  // namespace weft
