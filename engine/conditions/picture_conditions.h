#pragma once
// PictureEncoder: makes what the pictures of a job condition its steps with, on every rank. The
// root alone reads their files.
#include <functional>
#include <vector>

#include "engine/job/job_facts.h"
#include "engine/parts/rank.h"
#include "models/transformer.h"

namespace weft {

// The conditions that come from a job's pictures. All f32 and empty where the model, or the job,
// has none.
struct PictureConditions {
  Tensor rows{};             // of an image encoder [n, columns], on the device
  Tensor channels{};         // given channels [given_channels, F, h, w], on the device
  Tensor frames{};           // the first latent frames [C, f, h, w], normalised, on the host
  int64_t given_frames = 0;  // their number, which stays when `frames` is released
  Tensor reference{};        // the latent of a picture that is shown [C, 1, h, w], on the device
  std::vector<Tensor> references{};  // those of reference pictures, like it but of any h and w

  Conditions conditions() const;
};

// Reads a picture as pixels [3, H, W] f32 in [-1, 1] of a clip of width x height, on the host.
Tensor clip_picture(const GivenPicture& picture, PictureFit fit, int64_t width, int64_t height);

// Gives a request without a size that of a clip which continues its picture, of about as many
// pixels as the model's default size, or that of its first reference picture.
Request with_clip_size(const Request& request, const ModelDirectory& model, int64_t multiple);

// Refuses pictures that a model does not read, and a request without those that it needs. `name` is
// the model's. Error(kUsage).
void validate_pictures(const Request& request, const ModelDirectory& model);
// Refuses a job whose pictures need an image encoder where there is none. `given_rows` are as
// below. Error(kModel).
void check_image_encoder(const Request& request, const ModelDirectory& model,
                         const TensorView& given_rows);
// The pictures of a request: the first frame's, the last one's, then the references.
std::vector<const GivenPicture*> pictures_of(const Request& request);

// The video is encoded by a VideoEncoder. The ranks that share the text encoder's width share the
// image encoder's; the root sends its rows, 4 bytes per value, to each of the others.
class PictureEncoder {
 public:
  // `given_rows` [n, columns] f32 on the host stand in for those of the image encoder, or are
  // empty. The job has pictures.
  PictureEncoder(const Rank& rank, const JobFacts& facts, const TensorView& given_rows = {});

  int pieces() const;    // of the work: pictures for the image encoder and latent frames
  bool encodes() const;  // this rank encodes rows of latents
  // All ranks call it; `done` is called with the number of pieces after each. Each encoder is
  // loaded when it is used, and released. Throws Error(kNonFinite).
  PictureConditions encode(const std::function<void(int pieces)>& done);
  // Conditions of the same shapes, of any values.
  PictureConditions blank() const;

 private:
  int64_t latent_frames() const;  // that are encoded
  Tensor new_rows() const;
  Tensor encode_rows(const std::function<void()>& next);
  void encode_rows(const TensorView& rows, const std::function<void()>& next);
  Frame fitted(const GivenPicture& picture) const;
  Tensor picture_here(int index, const std::array<int64_t, 2>& latent);
  Tensor encode_video(const std::function<void()>& next);
  std::vector<Tensor> encode_references(const std::function<void()>& next);

  Stream& stream_;
  Arena& arena_;
  Components& parts_;
  const RankPlacement& placement_;
  const JobFacts& facts_;
  const Request& request_;
  const TensorView given_rows_;
  const PictureConditioning& form_;
  const std::vector<const GivenPicture*> pictures_;
  const std::array<int64_t, 4> shape_;  // of the latent
};

}  // namespace weft
