// weft bench attention: attention alone, with every kernel that a device has for it, beside what
// this machine's library of GEMMs reaches in the same run.
#include <algorithm>
#include <cmath>
#include <cstdio>

#include "apps/bench/bench_limits.h"
#include "apps/bench/benches.h"
#include "apps/device.h"
#include "engine/sampling/noise.h"
#include "io/json.h"
#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/cuda/device.h"

namespace weft {
namespace {

// Attention at Wan's heads over n tokens, with normally distributed values.
class AttentionCall {
 public:
  static constexpr int64_t kHeads = 12, kHead = 128, kWidth = kHeads * kHead;

  AttentionCall(Stream& stream, DType dtype, int64_t n)
      : stream_(stream),
        q_(normal(stream, dtype, n, 1)),
        k_(normal(stream, dtype, n, 2)),
        v_(normal(stream, dtype, n, 3)) {}

  void run(int64_t head, int64_t heads, AttentionFormat format, const Tensor& out) {
    const auto part = [&](const Tensor& x) { return x.view().slice(1, head, heads); };
    const KVSegment segment{.k = part(k_), .v = part(v_)};
    attention(stream_, {.q = part(q_),
                        .segments = {&segment, 1},
                        .scale = 1 / std::sqrt(static_cast<float>(kHead)),
                        .format = format,
                        .out = part(out)});
    stream_.sync();
  }
  Tensor make_out() const { return {q_.view().dtype, q_.view().shape(), stream_.device()}; }

  // The relative L2 error of the first head's output against attention in f32 over the same values.
  double error_of_first_head(const Tensor& out) const {
    Tensor values[3], expected(DType::kF32, {out.view()[0], 1, kHead}, stream_.device());
    const Tensor* const given[] = {&q_, &k_, &v_};
    for (int i = 0; i < 3; ++i) {
      values[i] = Tensor(DType::kF32, expected.view().shape(), stream_.device());
      copy(stream_, given[i]->view().slice(1, 0, 1), values[i]);
    }
    const KVSegment segment{.k = values[1], .v = values[2]};
    attention(stream_, {.q = values[0],
                        .segments = {&segment, 1},
                        .scale = 1 / std::sqrt(static_cast<float>(kHead)),
                        .out = expected});
    return relative_l2(stream_, out.view().slice(1, 0, 1), expected);
  }

 private:
  static Tensor normal(Stream& stream, DType dtype, int64_t n, uint64_t seed) {
    const Tensor values(DType::kF32, {n, kHeads, kHead});
    constexpr int64_t kPeriod =
        262139;  // blocks of four values; a prime, so that no rows are equal
    float* const out = values.as<float>();
    for (int64_t i = 0; i < values.count(); i += 4) {
      if (i >= 4 * kPeriod) {
        std::copy_n(out + i - 4 * kPeriod, 4, out + i);
        continue;
      }
      const auto block = normals_of_segment(seed, static_cast<uint32_t>(i / 4), 0, 0);
      std::copy_n(block.begin(), 4, out + i);
    }
    Tensor there(dtype, values.view().shape(), stream.device());
    copy(stream, values, there);
    return there;
  }

  Stream& stream_;
  Tensor q_, k_, v_;
};

Json measure_attention(Stream& stream, DType dtype, int64_t n, AttentionFormat format, int repeat) {
  using Call = AttentionCall;
  constexpr int64_t kFfn = 8960, kRows = 1560;
  Call call(stream, dtype, n);
  const Tensor out = call.make_out();
  const int64_t rows = stream.queue() ? n : kRows;
  MachineLimits limits(stream, dtype,
                       {{rows, Call::kWidth, Call::kWidth, 6},
                        {rows, Call::kWidth, kFfn, 1},
                        {rows, kFfn, Call::kWidth, 1}});
  // Long calls are split by heads, so that the limits can be measured in between.
  const int64_t heads = n > 4096 && !stream.queue() ? 1 : Call::kHeads;
  std::vector<double> times;
  call.run(0, heads, format, out);
  for (int i = 0; i < repeat; ++i) {
    double seconds = 0;
    for (int64_t head = 0; head < Call::kHeads; head += heads) {
      limits.sample();
      seconds += seconds_of([&] { call.run(head, heads, format, out); });
    }
    times.push_back(seconds);
  }
  const double flop = 4.0 * static_cast<double>(n) * static_cast<double>(n) * Call::kWidth;
  const double gflops = flop / median(times) * 1e-9;
  Json object{{"bench", "attention"},      {"tokens", n},
              {"heads", Call::kHeads},     {"head_dim", Call::kHead},
              {"dtype", to_string(dtype)}, {"threads", stream.threads()},
              {"isa", cpu_isa()},          {"seconds", median(times)},
              {"gflops", gflops},          {"share", gflops / limits.gemm_gflops()}};
  limits.describe(object);
  if (stream.queue()) object["path"] = to_string(last_cuda_attention_path(stream));
  if (dtype == DType::kBF16 || format != AttentionFormat::kCompute) {
    object["attention"] = to_string(format);
    object["rel_l2"] = call.error_of_first_head(out);
  }
  return object;
}

}  // namespace

int bench_attention(const Flags& flags, DType dtype, int repeat) {
  const AttentionFormat format = attention_format(flags);
  const bool device = wants_cuda(flags);
  std::vector<int64_t> sizes{1560, 8192, 32760};
  if (device) sizes = {4608, 32760, 75600};
  if (flags.given("tokens")) sizes = {*flags.integer("tokens")};
  std::vector<std::string> paths{flags.text("attention-path")};
  if (device && dtype == DType::kBF16 && format == AttentionFormat::kCompute && paths[0] == "auto")
    paths = {"library", "wgmma", "mma"};
  for (const int64_t n : sizes)
    for (const std::string& path : paths) {
      set_attention_path(flags, path);
      Stream stream = bench_stream(flags, metered_ops());
      const Json object = measure_attention(stream, dtype, n, format, repeat);
      const auto number = [&](const char* key) { return object.number(key); };
      const auto text = [&](const char* key) { return object.text(key); };
      if (flags.on("json")) {
        std::printf("%s\n", object.dump().c_str());
      } else {
        std::printf(
            "attention %6lld tokens, 12 heads of 128, %s%s: %9.4f s, %7.1f GFLOP/s of %.1f (%s): "
            "share %.3f\n",
            static_cast<long long>(n), text("dtype").c_str(),
            object.contains("path") ? (" " + text("path")).c_str() : "", number("seconds"),
            number("gflops"), number("gemm_gflops"),
            (text("gemm_dtype") + " " + text("gemm")).c_str(), number("share"));
        if (object.contains("rel_l2"))
          std::printf("relative L2 of the output against f32: %.5f\n", number("rel_l2"));
      }
      std::fflush(stdout);
    }
  return 0;
}

}  // namespace weft
