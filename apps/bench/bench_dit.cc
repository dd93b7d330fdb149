#include "apps/bench/bench_dit.h"

#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "apps/bench/bench_limits.h"
#include "apps/device.h"
#include "apps/generate/offload_report.h"
#include "engine/memory/memory_plan.h"
#include "kernels/attention.h"
#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/device_graph.h"
#include "models/random_weights.h"
#include "parallel/context.h"

namespace weft {
namespace {

constexpr int64_t kTextRows = 512;                 // all of them a prompt's
constexpr size_t kBenchArena = size_t{256} << 30;  // bytes of addresses

// Fills the tensor with values in -1 ... 1 that no hardware computes slowly (no denormals).
Tensor waves(Stream& stream, DType dtype, std::initializer_list<int64_t> shape) {
  Tensor values(DType::kF32, shape), out(dtype, shape, stream.device());
  for (int64_t i = 0; i < values.count(); ++i)
    values.as<float>()[i] = static_cast<float>((i * 7919) % 1009) / 504.5f - 1;
  copy(stream, values, out);
  return out;
}

// Measures the machine's limits after every block; the forward's clock is stopped meanwhile.
struct BetweenBlocks final : Observer {
  explicit BetweenBlocks(MachineLimits& limits) : limits(limits) {}
  void see(Context&, const char*, int index, const TensorView&) override {
    if (index >= 0) limits.sample();
  }
  MachineLimits& limits;
};

// The widest rectangle of at most 52 columns that holds the tokens.
std::array<int64_t, 3> grid_of(int64_t tokens) {
  int64_t width = std::min<int64_t>(52, tokens);
  while (tokens % width) --width;
  return {1, tokens / width, width};
}

// The relative L2 error of f32 tensors on the stream's device.
double relative_l2(Stream& stream, const Tensor& actual, const Tensor& expected) {
  const Tensor is(DType::kF32, actual.view().shape()), wants(DType::kF32, is.view().shape());
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

// Reads --resident-layers; 0 where it is not given. Error(kUsage) outside 2 ... blocks - 1 and on a
// CPU.
int resident_of(const Flags& flags, const Stream& stream, int blocks) {
  const auto given = flags.integer("resident-layers");
  if (!given) return 0;
  if (!stream.queue() || *given < 2 || *given >= blocks)
    throw Error(ErrorKind::kUsage,
                flags.label("resident-layers") + " is " + std::to_string(*given) + " of " +
                    std::to_string(blocks) +
                    " blocks, legal: 2 to one less than all, with --device cuda");
  return static_cast<int>(*given);
}

uint64_t device_bytes(Device device) {
  const DeviceMemoryInfo info = device_memory_info(device);
  return info.total - info.free;
}

// The memory of one forward, predicted as weft plan predicts a job's stage. The small tables of
// positions are left out.
uint64_t planned_bytes(const TransformerModel& model, int64_t tokens, const TransformerLoad& load,
                       const Stream& stream) {
  constexpr Bias kBiases = Bias::kInBf16;  // those of random_tensors()
  const TransformerTraits& traits = model.traits();
  const ForwardSize size{tokens, tokens, kTextRows, kTextRows};
  const DeviceBytes weights = model.device_bytes(load, kBiases);
  const StageBytes stage{
      .tensors = model.conditioning_bytes(size, load) +
                 (2 * static_cast<uint64_t>(tokens * traits.row()) +
                  static_cast<uint64_t>(kTextRows * traits.text_columns + traits.time_columns)) *
                     sizeof(float),
      .arena = model.workspace_bytes(size, load, {}),
      .scratch = model.scratch_bytes(size, load, kBiases, device_traits(stream.device())),
      .loading = weights.loading};
  return weights.weights + stage.held(true);
}

// Figures that only a device's forward has: the time the host takes to enqueue it, op by op or as a
// graph, the graph's own time, and the device's memory.
class DeviceTimes {
 public:
  // The seconds of the ops when they are enqueued one by one.
  double time(Stream& stream, bool recordable, const std::function<void()>& forward) {
    if (recordable && !graph_) graph_.record(stream, forward);
    const auto timed = [&](std::vector<double>& host, const std::function<void()>& give) {
      return seconds_of([&] {
        host.push_back(seconds_of(give));
        stream.sync();
      });
    };
    if (graph_) graph_seconds_.push_back(timed(graph_host_, [&] { graph_.launch(stream); }));
    return timed(host_, forward);
  }
  void describe(Device device, nlohmann::json& object) const {
    object["device"] = "cuda:" + std::to_string(device.index);
    object["device_bytes"] = device_bytes(device);
    object["device_tensor_bytes"] = tensor_bytes_peak(device.kind);
    object["host_seconds"] = median(host_);
    if (!graph_) return;
    object["graph_seconds"] = median(graph_seconds_);
    object["graph_host_seconds"] = median(graph_host_);
  }

 private:
  DeviceGraph graph_;
  std::vector<double> host_, graph_host_, graph_seconds_;
};

}  // namespace

int bench_dit(const Flags& flags, DType dtype, int repeat) {
  const auto [name, described] = transformer_of(flags, 40);
  const TransformerTraits& traits = described->traits();
  const int blocks = traits.blocks;
  const int64_t tokens = *flags.integer("tokens"), d = traits.width, ffn = traits.ffn_columns;
  Stream stream = bench_stream(flags, metered_ops());
  const bool device = stream.queue() != nullptr;

  const uint64_t device_before = device ? device_bytes(stream.device()) : 0;
  const int resident = resident_of(flags, stream, blocks);
  const TransformerLoad plainly{.dtype = dtype, .resident = resident};
  TransformerLoad how = plainly;
  how.weights = weight_format(flags);
  how.attention = attention_format(flags);
  const auto load = [&](const TransformerLoad& with) {
    return described->load(stream, random_tensors(described->tensors()), with);
  };
  if (device) reset_device_use_peak(stream.device());
  const std::unique_ptr<Transformer> model = load(how);
  const uint64_t loaded = process_bytes("RssAnon:"), load_peak = process_bytes("VmHWM:");
  Arena arena(kBenchArena, stream.device());
  SerialSeams seams;
  const std::array<int64_t, 3> grid = grid_of(tokens);
  const Tensor latent = waves(stream, DType::kF32, {tokens, traits.row()});
  const Tensor velocity(DType::kF32, latent.view().shape(), stream.device());
  const auto prepared = [&](const Transformer& of) {
    const Tensor embeds = waves(stream, DType::kF32, {kTextRows, traits.text_columns});
    Context context = seams.context(stream, arena, {}, TokenRanges::all(tokens));
    return of.prepare(context, {.text = embeds, .text_length = kTextRows}, grid);
  };
  const std::unique_ptr<Conditioning> text = prepared(*model);
  const Rope rope = weft::on_device(stream, model->rope(grid, {}, *text));
  const TimeSegment time{{0, tokens}, 500};
  const Tensor timestep(DType::kF32, {1, traits.time_columns}, stream.device());
  model->timestep_embedding(stream, {&time, 1}, timestep);
  const auto run = [&](Stream& on, const Transformer& of, const Conditioning& conditioning,
                       const Tensor& out, Observer* observer) {
    Context context = seams.context(on, arena, {}, TokenRanges::all(tokens), observer);
    of.forward(context, BlockRange::all(blocks), latent, {&time, 1}, timestep, conditioning, rope,
               out);
  };
  reset_peak();
  run(stream, *model, *text, velocity, nullptr);  // makes every primitive and scratch buffer
  const uint64_t peak = process_bytes("VmHWM:");
  nlohmann::json taken;
  if (device) {
    stream.sync();
    taken = {{"planned_device_bytes", planned_bytes(*described, tokens, model->loaded(), stream)},
             {"device_peak_bytes", device_use(stream.device()).peak},
             {"device_grown_bytes", device_bytes(stream.device()) - device_before}};
  }

  Stream bare = bench_stream(flags, device ? cuda_ops() : cpu_ops());
  MachineLimits limits(bare, dtype, {{tokens, d, d, 6}, {tokens, d, ffn, 1}, {tokens, ffn, d, 1}});
  BetweenBlocks between(limits);
  TimingMeter meter;
  DeviceTimes on_device;
  std::vector<double> all_seconds;
  OffloadTotals streaming{.bytes_per_forward = static_cast<int64_t>(model->streamed_bytes())};
  const UploadForecast forecast = upload_forecast(flags, streaming.bytes_per_forward, &bare);
  Stream unmetered = device ? stream.with(cuda_ops()) : stream;
  for (int i = 0; i < repeat; ++i) {
    if (device) {  // all at once; what waits for each op, for the families, comes behind
      limits.sample();
      const WeightOffload passed = model->streamed();
      all_seconds.push_back(on_device.time(
          unmetered, resident == 0, [&] { run(unmetered, *model, *text, velocity, nullptr); }));
      streaming.weights += model->streamed() - passed;
      streaming.forward_s += all_seconds.back();
      ++streaming.forwards;
    }
    const MeterScope scope(meter);
    const double before = limits.seconds(), begun = wall_seconds();
    run(stream, *model, *text, velocity, device ? nullptr : &between);
    if (!device) all_seconds.push_back(wall_seconds() - begun - (limits.seconds() - before));
  }

  const double seconds = median(all_seconds), flop = executed_flop(meter) / repeat;
  const double gflops = flop / seconds * 1e-9;
  nlohmann::json object{{"bench", "dit"},
                        {"config", name},
                        {"blocks", blocks},
                        {"tokens", tokens},
                        {"text_rows", kTextRows},
                        {"dtype", to_string(dtype)},
                        {"threads", stream.threads()},
                        {"isa", cpu_isa()},
                        {"seconds", seconds},
                        {"flop", flop},
                        {"gflops", gflops},
                        {"share", gflops / limits.gemm_gflops()},
                        {"weights_bytes", model->weights_bytes()},
                        {"load_peak_rss_bytes", load_peak},
                        {"loaded_rss_anon_bytes", loaded},
                        {"peak_rss_bytes", peak},
                        {"arena_bytes", arena.high_water()}};
  limits.describe(object);
  if (device) {
    on_device.describe(stream.device(), object);
    object.update(taken);
    object["planned_over_taken"] =
        taken["planned_device_bytes"].get<double>() / taken["device_peak_bytes"].get<double>();
  }
  if (resident > 0) {
    object["resident"] = resident;
    object["streaming"] = to_json(forecast, streaming);
  }
  if (how.weights != plainly.weights || how.attention != plainly.attention) {
    const std::unique_ptr<Transformer> plain = load(plainly);
    const Tensor exact(DType::kF32, latent.view().shape(), stream.device());
    run(stream, *plain, *prepared(*plain), exact, nullptr);
    object["weights"] = flags.text("weights");
    object["attention"] = flags.text("attention");
    object["rel_l2"] = relative_l2(stream, velocity, exact);
  }
  double total = 0;
  for (double value : all_seconds) total += value;
  object["families"] = families_json(meter, total, limits);
  if (flags.on("json")) {
    std::printf("%s\n", object.dump().c_str());
    return 0;
  }
  std::printf("%s, %d blocks, %lld tokens, %s, %d threads, %s\n", name.c_str(), blocks,
              static_cast<long long>(tokens), std::string(to_string(dtype)).c_str(),
              stream.threads(), cpu_isa().c_str());
  print_families(meter, total, limits);
  std::printf("forward %.3f s, %.1f GFLOP/s of %.1f (%s): share %.3f; copy %.1f GB/s\n", seconds,
              gflops, limits.gemm_gflops(), limits.gemm_description().c_str(),
              gflops / limits.gemm_gflops(), limits.copy_gbs());
  if (resident > 0)
    std::printf("%d of %d blocks resident: %s\n", resident, blocks,
                to_string(forecast, streaming).c_str());
  if (device)
    std::printf("device memory: %s planned, %s taken, %s as the driver counts\n",
                format_bytes(object["planned_device_bytes"]).c_str(),
                format_bytes(object["device_peak_bytes"]).c_str(),
                format_bytes(object["device_grown_bytes"]).c_str());
  if (object.contains("rel_l2"))
    std::printf("--weights %s --attention %s: relative L2 of the velocity %.4f\n",
                flags.text("weights").c_str(), flags.text("attention").c_str(),
                object["rel_l2"].get<double>());
  std::printf("weights %.2f GiB, peak resident %.2f GiB\n",
              static_cast<double>(model->weights_bytes()) * 0x1p-30,
              static_cast<double>(peak) * 0x1p-30);
  return 0;
}

int bench_attention(const Flags& flags, DType dtype, int repeat) {
  constexpr int64_t kHeads = 12, kHead = 128, kWidth = kHeads * kHead, kFfn = 8960, kRows = 1560;
  Stream stream = bench_stream(flags, metered_ops());
  std::vector<int64_t> sizes{1560, 8192, 32760};
  if (flags.given("tokens")) sizes = {*flags.integer("tokens")};
  for (const int64_t n : sizes) {
    const auto heads_of = [&] { return waves(stream, dtype, {n, kHeads, kHead}); };
    const Tensor q = heads_of(), k = heads_of(), v = heads_of();
    const Tensor out(dtype, {n, kHeads, kHead}, stream.device());
    const int64_t rows = stream.queue() ? n : kRows;
    MachineLimits limits(
        stream, dtype,
        {{rows, kWidth, kWidth, 6}, {rows, kWidth, kFfn, 1}, {rows, kFfn, kWidth, 1}});
    // Long calls are split by heads, so that the limits can be measured in between.
    const int64_t heads = n > 4096 && !stream.queue() ? 1 : kHeads;
    std::vector<double> times;
    const AttentionFormat format = attention_format(flags);
    const auto attend = [&](int64_t head, AttentionFormat in, const Tensor& to) {
      const auto part = [&](const Tensor& x) { return x.view().slice(1, head, heads); };
      const KVSegment segment{.k = part(k), .v = part(v)};
      attention(stream, {.q = part(q),
                         .segments = {&segment, 1},
                         .scale = 1 / std::sqrt(static_cast<float>(kHead)),
                         .format = in,
                         .out = part(to)});
      stream.sync();
    };
    attend(0, format, out);
    for (int i = 0; i < repeat; ++i) {
      double seconds = 0;
      for (int64_t head = 0; head < kHeads; head += heads) {
        limits.sample();
        const double begun = wall_seconds();
        attend(head, format, out);
        seconds += wall_seconds() - begun;
      }
      times.push_back(seconds);
    }
    const double flop = 4.0 * static_cast<double>(n) * static_cast<double>(n) * kWidth;
    const double gflops = flop / median(times) * 1e-9;
    nlohmann::json object{{"bench", "attention"},      {"tokens", n},
                          {"heads", kHeads},           {"head_dim", kHead},
                          {"dtype", to_string(dtype)}, {"threads", stream.threads()},
                          {"isa", cpu_isa()},          {"seconds", median(times)},
                          {"gflops", gflops},          {"share", gflops / limits.gemm_gflops()}};
    limits.describe(object);
    if (format != AttentionFormat::kCompute) {
      const Tensor exact(dtype, {n, kHeads, kHead}, stream.device());
      attend(0, AttentionFormat::kCompute, exact);
      object["attention"] = to_string(format);
      object["rel_l2"] = relative_l2(stream, out, exact);
    }
    if (flags.on("json"))
      std::printf("%s\n", object.dump().c_str());
    else
      std::printf(
          "attention %6lld tokens, 12 heads of 128, %s: %9.4f s, %7.1f GFLOP/s of %.1f (%s): "
          "share %.3f\n",
          static_cast<long long>(n), std::string(to_string(dtype)).c_str(), median(times), gflops,
          limits.gemm_gflops(), limits.gemm_description().c_str(), gflops / limits.gemm_gflops());
    if (object.contains("rel_l2") && !flags.on("json"))
      std::printf("--attention fp8: relative L2 of the output %.4f\n",
                  object["rel_l2"].get<double>());
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace weft
