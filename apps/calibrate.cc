#include "apps/calibrate.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <map>
#include <thread>

#include "kernels/meter.h"

namespace weft {
namespace {

struct Convolution {
  PackedConv packed;
  Tensor picture, drawn;
};

std::vector<Convolution> decoder_convolutions(Stream& stream, const VaeModel& vae, DType dtype) {
  constexpr int64_t kHeight = 60, kWidth = 104;  // where the decoder is the narrowest
  const std::vector<std::vector<int64_t>> kernels = decoder_kernels(vae);
  std::vector<Convolution> convolutions;
  for (const std::vector<int64_t>& shape : kernels) {
    Convolution& one = convolutions.emplace_back();
    one.packed = pack_conv(stream, Tensor(dtype, shape), {}, dtype);
    const int64_t channels = shape[0], narrowest = kernels.front()[0],
                  height = std::max<int64_t>(kHeight * narrowest / channels, 1),
                  width = std::max<int64_t>(kWidth * narrowest / channels, 1);
    one.picture = Tensor(dtype, {one.packed.kernel()[0], height, width, channels});
    one.drawn = Tensor(dtype, {1, height, width, channels});
  }
  return convolutions;
}

}  // namespace

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

// Ops of the sizes of a model, and what they compute with.
class SampleOps {
 public:
  SampleOps(int threads, const SampledModel& of)
      : stream_(Stream::cpu(threads, Determinism::kFast, &metered_ops())),
        head_dim_(of.model.head_dim),
        heads_(std::clamp<int64_t>(kMostColumns / head_dim_, 1, of.model.heads)),
        wide_(of.dtype, {kTokens, std::min(kMostColumns, of.model.ffn_columns)}),
        row_(DType::kF32, {heads_ * head_dim_}),
        packed_(pack_linear(stream_, Tensor(of.dtype, {wide_.view()[1], row_.view()[0]}), {},
                            of.dtype)),
        convolutions_(decoder_convolutions(stream_, of.vae, of.vae_dtype)),
        rope_(make_rope({1, 24, 32}, {0, 0, 0}, head_dim_)) {
    for (Tensor& rows : rows_) rows = Tensor(of.dtype, {kTokens, heads_ * head_dim_});
  }

  void run() {
    const TensorView x = rows_[0], y = rows_[1], out = rows_[2];
    const KVSegment segment{.k = by_head(x), .v = by_head(y)};
    linear(stream_, x, packed_, LinearActivation::kNone, wide_);
    attention(stream_, {.q = by_head(x), .segments = {&segment, 1}, .out = by_head(out)});
    for (const Convolution& one : convolutions_)
      conv3d(stream_, one.picture, one.packed,
             {.stride = {1, 1, 1}, .pad_front = 0, .pad_h = {1, 1}, .pad_w = {1, 1}}, one.drawn);
    modulated_layer_norm(stream_, x, row_, row_, 1e-6f, out);
    apply_rope(stream_, by_head(x), rope_, 0, by_head(out));
    gated_add(stream_, x, y, row_, out);
    copy(stream_, x, out);
  }

 private:
  static constexpr int64_t kTokens = 768, kMostColumns = 1536;

  TensorView by_head(const TensorView& rows) const {
    return rows.reshape({kTokens, heads_, head_dim_});
  }

  Stream stream_;
  const int64_t head_dim_, heads_;
  std::array<Tensor, 3> rows_;
  const Tensor wide_, row_;
  const PackedLinear packed_;
  const std::vector<Convolution> convolutions_;
  const Rope rope_;
};

}  // namespace

DeviceModel measure_device(int ranks, int threads, const SampledModel& of) {
  TimingMeter warm, meter;
  SampleOps ops(threads, of);
  std::vector<std::jthread> others;
  for (int rank = 1; rank < ranks; ++rank)
    others.emplace_back([&](const std::stop_token& stop) {
      for (SampleOps beside(threads, of); !stop.stop_requested();) beside.run();
    });
  {
    const MeterScope scope(warm);
    ops.run();
  }
  {
    const MeterScope scope(meter);
    for (int i = 0; i < 5; ++i) ops.run();
  }
  DeviceModel device = measured_device(meter);
  device.copy_bytes_per_s = device.bytes_per_s[static_cast<size_t>(OpFamily::kCopy)] / 2;
  device.message_s = 30e-6;  // assumed, not measured: a thread's wake-up
  return device;
}

Link measure_link(Communicator& world) {
  constexpr int kRounds = 5;
  constexpr int64_t kSmall = 8, kLarge = 1 << 20;
  Stream stream = Stream::cpu(1);
  const Tensor memory(DType::kU8, {kLarge});
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
      if (!asks) world.send(stream, 0, {.topic = Topic::kCheck, .hop = 2 * round + 1}, message);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - begun;
      least = std::min(least, taken.count() / 2);
    }
    return least;
  };
  std::array<double, 2> slowest{};  // of a small and of a large message
  for (int peer = 1; peer < world.size(); ++peer) {
    if (world.rank() != 0 && world.rank() != peer) continue;
    const double small = seconds(peer, kSmall), large = seconds(peer, kLarge);
    slowest = {std::max(slowest[0], small), std::max(slowest[1], large)};
  }
  world.broadcast(stream, {}, TensorView(slowest.data(), DType::kF64, {2}), 0);
  return {.latency_s = slowest[0], .bytes_per_s = kLarge / std::max(slowest[1] - slowest[0], 1e-9)};
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

}  // namespace weft
