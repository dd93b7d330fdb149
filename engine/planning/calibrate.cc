#include "engine/planning/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <type_traits>

#include "kernels/meter.h"
#include "kernels/transfer.h"

namespace weft {

std::vector<std::vector<int64_t>> decoder_kernels(const VaeModel& vae) {
  std::map<int64_t, std::vector<int64_t>> kernels;  // by width
  for (const TensorSpec& tensor : vae.tensors()) {
    const std::vector<int64_t>& shape = tensor.shape;
    if (tensor.name.starts_with("decoder.") && shape.size() >= 4 && shape[0] == shape[1] &&
        shape.back() == 3)
      kernels[shape[0]] = shape;
  }
  std::vector<std::vector<int64_t>> shapes;
  for (const auto& [width, shape] : kernels) shapes.push_back(shape);
  return shapes;
}

namespace {

// Values that are neither zero nor huge, because zeros draw less power.
Tensor filled(Stream& stream, DType dtype, std::span<const int64_t> shape) {
  constexpr int64_t kBlock = 1 << 14;  // repeats itself
  Tensor out(dtype, shape, stream.device());
  const TensorView all = out.view().reshape({out.count()});
  Tensor block(dtype, {std::min(kBlock, out.count())});
  uint32_t state = 12345;
  for (int64_t i = 0; i < block.count(); ++i) {
    state = state * 1664525u + 1013904223u;
    const float value = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
    if (dtype == DType::kF32)
      block.as<float>()[i] = value;
    else
      block.as<bf16>()[i] = to_bf16(value);
  }
  const Tensor source = on_device(stream, std::move(block));
  for (int64_t at = 0; at < all.count(); at += kBlock) {
    const int64_t count = std::min(kBlock, all.count() - at);
    copy(stream, source.view().slice(0, 0, count), all.slice(0, at, count));
  }
  stream.sync();
  return out;
}

// The sizes of whole samples.
struct SampleSizes {
  int64_t tokens;
  int64_t columns;        // at most so many
  int64_t height, width;  // of a decoder's picture, where it is the narrowest
};

// Ops of the sizes of a model.
class SampleOps {
 public:
  SampleOps(Stream stream, const SampleSizes& sizes, const SampledModel& of)
      : stream_(std::move(stream)),
        of_(of),
        sizes_(sizes),
        heads_(std::clamp<int64_t>(sizes.columns / of.model.head_dim, 1, of.model.heads)),
        kernels_(decoder_kernels(of.vae)) {}

  using Run = std::function<void()>;
  enum Op : int { kLinear, kAttention, kNorm, kRope, kPointwise, kCopy, kConv, kCount };
  // An op, ready to run on a share of the rows.
  Run prepared(int op, double share) {
    if (op == kConv) return convolutions(share);
    if (op == kLinear) return product(share);
    const int64_t tokens = rows_of(share), columns = heads_ * of_.model.head_dim;
    const auto rows = std::make_shared<Rows>();
    for (Tensor& tensor : rows->data) tensor = make(of_.dtype, {tokens, columns});
    rows->factors = make(DType::kF32, {columns});
    const auto by_head = [=, this](int i) {
      return rows->data[i].view().reshape({tokens, heads_, of_.model.head_dim});
    };
    switch (op) {
      case kAttention:
        return [=, this] {
          const KVSegment segment{.k = by_head(1), .v = by_head(1)};
          attention(stream_, {.q = by_head(0),
                              .segments = {&segment, 1},
                              .format = of_.attention,
                              .out = by_head(2)});
        };
      case kNorm:
        return [=, this] {
          modulated_layer_norm(stream_, rows->data[0], rows->factors, rows->factors, 1e-6f,
                               rows->data[2]);
        };
      case kRope: {
        const auto rope = std::make_shared<Rope>(on_device(
            stream_, make_rope({1, tokens / kRowUnit, kRowUnit}, {0, 0, 0}, of_.model.head_dim)));
        return [=, this] { apply_rope(stream_, by_head(0), *rope, 0, by_head(2)); };
      }
      case kPointwise:
        return [=, this] {
          gated_add(stream_, rows->data[0], rows->data[1], rows->factors, rows->data[2]);
        };
      default:
        return [=, this] { copy(stream_, rows->data[0], rows->data[2]); };
    }
  }

