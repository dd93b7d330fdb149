#include "models/vae_network.h"

#include "kernels/copy.h"

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

}  // namespace weft
