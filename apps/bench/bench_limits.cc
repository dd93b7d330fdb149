#include "apps/bench/bench_limits.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <fstream>

#include "apps/device.h"
#include "apps/model_folder.h"
#include "kernels/copy.h"
#include "models/random_weights/random_weights.h"
#include "models/registry.h"

namespace weft {
namespace {

// The copy is larger than every cache; on a GPU it takes long compared with a launch, but little of
// the memory.
int64_t copy_bytes(const Stream& stream) {
  if (!stream.queue()) return int64_t{64} << 20;
  const size_t most = device_memory_info(stream.device()).total / 32;
  return static_cast<int64_t>(std::min(most, size_t{1} << 30));
}

// The rate of an op family, and its limit.
struct Rate {
  double value, limit;
  const char* unit;
};

Rate rate_of(const TimingMeter::Total& total, const MachineLimits& limits) {
  if (total.flop > 0) return {total.flop / total.seconds * 1e-9, limits.gemm_gflops(), "GFLOP/s"};
  return {total.bytes / total.seconds * 1e-9, limits.copy_gbs(), "GB/s"};
}

}  // namespace

int blocks_of(const Flags& flags, int fallback, int low, int high) {
  const int64_t blocks = flags.integer("blocks").value_or(fallback);
  if (blocks < low || blocks > high)
    throw Error(ErrorKind::kUsage, flags.label("blocks") + " is " + std::to_string(blocks) +
                                       ", legal here: " + std::to_string(low) + " ... " +
                                       std::to_string(high));
  return static_cast<int>(blocks);
}

NamedTransformer transformer_of(const Flags& flags, int most) {
  NamedTransformer named{flags.text("arch"), {}};
  if (flags.given("model")) {
    const ModelDirectory directory = open_model_directory(model_folder(flags));
    named = {directory.defaults.name, directory.transformers[0],
             directory.defaults.guidance_scale > 1};
  } else {
    named.model = published_transformer(named.name);
    named.guided = named.name.starts_with("wan") || named.name == "qwen-image";
  }
  named.guided = named.guided && !named.model->traits().reads_guidance;
  const int all = named.model->traits().blocks;
  named.model = named.model->with_blocks(blocks_of(flags, std::min(all, most), 1, all));
  return named;
}

Stream bench_stream(const Flags& flags, const Ops& ops) { return stream_of(flags, &ops); }

double executed_flop(const TimingMeter& meter) {
  double flop = 0;
  for (int i = 0; i < kOpFamilies; ++i) flop += meter.total(static_cast<OpFamily>(i)).flop;
  return flop;
}

double wall_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double seconds_of(const std::function<void()>& work) {
  const double begun = wall_seconds();
  work();
  return wall_seconds() - begun;
}

double median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

double relative_l2(Stream& stream, const TensorView& actual, const TensorView& expected) {
  const Tensor is(DType::kF32, actual.shape()), wants(DType::kF32, actual.shape());
  copy(stream, actual, is);
  copy(stream, expected, wants);
  double error = 0, norm = 0;
  for (int64_t i = 0; i < wants.count(); ++i) {
    const double wanted = wants.as<float>()[i];
    error += std::pow(is.as<float>()[i] - wanted, 2);
    norm += wanted * wanted;
  }
  return std::sqrt(error / norm);
}

uint64_t process_bytes(const char* key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key))
      return std::strtoull(line.c_str() + std::string_view(key).size(), nullptr, 10) * 1024;
  return 0;
}

void reset_peak() { std::ofstream("/proc/self/clear_refs") << "5"; }

void forget_pages(const TensorFile& weights) {
  for (const std::string& path : weights.files()) {
    const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    fdatasync(file);
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    ::close(file);
  }
}

MachineLimits::MachineLimits(Stream& stream, DType dtype, const std::vector<GemmShape>& shapes)
    : stream_(stream),
      from_(DType::kU8, {copy_bytes(stream)}, stream.device()),
      to_(DType::kU8, {copy_bytes(stream)}, stream.device()) {
  for (const GemmShape& shape : shapes)
    entries_.push_back(
        {shape, make_gemm_limit(stream, dtype, shape.rows, shape.in, shape.out), {}});
  copy(stream_, from_, to_);  // touches the pages
  for (Entry& entry : entries_) entry.gemm->run();
  stream_.sync();
}

void MachineLimits::sample() {
  const double begun = wall_seconds();
  for (Entry& entry : entries_) entry.seconds.push_back(entry.gemm->run());
  sample_copy();
  spent_ += wall_seconds() - begun;
}

double MachineLimits::sample_copy() {
  copies_.push_back(seconds_of([&] {
    copy(stream_, from_, to_);
    stream_.sync();
  }));
  return copies_.back();
}

double MachineLimits::gemm_gflops() const {
  double flop = 0, seconds = 0;
  for (const Entry& entry : entries_) {
    flop += entry.shape.count * entry.gemm->flop();
    seconds += entry.shape.count * median(entry.seconds);
  }
  return flop / seconds * 1e-9;
}

double MachineLimits::copy_gbs() const { return copied_bytes() * 1e-9 / median(copies_); }
double MachineLimits::copied_bytes() const { return 2 * static_cast<double>(from_.count()); }
double MachineLimits::seconds() const { return spent_; }

std::string MachineLimits::gemm_description() const {
  const GemmLimit& gemm = *entries_.front().gemm;
  return std::string(to_string(gemm.dtype())) + " " + gemm.implementation();
}

void MachineLimits::describe(Json& object) const {
  object["gemm_gflops"] = gemm_gflops();
  object["gemm"] = entries_.front().gemm->implementation();
  object["gemm_dtype"] = to_string(entries_.front().gemm->dtype());
  object["copy_gbs"] = copy_gbs();
}

void print_families(const TimingMeter& meter, double seconds, const MachineLimits& limits) {
  std::printf("%-12s %8s %9s %7s %18s %9s\n", "op family", "calls", "seconds", "share", "rate",
              "of limit");
  double inside = 0;
  for (int i = 0; i < kOpFamilies; ++i) {
    const auto family = static_cast<OpFamily>(i);
    const TimingMeter::Total& total = meter.total(family);
    if (total.calls == 0) continue;
    const Rate rate = rate_of(total, limits);
    std::printf("%-12s %8lld %9.4f %6.1f%% %10.2f %-7s %8.2f\n", to_string(family),
                static_cast<long long>(total.calls), total.seconds, 100 * total.seconds / seconds,
                rate.value, rate.unit, rate.value / rate.limit);
    inside += total.seconds;
  }
  std::printf("%-12s %8s %9.4f %6.1f%%\n", "between ops", "", seconds - inside,
              100 * (seconds - inside) / seconds);
}

Json families_json(const TimingMeter& meter, double seconds, const MachineLimits& limits) {
  Json all;
  for (int i = 0; i < kOpFamilies; ++i) {
    const auto family = static_cast<OpFamily>(i);
    const TimingMeter::Total& total = meter.total(family);
    if (total.calls == 0) continue;
    const Rate rate = rate_of(total, limits);
    all[to_string(family)] = {{"calls", total.calls},
                              {"seconds", total.seconds},
                              {"share", total.seconds / seconds},
                              {total.flop > 0 ? "gflops" : "gbs", rate.value},
                              {"of_limit", rate.value / rate.limit}};
  }
  return all;
}

}  // namespace weft