 private:
  static constexpr int64_t kRowUnit = 32;  // tokens are a multiple of it
  struct Rows {
    std::array<Tensor, 3> data;
    Tensor factors;
  };

  Tensor make(DType dtype, std::initializer_list<int64_t> shape) {
    return filled(stream_, dtype, {shape.begin(), shape.size()});
  }
  int64_t rows_of(double share) const {
    const auto units = std::llround(share * static_cast<double>(sizes_.tokens / kRowUnit));
    return std::max<int64_t>(units, 1) * kRowUnit;
  }

  Run product(double share) {
    const int64_t columns = heads_ * of_.model.head_dim,
                  wide = std::min(sizes_.columns, of_.model.ffn_columns);
    if (!weights_) {
      const Tensor weights = make(of_.dtype, {wide, columns});
      weights_ =
          std::make_shared<PackedLinear>(pack_linear(stream_, weights, {}, of_.dtype, of_.weights));
    }
    const auto x = std::make_shared<Tensor>(make(of_.dtype, {rows_of(share), columns})),
               out = std::make_shared<Tensor>(make(of_.dtype, {rows_of(share), wide}));
    return [=, this] { linear(stream_, *x, *weights_, LinearActivation::kNone, *out); };
  }

  // One of each width.
  Run convolutions(double share) {
    struct Sample {
      PackedConv packed;
      Tensor picture, drawn;
    };
    const auto samples = std::make_shared<std::vector<Sample>>();
    for (const std::vector<int64_t>& shape : kernels_) {
      const int64_t channels = shape[0];
      const double side = std::sqrt(share) * static_cast<double>(kernels_.front()[0]);
      const auto pixels = [&](int64_t of) {
        return std::max<int64_t>(std::llround(static_cast<double>(of) * side) / channels, 1);
      };
      const int64_t height = pixels(sizes_.height), width = pixels(sizes_.width);
      PackedConv packed =
          pack_conv(stream_, filled(stream_, of_.vae_dtype, shape), {}, of_.vae_dtype);
      Tensor picture = make(of_.vae_dtype, {packed.kernel()[0], height, width, channels}),
             drawn = make(of_.vae_dtype, {1, height, width, channels});
      samples->push_back({std::move(packed), std::move(picture), std::move(drawn)});
    }
    return [=, this] {
      for (const auto& [packed, picture, drawn] : *samples)
        conv3d(stream_, picture, packed,
               {.stride = {1, 1, 1}, .pad_front = 0, .pad_h = {1, 1}, .pad_w = {1, 1}}, drawn);
    };
  }

  Stream stream_;
  const SampledModel of_;
  const SampleSizes sizes_;
  const int64_t heads_;
  const std::vector<std::vector<int64_t>> kernels_;
  std::shared_ptr<PackedLinear> weights_;
};

constexpr double kMessageS = 30e-6;  // assumed, not measured: a thread's wake-up

// All ops, one after the other, as the ranks of a CPU run them.
class CpuSample {
 public:
  CpuSample(int threads, const SampledModel& of)
      : ops_(Stream::cpu(threads, Determinism::kFast, &metered_ops()),
             {.tokens = 768, .columns = 1536, .height = 60, .width = 104}, of) {
    for (int op = 0; op < SampleOps::kCount; ++op) runs_.push_back(ops_.prepared(op, 1));
  }
  void run() const {
    for (const SampleOps::Run& op : runs_) op();
  }

