#pragma once
// PictureConditioning: what a model makes of a job's pictures.
#include <array>
#include <cstdint>

#include "kernels/tensor.h"

namespace weft {

// The use that a model makes of a job's pictures.
enum class PictureForm : uint8_t {
  kNone,  // it makes videos from text alone
  // A video that begins with the first picture (and ends with the last one) and is grey elsewhere
  // is encoded. The result, and a mask of the frames that are pictures, are given channels.
  kChannels,
  // The first latent frame is the first picture, encoded. Its tokens have timestep 0.
  kFirstFrame,
  // The video shows what is on the first picture, which is encoded (Conditions::reference).
  kReference,
  // Pictures of sizes of their own are encoded, and their rows stand beside the tokens'
  // (Conditions::references). None of them is a frame of the video.
  kReferences,
};

// The width and height to which a reference picture is resized, and those of the middle of it,
// which is what the model sees.
struct ReferenceSize {
  std::array<int64_t, 2> resized{}, cut{};
};

struct PictureConditioning {
  PictureForm form = PictureForm::kNone;
  // Pictures of a job: a first one, or a first and a last one. kReferences: any up to `most`.
  int least = 0, most = 0;
  int64_t given_channels = 0;  // that the transformers have (TransformerTraits::given_channels)
  // The width and height of the clip that continues a picture of width x height: of about its
  // shape, of about `area` pixels, both multiples of `multiple`.
  std::array<int64_t, 2> (*clip_size)(int64_t width, int64_t height, int64_t area,
                                      int64_t multiple) = nullptr;
  // kChannels: writes the given channels [given_channels, F, h, w] of a clip whose first `pictures`
  // of {first frame, last frame} are pictures. `encoded` [C, F, h, w] is the encoded video,
  // normalised. All f32 on the host.
  void (*give_channels)(int pictures, const TensorView& encoded, const TensorView& out) = nullptr;
  // kReferences: how a picture of width x height is brought to at most reference_area pixels, with
  // sides that are multiples of `multiple`, and the pictures that are refused.
  ReferenceSize (*reference_size)(int64_t width, int64_t height, int64_t area,
                                  int64_t multiple) = nullptr;
  int64_t reference_area = 0;
  int64_t least_side = 1;
  double most_aspect = 0;  // of the longer side to the shorter one

  bool reads_any() const { return form != PictureForm::kNone; }
};

}  // namespace weft
