#pragma once
// TextEncoder: turns a prompt's ids into the rows that a transformer is conditioned on.
// TextEncoderModel is one that is known by its configuration alone.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "models/weights.h"
#include "parallel/context.h"

namespace weft {

struct TextEncoderTraits {
  int64_t columns = 0;                 // of a row
  int64_t heads = 0, ffn_columns = 0;  // what the width can be split into
};

// The part of a text encoder that one rank holds.
class TextEncoder {
 public:
  virtual ~TextEncoder() = default;
  virtual size_t bytes() const = 0;  // packed weights
  // Writes the rows of the last out[0] of the ids of one prompt to out [.., columns] f32. If only a
  // part of the width is loaded, the Context needs a Reducer that sums over the parts. An id
  // outside the vocabulary throws Error(kModel).
  virtual void encode(Context& context, std::span<const int32_t> ids,
                      const TensorView& out) const = 0;
};

class TextEncoderModel : public CheckpointModel {
 public:
  const TextEncoderTraits& traits() const { return traits_; }
  // The row of a prompt's ids that stands for the whole prompt, or nullopt where the encoder was
  // not trained to have one.
  virtual std::optional<int64_t> pooled_row(std::span<const int32_t> /*ids*/) const {
    return std::nullopt;
  }

  // Packs the slice `width` of the weights in `dtype`, and the blocks' matrices in the format
  // `weights`, which needs the whole width if it rounds to 8 bits. `file` must outlive the encoder,
  // whose embedding may stay in the mapped file.
  virtual std::unique_ptr<TextEncoder> load(
      Stream& stream, const TensorFile& file, DType dtype, const WidthSlice& width,
      WeightFormat weights = WeightFormat::kCompute) const = 0;

 protected:
  explicit TextEncoderModel(const TextEncoderTraits& traits) : traits_(traits) {}

 private:
  TextEncoderTraits traits_;
};

// An encoder of another kind that is known by its configuration alone: its Traits, and its Part on
// one rank.
template <class Part, class Traits>
class EncoderModel : public CheckpointModel {
 public:
  const Traits& traits() const { return traits_; }

  // Packs the slice `width` of the weights in `dtype`. The file may be closed afterwards.
  virtual std::unique_ptr<Part> load(Stream& stream, const TensorFile& file, DType dtype,
                                     const WidthSlice& width) const = 0;

 protected:
  explicit EncoderModel(const Traits& traits) : traits_(traits) {}

 private:
  Traits traits_;
};

// A prompt that is longer than what the text encoder reads.
struct PromptCut {
  int64_t tokens = 0;  // of the whole prompt
  int64_t read = 0;    // by the text encoder
  std::string lost;    // the text after them, from the beginning of its first word
};

// A prompt as the text encoder reads it.
struct PromptTokens {
  std::vector<int32_t> ids;      // at most max_ids()
  std::optional<PromptCut> cut;  // nullopt where the ids hold all of the prompt
  // The prompt for the encoder that makes one vector of it; empty where the model reads none.
  std::vector<int32_t> pooled_ids{};
};

// Turns a prompt into the ids that a text encoder was trained on: cleaning, template, tokenizer.
class PromptTokenizer {
 public:
  virtual ~PromptTokenizer() = default;
  virtual int64_t max_ids() const = 0;
  virtual PromptTokens read(const std::string& prompt) const = 0;
  // The ids at the beginning of every prompt whose rows the transformer does not read: those of a
  // template.
  virtual int64_t unread_ids() const { return 0; }
  // The rows that a transformer was trained with for a prompt of `rows` rows, padding included.
  virtual int64_t padded_rows(int64_t rows) const = 0;
};

}  // namespace weft
