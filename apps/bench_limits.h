#pragma once
// The machine's own limits, measured between the parts of a benchmark so that both see the same
// machine: the library's rate at the model's shapes and the bandwidth of a copy. And what benches
// share.
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/flags.h"
#include "kernels/gemm_limit.h"
#include "kernels/meter.h"
#include "models/wan.h"

namespace weft {

// --blocks, or `fallback`. Error(kUsage) outside [low, high].
int blocks_of(const Flags& flags, int fallback, int low, int high);

// The extents of a transformer and their name: of --model's, else --config's; --blocks of them,
// else all or `most`.
struct WanExtents {
  std::string name;
  WanConfig config;
};
WanExtents wan_extents(const Flags& flags, int most);

// --threads and --deterministic.
Stream bench_stream(const Flags& flags, const Ops& ops);

double wall_seconds();
double seconds_of(const std::function<void()>& work);
double median(std::vector<double> values);

// What /proc/self/status says under `key` ("RssAnon:", "VmHWM:"), in bytes.
uint64_t process_bytes(const char* key);
// Starts VmHWM, the peak of resident memory, anew.
void reset_peak();

// Bytes per second from pinned memory to the stream's device: what weights that come from the host
// are held to.
double upload_rate(Stream& stream);

class MachineLimits {
 public:
  struct Product {
    int64_t rows, in, out;
    int count;  // how often the model multiplies so, next to the others
  };
  MachineLimits(Stream& stream, DType dtype, const std::vector<Product>& products);

  void sample();         // each product once, the copy once
  double sample_copy();  // its seconds
  double copied_bytes() const;
  // Of all products as often as they are counted, from the medians.
  double gemm_gflops() const;
  double copy_gbs() const;         // read and written
  double seconds() const;          // that the samples took
  std::string gemm_words() const;  // "f32 brg:avx512_core"
  // gemm_gflops, gemm, gemm_dtype, copy_gbs
  void describe(nlohmann::json& object) const;

 private:
  struct Entry {
    Product product;
    std::unique_ptr<GemmLimit> gemm;
    std::vector<double> seconds;
  };
  Stream& stream_;
  std::vector<Entry> entries_;
  Tensor from_, to_;
  std::vector<double> copies_;
  double spent_ = 0;
};

// FLOP of all families.
double executed_flop(const TimingMeter& meter);

// A line per op family that was used: seconds, share of `seconds`, rate, share of its own limit.
void print_families(const TimingMeter& meter, double seconds, const MachineLimits& limits);
nlohmann::json families_json(const TimingMeter& meter, double seconds, const MachineLimits& limits);

}  // namespace weft
