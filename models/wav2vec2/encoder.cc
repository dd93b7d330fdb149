#include "models/wav2vec2/encoder.h"

#include <algorithm>
#include <cmath>

#include "kernels/copy.h"
#include "kernels/meter.h"
#include "kernels/norm.h"
#include "kernels/pointwise.h"
#include "kernels/transfer.h"

namespace weft {

namespace {

constexpr int64_t kRate = 16000;  // of the sounds that it was trained with
constexpr double kVarianceFloor = 1e-7;
constexpr float kConvEps = 1e-5f;
// The rows whose features are computed at a time. Convolutions see a short stretch of the sound,
// so the result does not depend on it, and their buffers do not grow with the sound.
constexpr int64_t kPieceRows = 256;

constexpr const char* kPositions = "encoder.pos_conv_embed.conv";

std::string conv_name(size_t layer) {
  return "feature_extractor.conv_layers." + std::to_string(layer);
}

// Returns how a file spells a tensor of the weight norm.
std::string spelled_in(const TensorFile& file, const std::string& name) {
  const std::string positions = std::string(kPositions) + ".";
  for (const auto& [old_name, new_name] :
       {std::pair{"weight_g", "parametrizations.weight.original0"},
        {"weight_v", "parametrizations.weight.original1"}})
    if (name == positions + old_name && file.contains(positions + new_name))
      return positions + new_name;
  return name;
}

CheckpointPart wav2vec2_tensors_of(const TensorFile& file, const Wav2Vec2Config& config,
                                   const WidthSlice& width) {
  WeightBinder binder(file, "audio_encoder",
                      [&](const std::string& name) { return spelled_in(file, name); });
  // The vector that stands for masked rows, and the heads of CTC and of pretraining.
  for (const char* name :
       {"masked_spec_embed", "lm_head.weight", "lm_head.bias", "quantizer.codevectors",
        "quantizer.weight_proj.weight", "quantizer.weight_proj.bias", "project_q.weight",
        "project_q.bias", "project_hid.weight", "project_hid.bias"})
    binder.ignore(name);
  CheckpointPart held(file);
  for (const TensorSpec& tensor : wav2vec2_tensors(config)) {
    binder.take(tensor.name, tensor.shape);
    held.add(tensor.name, spelled_in(file, tensor.name), encoder_part(config.blocks, tensor, width),
             tensor.shape);
  }
  binder.finish();
  return held;
}

// Returns the kernel [D, D / groups, 1, 1, K] of the convolution over rows, on the host. Its weight
// norm (Salimans & Kingma 2016) has one length per tap: g[k] v[.., k] / |v[.., k]|.
Tensor position_kernel(Stream& stream, const CheckpointPart& held, const Wav2Vec2Config& config) {
  Stream host = host_stream(stream);
  const std::string name = kPositions;
  const Tensor lengths = held.vector(host, name + ".weight_g");
  const Tensor directions = held.vector(host, name + ".weight_v");
  const int64_t d = config.blocks.width, taps = config.position_kernel;
  Tensor kernel(DType::kF32, {d, d / config.position_groups, 1, 1, taps}, host.device());
  if (is_dry_run(stream)) return kernel;
  const float* v = directions.as<float>();
  std::vector<double> scale(static_cast<size_t>(taps));
  for (int64_t i = 0; i < kernel.count(); ++i)
    scale[static_cast<size_t>(i % taps)] += static_cast<double>(v[i]) * v[i];
  for (int64_t k = 0; k < taps; ++k)
    scale[static_cast<size_t>(k)] =
        lengths.as<float>()[k] / std::sqrt(scale[static_cast<size_t>(k)]);
  for (int64_t i = 0; i < kernel.count(); ++i)
    kernel.as<float>()[i] = static_cast<float>(v[i] * scale[static_cast<size_t>(i % taps)]);
  return kernel;
}

// Zero mean and unit variance over a whole sound.
struct Normalization {
  double mean = 0, factor = 1;

  static Normalization of(const TensorView& samples) {
    const float* x = samples.as<float>();
    const int64_t n = samples[0];
    double sum = 0, squares = 0;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    const double mean = sum / static_cast<double>(n);
    for (int64_t i = 0; i < n; ++i) squares += (x[i] - mean) * (x[i] - mean);
    return {mean, 1 / std::sqrt(squares / static_cast<double>(n) + kVarianceFloor)};
  }
  float operator()(float x) const { return static_cast<float>((x - mean) * factor); }
};

class Wav2Vec2Model final : public AudioEncoderModel {
 public:
  explicit Wav2Vec2Model(const Wav2Vec2Config& config)
      : AudioEncoderModel({{.columns = config.blocks.width,
                            .heads = config.blocks.heads,
                            .ffn_columns = config.blocks.ffn},
                           kRate,
                           config.hop(),
                           config.window(),
                           config.blocks.layers + 1}),
        config_(config) {}

