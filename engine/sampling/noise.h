#pragma once
// Noise: standard normal values that depend on an element's position, not on the rank that draws
// it.
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/tensor.h"

namespace weft {

enum class Rng : uint8_t {
  kPortable,  // counter-based: any rank draws its own slice, the same on every device
  kTorchCpu,  // the values of torch.randn on a CPU in f32, for parity with diffusers
  kCount,
};

std::string_view to_string(Rng rng);
Rng rng_from_name(std::string_view name);  // Error(kUsage) listing the names

// The third counter word of `portable` numbers the draws of a request.
constexpr uint32_t kStreamInit = 0;
constexpr uint32_t kStreamOrder = 0x30000000u;  // of a pool's frames (noise_pool.h)

// Makes four normals from one Philox4x32-10 block by Box-Muller (words 0, 1 and words 2, 3). It
// uses only IEEE add, subtract, multiply, divide and square root in f32, each rounded separately.
// So the bits are the same on every device and at every optimisation level that keeps IEEE
// semantics.
std::array<float, 4> normals_of_segment(uint64_t seed, uint32_t element_block, uint32_t frame,
                                        uint32_t stream);

// The functions that normals_of_segment uses, exposed for their error tests.
float portable_log(uint32_t bits);  // ln(u), u = (bits + 1/2) 2^-32 rounded to f32
void portable_sincos(uint32_t bits, float* sine, float* cosine);  // angle 2 pi bits 2^-32

// A noise tensor [C, F, H, W] of which every rank can draw its own part.
class NoiseField {
 public:
  // `portable` noise does not depend on the number of frames; shape[1] only has to cover the frames
  // that fill() is called for.
  NoiseField(Rng rng, uint64_t seed, std::array<int64_t, 4> shape, uint32_t stream = kStreamInit);

  // Fills out [C, f, h, w] f32, of any strides, with the sub-block at (frame, y, x) of the field.
  void fill(const TensorView& out, int64_t frame = 0, int64_t y = 0, int64_t x = 0) const;

 private:
  Rng rng_;
  uint64_t seed_;
  std::array<int64_t, 4> shape_;
  uint32_t stream_;
  std::vector<float> drawn_;  // torch-cpu: the whole field, because torch draws it serially
};

// The values of torch.randn(count) on a CPU generator with this seed (only its low 32 bits matter).
std::vector<float> torch_cpu_randn(uint64_t seed, int64_t count);

}  // namespace weft
