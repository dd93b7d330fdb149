#include "apps/generate/offload_report.h"

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench/bench_limits.h"
#include "engine/memory/memory_plan.h"

namespace weft {
namespace {

template <class... Values>
std::string format(const char* how, Values... values) {
  char text[256];
  std::snprintf(text, sizeof text, how, values...);
  return text;
}

}  // namespace

UploadForecast upload_forecast(const Flags& flags, int64_t bytes_per_forward, Stream* device) {
  if (const auto given = flags.real("device-host-gbs"))
    return {bytes_per_forward, *given * 1e9, "given"};
  if (bytes_per_forward > 0 && device) return {bytes_per_forward, upload_rate(*device), "measured"};
  return {bytes_per_forward, kAssumedLinkGbs * 1e9, "assumed"};
}

nlohmann::json to_json(const UploadForecast& forecast, const OffloadTotals& measured) {
  nlohmann::json object{{"bytes_per_forward", forecast.bytes_per_forward},
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
  return format("%s a forward from the host at %.1f GB/s (%s): %.3g s where nothing overlaps",
                format_bytes(static_cast<uint64_t>(forecast.bytes_per_forward)).c_str(),
                forecast.bytes_per_s * 1e-9, forecast.source.c_str(), forecast.seconds());
}

std::string to_string(const UploadForecast& forecast, const OffloadTotals& measured) {
  const auto forwards = static_cast<double>(std::max<int64_t>(measured.forwards, 1));
  return format(
      "%s a forward from the host at %.1f GB/s in %.3g s, %.0f %% of it during %.3g s of "
      "forward; predicted %.1f GB/s (%s), %.3g s",
      format_bytes(static_cast<uint64_t>(measured.bytes_per_forward)).c_str(),
      measured.weights.bytes_per_s() * 1e-9, measured.weights.copying_s / forwards,
      100 * measured.weights.hidden_share(), measured.forward_s / forwards,
      forecast.bytes_per_s * 1e-9, forecast.source.c_str(), forecast.seconds());
}

}  // namespace weft
