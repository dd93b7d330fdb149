#pragma once
// The cost of weights that every forward copies to a device, or on a CPU reads from their file:
// predicted from the link to the host or from the disk's rate, and measured by the job.
#include <optional>
#include <string>

#include "io/json.h"
#include "kernels/stream.h"
#include "models/offload/weight_offload.h"
#include "models/transformer.h"

namespace weft {

// The link between host and device that is assumed where there is no device: PCIe of generation 5,
// 16 lanes, as measured (stas00/ml-engineering, network/README.md).
inline constexpr double kAssumedLinkGbs = 55;
// The rate of a disk that cannot be measured.
inline constexpr double kAssumedDiskGbs = 1;

struct UploadForecast {
  int64_t bytes_per_forward = 0;
  double bytes_per_s = 0;
  std::string source;      // where the rate comes from: "given", "measured", "assumed"
  bool from_file = false;  // else from the host

  double seconds() const {  // of a forward, where nothing overlaps with it
    return bytes_per_s > 0 ? static_cast<double>(bytes_per_forward) / bytes_per_s : 0;
  }
};
// Predicts with the given rate in GB/s, else with the rate measured on `device` (which takes some
// milliseconds), else with the assumed rate.
UploadForecast upload_forecast(std::optional<double> given_gbs, int64_t bytes_per_forward,
                               Stream* device);
// The same for a CPU, which reads the blocks of `model` from `file`: with the given rate, else with
// the rate at which the disk gives the file's bytes, measured on a part of it that is not in
// memory. `how` tells how many bytes of weights those are.
UploadForecast read_forecast(std::optional<double> given_gbs, int64_t bytes_per_forward,
                             const TransformerModel& model, const TensorFile& file,
                             const TransformerLoad& how);

// {"source", "bytes_per_forward", "predicted_gbs", "predicted_from", "predicted_seconds", and where
// forwards were made "forwards", "forward_seconds", "upload_gbs", "upload_seconds",
// "hidden_share"}.
Json to_json(const UploadForecast& forecast, const OffloadTotals& measured = {});
// "1.20 GiB a forward from the host at 55.0 GB/s (measured): 0.023 s where nothing overlaps", and
// after a job "..., 97 % of it during 0.81 s of forward; predicted ...".
std::string to_string(const UploadForecast& forecast);
// The word that begins a line with either: "upload" or "reads".
const char* line_name(const UploadForecast& forecast);
std::string to_string(const UploadForecast& forecast, const OffloadTotals& measured);

}  // namespace weft
