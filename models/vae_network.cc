#include "models/vae_network.h"

#include <algorithm>

#include "kernels/copy.h"
#include "kernels/pointwise.h"

namespace weft {

namespace {

std::vector<FrameShape> chain_shapes(const VaeNetwork& network, FrameShape shape, Chunk chunk) {
  std::vector<FrameShape> shapes{shape};
  for (const auto& layer : network) shapes.push_back(shape = layer->output(shape, chunk));
  return shapes;
}

TensorView alloc(Context& context, DType dtype, const FrameShape& shape) {
  return context.arena.alloc(dtype, {shape.frames, shape.height, shape.width, shape.channels});
}

class Pointwise final : public VaeLayer {
 public:
  Pointwise(const VaeWeightSource& source, const std::string& name,
            std::initializer_list<int64_t> shape, int64_t keep)
      : VaeLayer(name), keep_(keep), linear_(pack_pointwise(source, name, shape, keep)) {}

  FrameShape output(const FrameShape& in, Chunk) const override { return with_channels(in, keep_); }
  void forward(Context& context, const TensorView& in, Chunk, std::span<const Tensor>,
               const TensorView& out) const override {
    linear(context.stream, in, linear_, LinearActivation::kNone, out);
  }
  size_t weight_bytes() const override { return linear_.bytes(); }

