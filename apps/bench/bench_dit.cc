// weft bench dit: one forward of a transformer with random weights, beside what this machine's
// library of GEMMs reaches in the same run.
#include <cmath>
#include <cstdio>
#include <numeric>

#include "apps/bench/bench_limits.h"
#include "apps/bench/benches.h"
#include "apps/device.h"
#include "apps/scratch_folder.h"
#include "engine/latents/finite_watch.h"
#include "engine/memory/memory_plan.h"
#include "engine/planning/upload_forecast.h"
#include "io/json.h"
#include "kernels/copy.h"
#include "kernels/cuda/device.h"
#include "kernels/device_graph.h"
#include "models/footprint.h"
#include "models/random_weights/random_weights.h"
#include "parallel/context.h"

namespace weft {
namespace {

constexpr int64_t kTextRows = 512;
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
  BetweenBlocks(MachineLimits& limits, Observer* watch) : limits(limits), watch(watch) {}
  void see(Context& context, const char* name, int index, const TensorView& value) override {
    if (watch) watch->see(context, name, index, value);
    if (index >= 0) limits.sample();
  }
  bool in_order() const override { return false; }
  MachineLimits& limits;
  Observer* watch;
};

// The inputs of a step's forwards: a prompt for each branch of guidance, of so many of kTextRows
// rows, and whether they are searched for NaN. FLUX's text encoder fills all rows.
struct StepShape {
  int64_t rows = kTextRows;
  int branches = 1;
  bool as_generated = false;

  StepShape() = default;
  StepShape(const Flags& flags, const NamedTransformer& named) {
    if (!flags.on("as-generated")) return;
    as_generated = true;
    if (named.model->traits().pooled_columns == 0) rows = 120;
    if (named.guided) branches = 2;
  }
};

// The widest rectangle of at most 52 columns that holds the tokens.
std::array<int64_t, 3> grid_of(int64_t tokens) {
  int64_t width = std::min<int64_t>(52, tokens);
  while (tokens % width) --width;
  return {1, tokens / width, width};
}

// Reads --resident-layers; 0 where it is not given. Error(kUsage) outside 2 ... blocks - 1.
int resident_of(const Flags& flags, int blocks) {
  const auto given = flags.integer("resident-layers");
  if (!given) return 0;
  if (*given < 2 || *given >= blocks)
    throw Error(ErrorKind::kUsage, flags.label("resident-layers") + " is " +
                                       std::to_string(*given) + " of " + std::to_string(blocks) +
                                       " blocks, legal: 2 to one less than all");
  return static_cast<int>(*given);
}

uint64_t device_bytes(Device device) {
  const DeviceMemoryInfo info = device_memory_info(device);
  return info.total - info.free;
}

// The memory of one forward, predicted as weft plan predicts a job's stage.
uint64_t planned_bytes(const TransformerModel& model, int64_t tokens, const TransformerLoad& load,
                       const StepShape& step, const Stream& stream) {
  const TransformerTraits& traits = model.traits();
  DryRun run(device_traits(stream.device()));
  const auto [transformer, weights] = dry_load(run, model, without_values(model.tensors()), load);
  SerialSeams seams;
  Context context = seams.context(run.stream(), run.arena(), {}, TokenRanges::all(tokens));
  const Footprint forward =
      dry_forward(run, *transformer, context, grid_of(tokens), step.rows, kTextRows);
  const StageBytes stage{
      .tensors = step.branches * forward.held +
                 (2 * static_cast<uint64_t>(tokens * traits.row()) +
                  static_cast<uint64_t>(step.rows * traits.text_columns + traits.time_columns)) *
                     sizeof(float),
      .arena = forward.arena,
      .scratch = std::max(kTransferPiece, forward.scratch),
      .loading = weights.passing};
  return weights.held + stage.held(true);
}

// A transformer's forward with the inputs that it needs.
class Forward {
 public:
  Forward(Stream& stream, Arena& arena, const Transformer& model, const StepShape& step,
          int64_t tokens)
      : arena_(arena),
        model_(model),
        blocks_(BlockRange::all(model.traits().blocks)),
        tokens_(tokens),
        watches_(step.as_generated) {
    const TransformerTraits& traits = model.traits();
    const std::array<int64_t, 3> grid = grid_of(tokens);
    latent_ = waves(stream, DType::kF32, {tokens, traits.row()});
    velocity_ = Tensor(DType::kF32, latent_.view().shape(), stream.device());
    const Tensor embeds = waves(stream, DType::kF32, {step.rows, traits.text_columns});
    Context context = seams_.context(stream, arena_, {}, TokenRanges::all(tokens));
    const auto optional = [&](bool read, std::initializer_list<int64_t> shape) {
      return read ? waves(stream, DType::kF32, shape) : Tensor();
    };
    const Tensor image =
                     optional(traits.image_columns > 0, {traits.image_rows, traits.image_columns}),
                 pooled = optional(traits.pooled_columns > 0, {traits.pooled_columns}),
                 channels = optional(traits.given_channels() > 0,
                                     {traits.given_channels(), grid[0] * traits.patch[0],
                                      grid[1] * traits.patch[1], grid[2] * traits.patch[2]});
    for (int branch = 0; branch < step.branches; ++branch)
      prompts_.push_back(model.prepare(context,
                                       {.text = embeds,
                                        .text_length = kTextRows,
                                        .image = image,
                                        .channels = channels,
                                        .pooled = pooled,
                                        .guidance = 1},
                                       grid));
    rope_ = weft::on_device(stream, model.rope(grid, {}, *prompts_[0]));
    timestep_ = Tensor(DType::kF32, {1, traits.time_columns}, stream.device());
    time_ = {{0, tokens}, 500};
    model.timestep_embedding(stream, {&time_, 1}, timestep_);
  }
  // Enqueues the forwards of a step.
  void run(Stream& stream, Observer* observer = nullptr) {
    watch_.begin(report_);
    Context context = seams_.context(stream, arena_, {}, TokenRanges::all(tokens_),
                                     observer ? observer : watch());
    for (const auto& prompt : prompts_)
      model_.forward(context, {.blocks = blocks_,
                               .in = latent_,
                               .times = {&time_, 1},
                               .embedding = timestep_,
                               .conditioning = *prompt,
                               .rope = rope_,
                               .out = velocity_});
  }
  FiniteWatch* watch() { return watches_ ? &watch_ : nullptr; }
  // Waits for the forwards.
  void finish(Stream& stream) {
    watch_.end(stream);
    stream.sync();
  }
  const Tensor& velocity() const { return velocity_; }

