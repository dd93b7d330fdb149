#pragma once
// Encoder: turns a prompt, a picture or a sound into the rows that a transformer is conditioned on.
// EncoderModel is one that is known by its configuration alone. The traits of a kind of encoders
// say what it reads and what becomes of that.
#include <functional>
#include <memory>
#include <span>

#include "models/weights.h"
#include "parallel/context.h"

namespace weft {

struct EncoderTraits {
  int64_t columns = 0;                 // of a row
  int64_t heads = 0, ffn_columns = 0;  // what the width can be split into
};

// A text encoder reads the ids of one prompt. It writes the rows of the last out[0] of them to out
// [.., columns] f32. An id outside the vocabulary throws Error(kModel).
//
// Those that were trained with padding may end in hidden ids: a hidden row sees the rows that are
// not hidden, and no row sees it, itself included.
constexpr int32_t hidden_id(int32_t id) { return ~id; }
constexpr bool is_hidden(int32_t id) { return id < 0; }

struct TextEncoderTraits : EncoderTraits {
  using Input = std::span<const int32_t>;
  using Output = const TensorView&;

  // Returns the row of a prompt's ids that stands for the whole prompt; null where the encoder was
  // not trained to have one.
  std::function<int64_t(Input ids)> pooled_row{};
};

// An image encoder reads one picture [3, size, size] f32, normalised as it was trained. It writes
// the picture's rows to out [rows, columns] f32.
struct ImageEncoderTraits : EncoderTraits {
  using Input = const TensorView&;
  using Output = const TensorView&;

  int64_t size = 0;  // pixels per side of a picture
  int64_t rows = 0;  // of the result
};

// An audio encoder reads one sound: samples [n] f32 on the host as they were recorded, which it
// normalises as it was trained. It computes the hidden states and calls out(k, state) for k = 0 ...
// states - 1. A state [rows, columns] f32 is valid during its call. A sound that is too short for a
// row or longer than kMostEncodedSeconds throws Error(kMedia).
struct AudioEncoderTraits : EncoderTraits {
  using Input = const TensorView&;
  using Output = const std::function<void(int64_t k, const TensorView& state)>&;

  int64_t rate = 0;    // samples per second of the sounds that it reads
  int64_t hop = 0;     // samples from one row to the next
  int64_t window = 0;  // samples that a row sees before attention
  int64_t states = 0;  // hidden states: the input of each layer, and the last output

  // The rows of a hidden state of a sound with so many samples.
  int64_t rows(int64_t samples) const {
    return samples < window ? 0 : (samples - window) / hop + 1;
  }
};

// The longest sound that is encoded, in seconds. Every row attends to every other one.
inline constexpr int64_t kMostEncodedSeconds = 3600;

// The part of an encoder that one rank holds.
template <class Traits>
class Encoder {
 public:
  using Input = typename Traits::Input;
  using Output = typename Traits::Output;

  virtual ~Encoder() = default;
  virtual size_t bytes() const = 0;  // packed weights
  // Encodes as the traits say. If only a part of the width is loaded, the Context needs a Reducer
  // that sums over the parts.
  virtual void encode(Context& context, Input in, Output out) const = 0;
};

struct EncoderLoad {
  DType dtype = DType::kF32;
  WidthSlice width{};  // what is packed
  // The format of the blocks' matrices, which needs the whole width if it rounds to 8 bits.
  WeightFormat weights = WeightFormat::kCompute;
};

template <class Traits>
class EncoderModel : public CheckpointModel {
 public:
  const Traits& traits() const { return traits_; }
  // Packs the weights. The file of a text encoder must outlive it, because its embedding may stay
  // in the mapped file; that of another may be closed afterwards.
  virtual std::unique_ptr<Encoder<Traits>> load(Stream& stream, const TensorFile& file,
                                                const EncoderLoad& load) const = 0;
  // The same network, whose rows are its states after so many layers, side by side in this order; 0
  // is its input, and the state after all layers is normed. It reads hidden ids. Null where it
  // offers none. Throws Error(kUsage) for a layer that it has not.
  virtual std::shared_ptr<const EncoderModel> with_taps(std::span<const int> /*layers*/) const {
    return nullptr;
  }

 protected:
  explicit EncoderModel(Traits traits) : traits_(std::move(traits)) {}

 private:
  Traits traits_;
};

using TextEncoder = Encoder<TextEncoderTraits>;
using TextEncoderModel = EncoderModel<TextEncoderTraits>;
using ImageEncoder = Encoder<ImageEncoderTraits>;
using ImageEncoderModel = EncoderModel<ImageEncoderTraits>;
using AudioEncoder = Encoder<AudioEncoderTraits>;
using AudioEncoderModel = EncoderModel<AudioEncoderTraits>;

}  // namespace weft
