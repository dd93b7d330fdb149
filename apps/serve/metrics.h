#pragma once
// Counters, gauges and histograms as Prometheus reads them. Thread-safe.
#include <map>
#include <mutex>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace weft {

enum class MetricKind { kCounter, kGauge, kHistogram };

struct MetricFamily {
  std::string name;  // of a counter, it ends in _total
  MetricKind kind = MetricKind::kCounter;
  std::string help{};
  std::vector<double> buckets{};  // upper bounds of a histogram, ascending
};

// The families of a server that streams or draws.
std::span<const MetricFamily> server_metrics();

class Metrics {
 public:
  using Labels = std::vector<std::pair<std::string, std::string>>;
  explicit Metrics(std::span<const MetricFamily> families);

  // A name that is no family of this kind is a bug of the caller.
  void add(const std::string& name, const Labels& labels = {}, double amount = 1);
  void set(const std::string& name, double value, const Labels& labels = {});
  void observe(const std::string& name, double value, const Labels& labels = {});

  std::string text() const;  // version 0.0.4 of the text format

 private:
  struct Series {
    double value = 0;              // of a histogram, the sum
    std::vector<uint64_t> counts;  // per bucket, and one for the values above all
  };
  struct Family {
    MetricFamily spec;
    std::map<std::string, Series> series;  // by their labels as text: a="b",c="d"
  };
  Series& series(const std::string& name, MetricKind kind, const Labels& labels);

  mutable std::mutex mutex_;
  std::map<std::string, Family> families_;
};

}  // namespace weft
