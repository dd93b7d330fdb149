#include "models/wan_s2v/audio.h"

#include <algorithm>
#include <cmath>

#include "kernels/transfer.h"

namespace weft {

namespace {

const std::string kName = "casual_audio_encoder.";  // as the checkpoint spells it
const std::string kConvolutions = kName + "encoder.";
constexpr float kEps = 1e-6f;  // of the norms between the convolutions
constexpr int64_t kKernel = 3;

PackedConv load_conv(Stream& stream, const CheckpointPart& tensors, const std::string& name) {
  const HeldWeight weight = tensors.held(stream, kConvolutions + name + ".conv.weight");
  const HeldWeight bias = tensors.held(stream, kConvolutions + name + ".conv.bias");
  const TensorView& w = weight.view();
  return pack_conv(stream, w.reshape({w[0], w[1], kKernel, 1, 1}), bias.view(), DType::kF32);
}

// The shares of the layers, which sum to one, repeated over the values of a feature.
Tensor load_mix(Stream& stream, const CheckpointPart& tensors, int64_t dim) {
  Tensor mix(DType::kF32, {kWanAudioLayers, dim}, stream.device());
  make_on_host(stream, mix, [&](const TensorView& to) {
    Stream host = host_stream(stream);
    const Tensor weights = tensors.vector(host, kName + "weights");
    std::array<double, kWanAudioLayers> shares{};
    double sum = 0;
    for (int64_t i = 0; i < kWanAudioLayers; ++i) {
      const double w = weights.as<float>()[i];
      sum += shares[i] = w / (1 + std::exp(-w));
    }
    for (int64_t i = 0; i < kWanAudioLayers; ++i)
      std::fill_n(to.as<float>() + i * dim, dim, static_cast<float>(shares[i] / sum));
  });
  return mix;
}

// Returns the convolution over time of x [n, F, places, C], in the arena.
TensorView convolved(Context& context, const PackedConv& conv, int64_t stride,
                     const TensorView& x) {
  const ConvArgs args{.stride = {stride, 1, 1}};
  const auto [n, frames, places, channels] = conv_output_shape(x, conv, args);
  const TensorView out = context.arena.alloc(DType::kF32, {n, frames, places, channels});
  conv3d(context.stream, x, conv, args, out);
  return out;
}

}  // namespace

std::vector<TensorSpec> wan_audio_tensors(const WanAudioSizes& sizes) {
  const int64_t d = sizes.width;
  std::vector<TensorSpec> list{{kName + "weights", {1, kWanAudioLayers, 1, 1}}};
  const auto add = [&](const std::string& name, int64_t out, std::vector<int64_t> rest) {
    rest.insert(rest.begin(), out);
    list.push_back({kConvolutions + name + ".weight", std::move(rest)});
    list.push_back({kConvolutions + name + ".bias", {out}});
  };
  add("conv1_local.conv", d / 4 * sizes.tokens, {sizes.dim, kKernel});
  add("conv1_global.conv", d / 4, {sizes.dim, kKernel});
  add("conv2.conv", d / 2, {d / 4, kKernel});
  add("conv3.conv", d, {d / 2, kKernel});
  add("final_linear", d, {d});
  list.push_back({kConvolutions + "padding_tokens", {1, 1, 1, d}});
  return list;
}

WanAudioEncoder WanAudioEncoder::load(Stream& stream, const CheckpointPart& tensors,
                                      const WanAudioSizes& sizes) {
  return {.sizes = sizes,
          .mix = load_mix(stream, tensors, sizes.dim),
          .local_1 = load_conv(stream, tensors, "conv1_local"),
          .global_1 = load_conv(stream, tensors, "conv1_global"),
          .conv_2 = load_conv(stream, tensors, "conv2"),
          .conv_3 = load_conv(stream, tensors, "conv3"),
          .final_linear = tensors.linear(stream, kConvolutions + "final_linear", DType::kF32),
          .padding = tensors.table(stream, kConvolutions + "padding_tokens")};
}

size_t WanAudioEncoder::bytes() const {
  size_t bytes = bytes_of(std::tie(mix, final_linear, padding));
  for (const PackedConv* conv : {&local_1, &global_1, &conv_2, &conv_3}) bytes += conv->bytes();
  return bytes;
}

WanAudioRows WanAudioEncoder::encode(Context& context, const TensorView& signal) const {
  Stream& stream = context.stream;
  Arena& arena = context.arena;
  const int64_t frames = signal[0], dim = sizes.dim, d = sizes.width;
  const WanAudioRows out{.tokens = arena.alloc(DType::kF32, {frames, sizes.tokens + 1, d}),
                         .global = arena.alloc(DType::kF32, {frames, d})};
  const Arena::Scope scope(arena);
  const TensorView layers = signal.reshape({frames * kWanAudioHeard, kWanAudioLayers, dim});
  const TensorView mixed = arena.alloc(DType::kF32, {frames * kWanAudioHeard, dim});
  fill_zero(stream, mixed);
  for (int64_t i = 0; i < kWanAudioLayers; ++i)
    gated_add(stream, mixed, layers.select(1, i), mix.view().select(0, i), mixed);
  const TensorView x = arena.alloc(DType::kF32, {kWanAudioHeard, frames, 1, dim});
  copy(stream, mixed.reshape({frames, kWanAudioHeard, 1, dim}).permute({1, 0, 2, 3}), x);

  // Frames and tokens are places of a picture, on which the convolutions over time work alike.
  const auto encode_with = [&](const PackedConv& first, int64_t places) {
    TensorView y = convolved(context, first, 1, x);
    y = y.reshape({y[0], frames, places, d / 4});
    for (const PackedConv* conv : {&conv_2, &conv_3}) {
      layer_norm(stream, y, {}, {}, kEps, y);
      silu(stream, y, y);
      y = convolved(context, *conv, 2, y);
    }
    layer_norm(stream, y, {}, {}, kEps, y);
    silu(stream, y, y);
    return y.reshape({frames, places, d});
  };
  const int64_t tokens = sizes.tokens;
  copy(stream, encode_with(local_1, tokens), out.tokens.slice(1, 0, tokens));
  for (int64_t frame = 0; frame < frames; ++frame)
    copy(stream, padding, out.tokens.select(0, frame).slice(0, tokens, 1));
  linear(stream, encode_with(global_1, 1).reshape({frames, d}), final_linear,
         LinearActivation::kNone, out.global);
  return out;
}

void wan_audio_signal(const WanAudioSizes& sizes, const TensorView& features,
                      const TensorView& rows) {
  const auto refuse = [](const std::string& what, int64_t value, int64_t legal) {
    throw Error(ErrorKind::kModel, "features of a sound: " + what + " is " + std::to_string(value) +
                                       " (legal: " + std::to_string(legal) + ")");
  };
  CHECK(rows.rank == 2 && rows[1] == sizes.signal_columns(), rows.to_string_shape());
  if (features.rank != 3) refuse("the number of dimensions", features.rank, 3);
  if (features[0] != kWanAudioLayers) refuse("the number of layers", features[0], kWanAudioLayers);
  if (features[1] != sizes.dim) refuse("the number of values", features[1], sizes.dim);
  const int64_t frames = rows[0], n = features[2];
  if (n != frames * kWanAudioStep) refuse("their number", n, frames * kWanAudioStep);
  // Before the first feature the sound is as it begins.
  Stream host = Stream::cpu(1);
  const TensorView by_time = features.permute({2, 0, 1});
  for (int64_t frame = 0; frame < frames; ++frame) {
    const TensorView heard =
        rows.select(0, frame).reshape({kWanAudioHeard, kWanAudioLayers, sizes.dim});
    const int64_t first = frame * kWanAudioStep - kWanAudioBefore;
    for (int64_t i = 0; i < kWanAudioHeard; ++i)
      copy(host, by_time.select(0, std::max<int64_t>(0, first + i)), heard.select(0, i));
  }
}

}  // namespace weft