 private:
  int64_t keep_;
  PackedLinear linear_;
};

// The pixels of a p x p cell become channels c p p + dw p + dh (column before row). `pixels` views
// a frame [C, H, W], and `cells` its cells [H / p, W / p, C p p], as [C, dw, dh, H / p, W / p].
TensorView pixels(const TensorView& frame, int64_t p) {
  return frame.reshape({frame[0], frame[1] / p, p, frame[2] / p, p}).permute({0, 4, 2, 1, 3});
}

TensorView cells(const TensorView& x, int64_t p) {
  return x.reshape({x[0], x[1], x[2] / (p * p), p, p}).permute({2, 3, 4, 0, 1});
}

}  // namespace

FrameShape with_channels(FrameShape shape, int64_t channels) {
  shape.channels = channels;
  return shape;
}

PackedConv pack_convolution(const VaeWeightSource& source, const std::string& name,
                            std::initializer_list<int64_t> shape) {
  const TensorView weight = source.take(name + ".weight", shape);
  const TensorView bias = source.take(name + ".bias", {*shape.begin()});
  if (!weight || !bias) return {};
  return pack_conv(*source.stream, weight, bias, source.dtype);
}

PackedLinear pack_pointwise(const VaeWeightSource& source, const std::string& name,
                            std::initializer_list<int64_t> shape, int64_t keep) {
  const int64_t out = shape.begin()[0], in = shape.begin()[1];
  const TensorView weight = source.take(name + ".weight", shape);
  const TensorView bias = source.take(name + ".bias", {out});
  if (!weight || !bias) return {};
  return pack_linear(*source.stream, weight.reshape({out, in}).slice(0, 0, keep),
                     bias.slice(0, 0, keep), source.dtype);
}

Tensor take_vector(const VaeWeightSource& source, const std::string& name,
                   std::initializer_list<int64_t> shape) {
  const TensorView view = source.take(name, shape);
  if (!view) return {};
  Tensor gamma(DType::kF32, {view.count()}, source.stream->device());
  copy(*source.stream, view.reshape({view.count()}), gamma);
  return gamma;
}

void convolve(Context& context, const TensorView& x, const PackedConv& conv,
              const VaeBorder& border, std::array<int64_t, 3> stride, const TensorView& out) {
  const Arena::Scope scope(context.arena);
  const HaloView halo = context.halo.exchange(context, x, 1, border.above, border.below);
  const ConvArgs args{.stride = stride,
                      .pad_front = 0,
                      .pad_h = {border.above - halo.before, border.below - halo.after},
                      .pad_w = {border.left, border.right}};
  conv3d(context.stream, halo.view, conv, args, out);
}

std::unique_ptr<VaeLayer> make_pointwise(const VaeWeightSource& source, const std::string& name,
                                         std::initializer_list<int64_t> shape, int64_t keep) {
  return std::make_unique<Pointwise>(source, name, shape, keep);
}

VaeState::VaeState(const VaeNetwork& network, VaeOrder order, FrameShape first, FrameShape later,
                   DType dtype, Device device)
    : network_(network), order_(order), dtype_(dtype) {
  CHECK(!network.empty());
  shapes_[0] = chain_shapes(network, first, Chunk::kFirst);
  shapes_[1] = chain_shapes(network, later, Chunk::kLater);
  for (size_t i = 0; i < network.size(); ++i) {
    first_history_.push_back(history_.size());
    for (const FrameShape& shape : network[i]->history(shapes_[0][i]))
      history_.emplace_back(
          dtype,
          std::initializer_list<int64_t>{shape.frames, shape.height, shape.width, shape.channels},
          device);
  }
  first_history_.push_back(history_.size());
}

FrameShape VaeState::input() const { return shapes_[static_cast<int>(chunk())].front(); }
FrameShape VaeState::output() const { return shapes_[static_cast<int>(chunk())].back(); }

std::span<const Tensor> VaeState::history(size_t layer) const {
  return std::span<const Tensor>(history_).subspan(
      first_history_[layer], first_history_[layer + 1] - first_history_[layer]);
}

void VaeState::run(Context& context, const Access& fill, const Access& use) {
  const Arena::Scope scope(context.arena);
  if (chunks_ == 0)  // the history of the first chunk is zeros
    for (const Tensor& frames : history_) fill_zero(context.stream, frames);
  if (order_ == VaeOrder::kGrowing) {
    const TensorView out = alloc(context, dtype_, output());
    growing(context, network_.size(), fill, out);
    use(out);
  } else {
    use(shrinking(context, fill));
  }
  ++chunks_;
}

// Runs the first `layers` layers and writes their result to `out`. The input of the last of them is
// allocated after `out` and freed when this call ends, so a small early buffer never keeps memory
// below a large late one.
void VaeState::growing(Context& context, size_t layers, const Access& fill, const TensorView& out) {
  const size_t last = layers - 1;
  const VaeLayer& layer = *network_[last];
  const Arena::Scope scope(context.arena);
  const TensorView in =
      layer.in_place() ? out : alloc(context, dtype_, shapes_[static_cast<int>(chunk())][last]);
  if (last == 0)
    fill(in);
  else
    growing(context, last, fill, in);
  layer.forward(context, in, chunk(), history(last), out);
  context.observe(layer.name().c_str(), out, static_cast<int>(chunks_));
}

TensorView VaeState::shrinking(Context& context, const Access& fill) {
  const std::vector<FrameShape>& shapes = shapes_[static_cast<int>(chunk())];
  TensorView x = alloc(context, dtype_, shapes[0]);
  fill(x);
  for (size_t i = 0; i < network_.size(); ++i) {
    const VaeLayer& layer = *network_[i];
    const TensorView out = layer.in_place() ? x : alloc(context, dtype_, shapes[i + 1]);
    layer.forward(context, x, chunk(), history(i), out);
    context.observe(layer.name().c_str(), out, static_cast<int>(chunks_));
    x = out;
  }
  return x;
}

std::vector<TensorView> VaeState::views() const { return {history_.begin(), history_.end()}; }

std::vector<TensorSpec> VaeDesign::tensors() const {
  std::vector<TensorSpec> tensors;
  const VaeWeightSource source{
      .take = [&](const std::string& name, std::initializer_list<int64_t> shape) {
        tensors.push_back({name, shape});
        return TensorView();
      }};
  encoder(source);
  decoder(source);
  return tensors;
}

FrameShape VaeDesign::encoder_input(int64_t h, int64_t w, Chunk chunk) const {
  const int64_t scale = traits.spatial_factor / patch;
  return {chunk == Chunk::kFirst ? 1 : traits.temporal_factor, h * scale, w * scale,
          3 * patch * patch};
}

NetworkVae::NetworkVae(VaeDesign design, const TensorFile& file, Stream& stream, DType dtype,
                       VaeParts parts)
    : design_(std::move(design)), dtype_(dtype), device_(stream.device()) {
  const auto spelled = [&](const std::string& name) {
    return design_.spelled ? design_.spelled(file, name) : name;
  };
  WeightBinder binder(file, "vae", spelled);
  for (const TensorSpec& tensor : design_.tensors()) binder.take(tensor.name, tensor.shape);
  binder.finish();
  std::vector<TensorView> taken;
  const VaeWeightSource source{
      .take =
          [&](const std::string& name, std::initializer_list<int64_t> shape) {
            return taken.emplace_back(file.view(spelled(name))).reshape(shape);
          },
      .stream = &stream,
      .dtype = dtype};
  if (parts != VaeParts::kDecoder) encoder_ = design_.encoder(source);
  if (parts != VaeParts::kEncoder) decoder_ = design_.decoder(source);
  for (const TensorView& view : taken) file.drop_pages(view);
}

size_t NetworkVae::bytes() const {
  size_t total = 0;
  for (const VaeNetwork* network : {&encoder_, &decoder_})
    for (const auto& layer : *network) total += layer->weight_bytes();
  return total;
}

namespace {

// Writes change(x, scale of its channel) of every value of x [C, ..] to `out`.
template <class Change>
void change_channels(const std::vector<LatentScale>& scales, const TensorView& x,
                     const TensorView& out, const Change& change) {
  const auto channels = std::ssize(scales);
  CHECK(x[0] == channels && x.contiguous() && out.contiguous() && x.count() == out.count(),
        x.to_string_shape(), out.to_string_shape());
  for (int64_t c = 0, n = x.count() / channels; c < channels; ++c)
    for (int64_t i = c * n; i < (c + 1) * n; ++i)
      out.as<float>()[i] = change(x.as<float>()[i], scales[c]);
}

}  // namespace

void NetworkVae::denormalize(const TensorView& latents, const TensorView& out) const {
  change_channels(design_.scales, latents, out, [](float x, const LatentScale& scale) {
    return x / scale.divisor * scale.factor + scale.shift;
  });
}

void NetworkVae::normalize(const TensorView& mean, const TensorView& out) const {
  change_channels(design_.scales, mean, out, [](float x, const LatentScale& scale) {
    return (x - scale.shift) / scale.factor * scale.divisor;
  });
}

std::unique_ptr<VaeDecoder> NetworkVae::decoder(int64_t h, int64_t w) const {
  return std::make_unique<NetworkVaeDecoder>(*this, h, w);
}

std::unique_ptr<VaeEncoder> NetworkVae::encoder(int64_t h, int64_t w) const {
  return std::make_unique<NetworkVaeEncoder>(*this, h, w);
}

NetworkVaeDecoder::NetworkVaeDecoder(const NetworkVae& vae, int64_t h, int64_t w)
    : design_(vae.design_),
      state_(vae.decoder_, VaeOrder::kGrowing, design_.decoder_input(h, w),
             design_.decoder_input(h, w), vae.dtype_, vae.device_) {}

void NetworkVaeDecoder::decode_chunk(Context& context, const TensorView& latent,
                                     const TensorView& frames) {
  CHECK(frames.rank == 4 && frames[0] == next_frames() && frames.contiguous(),
        frames.to_string_shape());
  state_.run(
      context,
      [&](const TensorView& in) {
        copy(context.stream, latent.permute({1, 2, 0}), in.select(0, 0));
      },
      [&](const TensorView& out) {
        for (int64_t f = 0; f < out[0]; ++f)
          copy(context.stream, cells(out.select(0, f), design_.patch),
               pixels(frames.select(0, f), design_.patch));
      });
  if (design_.clamps) clamp(context.stream, frames, -1, 1, frames);
}

NetworkVaeEncoder::NetworkVaeEncoder(const NetworkVae& vae, int64_t h, int64_t w)
    : design_(vae.design_),
      state_(vae.encoder_, VaeOrder::kShrinking, design_.encoder_input(h, w, Chunk::kFirst),
             design_.encoder_input(h, w, Chunk::kLater), vae.dtype_, vae.device_) {}

void NetworkVaeEncoder::encode_chunk(Context& context, const TensorView& frames,
                                     const TensorView& mean) {
  CHECK(frames.rank == 4 && frames[0] == next_frames() && frames.contiguous(),
        frames.to_string_shape());
  state_.run(
      context,
      [&](const TensorView& in) {
        for (int64_t f = 0; f < in[0]; ++f)
          copy(context.stream, pixels(frames.select(0, f), design_.patch),
               cells(in.select(0, f), design_.patch));
      },
      [&](const TensorView& out) {  // may also hold the log-variance, after the mean
        copy(context.stream, out.select(0, 0).slice(2, 0, mean[0]), mean.permute({1, 2, 0}));
      });
}

}  // namespace weft
