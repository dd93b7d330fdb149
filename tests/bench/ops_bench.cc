// Times every op of every table at the shapes the models use. One JSON line per op, table, shape
// and dtype: median microseconds, bytes moved and arithmetic per second. Usage: weft_ops_bench
// [part of an op's name] [threads] [cuda: the table of device cuda:0 in place of the host's]
#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kernels/cuda/device.h"
#include "kernels/ops.h"

namespace weft {
namespace {

struct Settings {
  std::string filter;
  int threads = 0;
  std::optional<Stream> device;
  int64_t tokens = 1560;  // a frame of 480p; on a device a clip, which no cache holds
};

// Returns the tensor itself, or a copy on the device that is measured.
Tensor place(const Settings& settings, Tensor host) {
  if (!settings.device) return host;
  Stream stream = *settings.device;
  Tensor there(host.view().dtype, host.view().shape(), stream.device());
  copy(stream, host, there);
  return there;
}

struct Entry {
  std::string op, shape;
  double bytes = 0, flops = 0;
  std::function<void(Stream&)> run;
};

// The values are small integers around zero: no op slows down or overflows on them.
Tensor make_on_host(DType dtype, std::initializer_list<int64_t> shape) {
  Tensor tensor(dtype, shape);
  for (int64_t i = 0; i < tensor.count(); ++i) {
    const float value = static_cast<float>(i * 37 % 101 - 50) / 50;
    if (dtype == DType::kF32)
      tensor.as<float>()[i] = value;
    else
      tensor.as<bf16>()[i] = to_bf16(value);
  }
  return tensor;
}
Tensor make(const Settings& settings, DType dtype, std::initializer_list<int64_t> shape) {
  return place(settings, make_on_host(dtype, shape));
}

// Returns the median of up to 20 runs after a warm-up, in at most about half a second. A device
// gets ten calls at once, so that it does not wait for the host.
double median_us(Stream& stream, const std::function<void(Stream&)>& run) {
  using Clock = std::chrono::steady_clock;
  const int calls = stream.queue() ? 10 : 1;
  run(stream);
  stream.sync();
  std::vector<double> times;
  double total = 0;
  while (times.size() < 20 && (times.size() < 3 || total < 5e5)) {
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) run(stream);
    stream.sync();
    const double us = std::chrono::duration<double, std::micro>(Clock::now() - begin).count();
    times.push_back(us / calls);
    total += us;
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());
  return times[times.size() / 2];
}

// Measures all tables over one list of entries; the tensors live in the closures of the entries.
void measure(const Settings& settings, DType dtype,
             const std::function<std::vector<Entry>(Stream&)>& entries) {
  std::vector<Stream> streams;
  if (settings.device)
    streams.push_back(*settings.device);
  else
    for (const Ops* ops : all_ops())
      streams.push_back(Stream::cpu(settings.threads, Determinism::kFast, ops));
  for (Stream& stream : streams) {
    for (const Entry& entry : entries(stream)) {
      if (entry.op.find(settings.filter) == std::string::npos) continue;
      const double us = median_us(stream, entry.run);
      std::printf(
          "{\"op\": \"%s\", \"impl\": \"%s\", \"shape\": \"%s\", \"dtype\": \"%s\", "
          "\"threads\": %d, \"us\": %.1f, \"gb_s\": %.2f, \"gflop_s\": %.2f}\n",
          entry.op.c_str(), stream.ops().name.c_str(), entry.shape.c_str(),
          std::string(to_string(dtype)).c_str(), stream.threads(), us, entry.bytes / us / 1e3,
          entry.flops / us / 1e3);
      std::fflush(stdout);
    }
  }
}

// These are the widths of the 1.3B model.
constexpr int64_t kWidth = 1536, kHeads = 12, kHeadSize = 128, kHidden = 8960;
constexpr float kEps = 1e-6f;

void bench_rows(const Settings& settings, DType dtype) {
  const int64_t tokens = settings.tokens;
  const Tensor x = make(settings, dtype, {tokens, kWidth}),
               y = make(settings, dtype, {tokens, kWidth});
  const Tensor out = make(settings, dtype, {tokens, kWidth}),
               v = make(settings, DType::kF32, {kWidth});
  const Tensor f = make(settings, DType::kF32, {tokens, kWidth});
  const Tensor slot = place(settings, Tensor(DType::kI64, {1}));
  const Tensor code = place(settings, Tensor(DType::kI8, {tokens, kWidth + 1}));
  Tensor widths = make_on_host(DType::kF32, {tokens});
  for (int64_t i = 0; i < tokens; ++i) widths.as<float>()[i] = kWidth;
  const Tensor sums = place(settings, std::move(widths));
  constexpr int64_t kGroups = 32;
  const Tensor group_sum = make(settings, DType::kF32, {kGroups + 1}),
               squares = make(settings, DType::kF32, {kGroups});
  const double pass = static_cast<double>(x.view().bytes());
  const std::string shape = std::to_string(tokens) + "x" + std::to_string(kWidth);
  measure(settings, dtype, [&](Stream&) {
    std::vector<Entry> list;
    const auto entry = [&](const char* op, double passes, std::function<void(Stream&)> run) {
      list.push_back({op, shape, passes * pass, 0, std::move(run)});
    };
    entry("layer_norm", 2, [&](Stream& s) { layer_norm(s, x, v, v, kEps, out); });
    entry("modulated_layer_norm", 2,
          [&](Stream& s) { modulated_layer_norm(s, x, v, v, kEps, out); });
    entry("rms_norm", 2, [&](Stream& s) { rms_norm(s, x, v, kEps, out); });
    entry("sum_squares", 1, [&](Stream& s) { sum_squares(s, x, sums); });
    entry("rms_scale", 2, [&](Stream& s) { rms_scale(s, x, sums, kWidth, v, kEps, out); });
    entry("channel_rms_norm", 2,
          [&](Stream& s) { channel_rms_norm(s, x, v, Activation::kSilu, out); });
    entry("group_sums", 1, [&](Stream& s) { group_sums(s, x, group_sum); });
    entry("group_squares", 1, [&](Stream& s) { group_squares(s, x, group_sum, squares); });
    entry("group_norm", 2, [&](Stream& s) {
      group_norm(s, x, group_sum, squares, v, v, kEps, Activation::kSilu, out);
    });
    entry("add", 3, [&](Stream& s) { add(s, x, y, out); });
    entry("gated_add", 3, [&](Stream& s) { gated_add(s, x, y, v, out); });
    entry("add_bias", 2, [&](Stream& s) { add_bias(s, x, v, out); });
    entry("silu", 2, [&](Stream& s) { silu(s, x, out); });
    entry("tanh", 2, [&](Stream& s) { tanh(s, x, out); });
    entry("gelu_tanh", 2, [&](Stream& s) { gelu_tanh(s, x, out); });
    entry("gelu_erf", 2, [&](Stream& s) { gelu_erf(s, x, out); });
    entry("gelu_quick", 2, [&](Stream& s) { gelu_quick(s, x, out); });
    entry("gelu_tanh_mul", 3, [&](Stream& s) { gelu_tanh_mul(s, x, y, out); });
    entry("silu_mul", 3, [&](Stream& s) { silu_mul(s, x, y, out); });
    entry("sigmoid_mul", 3, [&](Stream& s) { sigmoid_mul(s, x, y, out); });
    entry("first_non_finite", 1, [&](Stream& s) { first_non_finite(s, x); });
    entry("note_non_finite", 1, [&](Stream& s) { note_non_finite(s, x, slot); });
    entry("encode_rows", 3, [&](Stream& s) { encode_rows(s, x, y, code); });
    entry("decode_rows", 3, [&](Stream& s) { decode_rows(s, code, y, out); });
    entry("encode_rows int8", 3, [&](Stream& s) { encode_rows(s, x, y, code, RowCode::kInt8); });
    entry("decode_rows int8", 3, [&](Stream& s) { decode_rows(s, code, y, out, RowCode::kInt8); });
    entry("copy", 2, [&](Stream& s) { copy(s, x, out); });
    entry("copy to f32", dtype == DType::kF32 ? 2 : 3, [&](Stream& s) { copy(s, x, f); });
    entry("copy transposed", 2, [&](Stream& s) {
      copy(s, x.view().permute({1, 0}), out.view().reshape({kWidth, tokens}));
    });
    entry("fill_zero", 1, [&](Stream& s) { fill_zero(s, out); });
    if (dtype == DType::kF32)
      entry("axpby", 3, [&](Stream& s) { axpby(s, 0.5f, x, 2.0f, y, out); });
    return list;
  });
}

void bench_rope_and_gather(const Settings& settings, DType dtype) {
  const int64_t tokens = settings.tokens;
  const Tensor x = make(settings, dtype, {tokens, kHeads, kHeadSize}),
               out = make(settings, dtype, {tokens, kHeads, kHeadSize});
  Rope rope = make_rope({tokens / 1560, 30, 52}, {0, 0, 0}, kHeadSize);
  if (settings.device) {
    Stream stream = *settings.device;
    rope = on_device(stream, rope);
  }
  const Tensor table = make(settings, dtype, {4096, 4096}),
               rows = make(settings, dtype, {512, 4096});
  Tensor chosen(DType::kI32, {512});
  for (int32_t i = 0; i < 512; ++i) chosen.as<int32_t>()[i] = i * 7 % 4096;
  const Tensor ids = place(settings, std::move(chosen));
  measure(settings, dtype, [&](Stream&) {
    return std::vector<Entry>{
        {"apply_rope", std::to_string(tokens) + "x12x128", 2.0 * x.view().bytes(), 0,
         [&](Stream& s) { apply_rope(s, x, rope, 0, out); }},
        {"gather_rows", "512x4096", 2.0 * rows.view().bytes(), 0,
         [&](Stream& s) { gather_rows(s, table, ids, rows); }}};
  });
}

void bench_linear(const Settings& settings, DType dtype) {
  for (auto [rows, in, columns] : {std::array<int64_t, 3>{256, kWidth, kWidth},
                                   {256, kWidth, kHidden},
                                   {1, kWidth, 6 * kWidth}}) {
    const Tensor weight = make_on_host(dtype, {columns, in});
    const Tensor bias = make_on_host(DType::kF32, {columns});
    const Tensor x = make(settings, dtype, {rows, in}),
                 out = make(settings, dtype, {rows, columns});
    const std::string shape =
        std::to_string(rows) + "x" + std::to_string(in) + "x" + std::to_string(columns);
    measure(settings, dtype, [&](Stream& stream) {
      auto packed = std::make_shared<PackedLinear>(pack_linear(stream, weight, bias, dtype));
      return std::vector<Entry>{
          {"pack_linear", shape, 2.0 * weight.view().bytes(), 0,
           [&](Stream& s) { pack_linear(s, weight, bias, dtype); }},
          {"linear", shape, static_cast<double>(weight.view().bytes()), 2.0 * rows * in * columns,
           [&, packed](Stream& s) { linear(s, x, *packed, LinearActivation::kGeluTanh, out); }}};
    });
  }
}

// Attention with plain output, with an f32 state, causal, and in 8 bits on devices that have it.
void bench_attention(const Settings& settings, DType dtype) {
  const bool device = settings.device.has_value();
  for (int64_t keys : {settings.tokens, int64_t{512}}) {
    const int64_t queries = device ? settings.tokens : 256;
    const Tensor q = make(settings, dtype, {queries, kHeads, kHeadSize}),
                 out = make(settings, dtype, {queries, kHeads, kHeadSize}),
                 state = make(settings, DType::kF32, {queries, kHeads, kHeadSize});
    const Tensor k = make(settings, dtype, {keys, kHeads, kHeadSize}),
                 v = make(settings, dtype, {keys, kHeads, kHeadSize});
    const Tensor lse = make(settings, DType::kF32, {kHeads, queries});
    const KVSegment segment{.k = k, .v = v};
    const AttentionArgs whole{
        .q = q, .segments = {&segment, 1}, .scale = 0.088f, .out = out, .lse = lse};
    const std::string shape = std::to_string(queries) + "x" + std::to_string(keys) + "x12x128";
    const double bytes = 2.0 * (k.view().bytes() + q.view().bytes()),
                 flop = 4.0 * static_cast<double>(queries * keys) * kHeads * kHeadSize;
    measure(settings, dtype, [&](Stream&) {
      std::vector<Entry> entries;
      const auto add = [&](const char* name, const AttentionArgs& args, double part) {
        entries.push_back(
            {name, shape, bytes, part * flop, [args](Stream& s) { attention(s, args); }});
      };
      add("attention", whole, 1);
      AttentionArgs args = whole;
      args.out = state;
      add("attention_state", args, 1);
      args = whole;
      args.causal = true;
      args.query_position = keys - queries;
      if (keys >= queries)
        add("attention_causal", args,
            1 - 0.5 * static_cast<double>(queries) / static_cast<double>(keys));
      args = whole;
      args.format = AttentionFormat::kFp8;
      if (device && cuda_attends_in_fp8(settings.device->device().index))
        add("attention_fp8", args, 1);
      return entries;
    });
  }
}

void bench_merge(const Settings& settings) {
  const int64_t tokens = settings.tokens;
  const Tensor a = make(settings, DType::kF32, {tokens, kHeads, kHeadSize}),
               b = make(settings, DType::kF32, {tokens, kHeads, kHeadSize});
  const Tensor lse_a = make(settings, DType::kF32, {kHeads, tokens});
  const Tensor lse_b = make(settings, DType::kF32, {kHeads, tokens});
  measure(settings, DType::kF32, [&](Stream&) {
    return std::vector<Entry>{{"merge_attention", std::to_string(tokens) + "x12x128",
                               3.0 * a.view().bytes(), 0,
                               [&](Stream& s) { merge_attention(s, a, lse_a, b, lse_b); }}};
  });
}

void bench_conv(const Settings& settings, DType dtype) {
  // A decoder layer at an eighth and one near full resolution, both small enough for the reference.
  for (auto [f, h, w, c] : {std::array<int64_t, 4>{3, 30, 52, 128}, {3, 60, 104, 32}}) {
    const Tensor x = make(settings, dtype, {f, h, w, c}), out = make(settings, dtype, {f, h, w, c});
    const Tensor wide = make(settings, dtype, {f, 2 * h, 2 * w, c});
    const Tensor weight = make_on_host(dtype, {c, c, 3, 3, 3});
    const ConvArgs args{.pad_front = 2, .pad_h = {1, 1}, .pad_w = {1, 1}};
    const std::string shape = std::to_string(f) + "x" + std::to_string(h) + "x" +
                              std::to_string(w) + "x" + std::to_string(c);
    measure(settings, dtype, [&](Stream& stream) {
      auto packed = std::make_shared<PackedConv>(pack_conv(stream, weight, {}, dtype));
      return std::vector<Entry>{
          {"pack_conv", shape, 2.0 * weight.view().bytes(), 0,
           [&](Stream& s) { pack_conv(s, weight, {}, dtype); }},
          {"conv3d", shape, 2.0 * x.view().bytes(),
           2.0 * static_cast<double>(f * h * w * c) * static_cast<double>(27 * c),
           [&, packed](Stream& s) { conv3d(s, x, *packed, args, out); }},
          {"upsample_nearest2", shape, 5.0 * x.view().bytes(), 0,
           [&](Stream& s) { upsample_nearest2(s, x, wide); }}};
    });
  }
}

void bench_frames(const Settings& settings) {
  const Tensor x = make(settings, DType::kF32, {4, 3, 480, 832});
  const Tensor out = place(settings, Tensor(DType::kU8, {4, 480, 832, 3}));
  measure(settings, DType::kF32, [&](Stream&) {
    return std::vector<Entry>{{"frames_to_rgb8", "4x3x480x832", 1.25 * x.view().bytes(), 0,
                               [&](Stream& s) { frames_to_rgb8(s, x, out); }}};
  });
}

}  // namespace
}  // namespace weft

int main(int argc, char** argv) {
  weft::Settings settings;
  if (argc > 1) settings.filter = argv[1];
  if (argc > 2) settings.threads = std::atoi(argv[2]);
  if (argc > 3) {
    settings.device = weft::cuda_stream(0);
    settings.tokens *= 21;
  }
  for (weft::DType dtype : {weft::DType::kF32, weft::DType::kBF16}) {
    weft::bench_rows(settings, dtype);
    weft::bench_rope_and_gather(settings, dtype);
    weft::bench_linear(settings, dtype);
    weft::bench_attention(settings, dtype);
    weft::bench_conv(settings, dtype);
  }
  weft::bench_merge(settings);
  weft::bench_frames(settings);
  return 0;
}
