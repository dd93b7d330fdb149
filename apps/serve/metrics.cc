#include "apps/serve/metrics.h"

#include <algorithm>
#include <charconv>

#include "kernels/check.h"

namespace weft {
namespace {

const std::vector<double> kSeconds = {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 120};
const std::vector<double> kJobSeconds = {1, 3, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200};

const std::vector<double> kWaitSeconds = {0.01, 0.1, 1, 3, 10, 30, 60, 300, 1800, 7200};

const MetricFamily kFamilies[] = {
    {"weft_build_info", MetricKind::kGauge, "The build; its value is 1."},
    {"weft_connections", MetricKind::kGauge, "Open connections."},
    {"weft_websockets", MetricKind::kGauge, "Open WebSockets."},
    {"weft_sessions", MetricKind::kGauge, "Faces of clients, connected or awaited."},
    {"weft_requests_total", MetricKind::kCounter, "Requests that were answered, by status."},
    {"weft_request_duration_seconds", MetricKind::kHistogram,
     "Time from a request's first byte to its answer.", kSeconds},
    {"weft_jobs_queued", MetricKind::kGauge, "Jobs that wait."},
    {"weft_jobs_running", MetricKind::kGauge, "Jobs that are drawn, by replica."},
    {"weft_job_wait_seconds", MetricKind::kHistogram,
     "Time from a job's coming to its start, by replica.", kWaitSeconds},
    {"weft_job_duration_seconds", MetricKind::kHistogram,
     "Time from the start of a job to its end, by its last state and by replica.", kJobSeconds},
    {"weft_frames_generated_total", MetricKind::kCounter, "Frames that were drawn."},
    {"weft_time_to_first_frame_seconds", MetricKind::kHistogram,
     "Time from the start of a session to its first frame.", kSeconds},
    {"weft_realtime_factor", MetricKind::kGauge,
     "Seconds of video that a second of computation draws."},
    {"weft_stage_duration_seconds", MetricKind::kHistogram, "Time of a stage.", kSeconds},
};

std::string number(double value) {
  char text[32];
  const auto end = std::to_chars(text, text + sizeof text, value).ptr;
  return {text, end};
}

std::string escaped(const std::string& text, bool quotes) {
  std::string out;
  for (const char c : text) {
    if (c == '\n') {
      out += "\\n";
      continue;
    }
    if (c == '\\' || (quotes && c == '"')) out += '\\';
    out += c;
  }
  return out;
}

const char* kind_name(MetricKind kind) {
  if (kind == MetricKind::kCounter) return "counter";
  return kind == MetricKind::kGauge ? "gauge" : "histogram";
}

std::string line(const std::string& name, const std::string& labels, double value) {
  return name + (labels.empty() ? "" : "{" + labels + "}") + " " + number(value) + "\n";
}

}  // namespace

std::span<const MetricFamily> server_metrics() { return kFamilies; }

Metrics::Metrics(std::span<const MetricFamily> families) {
  for (const MetricFamily& family : families) families_[family.name].spec = family;
}

Metrics::Series& Metrics::series(const std::string& name, MetricKind kind, const Labels& labels) {
  const auto family = families_.find(name);
  CHECK(family != families_.end(), name);
  CHECK(family->second.spec.kind == kind, name);
  std::string key;
  for (const auto& [label, value] : labels)
    key += (key.empty() ? "" : ",") + label + "=\"" + escaped(value, true) + "\"";
  Series& series = family->second.series[key];
  if (kind == MetricKind::kHistogram) series.counts.resize(family->second.spec.buckets.size() + 1);
  return series;
}

void Metrics::add(const std::string& name, const Labels& labels, double amount) {
  const std::lock_guard lock(mutex_);
  series(name, MetricKind::kCounter, labels).value += amount;
}

void Metrics::set(const std::string& name, double value, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  series(name, MetricKind::kGauge, labels).value = value;
}

void Metrics::observe(const std::string& name, double value, const Labels& labels) {
  const std::lock_guard lock(mutex_);
  Series& to = series(name, MetricKind::kHistogram, labels);
  const std::vector<double>& buckets = families_[name].spec.buckets;
  // A bucket holds the values up to its bound, the bound included.
  ++to.counts[static_cast<size_t>(std::ranges::lower_bound(buckets, value) - buckets.begin())];
  to.value += value;
}

std::string Metrics::text() const {
  const std::lock_guard lock(mutex_);
  std::string out;
  for (const auto& [name, family] : families_) {
    if (family.series.empty()) continue;
    out += "# HELP " + name + " " + escaped(family.spec.help, false) + "\n";
    out += "# TYPE " + name + " " + kind_name(family.spec.kind) + "\n";
    for (const auto& [labels, series] : family.series) {
      if (family.spec.kind != MetricKind::kHistogram) {
        out += line(name, labels, series.value);
        continue;
      }
      double count = 0;
      for (size_t i = 0; i < series.counts.size(); ++i) {
        const bool last = i == family.spec.buckets.size();
        const std::string bound = "le=\"" + (last ? "+Inf" : number(family.spec.buckets[i])) + "\"";
        count += static_cast<double>(series.counts[i]);
        out += line(name + "_bucket", (labels.empty() ? "" : labels + ",") + bound, count);
      }
      out += line(name + "_sum", labels, series.value) + line(name + "_count", labels, count);
    }
  }
  return out;
}

}  // namespace weft
