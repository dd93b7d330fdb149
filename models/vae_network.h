#pragma once
// VaeNetwork: the encoder or the decoder of a VAE as a list of layers, which work on channels-last
// chunks [F, H, W, C]. VaeState runs such a list chunk by chunk and holds its history. The rows may
// be a band of the picture: every convolution gets its neighbours' rows through Halo, and the
// attention uses the mixer.
#include <array>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/conv.h"
#include "kernels/device_plan.h"
#include "parallel/context.h"

namespace weft {

struct FrameShape {
  int64_t frames = 0, height = 0, width = 0, channels = 0;
  size_t bytes(DType dtype) const {
    return static_cast<size_t>(frames * height * width * channels) * size_of(dtype);
  }
};

// The first chunk is a single picture: temporal resampling passes it through.
enum class Chunk : uint8_t { kFirst, kLater };

// The source of the layers' weights. `take` returns a tensor by name and shape. If only a list of
// tensors is needed it returns an empty view; then nothing is packed and `stream` may be null.
struct VaeWeightSource {
  std::function<TensorView(const std::string&, std::initializer_list<int64_t>)> take =
      [](const std::string&, std::initializer_list<int64_t>) { return TensorView(); };
  Stream* stream = nullptr;
  DType dtype = DType::kF32;
};

class VaeLayer {
 public:
  explicit VaeLayer(std::string name) : name_(std::move(name)) {}
  virtual ~VaeLayer() = default;

  const std::string& name() const { return name_; }
  virtual FrameShape output(const FrameShape& in, Chunk chunk) const = 0;
  virtual bool in_place() const { return false; }  // true: forward needs out to be the same as in
  // The frames to remember between chunks, one entry per cached convolution.
  virtual std::vector<FrameShape> history(const FrameShape&) const { return {}; }
  virtual void forward(Context& context, const TensorView& in, Chunk chunk,
                       std::span<const Tensor> history, const TensorView& out) const = 0;
  virtual size_t weight_bytes() const = 0;

 private:
  std::string name_;
};

using VaeNetwork = std::vector<std::unique_ptr<VaeLayer>>;

// Building blocks of layers. Each takes its tensors, `name`.weight and `name`.bias, from `source`.
PackedConv pack_convolution(const VaeWeightSource& source, const std::string& name,
                            std::initializer_list<int64_t> shape);
// Packs the first `keep` outputs of a convolution over single pixels, which is a linear layer.
PackedLinear pack_pointwise(const VaeWeightSource& source, const std::string& name,
                            std::initializer_list<int64_t> shape, int64_t keep);
Tensor take_vector(const VaeWeightSource& source, const std::string& name,
                   std::initializer_list<int64_t> shape);
// Makes a layer of pack_pointwise.
std::unique_ptr<VaeLayer> make_pointwise(const VaeWeightSource& source, const std::string& name,
                                         std::initializer_list<int64_t> shape, int64_t keep);

FrameShape with_channels(FrameShape shape, int64_t channels);

// The zeros that a convolution sees around the picture.
struct VaeBorder {
  int64_t above = 1, below = 1, left = 1, right = 1;
};
// Applies a convolution. Rows beyond x come from the neighbouring bands; without neighbours they
// are zeros.
void convolve(Context& context, const TensorView& x, const PackedConv& conv,
              const VaeBorder& border, std::array<int64_t, 3> stride, const TensorView& out);

// The order in which VaeState allocates the layers' buffers.
enum class VaeOrder : uint8_t {
  kGrowing,    // decoder: from the last and largest buffer to the first; each is freed after use
  kShrinking,  // encoder: from the first to the last; all are kept until the chunk ends
};
// Runs a network over chunks. The history is allocated once, here; all other buffers are the
// arena's.
class VaeState {
 public:
  // `first` and `later` are the shapes of the input in the first and in later chunks.
  VaeState(const VaeNetwork& network, VaeOrder order, FrameShape first, FrameShape later,
           DType dtype, Device device);

  Chunk chunk() const { return chunks_ == 0 ? Chunk::kFirst : Chunk::kLater; }
  int64_t chunks() const { return chunks_; }  // chunks done so far
  FrameShape input() const;                   // the next chunk's input
  FrameShape output() const;

  // Runs one chunk. `fill` writes the input and `use` reads the output; both views are in the
  // arena.
  using Access = std::function<void(const TensorView&)>;
  void run(Context& context, const Access& fill, const Access& use);

  // The history as views in a fixed order. To save it, copy the views. To resume, write them back
  // and call resume() with the number of chunks done.
  std::vector<TensorView> views() const;
  void resume(int64_t chunks) { chunks_ = chunks; }
  void reset() { chunks_ = 0; }

 private:
  std::span<const Tensor> history(size_t layer) const;
  void growing(Context& context, size_t layers, const Access& fill, const TensorView& out);
  TensorView shrinking(Context& context, const Access& fill);

  const VaeNetwork& network_;
  VaeOrder order_;
  DType dtype_;
  std::vector<FrameShape> shapes_[2];  // per Chunk: the input of each layer, then the output
  std::vector<Tensor> history_;
  std::vector<size_t> first_history_;  // per layer, and the end
  int64_t chunks_ = 0;
};

}  // namespace weft