  std::vector<TensorSpec> tensors() const override { return wav2vec2_tensors(config_); }
  std::unique_ptr<AudioEncoder> load(Stream& stream, const TensorFile& file,
                                     const EncoderLoad& load) const override {
    return std::make_unique<Wav2Vec2>(Wav2Vec2::load(file, config_, stream, load));
  }

 private:
  Wav2Vec2Config config_;
};

}  // namespace

bool holds_wav2vec2(const TensorNames& names) {
  return names.contains("feature_projection.projection.weight") &&
         names.contains(conv_name(0) + ".conv.weight");
}

std::vector<TensorSpec> wav2vec2_tensors(const Wav2Vec2Config& config) {
  std::vector<TensorSpec> tensors;
  int64_t in = 1;
  for (size_t i = 0; i < config.convs.size(); ++i) {
    const auto [channels, kernel, stride] = config.convs[i];
    const std::string name = conv_name(i);
    tensors.push_back({name + ".conv.weight", {channels, in, kernel}});
    if (config.conv_bias) tensors.push_back({name + ".conv.bias", {channels}});
    add_norm(channels, name + ".layer_norm", tensors);
    in = channels;
  }
  const int64_t d = config.blocks.width;
  const std::string projection = "feature_projection.", positions = kPositions;
  add_norm(in, projection + "layer_norm", tensors);
  tensors.push_back({projection + "projection.weight", {d, in}});
  tensors.push_back({projection + "projection.bias", {d}});
  tensors.push_back({positions + ".weight_g", {1, 1, config.position_kernel}});
  tensors.push_back(
      {positions + ".weight_v", {d, d / config.position_groups, config.position_kernel}});
  tensors.push_back({positions + ".bias", {d}});
  add_encoder_blocks(config.blocks, tensors);
  add_norm(d, "encoder.layer_norm", tensors);
  return tensors;
}

Wav2Vec2 Wav2Vec2::load(const TensorFile& file, const Wav2Vec2Config& config, Stream& stream,
                        const EncoderLoad& load) {
  const DType dtype = load.dtype;
  const CheckpointPart held = wav2vec2_tensors_of(file, config, load.width);
  Wav2Vec2 encoder;
  encoder.config_ = config;
  encoder.dtype_ = dtype;
  for (size_t i = 0; i < config.convs.size(); ++i) {
    const std::string name = conv_name(i);
    const HeldWeight kernel = held.held(stream, name + ".conv.weight");
    const TensorView& k = kernel.view();
    const Tensor bias = config.conv_bias ? held.vector(stream, name + ".conv.bias") : Tensor();
    // The samples are read in f32. They are one channel, so this is cheap.
    encoder.convs_.push_back({.packed = pack_conv(stream, k.reshape({k[0], k[1], 1, 1, k[2]}), bias,
                                                  i == 0 ? DType::kF32 : dtype),
                              .norm = NormWeights::load(stream, held, name + ".layer_norm"),
                              .stride = config.convs[i].stride});
  }
  encoder.projection_norm_ = NormWeights::load(stream, held, "feature_projection.layer_norm");
  encoder.projection_ = held.linear(stream, "feature_projection.projection", dtype);
  {
    const Tensor kernel = position_kernel(stream, held, config);
    const Tensor bias = held.vector(stream, std::string(kPositions) + ".bias");
    const int64_t groups = config.position_groups, columns = config.blocks.width / groups;
    for (int64_t group = 0; group < groups; ++group)
      encoder.positions_.push_back(
          pack_conv(stream, kernel.view().slice(0, group * columns, columns),
                    bias.view().slice(0, group * columns, columns), DType::kF32));
  }
  encoder.blocks_ = EncoderBlocks::load(stream, held, config.blocks, config.blocks.layers, load);
  encoder.final_norm_ = NormWeights::load(stream, held, "encoder.layer_norm");
  return encoder;
}

void Wav2Vec2::encode(Context& context, const TensorView& samples, Output take) const {
  CHECK(samples.rank == 1 && samples.dtype == DType::kF32 && samples.contiguous(),
        samples.to_string_shape());
  constexpr int64_t kMost = kMostEncodedSeconds * kRate;
  if (samples[0] < config_.window() || samples[0] > kMost)
    throw Error(ErrorKind::kMedia,
                "the sound has " + std::to_string(samples[0]) + " samples at 16 kHz (legal: " +
                    std::to_string(config_.window()) + " to " + std::to_string(kMost) + ")");
  Stream& stream = context.stream;
  const int64_t n = (samples[0] - config_.window()) / config_.hop() + 1;
  const Arena::Scope scope(context.arena);
  const TensorView x = context.arena.alloc(DType::kF32, {n, config_.blocks.width});
  extract(context, samples, x);
  add_positions(context, x);
  take(0, x);
  const int64_t last = config_.blocks.layers;
  blocks_.run(context, Mask::kFull, "audio_encoder.block", x, [&](int64_t block) {
    if (block + 1 < last) take(block + 1, x);
  });
  layer_norm(stream, x, final_norm_.weight, final_norm_.bias, config_.blocks.eps, x);
  take(last, x);
}

void Wav2Vec2::extract(Context& context, const TensorView& samples, const TensorView& x) const {
  Stream& stream = context.stream;
  const Normalization normalized =
      is_dry_run(stream) ? Normalization() : Normalization::of(samples);
  const int64_t hop = config_.hop(), window = config_.window();
  for (int64_t row = 0; row < x[0]; row += kPieceRows) {
    const Arena::Scope scope(context.arena);
    const int64_t count = std::min(kPieceRows, x[0] - row);
    TensorView y = context.arena.alloc(DType::kF32, {1, 1, (count - 1) * hop + window, 1});
    make_on_host(stream, y, [&](const TensorView& to) {
      const float* from = samples.as<float>() + row * hop;
      std::transform(from, from + to.count(), to.as<float>(), normalized);
    });
    for (const Conv& conv : convs_) y = convolve(context, conv, y);
    const TensorView features = y.reshape({count, config_.features()});
    layer_norm(stream, features, projection_norm_.weight, projection_norm_.bias, config_.blocks.eps,
               features);
    linear(stream, features, projection_, LinearActivation::kNone, x.slice(0, row, count));
  }
}

TensorView Wav2Vec2::convolve(Context& context, const Conv& conv, const TensorView& in) const {
  Stream& stream = context.stream;
  const ConvArgs args{.stride = {1, 1, conv.stride}};
  const std::array<int64_t, 4> shape = conv_output_shape(in, conv.packed, args);
  const TensorView sums = context.arena.alloc(in.dtype, shape);
  conv3d(stream, in, conv.packed, args, sums);
  const TensorView out = in.dtype == dtype_ ? sums : context.arena.alloc(dtype_, shape);
  layer_norm(stream, sums, conv.norm.weight, conv.norm.bias, kConvEps, out);
  gelu_erf(stream, out, out);
  return out;
}

void Wav2Vec2::add_positions(Context& context, const TensorView& x) const {
  Stream& stream = context.stream;
  const int64_t n = x[0], columns = x[1] / config_.position_groups;
  const int64_t before = config_.position_kernel / 2;
  const ConvArgs args{.pad_w = {before, config_.position_kernel - 1 - before}};
  for (int64_t group = 0; group < config_.position_groups; ++group) {
    const Arena::Scope scope(context.arena);
    const TensorView in = context.arena.alloc(DType::kF32, {1, 1, n, columns}),
                     out = context.arena.alloc(DType::kF32, {1, 1, n, columns}),
                     part = x.slice(1, group * columns, columns);
    copy(stream, part, in.reshape({n, columns}));
    conv3d(stream, in, positions_[static_cast<size_t>(group)], args, out);
    gelu_erf(stream, out, out);
    add(stream, part, out.reshape({n, columns}), part);
  }
}

size_t Wav2Vec2::bytes() const {
  size_t total = blocks_.bytes() + projection_.bytes() +
                 bytes_of(std::tuple_cat(projection_norm_.weights(), final_norm_.weights()));
  for (const Conv& conv : convs_) total += conv.packed.bytes() + bytes_of(conv.weights());
  for (const PackedConv& group : positions_) total += group.bytes();
  return total;
}

std::unique_ptr<AudioEncoderModel> make_wav2vec2_model(const Wav2Vec2Config& config) {
  return std::make_unique<Wav2Vec2Model>(config);
}

}  // namespace weft
