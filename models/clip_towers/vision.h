#pragma once
// CLIP's vision tower: a ViT (Dosovitskiy et al. 2021) whose rows condition Wan 2.1 on a picture.
#include "models/clip_towers/tower.h"
#include "models/encoder.h"

namespace weft {

struct ClipVisionConfig {
  EncoderBlocksConfig blocks;
  int64_t image_size = 224, patch_size = 14;

  int64_t patches() const { return image_size / patch_size * (image_size / patch_size); }
  int64_t rows() const { return patches() + 1; }  // the class row is the first

  // Reads a transformers config.json of model_type "clip_vision_model".
  static ClipVisionConfig from_json_file(const std::string& path);
  // Reads what the tensors of a file without a config tell, which must be those of a ViT-H: the
  // rest is as published.
  static ClipVisionConfig from_tensors(const TensorFile& file);
};

std::string to_string(const ClipVisionConfig& config);

// Returns whether the file holds such a tower, with the names of Hugging Face or of Wan's
// repository.
bool holds_clip_vision(const TensorNames& names);

// Every tensor of the tower, as Hugging Face names them, without "vision_model.".
std::vector<TensorSpec> clip_vision_tensors(const ClipVisionConfig& config);

class ClipVision final : public ImageEncoder {
 public:
  // The last block and the norm after it are not used, and not read.
  static ClipVision load(const TensorFile& file, const ClipVisionConfig& config, Stream& stream,
                         const EncoderLoad& load = {});

  // The rows are those that the last block would read (hidden_states[-2]), without a final norm.
  void encode(Context& context, const TensorView& pixels, const TensorView& out) const override;
  size_t bytes() const override;

 private:
  ClipVisionConfig config_;
  PackedLinear patch_embedding_;  // [D, 3 * patch_size^2] f32
  Tensor class_embedding_;        // [D] f32
  Tensor positions_;              // [rows, D] f32
  NormWeights pre_norm_;
  EncoderBlocks blocks_;
};

// A CLIP vision tower by its configuration.
std::unique_ptr<ImageEncoderModel> make_clip_vision_model(const ClipVisionConfig& config);

}  // namespace weft