 private:
  Arena& arena_;
  const Transformer& model_;
  const BlockRange blocks_;
  const int64_t tokens_;
  SerialSeams seams_;
  Tensor latent_, velocity_, timestep_;
  Rope rope_;
  TimeSegment time_;
  std::vector<std::unique_ptr<Conditioning>> prompts_;
  const bool watches_;
  FiniteWatch watch_;
  const FiniteWatch::Report report_ = [](const std::string& where) {
    throw Error(ErrorKind::kInternal, "NaN or Inf in " + where + " of random weights");
  };
};

// Figures that only a device's forward has: the time the host takes to enqueue it, op by op or as a
// graph, the graph's own time, and the device's memory.
class DeviceTimes {
 public:
  // The seconds of the ops when they are enqueued one by one.
  double time(Stream& stream, bool recordable, Forward& forward) {
    const auto run = [&] { forward.run(stream); };
    if (recordable && !graph_) graph_.record(stream, run);
    const auto timed = [&](std::vector<double>& host, const std::function<void()>& enqueue) {
      return seconds_of([&] {
        host.push_back(seconds_of(enqueue));
        forward.finish(stream);
      });
    };
    if (graph_) graph_seconds_.push_back(timed(graph_host_, [&] { graph_.launch(stream); }));
    return timed(host_, run);
  }
  void describe(Device device, Json& object) const {
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

// The seconds of `repeat` forwards, and what was counted meanwhile.
struct Timed {
  std::vector<double> seconds;
  TimingMeter meter;
  DeviceTimes device;
  UploadForecast forecast;
  OffloadTotals streaming;

  double all() const { return std::accumulate(seconds.begin(), seconds.end(), 0.0); }
};

// On a device each forward is timed as a whole; one that waits for every op, for the op families,
// comes after it.
void time_forwards(Stream& stream, const Transformer& model, Forward& forward,
                   MachineLimits& limits, int repeat, Timed& timed) {
  const bool device = stream.queue() != nullptr, recordable = model.streamed_bytes() == 0;
  Stream unmetered = device ? stream.with(cuda_ops()) : stream;
  BetweenBlocks between(limits, forward.watch());
  for (int i = 0; i < repeat; ++i) {
    if (device) {
      limits.sample();
      const WeightOffload passed = model.streamed();
      timed.seconds.push_back(timed.device.time(unmetered, recordable, forward));
      timed.streaming.weights += model.streamed() - passed;
      timed.streaming.forward_s += timed.seconds.back();
      ++timed.streaming.forwards;
    }
    const MeterScope scope(timed.meter);
    const double before = limits.seconds(), begun = wall_seconds();
    forward.run(stream, device ? nullptr : &between);
    if (!device) timed.seconds.push_back(wall_seconds() - begun - (limits.seconds() - before));
  }
}

void describe_memory(Device device, uint64_t planned, uint64_t before, Json& object) {
  const uint64_t peak = device_use(device).peak;
  object["planned_device_bytes"] = planned;
  object["device_peak_bytes"] = peak;
  object["device_grown_bytes"] = device_bytes(device) - before;
  object["planned_over_taken"] = static_cast<double>(planned) / static_cast<double>(peak);
}

void describe(const Timed& timed, int repeat, const MachineLimits& limits, Device device,
              Json& object) {
  const double seconds = median(timed.seconds), flop = executed_flop(timed.meter) / repeat;
  const double gflops = flop / seconds * 1e-9;
  object["seconds"] = seconds;
  object["flop"] = flop;
  object["gflops"] = gflops;
  object["share"] = gflops / limits.gemm_gflops();
  object["families"] = families_json(timed.meter, timed.all(), limits);
  limits.describe(object);
  if (device != Device{}) timed.device.describe(device, object);
  if (object.contains("resident")) object["streaming"] = to_json(timed.forecast, timed.streaming);
}

void print_dit(const Flags& flags, const Json& object, const Timed& timed,
               const MachineLimits& limits) {
  if (flags.on("json")) {
    std::printf("%s\n", object.dump().c_str());
    return;
  }
  const auto number = [&](const char* key) { return object.number(key); };
  const auto text = [&](const char* key) { return object.text(key); };
  std::printf("%s, %d blocks, %lld tokens, %s, %d threads, %s\n", text("config").c_str(),
              int(number("blocks")), (long long)number("tokens"), text("dtype").c_str(),
              int(number("threads")), text("isa").c_str());
  print_families(timed.meter, timed.all(), limits);
  std::printf("forward %.3f s, %.1f GFLOP/s of %.1f (%s): share %.3f; copy %.1f GB/s\n",
              number("seconds"), number("gflops"), limits.gemm_gflops(),
              limits.gemm_description().c_str(), number("share"), limits.copy_gbs());
  if (object.contains("resident"))
    std::printf("%d of %d blocks resident: %s\n", int(number("resident")), int(number("blocks")),
                to_string(timed.forecast, timed.streaming).c_str());
  if (object.contains("device"))
    std::printf("device memory: %s planned, %s taken, %s as the driver counts\n",
                format_bytes(uint64_t(number("planned_device_bytes"))).c_str(),
                format_bytes(uint64_t(number("device_peak_bytes"))).c_str(),
                format_bytes(uint64_t(number("device_grown_bytes"))).c_str());
  if (object.contains("rel_l2"))
    std::printf("--weights %s --attention %s: relative L2 of the velocity %.4f\n",
                flags.text("weights").c_str(), flags.text("attention").c_str(), number("rel_l2"));
  if (object.contains("stored_over_compute"))
    std::printf("in turns with --weights compute: %.3f of its time\n",
                number("stored_over_compute"));
  if (object.contains("stored"))
    std::printf("%s: relative L2 of the velocity against unquantised weights %.4f\n",
                text("stored").c_str(), number("stored_error"));
  if (object.contains("planned_over_file"))
    std::printf("memory of all blocks with --weights file: %.3f of the file (predicted)\n",
                number("planned_over_file"));
  std::printf("weights %.2f GiB, peak resident %.2f GiB\n", number("weights_bytes") * 0x1p-30,
              number("peak_rss_bytes") * 0x1p-30);
}

TensorFile bench_weights(const StoredWeights& stored, const TransformerModel& model,
                         const StepShape& step) {
  TensorFile random =
      random_tensors(model.tensors(), 0, step.as_generated ? DType::kF32 : DType::kBF16);
  return stored.quantise ? stored.quantise(std::move(random)) : std::move(random);
}

// A forward that was measured.
struct MeasuredForward {
  Stream& stream;
  Arena& arena;
  const TransformerModel& model;
  int64_t tokens;
  Forward& forward;
  const StoredWeights& stored;
  const StepShape& step;
  Json& object;
};

// Times forwards of weights that stay stored in turns with forwards of the same weights in the
// compute dtype.
void compare_stored(const MeasuredForward& of, Forward& plain, int repeat) {
  std::vector<double> seconds, plain_seconds, ratios;
  for (int i = 0; i < repeat; ++i) {
    seconds.push_back(seconds_of([&] { of.forward.run(of.stream); }));
    plain_seconds.push_back(seconds_of([&] { plain.run(of.stream); }));
    ratios.push_back(seconds.back() / plain_seconds.back());
  }
  of.object["stored_seconds"] = median(seconds);
  of.object["compute_seconds"] = median(plain_seconds);
  of.object["stored_over_compute"] = median(ratios);
}

// Runs a forward of other weights or of another format. Returns the relative L2 of the measured
// velocity against it.
double error_against(const MeasuredForward& of, const TensorFile& file, const TransformerLoad& how,
                     const std::function<void(Forward&)>& then = {}) {
  const std::unique_ptr<Transformer> other = of.model.load(of.stream, file, how);
  Forward exact(of.stream, of.arena, *other, of.step, of.tokens);
  exact.run(of.stream);
  if (then) then(exact);
  return relative_l2(of.stream, of.forward.velocity(), exact.velocity());
}

// The bytes of a model with all of its blocks, by a dry run, divided by the bytes of its file.
double planned_over_file(const Flags& flags, const StoredWeights& stored, DType dtype) {
  const auto whole = published_transformer(flags.text("arch"));
  const TensorFile file = bench_weights(stored, *whole, {});
  DryRun dry;
  const size_t held =
      dry_load(dry, *whole, file, {.dtype = dtype, .weights = WeightFormat::kFile}).weights.held;
  return static_cast<double>(held) / static_cast<double>(file.bytes());
}

// Compares the formats of weights and attention with the compute dtype, and quantised weights with
// those that were quantised.
void compare_formats(const Flags& flags, const MeasuredForward& of, const TransformerLoad& how,
                     int repeat) {
  const TransformerLoad plainly{.dtype = how.dtype, .resident = how.resident};
  if (how.weights != plainly.weights || how.attention != plainly.attention) {
    of.object["weights"] = flags.text("weights");
    of.object["attention"] = flags.text("attention");
    of.object["rel_l2"] = error_against(of, bench_weights(of.stored, of.model, of.step), plainly,
                                        [&](Forward& plain) {
                                          if (how.weights == WeightFormat::kFile)
                                            compare_stored(of, plain, repeat);
                                        });
  }
  if (!of.stored.quantise) return;
  of.object["stored"] = of.stored.name;
  of.object["stored_error"] = error_against(of, bench_weights({}, of.model, of.step), plainly);
  if (!flags.given("model"))
    of.object["planned_over_file"] = planned_over_file(flags, of.stored, how.dtype);
}

// Forwards of a transformer, some of whose blocks are read from its file: times, and what was read.
struct FileForwards {
  std::vector<double> seconds;
  OffloadTotals streaming;

  void time(Stream& stream, const Transformer& model, Forward& forward) {
    const WeightOffload before = model.streamed();
    seconds.push_back(seconds_of([&] { forward.run(stream); }));
    streaming.weights += model.streamed() - before;
    streaming.forward_s += seconds.back();
    streaming.bytes_per_forward = static_cast<int64_t>(model.streamed_bytes());
    ++streaming.forwards;
  }
};

// Measures forwards on a CPU whose blocks are partly read from a file, from the disk and from the
// system's cache, beside forwards with all blocks in memory.
int bench_from_file(const Flags& flags, const NamedTransformer& named, const TransformerLoad& how,
                    int repeat) {
  const TransformerModel& described = *named.model;
  const StepShape step(flags, named);
  const ScratchFolder folder;
  const std::string path = folder.file("transformer.safetensors");
  write_random(path, bench_weights({}, described, step));
  const TensorFile file = TensorFile::open(path);
  Stream stream = bench_stream(flags, cpu_ops());
  Arena arena(kBenchArena);
  const int64_t tokens = *flags.integer("tokens");
  TransformerLoad whole = how;
  whole.resident = 0;
  const auto model = described.load(stream, file, how), all = described.load(stream, file, whole);
  Forward forward(stream, arena, *model, step, tokens);
  Forward exact(stream, arena, *all, step, tokens);
  forward.run(stream);
  exact.run(stream);
  FileForwards from_disk, from_cache, from_memory;
  for (int i = 0; i < repeat; ++i) {
    from_memory.time(stream, *all, exact);
    from_cache.time(stream, *model, forward);
    model->streamed();  // the blocks that are read in advance are there
    forget_pages(file);
    from_disk.time(stream, *model, forward);
  }
  const UploadForecast forecast =
      read_forecast(flags.real("device-host-gbs"), static_cast<int64_t>(model->streamed_bytes()),
                    described, file, how);
  const Json object{{"bench", "dit"},
                    {"config", named.name},
                    {"blocks", described.traits().blocks},
                    {"resident", how.resident},
                    {"tokens", tokens},
                    {"dtype", to_string(how.dtype)},
                    {"weights", to_string(how.weights)},
                    {"threads", stream.threads()},
                    {"isa", cpu_isa()},
                    {"weights_bytes", model->weights_bytes()},
                    {"all_weights_bytes", all->weights_bytes()},
                    {"same_bits", relative_l2(stream, forward.velocity(), exact.velocity()) == 0},
                    {"seconds_all_in_memory", median(from_memory.seconds)},
                    {"seconds_from_disk", median(from_disk.seconds)},
                    {"seconds_from_cache", median(from_cache.seconds)},
                    {"from_disk", to_json(forecast, from_disk.streaming)},
                    {"from_cache", to_json(forecast, from_cache.streaming)}};
  if (flags.on("json")) {
    std::printf("%s\n", object.dump().c_str());
  } else {
    std::printf(
        "%d of %d blocks in memory: forward %.3f s from disk, %.3f s from the cache, %.3f s "
        "with all in memory\n",
        how.resident, described.traits().blocks, median(from_disk.seconds),
        median(from_cache.seconds), median(from_memory.seconds));
    std::printf("disk:  %s\n", to_string(forecast, from_disk.streaming).c_str());
    std::printf("cache: %s\n", to_string(forecast, from_cache.streaming).c_str());
  }
  return object.boolean("same_bits") ? 0 : 1;
}

}  // namespace

int bench_dit(const Flags& flags, DType dtype, int repeat) {
  return bench_dit(flags, dtype, repeat, {});
}

int bench_dit(const Flags& flags, DType dtype, int repeat, const StoredWeights& stored) {
  const NamedTransformer named = transformer_of(flags, 60);
  const auto& described = named.model;
  const StepShape step(flags, named);
  const TransformerTraits& traits = described->traits();
  const int64_t tokens = *flags.integer("tokens"), d = traits.width, ffn = traits.ffn_columns;
  Stream stream = bench_stream(flags, metered_ops());
  const bool device = stream.queue() != nullptr;
  const uint64_t device_before = device ? device_bytes(stream.device()) : 0;
  const int resident = resident_of(flags, traits.blocks);
  const TransformerLoad how{.dtype = dtype,
                            .weights = weight_format(flags),
                            .attention = attention_format(flags),
                            .resident = resident};
  if (resident > 0 && !device) return bench_from_file(flags, named, how, repeat);
  if (device) reset_device_use_peak(stream.device());
  const std::unique_ptr<Transformer> model =
      described->load(stream, bench_weights(stored, *described, step), how);
  Json object{{"bench", "dit"},
              {"config", named.name},
              {"blocks", traits.blocks},
              {"tokens", tokens},
              {"text_rows", step.rows},
              {"as_generated", step.as_generated},
              {"forwards", step.branches},
              {"dtype", to_string(dtype)},
              {"threads", stream.threads()},
              {"isa", cpu_isa()},
              {"weights_bytes", model->weights_bytes()},
              {"load_peak_rss_bytes", process_bytes("VmHWM:")},
              {"loaded_rss_anon_bytes", process_bytes("RssAnon:")}};
  Arena arena(kBenchArena, stream.device());
  Forward forward(stream, arena, *model, step, tokens);
  reset_peak();
  forward.run(stream);  // makes every primitive and scratch buffer
  object["peak_rss_bytes"] = process_bytes("VmHWM:");
  if (device) {
    stream.sync();
    describe_memory(stream.device(),
                    planned_bytes(*described, tokens, model->loaded(), step, stream), device_before,
                    object);
  }
  Stream bare = bench_stream(flags, device ? cuda_ops() : cpu_ops());
  MachineLimits limits(bare, dtype, {{tokens, d, d, 6}, {tokens, d, ffn, 1}, {tokens, ffn, d, 1}});
  Timed timed;
  timed.streaming.bytes_per_forward = static_cast<int64_t>(model->streamed_bytes());
  timed.forecast =
      upload_forecast(flags.real("device-host-gbs"), timed.streaming.bytes_per_forward, &bare);
  time_forwards(stream, *model, forward, limits, repeat, timed);
  object["arena_bytes"] = arena.high_water();
  if (resident > 0) object["resident"] = resident;
  describe(timed, repeat, limits, stream.device(), object);
  compare_formats(flags, {stream, arena, *described, tokens, forward, stored, step, object}, how,
                  repeat);
  print_dit(flags, object, timed, limits);
  return 0;
}

}  // namespace weft
