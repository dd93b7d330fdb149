#pragma once
// The machine's own limits, measured between the parts of a benchmark so that both see the same
// machine: the library's rate at the model's shapes and the bandwidth of a copy. Helpers that all
// benches use are here too.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/command_line/flags.h"
#include "io/json.h"
#include "kernels/gemm_limit.h"
#include "kernels/meter.h"
#include "models/wan/transformer.h"

namespace weft {

// Reads --blocks, or takes `fallback`. Error(kUsage) outside [low, high].
int blocks_of(const Flags& flags, int fallback, int low, int high);

// The sizes of a transformer and their name: from --model, else from --arch; with --blocks layers,
// else all of them or at most `most`.
struct NamedTransformer {
  std::string name;
  std::shared_ptr<const TransformerModel> model;
  bool guided = false;  // a step of generation has two forwards
};
NamedTransformer transformer_of(const Flags& flags, int most);

// The stream that --device, --threads and --deterministic ask for.
Stream bench_stream(const Flags& flags, const Ops& ops);

double wall_seconds();
double seconds_of(const std::function<void()>& work);
double median(std::vector<double> values);

// The relative L2 error of tensors on the stream's device.
double relative_l2(Stream& stream, const TensorView& actual, const TensorView& expected);

// Reads `key` ("RssAnon:", "VmHWM:") from /proc/self/status, in bytes.
uint64_t process_bytes(const char* key);
// Resets VmHWM, the peak of resident memory.
void reset_peak();

// Drops the pages of a model's files from the system's cache, so that they are read from the disk:
// a model larger than memory finds nothing of itself there.
void forget_pages(const TensorFile& weights);

class MachineLimits {
 public:
  struct GemmShape {
    int64_t rows, in, out;
    int count;  // the number of such GEMMs in the model
  };
  MachineLimits(Stream& stream, DType dtype, const std::vector<GemmShape>& shapes);

  void sample();         // each GEMM once, the copy once
  double sample_copy();  // its seconds
  double copied_bytes() const;
  // The rate of all GEMMs, each counted as often as the model has it, from the medians.
  double gemm_gflops() const;
  double copy_gbs() const;               // read and written
  double seconds() const;                // spent on samples
  std::string gemm_description() const;  // "f32 brg:avx512_core"
  // Adds gemm_gflops, gemm, gemm_dtype and copy_gbs.
  void describe(Json& object) const;

 private:
  struct Entry {
    GemmShape shape;
    std::unique_ptr<GemmLimit> gemm;
    std::vector<double> seconds;
  };
  Stream& stream_;
  std::vector<Entry> entries_;
  Tensor from_, to_;
  std::vector<double> copies_;
  double spent_ = 0;
};

// The FLOP of all op families.
double executed_flop(const TimingMeter& meter);

// Prints a line per op family that was used: seconds, share of `seconds`, rate, share of its own
// limit.
void print_families(const TimingMeter& meter, double seconds, const MachineLimits& limits);
Json families_json(const TimingMeter& meter, double seconds, const MachineLimits& limits);

}  // namespace weft
