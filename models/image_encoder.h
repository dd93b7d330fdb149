#pragma once
// ImageEncoder: turns a picture into the rows that a transformer is conditioned on.
#include <memory>
#include <vector>

#include "models/text_encoder.h"

namespace weft {

struct ImageEncoderTraits {
  int64_t size = 0;                    // pixels per side of a picture
  int64_t rows = 0, columns = 0;       // of the result
  int64_t heads = 0, ffn_columns = 0;  // what the width can be split into

  // The ranks that share a text encoder's width share this one's in the same way.
  TextEncoderTraits split() const { return {columns, heads, ffn_columns}; }
};

// The part of an image encoder that one rank holds.
class ImageEncoder {
 public:
  virtual ~ImageEncoder() = default;
  virtual size_t bytes() const = 0;  // packed weights
  // Writes the rows of one picture to out [rows, columns] f32. `pixels` [3, size, size] f32 are
  // normalised as the encoder was trained. If only a part of the width is loaded, the Context needs
  // a Reducer that sums over the parts.
  virtual void encode(Context& context, const TensorView& pixels, const TensorView& out) const = 0;
};

using ImageEncoderModel = EncoderModel<ImageEncoder, ImageEncoderTraits>;

}  // namespace weft
