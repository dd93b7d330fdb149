#pragma once
// CLIP's text tower: causal blocks over a prompt's tokens (CLIP-L conditions FLUX.1).
#include "models/clip_towers/tower.h"
#include "models/encoder.h"

namespace weft {

struct ClipTextConfig {
  EncoderBlocksConfig blocks;
  int64_t vocab_size = 0;
  int64_t positions = 77;  // the longest prompt
  int64_t end_id = 49407;

  // Reads a transformers config.json of model_type "clip_text_model".
  static ClipTextConfig from_json_file(const std::string& path);
  // Reads what the tensors of a file without a config tell, which must be those of CLIP-L or of a
  // tower of its kind: heads of 64, the quick GELU, a text's end as the last token.
  static ClipTextConfig from_tensors(const TensorFile& file);
};

std::string to_string(const ClipTextConfig& config);

// Returns whether the file holds such a tower.
bool holds_clip_text(const TensorNames& names);

// Every tensor of the tower, as Hugging Face names them, without "text_model.".
std::vector<TensorSpec> clip_text_tensors(const ClipTextConfig& config);

// The row of the final norm that stands for the whole prompt: that of the first end_id, row 0 where
// there is none. An end_id of 2 in a published config.json is an error that later versions still
// read as the largest id, which the end of a text has in CLIP's vocabulary.
int64_t clip_pooled_row(const ClipTextConfig& config, std::span<const int32_t> ids);

class ClipText final : public TextEncoder {
 public:
  // The token embedding stays in the file, so `file` must outlive the encoder.
  static ClipText load(const TensorFile& file, const ClipTextConfig& config, Stream& stream,
                       const EncoderLoad& load = {});

  // The rows are the final norm's. Padding after the end of the text changes no row before it.
  void encode(Context& context, std::span<const int32_t> ids, const TensorView& out) const override;
  size_t bytes() const override;

 private:
  ClipTextConfig config_;
  TableInFile embedding_;  // [vocab_size, D]
  Tensor positions_;       // [positions, D] f32
  EncoderBlocks blocks_;
  NormWeights final_norm_;
};

// A CLIP text tower by its configuration.
std::unique_ptr<TextEncoderModel> make_clip_text_model(const ClipTextConfig& config);

}  // namespace weft