 private:
  SampleOps ops_;
  std::vector<SampleOps::Run> runs_;
};

}  // namespace

DeviceModel measure_device(int ranks, int threads, const SampledModel& of) {
  TimingMeter meter;
  const CpuSample sample(threads, of);
  std::vector<std::jthread> others;
  for (int rank = 1; rank < ranks; ++rank)
    others.emplace_back([&](const std::stop_token& stop) {
      for (const CpuSample beside(threads, of); !stop.stop_requested();) beside.run();
    });
  sample.run();  // warms up
  {
    const MeterScope scope(meter);
    for (int i = 0; i < 5; ++i) sample.run();
  }
  DeviceModel device = measured_device(meter);
  device.copy_bytes_per_s = device.bytes_per_s[static_cast<size_t>(OpFamily::kCopy)] / 2;
  device.message_s = kMessageS;
  return device;
}

namespace {

// Adds up the work of ops and lets the device run on.
struct WorkMeter final : Meter {
  Work work{};
  bool runs() const override { return true; }
  bool waits() const override { return false; }
  void op(const Work& seen, const std::function<void()>& run) override {
    work.family = seen.family;
    work.flop += seen.flop;
    work.bytes += seen.bytes;
    run();
  }
};

// Times so many runs of an op, all of which the device is given before the host waits. A run before
// them prepares what they use.
double time_op(const Stream& stream, const SampleOps::Run& run, int runs, TimingMeter& meter) {
  WorkMeter seen;
  {
    const MeterScope scope(seen);
    run();
  }
  stream.sync();
  seen.work.flop *= runs;
  seen.work.bytes *= runs;
  const double before_s = meter.total(seen.work.family).seconds;
  meter.op(seen.work, [&] {
    for (int i = 0; i < runs; ++i) run();
    stream.sync();
  });
  return meter.total(seen.work.family).seconds - before_s;
}

}  // namespace

DeviceModel measure_gpu(const Stream& stream, const SampledModel& of) {
  constexpr double kLeastS = 2e-3, kLeastShare = 1.0 / 128;  // shorter ops are mostly launches
  constexpr int kRuns = 5;
  SampleOps ops(stream.with(metered_ops()),
                {.tokens = kMostGpuRows, .columns = INT64_MAX, .height = 480, .width = 832}, of);
  TimingMeter meter;
  for (int op = 0; op < SampleOps::kCount; ++op) {
    TimingMeter brief;
    const double took = time_op(stream, ops.prepared(op, kLeastShare), 1, brief);
    const bool long_enough = took >= kLeastS;
    const double share = long_enough ? kLeastShare : std::min(1.0, kLeastShare * kLeastS / took);
    time_op(stream, ops.prepared(op, share), long_enough ? 1 : kRuns, meter);
  }
  DeviceModel device = measured_device(meter);
  device.message_s = kMessageS;
  return device;
}

double upload_rate(Stream& stream) {
  constexpr int64_t kBytes = int64_t{64} << 20;
  const PinnedMemory from(kBytes);
  const Tensor to(DType::kU8, {kBytes}, stream.device());
  std::vector<double> seconds;
  for (int i = 0; i < 5; ++i) {
    const auto begun = std::chrono::steady_clock::now();
    copy(stream, TensorView(from.data(), DType::kU8, {kBytes}), to);
    stream.sync();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
    seconds.push_back(took.count());
  }
  std::ranges::nth_element(seconds, seconds.begin() + 2);
  return static_cast<double>(kBytes) / seconds[2];
}

DeviceModel share_of(DeviceModel device, int ranks) {
  for (int i = 0; i < kOpFamilies; ++i) {
    device.flop_per_s[i] /= ranks;
    device.bytes_per_s[i] /= ranks;
  }
  device.copy_bytes_per_s /= ranks;
  return device;
}

DeviceModel slowest_of(std::span<const DeviceModel> devices) {
  DeviceModel slowest = devices.front();
  const auto take = [](double& rate, double other) {
    if (other > 0) rate = rate > 0 ? std::min(rate, other) : other;  // 0: it takes no time
  };
  for (const DeviceModel& device : devices) {
    for (int i = 0; i < kOpFamilies; ++i) {
      take(slowest.flop_per_s[i], device.flop_per_s[i]);
      take(slowest.bytes_per_s[i], device.bytes_per_s[i]);
    }
    take(slowest.copy_bytes_per_s, device.copy_bytes_per_s);
    slowest.message_s = std::max(slowest.message_s, device.message_s);
  }
  return slowest;
}

std::vector<DeviceModel> gathered(Communicator& world, const DeviceModel& own) {
  static_assert(std::is_trivially_copyable_v<DeviceModel>);
  Stream stream = Stream::cpu(1);
  std::vector<DeviceModel> all(world.size());
  all[world.rank()] = own;
  std::vector<TensorView> views;
  for (DeviceModel& one : all)
    views.emplace_back(&one, DType::kU8,
                       std::initializer_list<int64_t>{int64_t{sizeof(DeviceModel)}});
  world.all_gather_v(stream, {.topic = Topic::kCheck}, views[world.rank()], views);
  return all;
}

Link measure_link(Communicator& world, Stream& stream) {
  constexpr int kRounds = 5;
  constexpr int64_t kSmall = 8;
  // Links of GPUs carry a MiB in less time than a message takes to begin.
  const int64_t large = of_host(stream.device()) ? 1 << 20 : 32 << 20;
  const Tensor memory(DType::kU8, {large}, stream.device());
  // The seconds of a message in one direction, the least of some rounds.
  const auto seconds = [&](int peer, int64_t bytes) {
    const TensorView message = memory.view().slice(0, 0, bytes);
    double least = HUGE_VAL;
    for (int round = 0; round < kRounds; ++round) {
      const auto begun = std::chrono::steady_clock::now();
      const bool asks = world.rank() == 0;
      if (asks) world.send(stream, peer, {.topic = Topic::kCheck, .hop = 2 * round}, message);
      world.receive(stream, asks ? peer : 0, {.topic = Topic::kCheck, .hop = 2 * round + asks},
                    message);
      stream.sync();
      if (!asks) world.send(stream, 0, {.topic = Topic::kCheck, .hop = 2 * round + 1}, message);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
      least = std::min(least, taken.count() / 2);
    }
    return least;
  };
  std::array<double, 2> slowest{};  // of a small and of a large message
  for (int peer = 1; peer < world.size(); ++peer) {
    if (world.rank() != 0 && world.rank() != peer) continue;
    const double small = seconds(peer, kSmall), much = seconds(peer, large);
    slowest = {std::max(slowest[0], small), std::max(slowest[1], much)};
  }
  Stream host = Stream::cpu(1);
  world.broadcast(host, {}, TensorView(slowest.data(), DType::kF64, {2}), 0);
  const double between_s = std::max(slowest[1] - slowest[0], 1e-9);
  return {.latency_s = slowest[0], .bytes_per_s = static_cast<double>(large) / between_s};
}

std::string to_string(const DeviceModel& device) {
  std::string text;
  for (int i = 0; i < kOpFamilies; ++i) {
    char part[64];
    const char* name = to_string(static_cast<OpFamily>(i));
    if (device.flop_per_s[i] > 0)
      std::snprintf(part, sizeof part, "%s %.4g GFLOP/s", name, device.flop_per_s[i] * 1e-9);
    else
      std::snprintf(part, sizeof part, "%s %.3g GB/s", name, device.bytes_per_s[i] * 1e-9);
    text += (text.empty() ? "" : ", ") + std::string(part);
  }
  return text;
}

std::string to_string(const Link& link) {
  char text[64];
  if (link.bytes_per_s > 0)
    std::snprintf(text, sizeof text, "%.4g Gbit/s, %.3g ms", link.bytes_per_s * 8e-9,
                  link.latency_s * 1e3);
  else
    std::snprintf(text, sizeof text, "unlimited, %.3g ms", link.latency_s * 1e3);
  return text;
}

}  // namespace weft
