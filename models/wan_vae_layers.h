#pragma once
// The layers of Wan's VAE over channels-last chunks [F, H, W, C], and VaeStream, which runs a list
// of them chunk by chunk with what they remember. Rows may be a band of the picture: every
// convolution asks Halo for its neighbours' rows, and the attention asks the mixer.
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

// Where layers get their weights: `take` gives a tensor by name and shape, or an empty view where
// only the list is wanted; then nothing is packed and `stream` may be null.
struct VaeWeightSource {
  std::function<TensorView(const std::string&, std::initializer_list<int64_t>)> take;
  Stream* stream = nullptr;
  DType dtype = DType::kF32;
};

class VaeLayer {
 public:
  explicit VaeLayer(std::string name) : name_(std::move(name)) {}
  virtual ~VaeLayer() = default;

  const std::string& name() const { return name_; }
  virtual FrameShape output(const FrameShape& in, Chunk chunk) const = 0;
  virtual bool in_place() const { return false; }  // forward wants out to be in
  // The frames to remember between chunks, one entry per cached convolution.
  virtual std::vector<FrameShape> history(const FrameShape&) const { return {}; }
  // Arena bytes of forward, apart from in and out.
  virtual size_t workspace(const FrameShape&, Chunk, DType) const { return 0; }
  virtual void forward(Context& context, const TensorView& in, Chunk chunk,
                       std::span<const Tensor> history, const TensorView& out) const = 0;
  // On a device, the largest scratch of an op; `bands`: ranks that have a part of the rows each.
  virtual size_t scratch(const FrameShape&, DType, Bias, int64_t /*bands*/,
                         const DeviceTraits&) const {
    return kConvWorkspace;
  }
  virtual size_t weight_bytes() const = 0;

 private:
  std::string name_;
};

using VaeNetwork = std::vector<std::unique_ptr<VaeLayer>>;

// Each takes its tensors from `source` under `name`.
// Causal 3x3x3 convolution; `norm` (or "") is the channel norm with SiLU before it.
std::unique_ptr<VaeLayer> make_causal_conv(const VaeWeightSource& source, const std::string& name,
                                           const std::string& norm, int64_t in, int64_t out);
std::unique_ptr<VaeLayer> make_resnet(const VaeWeightSource& source, const std::string& name,
                                      int64_t in, int64_t out);
// One head over each frame's H * W pixels.
std::unique_ptr<VaeLayer> make_attention(const VaeWeightSource& source, const std::string& name,
                                         int64_t width);
enum class Resample : uint8_t { kSpatial, kSpatialAndTime };
std::unique_ptr<VaeLayer> make_upsample(const VaeWeightSource& source, const std::string& name,
                                        int64_t in, int64_t out, Resample kind);
std::unique_ptr<VaeLayer> make_downsample(const VaeWeightSource& source, const std::string& name,
                                          int64_t width, Resample kind);
// 1x1x1 convolution of which only the first `keep` output channels are computed.
std::unique_ptr<VaeLayer> make_pointwise(const VaeWeightSource& source, const std::string& name,
                                         int64_t in, int64_t out, int64_t keep);

// Arena bytes of one chunk, input and output buffers included, and bytes to remember.
// The order in which buffers live follows VaeStream: see there.
enum class VaeOrder : uint8_t {
  kGrowing,    // decoder: buffers are laid from the largest (last) down, each freed once consumed
  kShrinking,  // encoder: buffers are laid in order and kept until the chunk ends
};
// `chunks`: of the whole run; 1 counts the first chunk alone.
size_t vae_workspace_bytes(const VaeNetwork& network, VaeOrder order, FrameShape first,
                           FrameShape later, DType dtype, int64_t chunks = 2);
size_t vae_state_bytes(const VaeNetwork& network, FrameShape first, DType dtype);
size_t vae_scratch_bytes(const VaeNetwork& network, FrameShape later, DType dtype, Bias biases,
                         int64_t bands, const DeviceTraits& device);

// One run of a network over chunks. State is allocated once, here; all else is the arena's.
class VaeStream {
 public:
  // `first` and `later`: the input's shape in the first and in later chunks.
  VaeStream(const VaeNetwork& network, VaeOrder order, FrameShape first, FrameShape later,
            DType dtype, Device device);

  Chunk chunk() const { return chunks_ == 0 ? Chunk::kFirst : Chunk::kLater; }
  int64_t chunks() const { return chunks_; }  // done so far
  FrameShape input() const;                   // of the next chunk
  FrameShape output() const;

  // Runs one chunk: `fill` writes the input, `use` reads the output; both views are the arena's.
  using Access = std::function<void(const TensorView&)>;
  void run(Context& context, const Access& fill, const Access& use);

  // The state as views in a fixed order; saving is copying them, resuming is writing them back and
  // setting the count.
  std::vector<TensorView> state() const;
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
