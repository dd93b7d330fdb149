// weft bench: op families at the models' shapes, and the parts of models.
#include <algorithm>
#include <cstdio>
#include <functional>
#include <map>
#include <ranges>

#include "apps/bench/bench_limits.h"
#include "apps/bench/benches.h"
#include "apps/commands.h"
#include "apps/device.h"
#include "apps/model_folder.h"
#include "io/json.h"
#include "io/nearest.h"
#include "kernels/arena.h"
#include "kernels/ops.h"
#include "kernels/transfer.h"

namespace weft {
namespace {

// One measured entry: the median of `repeat` runs after a warm-up.
struct Entry {
  std::string op, shape;
  double flop = 0, bytes = 0;  // per run; 0: not counted
  std::function<void()> work;
};

Tensor filled(Stream& stream, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor tensor(dtype, shape);
  uint32_t state = 12345;
  for (int64_t i = 0; i < tensor.count(); ++i) {
    state = state * 1664525u + 1013904223u;  // gives values that are neither zero nor huge
    const float value = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    if (dtype == DType::kF32)
      tensor.as<float>()[i] = value;
    else
      tensor.as<bf16>()[i] = to_bf16(value);
  }
  return on_device(stream, std::move(tensor));
}

void report(const Entry& entry, const Stream& stream, DType dtype, int repeat, bool json) {
  std::vector<double> times;
  const auto work = [&] {
    entry.work();
    stream.sync();
  };
  work();
  for (int i = 0; i < repeat; ++i) times.push_back(seconds_of(work));
  const double typical = median(times);
  if (json) {
    Json object{{"op", entry.op},       {"impl", stream.ops().name},
                {"shape", entry.shape}, {"dtype", to_string(dtype)},
                {"us", typical * 1e6},  {"threads", stream.threads()},
                {"isa", cpu_isa()}};
    if (entry.flop > 0) object["gflops"] = entry.flop / typical * 1e-9;
    if (entry.bytes > 0) object["gbs"] = entry.bytes / typical * 1e-9;
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf("%-22s %-28s %10.1f us", entry.op.c_str(), entry.shape.c_str(), typical * 1e6);
    if (entry.flop > 0) std::printf("  %8.1f GFLOP/s", entry.flop / typical * 1e-9);
    if (entry.bytes > 0) std::printf("  %8.2f GB/s", entry.bytes / typical * 1e-9);
    std::printf("\n");
  }
  std::fflush(stdout);
}

std::string shape_text(std::initializer_list<int64_t> extents) {
  std::string text;
  for (const int64_t extent : extents) text += (text.empty() ? "" : "x") + std::to_string(extent);
  return text;
}

// The ops run at Wan 1.3B's widths and a short clip's token count: 1560 tokens, D 1536, 12 heads of
// 128, ffn 8960.
int bench_ops(const Flags& flags, DType dtype, int repeat) {
  Stream stream = stream_of(flags);
  constexpr int64_t kTokens = 1560, kWidth = 1536, kHeads = 12, kHead = 128, kFfn = 8960;
  const double element = static_cast<double>(size_of(dtype));
  const Tensor x = filled(stream, dtype, {kTokens, kWidth}),
               y = filled(stream, dtype, {kTokens, kWidth});
  const Tensor out(dtype, {kTokens, kWidth}, stream.device());
  const Tensor scale = filled(stream, DType::kF32, {kWidth}),
               shift = filled(stream, DType::kF32, {kWidth});
  const double row_bytes = 2 * kTokens * kWidth * element;
  const bool json = flags.on("json");
  const auto measure = [&](const Entry& entry) { report(entry, stream, dtype, repeat, json); };

  measure({"copy", shape_text({kTokens, kWidth}), 0, row_bytes, [&] { copy(stream, x, out); }});
  measure({"modulated_layer_norm", shape_text({kTokens, kWidth}), 0, row_bytes,
           [&] { modulated_layer_norm(stream, x, scale, shift, 1e-6f, out); }});
  measure({"rms_norm", shape_text({kTokens, kWidth}), 0, row_bytes,
           [&] { rms_norm(stream, x, scale, 1e-6f, out); }});
  measure({"gated_add", shape_text({kTokens, kWidth}), 0, 1.5 * row_bytes,
           [&] { gated_add(stream, x, y, scale, out); }});
  measure({"gelu_tanh", shape_text({kTokens, kWidth}), 0, row_bytes,
           [&] { gelu_tanh(stream, x, out); }});

  for (const auto& [in, width] : {std::pair{kWidth, kWidth}, {kWidth, kFfn}, {kFfn, kWidth}}) {
    const Tensor weight = filled(stream, dtype, {width, in}),
                 input = filled(stream, dtype, {kTokens, in});
    const Tensor result(dtype, {kTokens, width}, stream.device());
    const PackedLinear packed = pack_linear(stream, weight, {}, dtype);
    measure({"linear", shape_text({kTokens, in, width}), 2.0 * kTokens * in * width, 0,
             [&] { linear(stream, input, packed, LinearActivation::kNone, result); }});
  }

  const Rope rope = on_device(stream, make_rope({1, 30, 52}, {0, 0, 0}, kHead));
  const TensorView heads = x.view().reshape({kTokens, kHeads, kHead});
  const TensorView heads_out = out.view().reshape({kTokens, kHeads, kHead});
  measure({"apply_rope", shape_text({kTokens, kHeads, kHead}), 0, row_bytes,
           [&] { apply_rope(stream, heads, rope, 0, heads_out); }});
  const KVSegment segment{
      .k = heads, .v = y.view().reshape({kTokens, kHeads, kHead}), .position = 0, .log_bias = 0};
  AttentionArgs args;
  args.q = heads;
  args.segments = {&segment, 1};
  args.scale = 0.088388f;
  args.out = heads_out;
  measure({"attention", shape_text({kTokens, kTokens, kHeads, kHead}),
           4.0 * kTokens * kTokens * kHeads * kHead, 0, [&] { attention(stream, args); }});

  for (const int64_t channels : {int64_t{96}, int64_t{384}}) {
    const int64_t height = channels == 96 ? 120 : 60, width = channels == 96 ? 208 : 104;
    const Tensor weight = filled(stream, dtype, {channels, channels, 3, 3, 3});
    const Tensor input = filled(stream, dtype, {3, height, width, channels});
    const Tensor result(dtype, {1, height, width, channels}, stream.device());
    const PackedConv packed = pack_conv(stream, weight, {}, dtype);
    const ConvArgs conv{.stride = {1, 1, 1}, .pad_front = 0, .pad_h = {1, 1}, .pad_w = {1, 1}};
    measure({"conv3d", shape_text({height, width, channels, channels}) + " k333",
             2.0 * 27 * height * width * channels * channels, 0,
             [&] { conv3d(stream, input, packed, conv, result); }});
  }
  return 0;
}

}  // namespace

int run_bench(const Flags& flags) {
  if (flags.given("model")) model_folder(flags);
  const DType dtype = compute_dtype(flags);
  set_attention_path(flags, flags.text("attention-path"));
  const std::string name = flags.operands().empty() ? "ops" : flags.operands().front();
  const int repeat = static_cast<int>(flags.integer("repeat").value_or(name == "stream" ? 1 : 5));
  using Bench = int (*)(const Flags&, DType, int);
  const std::map<std::string, Bench> benches{
      {"attention", bench_attention}, {"dit", bench_dit}, {"llm", bench_llm},
      {"load", bench_load},           {"ops", bench_ops}, {"stream", bench_stream},
      {"text", bench_text},           {"vae", bench_vae}};
  const auto found = benches.find(name);
  if (flags.operands().size() > 1 || found == benches.end())
    throw Error(ErrorKind::kUsage, "weft bench takes one name, but got '" + name +
                                       "'; legal: " + listed(std::views::keys(benches)));
  return found->second(flags, dtype, repeat);
}

}  // namespace weft
