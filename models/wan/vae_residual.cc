#include "models/wan/vae_residual.h"

#include "kernels/copy.h"
#include "kernels/pointwise.h"

namespace weft {

namespace {

// The pixels of a frame [H, W, C] that lie at (row, column) of their cell, as [H / p, W / p, C].
TensorView pixels_at(const TensorView& frame, int64_t p, int64_t row, int64_t column) {
  return frame.reshape({frame[0] / p, p, frame[1] / p, p, frame[2]})
      .select(1, row)
      .select(2, column);
}

// A place of a cell of frames and pixels, counted frame by frame and row by row.
struct Place {
  int64_t frame, row, column;
};
Place place_of(const VaeShortcut& shortcut, int64_t index) {
  const int64_t p = shortcut.pixels;
  return {index / (p * p), index / p % p, index % p};
}

// Adds the averages of in [F, H, W, C] to out [f, h, w, k C]. The cell of a channel is divided into
// k parts of equally many places; each part's mean is one of the k output channels. Where frames
// are missing they are zeros before the first.
void add_averages(Context& context, const VaeShortcut& shortcut, const TensorView& in,
                  const TensorView& out) {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t channels = in[3], parts = out[3] / channels, places = shortcut.cell() / parts;
  const int64_t missing = out[0] * shortcut.frames - in[0];
  const TensorView value = context.arena.alloc(DType::kF32, {out[1], out[2], channels});
  const TensorView mean = context.arena.alloc(DType::kF32, {out[1], out[2], channels});
  const TensorView whole = context.arena.alloc(out.dtype, {out[1], out[2], out[3]});
  for (int64_t frame = 0; frame < out[0]; ++frame) {
    for (int64_t part = 0; part < parts; ++part) {
      fill_zero(stream, mean);
      for (int64_t i = part * places; i < (part + 1) * places; ++i) {
        const Place place = place_of(shortcut, i);
        const int64_t from = frame * shortcut.frames + place.frame - missing;
        if (from < 0) continue;
        copy(stream, pixels_at(in.select(0, from), shortcut.pixels, place.row, place.column),
             value);
        axpby(stream, 1.0f / static_cast<float>(places), value, 1, mean, mean);
      }
      copy(stream, mean, whole.reshape({out[1], out[2], channels, parts}).select(3, part));
    }
    add(stream, out.select(0, frame), whole, out.select(0, frame));
  }
}

// Adds copies of in [F, H, W, k C] to out [f, h, w, C]. A cell is divided into k parts of equally
// many places; each part repeats one of the k input channels. The first chunk has only the last
// frame of its first cell.
void add_copies(Context& context, const VaeShortcut& shortcut, const TensorView& in,
                const TensorView& out) {
  Stream& stream = context.stream;
  const Arena::Scope scope(context.arena);
  const int64_t channels = out[3], parts = in[3] / channels, places = shortcut.cell() / parts;
  const int64_t dropped = in[0] * shortcut.frames - out[0], cell = shortcut.cell();
  const TensorView whole = context.arena.alloc(out.dtype, {out[1], out[2], channels});
  for (int64_t frame = 0; frame < out[0]; ++frame) {
    const int64_t at = frame + dropped;
    const TensorView from =
        in.select(0, at / shortcut.frames).reshape({in[1], in[2], channels, parts});
    for (int64_t i = 0; i < cell; ++i) {
      const Place place = place_of(shortcut, i);
      if (place.frame != at % shortcut.frames) continue;
      copy(stream, from.select(3, i / places),
           pixels_at(whole, shortcut.pixels, place.row, place.column));
    }
    add(stream, out.select(0, frame), whole, out.select(0, frame));
  }
}

class ResidualLevel final : public VaeLayer {
 public:
  ResidualLevel(const std::string& name, VaeNetwork layers, const VaeShortcut& shortcut)
      : VaeLayer(name), layers_(std::move(layers)), shortcut_(shortcut) {
    for (size_t i = 0; i < layers_.size(); ++i)
      if (!layers_[i]->in_place()) last_copying_ = static_cast<int>(i);
  }

  FrameShape output(const FrameShape& in, Chunk chunk) const override {
    FrameShape shape = in;
    for (const auto& layer : layers_) shape = layer->output(shape, chunk);
    return shape;
  }
  std::vector<FrameShape> history(const FrameShape& in) const override {
    std::vector<FrameShape> all;
    FrameShape shape = in;
    for (const auto& layer : layers_) {
      for (const FrameShape& remembered : layer->history(shape)) all.push_back(remembered);
      shape = layer->output(shape, Chunk::kFirst);
    }
    return all;
  }
  // The shortcut reads `in` after the layers, so those that work in place get a copy.
  void forward(Context& context, const TensorView& in, Chunk chunk, std::span<const Tensor> history,
               const TensorView& out) const override {
    {
      const Arena::Scope scope(context.arena);
      TensorView x = in;
      FrameShape shape{in[0], in[1], in[2], in[3]};
      for (size_t i = 0; i < layers_.size(); ++i) {
        const VaeLayer& layer = *layers_[i];
        const size_t remembered = layer.history(shape).size();
        shape = layer.output(shape, chunk);
        TensorView y = static_cast<int>(i) >= last_copying_ ? out : x;
        if (static_cast<int>(i) < last_copying_ && (!layer.in_place() || i == 0))
          y = context.arena.alloc(in.dtype,
                                  {shape.frames, shape.height, shape.width, shape.channels});
        if (layer.in_place() && y.data != x.data) {
          copy(context.stream, x, y);
          x = y;
        }
        layer.forward(context, x, chunk, history.first(remembered), y);
        history = history.subspan(remembered);
        x = y;
      }
    }
    if (shortcut_.way == VaeShortcut::Way::kDown)
      add_averages(context, shortcut_, in, out);
    else
      add_copies(context, shortcut_, in, out);
  }
  size_t weight_bytes() const override {
    size_t total = 0;
    for (const auto& layer : layers_) total += layer->weight_bytes();
    return total;
  }

 private:
  VaeNetwork layers_;
  VaeShortcut shortcut_;
  int last_copying_ = 0;  // the last layer that does not work in place; from it on, x is the output
};

}  // namespace

std::unique_ptr<VaeLayer> make_residual_level(const std::string& name, VaeNetwork layers,
                                              const VaeShortcut& shortcut) {
  return std::make_unique<ResidualLevel>(name, std::move(layers), shortcut);
}

}  // namespace weft
