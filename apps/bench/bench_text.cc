// weft bench text: one encoding by a text encoder of UMT5-XXL's extents with random weights, beside
// what this machine's oneDNN reaches in the same run.
#include <cstdio>

#include "apps/bench/bench_limits.h"
#include "apps/bench/benches.h"
#include "apps/device.h"
#include "io/json.h"
#include "kernels/transfer.h"
#include "models/random_weights/random_weights.h"
#include "models/umt5/encoder.h"
#include "parallel/context.h"

namespace weft {
namespace {

constexpr int64_t kTokens = 60;  // the length of a prompt of some forty words

// One layer of UMT5-XXL's sizes; the vocabulary is only as large as the prompt needs.
Umt5Config one_layer() {
  Umt5Config config;
  config.num_layers = 1;
  config.vocab_size = 256;
  return config;
}

// Runs `encode` `repeat` times and returns the median of the seconds; `all` gets their sum.
double time_layer(const std::function<void()>& encode, int repeat, MachineLimits& limits,
                  TimingMeter& meter, double& all) {
  encode();  // makes every primitive and scratch buffer
  std::vector<double> times;
  for (int i = 0; i < repeat; ++i) {
    limits.sample();
    const MeterScope scope(meter);
    times.push_back(seconds_of(encode));
    all += times.back();
  }
  return median(times);
}

void print_text(const Json& object) {
  const auto number = [&](const char* key) { return object.number(key); };
  const auto text = [&](const char* key) { return object.text(key); };
  std::printf("UMT5-XXL, %d layers one at a time, %lld tokens, %s, %d threads, %s\n",
              int(number("layers")), (long long)number("tokens"), text("dtype").c_str(),
              int(number("threads")), text("isa").c_str());
  std::printf("encode %.3f s, %.1f GFLOP/s of %.1f (%s): share %.3f; copy %.1f GB/s\n",
              number("seconds"), number("gflops"), number("gemm_gflops"),
              (text("gemm_dtype") + " " + text("gemm")).c_str(), number("share"),
              number("copy_gbs"));
  std::printf("weights %.2f GiB in all, peak resident %.2f GiB\n",
              number("weights_bytes") * 0x1p-30, number("peak_rss_bytes") * 0x1p-30);
}

}  // namespace

// Layers are in memory one at a time: each is made, runs `repeat` + 1 times and is freed. Every
// layer reads the embeddings instead of its predecessor's output, which does not change its time.
int bench_text(const Flags& flags, DType dtype, int repeat) {
  const int layers = blocks_of(flags, 24, 1, 24);
  const int64_t tokens = flags.given("tokens") ? *flags.integer("tokens") : kTokens;
  Stream bare = stream_of(flags), stream = bare.with(metered_ops());
  const Umt5Config config = one_layer();
  std::vector<int32_t> ids(static_cast<size_t>(tokens));
  for (int64_t i = 0; i < tokens; ++i) ids[i] = static_cast<int32_t>(i * 37 % config.vocab_size);
  const Tensor out(DType::kF32, {tokens, config.d_model}, stream.device());
  const int64_t d = config.d_model;
  MachineLimits limits(
      bare, dtype, {{tokens, d, d, 4}, {tokens, d, config.d_ff, 2}, {tokens, config.d_ff, d, 1}});
  Arena arena(size_t{256} << 30, stream.device());
  SerialSeams seams;
  TimingMeter meter;
  double seconds = 0, all_seconds = 0;
  uint64_t weights = 0;
  reset_peak();
  for (int layer = 0; layer < layers; ++layer) {
    const TensorFile file =
        random_tensors(umt5_tensors(config), 100 * static_cast<uint64_t>(layer));
    const Umt5Encoder encoder = Umt5Encoder::load(file, config, bare, {.dtype = dtype});
    weights += encoder.bytes();
    Context context = seams.context(stream, arena, {}, {});
    const auto encode = [&] {
      encoder.encode(context, ids, out);
      stream.sync();
    };
    seconds += time_layer(encode, repeat, limits, meter, all_seconds);
  }
  const double flop = executed_flop(meter) / repeat;
  const double gflops = flop / seconds * 1e-9;
  Json object{{"bench", "text"},
              {"layers", layers},
              {"tokens", tokens},
              {"dtype", to_string(dtype)},
              {"threads", stream.threads()},
              {"isa", cpu_isa()},
              {"device", to_string(stream.device())},
              {"seconds", seconds},
              {"flop", flop},
              {"gflops", gflops},
              {"share", gflops / limits.gemm_gflops()},
              {"weights_bytes", weights},
              {"weights_gbs", static_cast<double>(weights) / seconds * 1e-9},
              {"peak_rss_bytes", process_bytes("VmHWM:")},
              {"arena_bytes", arena.high_water()}};
  limits.describe(object);
  object["families"] = families_json(meter, all_seconds, limits);
  if (flags.on("json")) {
    std::printf("%s\n", object.dump().c_str());
  } else {
    print_families(meter, all_seconds, limits);
    print_text(object);
  }
  return 0;
}

}  // namespace weft
